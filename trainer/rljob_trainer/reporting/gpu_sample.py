"""What a step keeps of the GPUs of a large run: ranges over all of them, and by name those that stand out. Pure.

A record of each of 512 GPUs in each of 10,000 steps would be a gigabyte. Up to MOST_NAMED GPUs all are kept.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Final

from rljob_trainer.gpu_metrics import GpuSummary, GpuUse, Range

MOST_NAMED: Final = 16
"""GPUs of a step: two nodes of eight"""
OF_A_KIND: Final = 2
"""GPUs that are kept because of one measurement"""
WORST: Final[tuple[Callable[[GpuUse], float | None], ...]] = (
    lambda use: use.slowed or None,
    lambda use: use.temperature,
    lambda use: None if use.utilisation is None else -use.utilisation,
    lambda use: use.memory_bytes,
)
"""the higher, the more a GPU stands out"""


def sampled(gpus: Mapping[str, GpuUse]) -> tuple[Mapping[str, GpuUse], GpuSummary | None]:
    """Return the GPUs to keep, and the ranges over all; None: all are kept."""
    if len(gpus) <= MOST_NAMED:
        return gpus, None
    named = sorted(dict.fromkeys([*_faulty(gpus), *_extreme(gpus)]))
    return {gpu: gpus[gpu] for gpu in named}, summary(tuple(gpus.values()))


def summary(uses: Sequence[GpuUse]) -> GpuSummary:
    """Return the ranges over all GPUs."""
    return GpuSummary(
        gpus=len(uses),
        utilisation=_range([use.utilisation for use in uses]),
        memory_bytes=_range([use.memory_bytes for use in uses]),
        power_watts=_range([use.power_watts for use in uses]),
        temperature=_range([use.temperature for use in uses]),
        slowed=_range([use.slowed for use in uses]),
        xids=sum(len(use.xids) for use in uses),
        ecc_errors=sum(use.ecc_errors for use in uses),
    )


def _faulty(gpus: Mapping[str, GpuUse]) -> list[str]:
    """Return GPUs with errors, those with most first."""
    errors = {gpu: len(use.xids) + use.ecc_errors for gpu, use in gpus.items() if use.xids or use.ecc_errors}
    return sorted(errors, key=lambda gpu: -errors[gpu])[: MOST_NAMED - OF_A_KIND * len(WORST)]


def _extreme(gpus: Mapping[str, GpuUse]) -> Iterator[str]:
    for how_bad in WORST:
        values = {gpu: value for gpu, use in gpus.items() if (value := how_bad(use)) is not None}
        yield from sorted(values, key=lambda gpu: -values[gpu])[:OF_A_KIND]


def _range(values: Sequence[float | None]) -> Range | None:
    known = [value for value in values if value is not None]
    return Range(least=min(known), mean=fmean(known), most=max(known), number=len(known)) if known else None

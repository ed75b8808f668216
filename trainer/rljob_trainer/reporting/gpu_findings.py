"""Findings about GPUs: errors that their driver reports, at once, and clocks that stay low, from the steps. Pure."""

from collections.abc import Sequence
from statistics import fmean
from typing import Final

from rljob_api.control import Finding
from rljob_api.sections import Watch
from rljob_trainer.reporting.records import StepRecord
from rljob_trainer.reporting.watch_limits import Bounds

CLEANUP: Final = frozenset({45})
"""Xid errors that follow when a process is killed, as a stopped engine is"""
ECC: Final = "GpuMemoryError"


def xid_finding(gpu: str, bus: str, number: int) -> Finding | None:
    """Return the finding of an Xid error, named as the catalogue does; None: the error says nothing new."""
    if number in CLEANUP:
        return None
    from rljob_doctor.known import known_failure
    from rljob_doctor.scan import scan

    evidence = f"GPU {gpu} reported NVRM: Xid (PCI:{bus}): {number}"
    known = known_failure([scan("driver", evidence.encode())])
    assert known is not None, "the catalogue has an entry for all other numbers"
    return Finding(name=known.code, evidence=evidence, advice=f"{_sentence(known.title)} {known.remedy}.")


def ecc_finding(gpu: str, errors: int) -> Finding:
    """Return the finding of memory errors that could not be corrected."""
    from rljob_doctor.catalogue import catalogue

    entry = catalogue()[ECC]
    evidence = f"GPU {gpu} has {errors} new uncorrectable ECC error{'s' if errors != 1 else ''}"
    return Finding(name=ECC, evidence=evidence, advice=f"{_sentence(entry.title)} {entry.remedy[0]}.")


def throttled(steps: Sequence[StepRecord], limits: Watch, bounds: Bounds) -> Finding | None:
    """A GPU runs slowly because of heat or its power supply, and all others wait for it."""
    recent = steps[-limits.window :]
    if len(recent) < limits.window:
        return None
    slow = {gpu for step in recent for gpu, use in step.gpus.items() if use.hot or use.braked}
    always = sorted(gpu for gpu in slow if all(gpu in step.gpus for step in recent))
    slowed = {gpu: fmean(step.gpus[gpu].slowed for step in recent) for gpu in always}
    worst = max(slowed, key=lambda gpu: slowed[gpu], default=None)
    if worst is None or slowed[worst] <= bounds.slowed:
        return None
    uses = [step.gpus[worst] for step in recent]
    hottest = max((use.temperature for use in uses if use.temperature is not None), default=None)
    return Finding(
        name="GpuThrottled",
        evidence=f"GPU {worst} was slowed down in {slowed[worst]:.3g} of the readings of {len(recent)} steps to"
        f" {recent[-1].step}: by heat in {fmean(use.hot for use in uses):.3g}, by its power supply in"
        f" {fmean(use.braked for use in uses):.3g}"
        + (f"; it was up to {hottest:g} °C" if hottest is not None else "")
        + f"; limit {bounds.slowed:g}",
        advice="All other GPUs wait for the slowest. Check cooling and power of its node (`nvidia-smi -q -d"
        " PERFORMANCE`), or keep the job away from that node with scheduling.nodeSelector.",
    )


def _sentence(title: str) -> str:
    return f"{title[0].upper()}{title[1:]}."

"""Does a job fit into GPUs of a size, and if not, which one or two settings would make it fit? For `rljob plan --gpu`.

Only settings that change no result of the training are tried: how memory is shared out, kept or computed again.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rljob_api.errors import ManifestError
from rljob_api.reading.manifest import parse
from rljob_api.sections import Recompute, RLJob, Spec
from rljob_api.sizing import memory
from rljob_api.sizing.memory import Estimate
from rljob_api.sizing.misfits import misfits
from rljob_api.sizing.model_shape import Shape
from rljob_api.sizing.topology import topology

GIB = 2**30
CARDS: Mapping[str, float] = {
    "A10G": 22.5,
    "L4": 22.5,
    "RTX4090": 24.0,
    "A100-40": 40.0,
    "L40S": 45.0,
    "H100-80": 79.6,
    "A100-80": 80.0,
    "H200-141": 140.4,
    "B200-180": 179.0,
}
"""memory that `nvidia-smi` shows [GiB]"""
USABLE = 0.9
"""share of a card that is planned with: the rest is for CUDA, NCCL, graphs and what allocators lose"""
LARGEST = 1024.0
"""GiB of a card that is given as a number"""
NUMBER = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,2})?)(?:GiB|G)?")
DEGREES = (2, 4, 8)
MIN_TOKENS = 1024
"""of a micro-batch that is proposed; smaller ones leave a GPU idle"""


class UnknownCardError(ValueError):
    """No card has this name; the message lists those that are known."""


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU by its memory."""

    name: str
    gib: float

    @property
    def usable_bytes(self) -> int:
        return int(self.gib * USABLE * GIB)


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a job fits."""

    card: Card
    needed_bytes: int
    """on the fullest GPU"""
    fits: bool
    kv_tokens: int | None
    """room for the KV cache of an engine [tokens]; None: no engine, or the manifest says the size"""
    change: tuple[tuple[str, object], ...] = ()
    """settings with which it would fit, by path in the manifest; empty: it fits, or none was found"""
    changed_bytes: int = 0
    """needed then"""

    def sentence(self) -> str:
        """Return the verdict for people."""
        usable = f"of {self.card.usable_bytes / GIB:.1f} GiB, {100 * USABLE:.0f} % of {self.card.name}"
        needs = f"the fullest GPU needs {self.needed_bytes / GIB:.1f} {usable}"
        if self.fits:
            cache = "" if self.kv_tokens is None else f"; room for {self.kv_tokens:,} tokens of KV cache"
            return f"fits: {needs}{cache}"
        if not self.change:
            return f"does not fit: {needs}; one or two other settings do not help: use more GPUs, or a smaller model"
        settings = " and ".join(f"{path}: {shown(value)}" for path, value in self.change)
        return f"does not fit: {needs}; with {settings} it needs {self.changed_bytes / GIB:.1f} GiB"


def card(text: str) -> Card:
    """Return the card of a name such as `H100-80`, or of a number of GiB. Raises UnknownCardError."""
    plain = text.strip().upper()
    named = plain and next((name for name in CARDS if name == plain or name.startswith(f"{plain}-")), None)
    if named:
        return Card(named, CARDS[named])
    number = NUMBER.fullmatch(text.strip())
    if number is None or not 0 < float(number[1]) <= LARGEST:
        raise UnknownCardError(
            f"{text[:80]!r} is neither one of {', '.join(CARDS)} nor a number of GiB up to {LARGEST:g}"
        )
    return Card(f"{float(number[1]):g} GiB", float(number[1]))


def fit(job: RLJob, model: Shape, on: Card, teacher: Shape | None = None) -> Fit:
    """Return whether a valid job of a model fits, and the first change of settings that would make it fit."""
    found = estimated(job.spec, model, teacher)
    tokens = room_for_tokens(found, on)
    if is_enough(found, job.spec, model, on):
        return Fit(on, found.gpu_bytes, True, tokens)
    for change in changes(job.spec):
        if (other := with_settings(job, change)) is None or misfits(model, other.spec):
            continue
        changed = estimated(other.spec, model, teacher)
        if is_enough(changed, other.spec, model, on):
            return Fit(on, found.gpu_bytes, False, tokens, change, changed.gpu_bytes)
    return Fit(on, found.gpu_bytes, False, tokens)


def estimated(spec: Spec, model: Shape, teacher: Shape | None) -> Estimate:
    return memory.estimate(model, spec, topology(spec), teacher)


def is_enough(found: Estimate, spec: Spec, model: Shape, on: Card) -> bool:
    """Return whether the fullest GPU has room, and an engine for the KV cache of one sample at least."""
    tokens = room_for_tokens(found, on)
    longest = spec.rollout.context_length or model.longest
    return found.gpu_bytes <= on.usable_bytes and (tokens is None or tokens >= longest)


def room_for_tokens(found: Estimate, on: Card) -> int | None:
    """Return how many tokens fit beside an engine's weights; None: the manifest says, or there is no engine."""
    if not found.engine or found.kv_tokens is not None:
        return None
    beside = found.learner_bytes if found.colocated and not found.leaves else 0
    return max(0, on.usable_bytes - found.engine_bytes - beside) // found.kv_bytes_per_token


def changes(spec: Spec) -> Iterator[tuple[tuple[str, object], ...]]:
    """Return changes of one setting, then of two; those that cost least time first."""
    single = [*settings(spec)]
    yield from ((each,) for each in single)
    yield from ((one, other) for one, other in combinations(single, 2) if one[0] != other[0])


def settings(spec: Spec) -> Iterator[tuple[str, object]]:
    training, rollout = spec.training, spec.rollout
    if spec.debug.engines and not spec.is_sft:
        for degree in DEGREES:
            if degree > rollout.gpus_per_engine:
                yield "rollout.gpusPerEngine", degree
    if not spec.debug.learner:
        return
    for degree in DEGREES:
        if training.tensor_parallel < degree <= training.gpus_per_node:
            yield "training.tensorParallel", degree
    for degree in DEGREES:
        if training.expert_parallel < degree <= training.nodes * training.gpus_per_node:
            yield "training.expertParallel", degree
    for divisor in DEGREES:
        if (tokens := training.max_tokens_per_gpu // divisor) >= MIN_TOKENS:
            yield "training.maxTokensPerGpu", tokens
    if training.recompute is not Recompute.FULL:
        yield "training.recompute", Recompute.FULL.value
    if not training.optimizer.offload:
        yield "training.optimizer.offload", True
    for degree in DEGREES:
        if training.pipeline_parallel < degree:
            yield "training.pipelineParallel", degree


def with_settings(job: RLJob, change: tuple[tuple[str, object], ...]) -> RLJob | None:
    """Return the job with these settings; None: a rule refuses them."""
    content = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for path, value in change:
        *sections, name = path.split(".")
        place: dict[str, Any] = content["spec"]
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    try:
        return parse(content)
    except ManifestError:
        return None


def shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

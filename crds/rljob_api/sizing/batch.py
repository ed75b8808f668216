"""Batch arithmetic: how the samples of one rollout become optimizer steps.

    promptsPerStep x samplesPerPrompt = globalBatchSize x stepsPerRollout, exactly

No sample is dropped and none is used twice, so the equation holds exactly or the manifest is refused. Each optimizer
step needs at least one sample for every data-parallel rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd

from rljob_api.errors import ManifestError, Problem
from rljob_api.sections import INT32, Spec
from rljob_api.sizing.parallel_layout import parallel_layout

LEAST = {"prompts": 1, "samples_per_prompt": 2, "global_batch_size": 1, "steps_per_rollout": 1}
MOST = {"prompts": 1_000_000, "samples_per_prompt": 10_000, "global_batch_size": INT32, "steps_per_rollout": INT32}
"""bounds of the four fields, as in `sections.py`: a suggestion must keep them too"""


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of one rollout, divided."""

    prompts: int
    samples_per_prompt: int
    samples: int
    global_batch_size: int
    """samples in one optimizer step"""
    steps_per_rollout: int


@dataclass(frozen=True, slots=True)
class Request:
    """What a manifest says about batches; None is derived."""

    prompts: int
    samples_per_prompt: int
    global_batch_size: int | None = None
    steps_per_rollout: int | None = None
    data_parallel: int = 1


def request(spec: Spec) -> Request:
    training = spec.training
    return Request(
        prompts=spec.rollout.prompts_per_step,
        samples_per_prompt=1 if spec.is_sft else spec.rollout.samples_per_prompt,
        global_batch_size=training.global_batch_size,
        steps_per_rollout=training.steps_per_rollout,
        data_parallel=max(1, parallel_layout(training).data),
    )


def batch(spec: Spec) -> Batch:
    """Return the batches of a run. Raises ManifestError when the arithmetic does not work out."""
    wanted = request(spec)
    derived = derive(wanted)
    if derived is None:
        rule = f"x samplesPerPrompt {wanted.samples_per_prompt} does not divide into optimizer steps"
        raise ManifestError((Problem("spec.rollout.promptsPerStep", wanted.prompts, rule),))
    return derived


def derive(wanted: Request) -> Batch | None:
    """Return the only batches that fit the request, or None."""
    samples = wanted.prompts * wanted.samples_per_prompt
    steps = wanted.steps_per_rollout or (samples // wanted.global_batch_size if wanted.global_batch_size else 1)
    size = wanted.global_batch_size or (samples // steps)
    if size * steps != samples or size < wanted.data_parallel:
        return None
    return Batch(wanted.prompts, wanted.samples_per_prompt, samples, size, steps)


def nearest(wanted: Request) -> tuple[Mapping[str, int], ...]:
    """Return the smallest changes, each of one field where possible, that make the request valid, closest first."""
    single = [{name: value} for name in LEAST for value in closest(wanted, name)]
    return tuple(single or both_batch_fields(wanted))


def closest(wanted: Request, name: str) -> list[int]:
    """Return the closest valid values of one field, below and above, everything else unchanged."""
    now: int | None = getattr(wanted, name)
    if now is None or now < LEAST[name]:
        return []  # a lone response is the data's own: there are no more
    valid = sorted(
        (
            value
            for value in candidates(wanted, name)
            if LEAST[name] <= value <= MOST[name] and derive(replace(wanted, **{name: value}))
        ),
        key=lambda value: abs(value - now),
    )
    return [value for side in (valid_below(valid, now), valid_above(valid, now)) for value in side]


def valid_below(valid: list[int], now: int) -> list[int]:
    return [value for value in valid if value < now][:1]


def valid_above(valid: list[int], now: int) -> list[int]:
    return [value for value in valid if value > now][:1]


def candidates(wanted: Request, name: str) -> set[int]:
    """Return values of one field among which the closest valid ones are."""
    samples = wanted.prompts * wanted.samples_per_prompt
    size, steps = wanted.global_batch_size, wanted.steps_per_rollout
    if name in ("global_batch_size", "steps_per_rollout"):
        return divisors(samples)
    other = wanted.samples_per_prompt if name == "prompts" else wanted.prompts
    if size and steps:
        return {size * steps // other}
    now: int = getattr(wanted, name)
    divisor = size or steps or 1
    period = divisor // gcd(divisor, other)
    least = -(-wanted.data_parallel * (steps or 1) // other)
    return {multiple * period for at in (now, least) for multiple in (at // period, -(-at // period), at // period + 1)}


def divisors(number: int) -> set[int]:
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return {*small, *(number // divisor for divisor in small)}


def both_batch_fields(wanted: Request) -> list[Mapping[str, int]]:
    """Return a change of both derived fields together, for when no single field can mend the request."""
    samples, steps = wanted.prompts * wanted.samples_per_prompt, wanted.steps_per_rollout or 1
    for divisor in sorted(divisors(samples), key=lambda divisor: (abs(divisor - steps), divisor)):
        change = {"global_batch_size": samples // divisor, "steps_per_rollout": divisor}
        if derive(replace(wanted, **change)):
            return [change]
    return []

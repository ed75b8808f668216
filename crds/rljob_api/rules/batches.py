"""Rules of the batches: `sizing.batch` derives them, here stands what has to hold so that it can.

Exactly one of the rules does not hold where `derive` finds nothing.
"""

import re
from collections.abc import Mapping

from rljob_api.algorithms import SFT
from rljob_api.rules.cel import near
from rljob_api.rules.claims import Search, requires
from rljob_api.rules.terms import SPEC, as_term, named, or_else, when
from rljob_api.sections import MOST_SAMPLES
from rljob_api.sizing import batch as sizing
from rljob_api.sizing.batch import LEAST, MOST

rollout, training = SPEC.rollout, SPEC.training

is_sft = SPEC.algorithm.name == SFT
per_prompt = named(when(is_sft, 1, rollout.samples_per_prompt))
samples = named(rollout.prompts_per_step * per_prompt)
ranks = named(training.nodes * training.gpus_per_node)
model = named(training.tensor_parallel * training.pipeline_parallel)
replicas = named(when((model > 0) & (ranks > model), ranks // model, 1))
"""ranks that hold the same part of the model"""
context = training.context_parallel
data_parallel = named(when((context > 0) & (replicas > context), replicas // context, 1))
global_batch = or_else(training.global_batch_size, 0)
steps_per_rollout = or_else(training.steps_per_rollout, 0)
"""0: to be derived"""
steps = named(when(steps_per_rollout > 0, steps_per_rollout, when(global_batch > 0, samples // global_batch, 1)))
batch = named(when(global_batch > 0, global_batch, samples // steps))
batches_fit = named((batch * steps == samples) & (batch >= data_parallel))
one_step = batches_fit & (steps == 1)
"""each rollout is one optimizer step"""


def in_words(changes: tuple[Mapping[str, int], ...]) -> str | None:
    """Return `samplesPerPrompt 6 or 9, or stepsPerRollout 2`."""
    values: dict[str, list[str]] = {}
    for change in changes:
        if len(change) > 1:
            return " with ".join(f"{FIELDS[name].alias} {value}" for name, value in change.items())
        for name, value in change.items():
            values.setdefault(FIELDS[name].alias, []).append(str(value))
    return ", or ".join(f"{name} {' or '.join(found)}" for name, found in values.items()) or None


FIELDS = {
    "prompts": rollout.prompts_per_step,
    "samples_per_prompt": rollout.samples_per_prompt,
    "global_batch_size": training.global_batch_size,
    "steps_per_rollout": training.steps_per_rollout,
}
"""fields of a `sizing.Request`"""


def other(**valid: str) -> Search:
    """Return the search for other numbers; for each field the API server has a claim about its value `v`."""
    claims = {name: written(claim) for name, claim in valid.items()}
    return Search(
        lambda spec: in_words(sizing.nearest(sizing.request(spec))),
        cel=tuple(
            near(FIELDS[name].alias, FIELDS[name].cel, claim, LEAST[name], MOST[name]) for name, claim in claims.items()
        ),
    )


def other_samples(enough: str, **valid: str) -> Search:
    """Return the same search, also among numbers of samples `n` of which a claim holds."""
    prompts = re.sub(r"\bn\b", "(v * perPrompt)", enough)
    per_group = re.sub(r"\bn\b", f"(v * {rollout.prompts_per_step.cel})", enough)
    return other(prompts=prompts, samples_per_prompt=f"!({is_sft.cel}) && {per_group}", **valid)


def written(claim: str) -> str:
    """Return a claim in CEL with the terms that its words stand for."""
    return re.sub(rf"\b({'|'.join(WORDS)})\b", lambda word: WORDS[word[1]].cel, claim)


WORDS = {
    "perPrompt": per_prompt,
    "samples": samples,
    "size": global_batch,
    "steps": steps_per_rollout,
    "ranks": data_parallel,
}
MADE = f"promptsPerStep {rollout.prompts_per_step} x samplesPerPrompt {per_prompt} = {samples} samples"
FOR_RANKS = f"samples in an optimizer step for {data_parallel} data-parallel ranks, each of which needs one"
enough_steps = other_samples(
    "n % steps == 0 && n / steps >= ranks", steps_per_rollout="samples % v == 0 && samples / v >= ranks"
)

RULES = (
    requires(
        rollout.prompts_per_step,
        samples <= MOST_SAMPLES,
        f"x samplesPerPrompt {per_prompt} = {samples} is more than the {MOST_SAMPLES} samples that a step may have; "
        f"nearest valid: {as_term(MOST_SAMPLES) // per_prompt}",
    ),
    requires(
        training.steps_per_rollout,
        (global_batch < 1) | (steps_per_rollout < 1) | (global_batch * steps_per_rollout == samples),
        f"x globalBatchSize {global_batch} = {global_batch * steps_per_rollout} is not {MADE}",
        other_samples(
            "n == size * steps && size >= ranks",
            global_batch_size="v * steps == samples && v >= ranks",
            steps_per_rollout="v * size == samples && size >= ranks",
        ),
        shows=steps_per_rollout,
    ),
    requires(
        training.global_batch_size,
        (global_batch < 1) | (steps_per_rollout > 0) | (samples % global_batch == 0),
        f"does not divide {MADE}",
        other_samples("n % size == 0 && size >= ranks", global_batch_size="samples % v == 0 && v >= ranks"),
        shows=global_batch,
    ),
    requires(
        training.steps_per_rollout,
        (global_batch > 0) | (steps_per_rollout < 1) | (samples % steps_per_rollout == 0),
        f"does not divide {MADE}",
        enough_steps,
        shows=steps_per_rollout,
    ),
    requires(
        training.global_batch_size,
        (global_batch < 1) | (batch * steps != samples) | (global_batch >= data_parallel),
        f"is too small: {global_batch} {FOR_RANKS}",
        other(global_batch_size="steps < 1 && samples % v == 0 && v >= ranks"),
        shows=global_batch,
    ),
    requires(
        training.steps_per_rollout,
        (global_batch > 0) | (steps_per_rollout < 1) | (batch * steps != samples) | (batch >= data_parallel),
        f"is too large: {batch} {FOR_RANKS}",
        enough_steps,
        shows=steps_per_rollout,
    ),
    requires(
        rollout.prompts_per_step,
        (global_batch > 0) | (steps_per_rollout > 0) | (samples >= data_parallel),
        f"is too small: {samples} {FOR_RANKS}",
        other_samples("n >= ranks"),
    ),
)

"""From the values of one turn of the loop to the numbers and the samples that people see. Pure.

Axes: G samples of one prompt, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean, pstdev

from rljob_trainer.metrics import Publication, TrainMetrics
from rljob_trainer.reporting.records import SampleRecord, StepMetrics
from rljob_trainer.samples import Sample, ScoredGroup

NGRAM = 4
MOST_COUNTED = 64


def step_metrics(
    trained: Sequence[ScoredGroup],
    training: TrainMetrics,
    publication: Publication,
    dropped: Sequence[ScoredGroup] = (),
    newest: int | None = None,
) -> StepMetrics:
    """Return what a step measured. Groups that were dropped count in what the policy earns and says.

    `newest` is the version of the weights that were trained, where samples may be of older ones.
    """
    groups = (*trained, *dropped)
    rewards = [reward for group in groups for reward in group.rewards_G]
    samples = [sample for group in groups for sample in group.group.samples_G]
    ages = staleness(trained, newest) if newest is not None else None
    lengths = [len(sample.own_tokens) for sample in samples]
    return StepMetrics(
        reward_mean=_mean(rewards),
        reward_std=pstdev(rewards) if rewards else None,
        reward_parts={name: fmean(scores) for name, scores in _by_part(groups).items()},
        reward_failures=sum(group.failures for group in groups),
        groups_without_signal=_mean([not group.is_mixed for group in groups if group.rewards_G]),
        groups_dropped=len(dropped),
        response_length=_mean(lengths),
        truncated=_mean([sample.finish_reason == "length" for sample in samples]),
        loss=_finite(training.loss),
        grad_norm=_finite(training.grad_norm),
        learning_rate=_finite(training.learning_rate),
        entropy=_finite(training.entropy),
        kl=_finite(training.kl),
        perplexity=_finite(training.perplexity),
        clip_fraction=_finite(training.clip_fraction),
        logprob_mismatch=_finite(training.mismatch),
        importance_weight=_finite(training.importance),
        importance_cut=_finite(training.importance_cut),
        staleness=ages.mean if ages else None,
        max_staleness=ages.largest if ages else None,
        value_loss=_finite(training.critic.loss) if training.critic else None,
        value_clip_fraction=_finite(training.critic.clip_fraction) if training.critic else None,
        explained_variance=_finite(training.critic.explained_variance) if training.critic else None,
        critic_grad_norm=_finite(training.critic.grad_norm) if training.critic else None,
        repeated=_mean([repeated(sample.own_tokens) for sample in spread(samples)]),
        rollout_tokens=sum(len(sample.own_tokens) for sample in samples if sample.engine),
        train_tokens=training.tokens,
        version=publication.version,
        publish_wait_seconds=publication.waited_s,
        skipped=training.skipped,
    )


@dataclass(frozen=True, slots=True)
class Staleness:
    """How many steps ago the weights were made that made a response token."""

    mean: float
    largest: int


def staleness(groups: Sequence[ScoredGroup], newest: int) -> Staleness | None:
    """Return how old the tokens are for weights of version `newest`; None when there are none."""
    samples = (sample for group in groups for sample in group.group.samples_G)
    runs = [(newest - version, tokens) for sample in samples for version, tokens in sample.versions if tokens]
    if not runs:
        return None
    return Staleness(
        mean=sum(age * tokens for age, tokens in runs) / sum(tokens for _, tokens in runs),
        largest=max(age for age, _ in runs),
    )


def spread(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return at most 64 of the samples that have an n-gram, evenly over all: counting n-grams takes time."""
    long = [sample for sample in samples if len(sample.own_tokens) >= NGRAM]
    return long[:: -(-len(long) // MOST_COUNTED) or 1]


def repeated(tokens_T: Sequence[int]) -> float:
    """Return the share of a response's n-grams that have occurred in it before; 0 for a shorter one."""
    grams = [tuple(tokens_T[start : start + NGRAM]) for start in range(len(tokens_T) - NGRAM + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def chosen_samples(groups: Sequence[ScoredGroup], num_groups: int) -> tuple[SampleRecord, ...]:
    """Return the best and the worst sample of the first groups; one sample where the whole group got the same, or
    nothing was judged.
    """
    chosen: list[SampleRecord] = []
    for scored in groups[:num_groups]:
        order = sorted(range(len(scored.rewards_G)), key=lambda index: -scored.rewards_G[index]) or [0]
        ends = [order[0], order[-1]] if scored.is_mixed else order[:1]
        chosen += [_sample(scored, index) for index in ends]
    return tuple(chosen)


def _sample(scored: ScoredGroup, index: int) -> SampleRecord:
    prompt, sample = scored.group.prompt, scored.group.samples_G[index]
    return SampleRecord(
        question=prompt.question,
        response=sample.text,
        label=prompt.label,
        reward=scored.rewards_G[index] if scored.rewards_G else None,
        parts={name: scores_G[index] for name, scores_G in scored.parts_G.items()},
        version=sample.version,
    )


def _by_part(groups: Sequence[ScoredGroup]) -> dict[str, list[float]]:
    names = groups[0].parts_G if groups else ()
    return {name: [score for group in groups for score in group.parts_G[name]] for name in names}


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None

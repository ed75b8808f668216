"""Computes the metrics of a step and picks the samples to show. Pure.

Axes: G samples of one prompt, T tokens.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean, pstdev
from typing import Any

from rljob_trainer.metrics import LearnerMetrics, Publication, StepMetrics
from rljob_trainer.reporting.records import SampleRecord
from rljob_trainer.samples import Sample, ScoredGroup

NGRAM = 4
MOST_COUNTED = 64


def step_metrics(
    trained: Sequence[ScoredGroup],
    training: LearnerMetrics,
    publication: Publication,
    dropped: Sequence[ScoredGroup] = (),
    newest: int | None = None,
) -> StepMetrics:
    """Return the metrics of a step. Dropped groups count in those of rewards and responses.

    `newest` is the version of the trained weights; None unless rollouts are ahead.
    """
    groups = (*trained, *dropped)
    rewards = [reward for group in groups for reward in group.rewards_G]
    samples = [sample for group in groups for sample in group.group.samples_G]
    ages = staleness(trained, newest) if newest is not None else None
    lengths = [len(sample.own_tokens) for sample in samples]
    return StepMetrics(
        **_finite(vars(training)),
        reward_mean=_mean(rewards),
        reward_std=pstdev(rewards) if rewards else None,
        reward_parts={name: fmean(scores) for name, scores in _by_part(groups).items()},
        reward_failures=sum(group.failures for group in groups),
        nonfinite_logprobs=sum(nonfinite_logprobs(groups).values()),
        groups_without_signal=_mean([not group.has_signal for group in groups if group.rewards_G]),
        groups_dropped=len(dropped),
        groups_masked=sum(group.is_masked for group in trained),
        samples_masked=sum(sample.dropped for group in trained for sample in group.group.samples_G),
        response_length=_mean(lengths),
        truncated=_mean([sample.is_truncated for sample in samples]),
        staleness=ages.mean if ages else None,
        max_staleness=ages.largest if ages else None,
        engine_samples=by_engine(samples, publication.engines),
        repeated=_mean([repeated(sample.own_tokens) for sample in spread(samples)]),
        prefix_hits=prefix_hits(samples),
        rollout_tokens=sum(len(sample.own_tokens) for sample in samples if sample.engine),
        version=publication.version,
        publish_wait_seconds=publication.waited_s,
    )


@dataclass(frozen=True, slots=True)
class Staleness:
    """Age of the weights that generated the response tokens [steps]."""

    mean: float
    largest: int


def staleness(groups: Sequence[ScoredGroup], newest: int) -> Staleness | None:
    """Return the age of the tokens against weights of version `newest`; None without tokens."""
    samples = (sample for group in groups for sample in group.group.samples_G)
    runs = [(newest - version, tokens) for sample in samples for version, tokens in sample.versions if tokens]
    if not runs:
        return None
    return Staleness(
        mean=sum(age * tokens for age, tokens in runs) / sum(tokens for _, tokens in runs),
        largest=max(age for age, _ in runs),
    )


def nonfinite_logprobs(groups: Sequence[ScoredGroup]) -> dict[str, int]:
    """Return how many tokens each engine gave a log-probability that is not finite, for the engines that did."""
    counts: Counter[str] = Counter()
    for group in groups:
        for sample in group.group.samples_G:
            if not isfinite(sum(sample.logprobs_T)):  # one look at most samples
                counts[sample.engine] += sum(not isfinite(logprob) for logprob in sample.logprobs_T)
    return dict(counts)


def by_engine(samples: Sequence[Sample], serving: Sequence[str]) -> dict[str, int]:
    """Return how many samples each engine made; one that serves and made none has 0."""
    made = Counter(sample.engine for sample in samples if sample.engine)
    return {engine: made[engine] for engine in sorted({*serving, *made})} if made else {}


def spread(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return at most 64 of the samples that have an n-gram, evenly spaced, because counting n-grams takes time."""
    long = [sample for sample in samples if len(sample.own_tokens) >= NGRAM]
    return long[:: -(-len(long) // MOST_COUNTED) or 1]


def prefix_hits(samples: Sequence[Sample]) -> float | None:
    """Return the share of the tokens of prompts that engines had from earlier requests; None without agents."""
    branches = [branch for sample in samples for branch in sample.branches]
    asked = sum(branch.asked_tokens for branch in branches)
    return sum(branch.cached_tokens for branch in branches) / asked if asked else None


def repeated(tokens_T: Sequence[int]) -> float:
    """Return the share of a response's n-grams that repeat an earlier one; 0 for a shorter response."""
    grams = [tuple(tokens_T[start : start + NGRAM]) for start in range(len(tokens_T) - NGRAM + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def chosen_samples(groups: Sequence[ScoredGroup], num_groups: int) -> tuple[SampleRecord, ...]:
    """Return the best and the worst sample of the first groups; one sample of a group with equal or no rewards."""
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


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and isfinite(value)}


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None

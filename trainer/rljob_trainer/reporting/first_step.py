"""What the first step of a run must show, and what it means when it does not. Pure.

Before the first update much is known: policy and reference are one model, engines hold the learner's weights, and a
model finds its own samples likely. Most mistakes of loading, templates and weight sync show here, a whole run before
they show in the reward. A breach stops nothing: limits are where healthy runs are not, not where sick ones begin.

Axes: G samples of one prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean

from rljob_api.sections import Precision
from rljob_trainer.listing import some
from rljob_trainer.metrics import TrainMetrics, perplexity_of
from rljob_trainer.reporting.measurements import NGRAM, repeated, spread
from rljob_trainer.reporting.records import CheckRecord, RenderedRecord, SegmentRecord
from rljob_trainer.samples import ScoredGroup

MEAN_LIMIT = {Precision.FP32: 1e-3, Precision.BF16: 0.05}
"""of |engine - learner| [nats]; two implementations of the same sums differ by rounding"""
LARGEST_LIMIT = {Precision.FP32: 0.05, Precision.BF16: 2.0}
PERPLEXITY_LIMIT = 3.0
"""exp(1.1): an instructed model is surer than that of what it says itself; a base model or a high temperature is not"""
REFERENCE_PERPLEXITY_LIMIT = 1000.0
"""of responses that somebody else has written: prose has about 20, bare numbers where a model would talk about 100, and
a model that was not loaded as many as its vocabulary has tokens"""
REPEATED_LIMIT = 0.3
TRUNCATED_LIMIT = 0.5
CONTRADICTED_LIMIT = 0.05
"""by chance it would be half, less the ties; an algorithm of a user's own may look at more than rewards"""
NAMED_TENSORS = 10
RENDERED = 3
"""samples that are shown with their whole prompts"""


@dataclass(frozen=True, slots=True)
class LearnerView:
    """How the learner sees the engines' samples before the first update: over the response tokens that count."""

    mean_logprob: float
    """[nats]"""
    mean_difference: float
    """mean |engine - learner| [nats]"""
    largest_difference: float
    zeros: tuple[str, ...] = ()
    """the learner's tensors that hold nothing but zeros"""


def checks(
    groups: Sequence[ScoredGroup],
    training: TrainMetrics,
    view: LearnerView | None,
    precision: Precision,
    zero_kl: bool,
    contradicted: float | None = None,
) -> tuple[CheckRecord, ...]:
    """Return what was measured in the first step, with limits; what could not be measured is left out.

    `view` is None where there is no learner, or no sample had anything to teach. Without `zero_kl` the KL is left out:
    with several optimizer steps in a rollout it is not of the first one alone, and a teacher is another model.
    `contradicted` is the share of pairs of samples whose advantages are not in the order of their rewards.
    """
    samples = [sample for group in groups for sample in group.group.samples_G]
    kl = training.kl if zero_kl else None
    measured = (
        (
            "KL to the reference",
            kl if kl is None or kl == 0.0 else abs(kl),
            0.0,
            "Policy and reference are the same weights before the first update, so it is exactly 0: if not, a kernel"
            " does not repeat itself, or the reference was loaded otherwise.",
        ),
        (
            "engine against learner, mean |difference| [nats]",
            view.mean_difference if view else None,
            MEAN_LIMIT[precision],
            "Engines and learner give the same tokens other probabilities: weights that are wrong, stale or mapped"
            " wrongly, another temperature, or a model that one of them computes otherwise.",
        ),
        (
            "engine against learner, largest |difference| [nats]",
            view.largest_difference if view else None,
            LARGEST_LIMIT[precision],
            "Single tokens disagree: tokens shifted by one, a response tokenised again, or one layer that differs.",
        ),
        (
            "tensors of zeros in the learner",
            len(view.zeros) if view else None,
            0.0,
            "Nothing was loaded into them, or the checkpoint has them so, and training seldom brings them to life:"
            f" {some(view.zeros, NAMED_TENSORS) if view else ''}",
        ),
        (
            "pairs of samples whose advantages contradict their rewards, share",
            contradicted,
            CONTRADICTED_LIMIT,
            "Training makes the worse samples of a prompt more likely: an advantage with the wrong sign, or one that"
            " belongs to another sample. An algorithm of your own may do so on purpose.",
        ),
        (
            "perplexity of the samples under the learner",
            perplexity_of(-view.mean_logprob) if view else None,
            PERPLEXITY_LIMIT,
            "The learner is surprised by what its own weights have said. Far above: the checkpoint was not loaded."
            " A little above: a chat template or data unlike what the model was trained on, a base model, or a high"
            " temperature.",
        ),
        (
            "perplexity of the samples under the engines",
            perplexity(groups),
            PERPLEXITY_LIMIT,
            "The engines are unsure of every token: the same causes, on their side.",
        ),
        (
            f"repeated {NGRAM}-grams, share",
            _mean([repeated(sample.own_tokens) for sample in spread(samples)]),
            REPEATED_LIMIT,
            "Responses go in circles: garbled weights, or a turn that does not end.",
        ),
        (
            "truncated responses, share",
            _mean([float(sample.finish_reason == "length") for sample in samples]),
            TRUNCATED_LIMIT,
            "Most responses reach maxNewTokens: no stop token comes (`rljob plan` lists them), or it is too small.",
        ),
    )
    return records(measured)


def of_references(groups: Sequence[ScoredGroup], training: TrainMetrics) -> tuple[CheckRecord, ...]:
    """Return the same for responses of the data, which no engine has made."""
    samples = [sample for group in groups for sample in group.group.samples_G]
    return records(
        (
            (
                "perplexity of the responses under the learner",
                training.perplexity,
                REFERENCE_PERPLEXITY_LIMIT,
                "The model has never seen anything like it: the checkpoint was not loaded, or the responses are in"
                " another language or form, or the chat template is not the model's.",
            ),
            (
                f"repeated {NGRAM}-grams, share",
                _mean([repeated(sample.tokens_T) for sample in spread(samples)]),
                REPEATED_LIMIT,
                "The responses go in circles: this is what will be learned.",
            ),
        )
    )


def records(measured: Sequence[tuple[str, float | None, float, str]]) -> tuple[CheckRecord, ...]:
    """Return the numbers that there are, each with its name, limit and meaning."""
    return tuple(
        CheckRecord(name=name, value=value if isfinite(value) else None, limit=limit, means=means)
        for name, value, limit, means in measured
        if value is not None
    )


def perplexity(groups: Sequence[ScoredGroup]) -> float | None:
    """Return exp of the mean negative log-probability of all tokens that the model wrote, as the engines gave them."""
    logprobs = [each for group in groups for sample in group.group.samples_G for each in sample.own_logprobs]
    return perplexity_of(-fmean(logprobs)) if logprobs else None


def rendered(groups: Sequence[ScoredGroup]) -> tuple[RenderedRecord, ...]:
    """Return the first samples with their prompts as the engines got them: markers, system turn and all."""
    return tuple(
        RenderedRecord(
            prompt=group.group.prompt.text,
            response=group.group.samples_G[0].text,
            finish_reason=group.group.samples_G[0].finish_reason,
            reward=group.rewards_G[0] if group.rewards_G else None,
            segments=tuple(
                SegmentRecord(text=segment.text, by_model=segment.by_model)
                for segment in group.group.samples_G[0].segments
            ),
        )
        for group in groups[:RENDERED]
    )


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None

"""Checks of the first step of a run, with what a breach means. Pure.

Before the first update, policy and reference are the same model, engines have the learner's weights, and a model finds
its own samples likely. Most mistakes in loading, templates and weight sync show here, long before they show in the
reward. A breach stops nothing: no healthy run exceeds a limit, but a faulty one may stay below it.

Axes: G samples of one prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean

from rljob_api.sections import Precision, Quantization, Spec
from rljob_trainer.metrics import LearnerMetrics, perplexity_of
from rljob_trainer.reporting.measurements import NGRAM, repeated, spread
from rljob_trainer.reporting.records import CheckRecord, RenderedRecord, SegmentRecord
from rljob_trainer.samples import Prompt, Sample, ScoredGroup
from rljob_trainer.text import some

MEAN_LIMIT: Mapping[Precision | Quantization, float] = {
    Precision.FP32: 1e-3,
    Precision.BF16: 0.1,
    Quantization.FP8: 0.2,
    Quantization.INT4: 1.0,
}
"""of |engine - learner| [nats], by what engines compute with; two implementations differ by rounding. In bf16 healthy
runs had 0.007 to 0.057 (docs/gpu-measurements.md). With FP8 and INT4 the weights differ, too"""
LARGEST_LIMIT: Mapping[Precision | Quantization, float] = {
    Precision.FP32: 0.05,
    Precision.BF16: 2.0,
    Quantization.FP8: 4.0,
    Quantization.INT4: 8.0,
}
PERPLEXITY_LIMIT = 3.0
"""exp(1.1): an instructed model is below it on its own samples, a base model or one at a high temperature is not"""
REFERENCE_PERPLEXITY_LIMIT = 1000.0
"""of responses that the model did not write: prose has about 20, bare numbers instead of sentences about 100, and an
unloaded model as much as its vocabulary has tokens"""
REPEATED_LIMIT = 0.3
TRUNCATED_LIMIT = 0.5
CONTRADICTED_LIMIT = 0.05
"""chance would give half, less the ties; a user's own algorithm may use more than rewards"""
GRADIENT_LIMIT = 100.0
"""of the norm before clipping; a mean over tokens gives about 1, and a template applied twice far more"""
NAMED_TENSORS = 10
RENDERED = 3
"""number of samples that are shown with their prompts"""


@dataclass(frozen=True, slots=True)
class LearnerView:
    """The learner's log-probabilities of the samples before the first update, over response tokens with a weight."""

    mean_logprob: float
    """[nats]"""
    mean_difference: float
    """mean |engine - learner| [nats]"""
    largest_difference: float
    zeros: tuple[str, ...] = ()
    """names of the learner's tensors that are all zeros"""


def format_of(spec: Spec) -> Precision | Quantization:
    """Return the format of the weights that engines compute with."""
    return spec.rollout.quantization or spec.training.precision


def checks(
    groups: Sequence[ScoredGroup],
    training: LearnerMetrics,
    view: LearnerView | None,
    engines: Precision | Quantization,
    zero_kl: bool,
    contradicted: float | None = None,
) -> tuple[CheckRecord, ...]:
    """Return the checks of the first step; those that could not be measured are left out.

    `view` is None without a learner, or if no sample had a gradient. Without `zero_kl` the KL is left out: with several
    optimizer steps per rollout it is not that of the first one, and a teacher is another model. `contradicted` is the
    share of pairs of samples whose advantages are not in the order of their rewards. `engines` is what engines compute
    with, see `format_of`.
    """
    kl = training.kl if zero_kl else None
    of_learner = (
        (
            "KL to the reference",
            kl if kl is None or kl == 0.0 else abs(kl),
            0.0,
            "Policy and reference have the same weights before the first update, so it must be exactly 0. Otherwise a"
            " kernel is not deterministic, or the reference was loaded differently.",
        ),
        *_agreement(view, engines),
        gradient(training),
        (
            "tensors of zeros in the learner",
            len(view.zeros) if view else None,
            0.0,
            "They were not loaded, or are zero in the checkpoint, and training rarely changes that:"
            f" {some(view.zeros, NAMED_TENSORS) if view else ''}",
        ),
        (
            "pairs of samples whose advantages contradict their rewards, share",
            contradicted,
            CONTRADICTED_LIMIT,
            "Training makes worse samples of a prompt more likely. The advantage has the wrong sign, or is that of"
            " another sample. Your own algorithm may do so on purpose.",
        ),
        (
            "perplexity of the samples under the learner",
            perplexity_of(-view.mean_logprob) if view else None,
            PERPLEXITY_LIMIT,
            "The learner finds samples of its own weights unlikely. Far above: the checkpoint was not loaded. A little"
            " above: the model was not trained on this chat template or data, or is a base model, or the temperature is"
            " high.",
        ),
    )
    return records((*of_learner, *_of_samples(groups)))


def _agreement(
    view: LearnerView | None, engines: Precision | Quantization
) -> Sequence[tuple[str, float | None, float, str]]:
    """Return the checks of engines against learner."""
    return (
        (
            "engine against learner, mean |difference| [nats]",
            view.mean_difference if view else None,
            MEAN_LIMIT[engines],
            "Engines and learner compute different probabilities for the same tokens. Weights may be wrong, stale or"
            " mapped wrongly, the temperature may differ, or one of them may compute the model differently. In a model"
            " with experts they may choose others for some tokens: see training.experts.replay Rollout.",
        ),
        (
            "engine against learner, largest |difference| [nats]",
            view.largest_difference if view else None,
            LARGEST_LIMIT[engines],
            "Single tokens disagree. They may be shifted by one, a response tokenised again, or one layer may differ.",
        ),
    )


def gradient(training: LearnerMetrics) -> tuple[str, float | None, float, str]:
    """Return the check of the gradient, with its limit and meaning."""
    return (
        "gradient norm before clipping",
        training.grad_norm,
        GRADIENT_LIMIT,
        "The model is far from what it is trained on. A chat template is applied twice or is that of another model, the"
        " checkpoint was not loaded, or rewards or loss weights are very large.",
    )


def _of_samples(groups: Sequence[ScoredGroup]) -> Sequence[tuple[str, float | None, float, str]]:
    """Return what the samples alone show: each number with its name, limit and meaning."""
    samples = [sample for group in groups for sample in group.group.samples_G]
    return (
        (
            "perplexity of the samples under the engines",
            perplexity(groups),
            PERPLEXITY_LIMIT,
            "The engines find their own samples unlikely: the same causes, in the engines.",
        ),
        (
            f"repeated {NGRAM}-grams, share",
            _mean([repeated(sample.own_tokens) for sample in spread(samples)]),
            REPEATED_LIMIT,
            "Responses repeat themselves: weights are damaged, or a turn does not end.",
        ),
        (
            "truncated responses, share",
            _mean([float(sample.is_truncated) for sample in samples]),
            TRUNCATED_LIMIT,
            "Most responses reach maxNewTokens: no stop token comes (`rljob plan` lists them), or it is too small.",
        ),
    )


def of_references(groups: Sequence[ScoredGroup], training: LearnerMetrics) -> tuple[CheckRecord, ...]:
    """Return the checks for the data's own responses, which no engine generated."""
    samples = [sample for group in groups for sample in group.group.samples_G]
    return records(
        (
            (
                "perplexity of the responses under the learner",
                training.perplexity,
                REFERENCE_PERPLEXITY_LIMIT,
                "The responses are very unlikely for the model. The checkpoint was not loaded, the responses are in"
                " another language or format, or the chat template is not the model's.",
            ),
            gradient(training),
            (
                f"repeated {NGRAM}-grams, share",
                _mean([repeated(sample.tokens_T) for sample in spread(samples)]),
                REPEATED_LIMIT,
                "The responses repeat themselves, and the model will learn that.",
            ),
        )
    )


def records(measured: Sequence[tuple[str, float | None, float, str]]) -> tuple[CheckRecord, ...]:
    """Return the checks with a value, each with its name, limit and meaning."""
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
    """Return the first samples with their prompts as sent to the engines, with special tokens and system prompt."""
    return tuple(
        RenderedRecord(
            prompt=sent(group.group.prompt, group.group.samples_G[0]),
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


def sent(prompt: Prompt, sample: Sample) -> str:
    """Return the prompt of a sample as the engine got it: its group's, or that of an agent's first branch."""
    return sample.branches[0].text if sample.branches else prompt.text


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None

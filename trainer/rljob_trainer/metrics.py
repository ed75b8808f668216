"""The metrics of a step: one table, from which every place that reduces or shows them follows. Pure; no torch.

A field with `metric(...)` is a line of the table, see `metric_table.py`.

    micro-batches ─ learners/rank/loss ─► OptimizerStep ─ over_steps ─► LearnerMetrics ─┐
    rewards, responses, publication ─ reporting/measurements.py ────────────────────────┴─► StepMetrics ─► sinks

A new metric is a line here and a line where it is measured: in `learners/rank/loss/loss.py` or in
`reporting/measurements.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Any

from rljob_trainer.expert_metrics import ExpertMetrics
from rljob_trainer.gpu_metrics import GpuMetrics, LostMetrics
from rljob_trainer.metric_table import Metric, Plot, derived, last, metric, table

MOST_SURPRISE = 700.0
"""largest value whose exp() is finite [nats]"""
BETWEEN_STEPS = frozenset({"evaluate", "checkpoint"})
"""phases that are recorded with a step but are not part of it"""


@dataclass(frozen=True, kw_only=True)
class SampleMetrics:
    """Of the rewards and responses of all groups, those that were dropped included."""

    reward_mean: float | None = metric(
        "Mean reward of all samples", gauge="rljob_reward_mean", tag="rollout/reward_mean"
    )
    reward_std: float | None = metric(
        "Standard deviation of the rewards of all samples", gauge="rljob_reward_std", tag="rollout/reward_std"
    )
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    """mean of each of several rewards, before its weight; empty where there is one reward"""
    reward_failures: int = metric(
        "Judgements that failed; without reward.failureScore the sample is left out",
        default=0,
        counter="rljob_reward_failures",
        tag="rollout/reward_failures",
    )
    nonfinite_logprobs: int = metric(
        "Response tokens whose log-probability from the engine was not finite",
        default=0,
        counter="rljob_engine_nonfinite_logprobs",
        tag="rollout/nonfinite_logprobs",
    )
    response_length: float | None = metric(
        "Mean length of a response",
        "tokens",
        "rljob_response_length_tokens",
        "rollout/response_length",
        plot=Plot("Response length", "mean", low=0.0),
    )
    truncated: float | None = metric(
        "Share of responses that reached the token limit",
        "share",
        "rljob_truncated_ratio",
        "rollout/truncated",
        plot=Plot("Truncated responses", "truncated", low=0.0, colour="secondary"),
    )
    engine_samples: Mapping[str, int] = field(default_factory=dict)
    """samples that each engine made, also those that made none"""
    repeated: float | None = metric(
        "Share of 4-grams that repeat an earlier one of their response",
        "share",
        "rljob_repeated_ratio",
        "rollout/repeated",
        plot=Plot("Repeated 4-grams", "repeated", low=0.0, colour="secondary"),
    )
    """of at most 64 responses"""
    prefix_hits: float | None = metric(
        "Share of the tokens of agents' prompts that engines had from earlier requests",
        "share",
        "rljob_prefix_hit_ratio",
        "rollout/prefix_hits",
    )
    """None without agents"""


@dataclass(frozen=True, kw_only=True)
class LearnerMetrics(ExpertMetrics):
    """Of the optimizer steps that policy and critic took in one step; means are over response tokens with a weight.

    None: this job does not compute it, or nothing was trained.
    """

    loss: float | None = metric(
        "Loss of the policy", "", "rljob_loss", "train/loss", tokens="sum", plot=Plot("Loss", "loss")
    )
    grad_norm: float | None = metric(
        "Gradient norm before clipping",
        "",
        "rljob_grad_norm",
        "train/grad_norm",
        steps=last,
        plot=Plot("Gradient norm before clipping", "norm", low=0.0),
    )
    learning_rate: float | None = metric("Learning rate", "", "rljob_learning_rate", "train/learning_rate", steps=last)
    value_loss: float | None = metric(
        "Loss of the critic",
        "",
        "rljob_value_loss",
        "critic/loss",
        tokens="sum",
        plot=Plot("Value loss", "loss", low=0.0),
    )
    explained_variance: float | None = metric(
        "Share of the returns' variance that the critic predicts; below 0: worse than a constant",
        "",
        "rljob_explained_variance",
        "critic/explained_variance",
        plot=Plot(
            "Explained variance of the returns",
            "explained",
            note="1: the critic predicts every return. Below 0: a constant would predict better.",
        ),
    )
    """1 - var(return - value) / var(return) over the response tokens, before the critic was trained on them; None
    where all returns are alike"""
    critic_grad_norm: float | None = metric(
        "Gradient norm of the critic before clipping",
        "",
        "rljob_critic_grad_norm",
        "critic/grad_norm",
        steps=last,
        plot=Plot("Gradient norm of the critic before clipping", "norm", low=0.0),
    )
    value_clip_fraction: float | None = metric(
        "Share of response tokens whose value loss was clipped",
        "share",
        "rljob_value_clip_ratio",
        "critic/clip_fraction",
        tokens="mean",
    )
    clip_fraction: float | None = metric(
        "Share of response tokens whose ratio was clipped",
        "share",
        "rljob_clip_ratio",
        "train/clip_fraction",
        tokens="mean",
    )
    entropy: float | None = metric(
        "Mean entropy of response tokens",
        "nats",
        "rljob_entropy_nats",
        "train/entropy",
        tokens="mean",
        plot=Plot("Entropy", "entropy"),
    )
    kl: float | None = metric(
        "Mean KL estimate against the reference model or the teacher",
        "nats",
        "rljob_kl_nats",
        "train/kl",
        tokens="mean",
        plot=Plot("KL to the reference model or the teacher", "KL"),
    )
    perplexity: float | None = metric(
        "Perplexity of response tokens under the learner, before the update",
        "",
        "rljob_perplexity",
        "train/perplexity",
        plot=Plot("Perplexity of the responses", "by the learner", low=1.0),
    )
    logprob_mismatch: float | None = metric(
        "Mean absolute difference between engine and learner log-probabilities, before the update",
        "nats",
        "rljob_logprob_mismatch_nats",
        "train/logprob_mismatch",
        tokens="mean",
        plot=Plot(
            "Engine against learner log-probabilities",
            "mean |difference|",
            low=0.0,
            note="Near 0 while engines and learner have the same weights. It is the first sign of wrong or stale ones.",
        ),
    )
    """None where no engine sampled"""
    importance_weight: float | None = metric(
        "Mean importance weight between engine and learner, as it was used",
        "",
        "rljob_importance_weight",
        "train/importance_weight",
        tokens="mean",
    )
    """None where nothing is corrected, as the next one"""
    importance_cut: float | None = metric(
        "Share of response tokens whose importance weight was truncated or masked",
        "share",
        "rljob_importance_cut_ratio",
        "train/importance_cut",
        tokens="mean",
    )
    train_tokens: int = metric(
        "Tokens trained on, prompts included",
        "tokens",
        default=0,
        tokens="count",
        steps=sum,
        counter="rljob_train_tokens",
    )
    peak_seconds: float = metric(
        "Time that the policy's optimizer steps would take at the bf16 peak of the learner's GPUs",
        "s",
        default=0,
        tokens="sum",
        steps=sum,
    )
    """0 where the peak is not known"""
    skipped: int = metric(
        "Optimizer steps, the critic's too, skipped because a gradient was not finite",
        "steps",
        default=0,
        steps=sum,
        counter="rljob_skipped_steps",
        tag="train/skipped_steps",
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerStep(LearnerMetrics):
    """One optimizer step of the policy or of the critic, over all ranks; equal on every rank."""

    step: int = 0
    """optimizer steps taken so far, this one included; skipped ones do not count"""
    policy_loss: float | None = metric("Loss without KL penalty and entropy bonus", tokens="sum")
    ratio: float | None = metric("Mean probability ratio of new to old policy", tokens="mean")
    surprise: float | None = metric("Mean negative log-probability, before the update", "nats", tokens="mean")
    max_mismatch: float | None = metric(
        "Largest difference between engine and learner log-probabilities", "nats", tokens="largest"
    )
    response_tokens: int = metric("Response tokens with a weight", "tokens", default=0, tokens="count")
    computed_tokens: int = metric("Tokens that were computed", "tokens", default=0, tokens="count")
    """fewer than `train_tokens`: a token whose whole prefix is another's is not computed again"""
    peak_memory_bytes: int = 0
    """of this rank: allocated on the device, or resident on a CPU"""


@dataclass(frozen=True, kw_only=True)
class StepMetrics(LearnerMetrics, SampleMetrics, GpuMetrics, LostMetrics):
    """What one step of the loop measured. None: this job does not compute it, or it was not finite."""

    staleness: float | None = metric(
        "Mean age of the weights that generated a response token",
        "steps",
        "rljob_staleness_steps",
        "rollout/staleness_mean",
        plot=Plot(
            "Staleness",
            "mean of the tokens",
            low=0.0,
            note="Age in steps of the weights that generated a token; rollout.async.maxStaleness is the limit.",
        ),
    )
    """None unless rollouts are ahead, as the next one"""
    max_staleness: int | None = metric(
        "Age of the oldest weights that generated a response token",
        "steps",
        "rljob_staleness_max_steps",
        "rollout/staleness_max",
        plot=Plot("Staleness", "oldest token", colour="secondary", style="dashed"),
    )
    groups_without_signal: float | None = metric(
        "Share of groups whose samples all got the same reward, or are all kept out of the loss",
        "share",
        "rljob_groups_without_signal_ratio",
        "rollout/groups_without_signal",
        plot=Plot(
            "Groups without a signal",
            "all samples alike",
            low=0.0,
            note="All samples of the group got the same reward or are kept out of the loss, so there is no gradient.",
        ),
    )
    groups_dropped: int = metric(
        "Groups that were generated and not trained on", "", "rljob_groups_dropped", "rollout/groups_dropped", default=0
    )
    groups_masked: int = metric(
        "Groups of the step whose samples are all kept out of the loss",
        "",
        "rljob_groups_masked",
        "rollout/groups_masked",
        default=0,
    )
    samples_masked: int = metric(
        "Samples of the step that are kept out of the loss: truncated ones, with algorithm.maskTruncated",
        "",
        "rljob_samples_masked",
        "rollout/samples_masked",
        default=0,
    )
    """those of `overflow: Drop`, too"""
    rollout_tokens: int = metric(
        "Response tokens that engines generated", "tokens", default=0, counter="rljob_rollout_tokens"
    )
    version: int = metric(
        "Version of the published weights", "", "rljob_weight_version", "weights/version", default=0, initial=0.0
    )
    publish_wait_seconds: float = 0.0
    """part of the phase `publish`: wait until running responses had finished or were cut off [s]"""
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    """wall-clock time since the last step, or since the start, by phase [s]"""

    @property
    @derived(Metric("Wall-clock time of the step", "s", tag="perf/step_seconds"))
    def seconds(self) -> float:
        return sum(self.phase_seconds.values())

    @property
    @derived(
        Metric(
            "Response tokens per second while engines generated",
            "tokens/s",
            tag="perf/rollout_tokens_per_second",
            plot=Plot("Speed", "rollout", low=0.0, colour="rollout", marks=True),
        )
    )
    def rollout_tokens_per_second(self) -> float | None:
        return rate(self.rollout_tokens, self.rollout_seconds)

    @property
    @derived(
        Metric(
            "Tokens trained on per second of the phase train",
            "tokens/s",
            tag="perf/train_tokens_per_second",
            plot=Plot("Speed", "train", colour="train", style="dashed"),
        )
    )
    def train_tokens_per_second(self) -> float | None:
        return rate(self.train_tokens, self.phase_seconds.get("train", 0.0))

    @property
    @derived(
        Metric(
            "Model FLOP utilisation: share of the GPUs' bf16 peak that the policy's training reaches in phase train",
            "share",
            "rljob_mfu_ratio",
            "perf/mfu",
            plot=Plot(
                "Model FLOP utilisation",
                "phase train",
                low=0.0,
                note="Products and causal attention, forward and backward. What is computed again does not count.",
            ),
        )
    )
    def mfu(self) -> float | None:
        """None on CPUs, and on GPUs whose peak is not known (`rljob_api.sizing.flops`)."""
        seconds = self.phase_seconds.get("train", 0.0)
        return self.peak_seconds / seconds if self.peak_seconds > 0 and seconds > 0 else None

    @property
    @derived(
        Metric(
            "Share of the step for which the learner waited for samples",
            "share",
            "rljob_data_wait_ratio",
            "perf/data_wait",
            plot=Plot(
                "Waiting for samples",
                "of the step",
                low=0.0,
                note="Phase rollout, and publications that wait for responses. Evaluation and checkpoint do not count.",
            ),
        )
    )
    def data_wait(self) -> float | None:
        """None for a step that took no time. Evaluation and checkpoint are not part of the step."""
        own = sum(seconds for phase, seconds in self.phase_seconds.items() if phase not in BETWEEN_STEPS)
        return self.data_wait_seconds / own if own > 0 else None

    @property
    @derived(
        Metric(
            "Samples of the busiest engine as a multiple of the mean of all engines; 1: the router balances",
            "",
            "rljob_engine_imbalance",
            "perf/engine_imbalance",
            plot=Plot(
                "Imbalance of the engines",
                "busiest / mean",
                low=1.0,
                note="A step waits for its busiest engine.",
            ),
        )
    )
    def engine_imbalance(self) -> float | None:
        """None where fewer than two engines served, or nothing was sampled."""
        made = tuple(self.engine_samples.values())
        return max(made) * len(made) / sum(made) if len(made) > 1 and any(made) else None

    @property
    def data_wait_seconds(self) -> float:
        """How long the learner waited for samples, to train on them or to publish weights after them [s]."""
        return self.phase_seconds.get("rollout", 0.0) + self.publish_wait_seconds

    @property
    def rollout_seconds(self) -> float:
        """How long engines generated: the rollout phase, or all of the step with rollouts ahead [s]."""
        return self.phase_seconds.get("rollout", 0.0) if self.staleness is None else self.seconds

    @property
    def perplexity_of_data(self) -> float | None:
        """Perplexity of the data's own responses, where the run trains on those."""
        return self.perplexity if self.reward_mean is None else None


def over_steps(steps: Sequence[LearnerMetrics]) -> LearnerMetrics:
    """Return several optimizer steps as one, each metric reduced over those of them that have measured it."""
    reduced: dict[str, Any] = {}
    for name, line in table(LearnerMetrics).items():
        known = [value for step in steps if (value := getattr(step, name)) is not None]
        if known:
            reduced[name] = line.steps(known)
    return LearnerMetrics(**reduced)


def combined(policy: LearnerMetrics, critic: LearnerMetrics) -> LearnerMetrics:
    """Return what policy and critic measured: counts of both are added, all else is what either of them has."""
    both: dict[str, Any] = {}
    for name, line in table(LearnerMetrics).items():
        known = [value for each in (policy, critic) if (value := getattr(each, name)) is not None]
        both[name] = None if not known else sum(known) if line.steps is sum else known[0]
    return LearnerMetrics(**both)


def perplexity_of(surprise: float) -> float:
    """Return the perplexity of tokens whose mean negative log-probability is `surprise` [nats]."""
    return exp(min(surprise, MOST_SURPRISE))


def rate(tokens: int, seconds: float) -> float | None:
    """Return tokens per second; None where there are no tokens or no time."""
    return tokens / seconds if tokens > 0 and seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Publication:
    """One transfer of weights to the engines."""

    version: int
    seconds: float
    engines: tuple[str, ...]
    """verified: they hold exactly these weights"""
    failed: dict[str, str]
    """engine -> why it was taken out of service"""
    parts: Mapping[str, float] = field(default_factory=dict)
    """time of pause, transfer, verify and resume [s]"""
    waited_s: float = 0.0
    """before all that, until running responses had finished or were cut off [s]"""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Mean reward on the held-out questions; None where it was not measured. Of responses that are read: perplexity."""

    sampled: float | None
    greedy: float | None
    questions: int
    failures: int = 0
    """judgements that failed, those of `sets` among them"""
    lost: int = 0
    """samples that were not made or not judged, and do not count in the means, those of `sets` among them"""
    sets: Mapping[str, "Accuracy"] = field(default_factory=dict)
    """of each further set of questions, by its name"""
    perplexity: float | None = None
    """of the data's own responses to them, by the learner"""

"""What a rank says of one optimizer step. Plain numbers that travel to the driver; no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One optimizer step, over all ranks; equal on every rank. Means are over response tokens with a weight."""

    step: int
    """optimizer steps taken so far, this one included; skipped ones do not count"""
    skipped: bool
    """the gradient was not finite: weights, optimizer and schedule are as before"""
    loss: float
    policy_loss: float
    grad_norm: float
    """before clipping"""
    learning_rate: float
    ratio: float
    """mean probability ratio of new to old policy"""
    clip_fraction: float
    kl: float | None
    """mean KL estimate against the reference [nats]; None without one"""
    entropy: float | None
    """mean entropy [nats]; None where it was not computed"""
    surprise: float
    """mean negative log-probability [nats], before the update"""
    mismatch: float
    """mean absolute difference of engine and learner log-probabilities [nats], before the update; not a number where
    no engine sampled"""
    max_mismatch: float
    importance: float | None
    """mean weight between engine and learner; None where nothing is corrected"""
    importance_cut: float | None
    """share of the response tokens whose weight was truncated or masked"""
    tokens: int
    """tokens through the learner, prompts included"""
    computed_tokens: int
    """of those, the ones that were computed: a token whose whole prefix is another's is not computed again"""
    response_tokens: int
    peak_memory_bytes: int
    """of this rank: allocated on the device, or resident on a CPU"""


@dataclass(frozen=True, slots=True)
class CriticStep:
    """One optimizer step of the critic, over all ranks; equal on every rank."""

    skipped: bool
    """the gradient was not finite: weights, optimizer and schedule are as before"""
    loss: float
    clip_fraction: float
    """share of the response tokens with a weight whose loss the clip range changed"""
    grad_norm: float
    """before clipping"""
    learning_rate: float

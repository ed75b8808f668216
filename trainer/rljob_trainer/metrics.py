"""What the learner and the weight sync say of one step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp

MOST_SURPRISE = 700.0
"""[nats]; its exponential is a number still"""


def perplexity_of(surprise: float) -> float:
    """Return the perplexity of tokens whose mean negative log-probability is `surprise` [nats]."""
    return exp(min(surprise, MOST_SURPRISE))


@dataclass(frozen=True, slots=True)
class CriticMetrics:
    """Of the critic's optimizer steps of one rollout."""

    loss: float
    clip_fraction: float
    """share of response tokens whose value loss was bounded"""
    grad_norm: float
    """before clipping; the last optimizer step's"""
    skipped: int
    """optimizer steps skipped because a gradient was not finite"""
    explained_variance: float | None
    """1 - var(return - value) / var(return) over the response tokens, of the values before the first step; None where
    all returns are alike"""


@dataclass(frozen=True, slots=True)
class TrainMetrics:
    """Of all optimizer steps of one rollout."""

    loss: float
    grad_norm: float
    """before clipping; the last optimizer step's"""
    learning_rate: float
    skipped: int
    """optimizer steps, the critic's too, skipped in this rollout because a gradient was not finite"""
    tokens: int
    """tokens through the learner"""
    clip_fraction: float
    """share of response tokens whose ratio was clipped"""
    kl: float | None
    """mean KL estimate against the reference or the teacher [nats]; None without one"""
    entropy: float | None
    """mean entropy [nats]; None where it was not computed"""
    mismatch: float
    """mean absolute difference of engine and learner log-probabilities [nats], before the update"""
    perplexity: float | None = None
    """exp of the mean negative log-probability of the response tokens by the learner; None where nothing was trained"""
    importance: float | None = None
    """mean importance weight between engine and learner; None where nothing is corrected"""
    importance_cut: float | None = None
    """share of the response tokens whose importance weight was truncated or masked"""
    critic: CriticMetrics | None = None
    """None: there is no critic"""


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
    """where the time went: pause, transfer, verify, resume [s]"""
    waited_s: float = 0.0
    """before all that, until responses that were being made had been answered or cut off [s]"""

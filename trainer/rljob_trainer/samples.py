"""The values that flow through the loop: prompts, samples, groups. Plain and frozen; no torch, no I/O.

Axes: G samples of one prompt, T tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question, rendered and tokenised."""

    uid: str
    """`EPOCH:ROW`: names this issue of the question; the journal's key"""
    question: str
    text: str
    """what the engine continues: chat template, system prompt and prefill included"""
    tokens_T: tuple[int, ...]
    label: str
    metadata: Mapping[str, Any]
    """the row it came from, for reward functions"""


@dataclass(frozen=True, slots=True)
class Sample:
    """One response to a prompt."""

    tokens_T: tuple[int, ...]
    """the response's token ids, without the prompt's"""
    logprobs_T: tuple[float, ...]
    """the engine's log-probabilities of `tokens_T` [nats], at the sampling temperature; empty: no engine made it"""
    text: str
    version: int
    """version of the weights that made it"""
    finish_reason: str
    """`stop`, `length`"""
    engine: str
    """name of the engine that made it; empty: it is the data's own"""


@dataclass(frozen=True, slots=True)
class Group:
    """All samples of one prompt, in no meaningful order."""

    prompt: Prompt
    samples_G: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group with a reward for each sample."""

    group: Group
    rewards_G: tuple[float, ...]
    """empty where nothing is judged"""
    parts_G: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """what each of several rewards says, before its weight; empty where there is one reward"""
    failures: int = 0
    """judgements that failed and got the score that the manifest has for them"""

    @property
    def is_mixed(self) -> bool:
        """Whether the samples do not all have the same reward: otherwise none is better than the others."""
        return len(set(self.rewards_G)) > 1

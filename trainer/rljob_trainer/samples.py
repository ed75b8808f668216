"""The values that flow through the loop: prompts, samples, groups. Plain and frozen; no torch, no I/O.

Axes: G samples of one prompt, T tokens, L layers, K experts of a token in a layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import compress, islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `rljob status` reads samples of reports where numpy is not installed
    import numpy as np
    import numpy.typing as npt


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
class Segment:
    """A stretch of a response that one author wrote."""

    length: int
    """in tokens"""
    text: str
    """its tokens as people read them, markers included"""
    by_model: bool
    """False: the environment gave it, for example the result of a tool"""


@dataclass(frozen=True, slots=True)
class Branch:
    """A prompt of an agent's, and how much of a sample follows it."""

    prompt_T: tuple[int, ...]
    text: str
    """the prompt as people read it, markers included"""
    length: int
    """tokens of the sample behind it"""
    experts: "npt.NDArray[np.int16] | None" = field(default=None, compare=False)
    """experts of each layer for the first tokens of prompt and branch, from the last request; None: not requested"""
    asked_tokens: int = 0
    """of the prompts of all its requests"""
    cached_tokens: int = 0
    """of these, those that engines had from earlier requests"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model has said to one request of an agent, or what other weights have continued it with."""

    begin: int
    """place of its first token among those of the sample"""
    tokens: int
    finish_reason: str
    engine: str
    began: float
    """unix time of its request [s]"""
    seconds: float
    """from the request to the whole answer"""
    calls: tuple[str, ...] = ()
    """names of the functions that it calls"""


@dataclass(frozen=True, slots=True)
class Sample:
    """One response to a prompt."""

    tokens_T: tuple[int, ...]
    """the response's token ids, without the prompt's"""
    logprobs_T: tuple[float, ...]
    """the engine's log-probabilities of `tokens_T` [nats], at the sampling temperature; 0 for the environment's; empty:
    no engine made it"""
    text: str
    """what is judged"""
    version: int
    """version of the weights that made it, or the last of its tokens"""
    finish_reason: str
    """`stop`, `length`"""
    engine: str
    """name of the engine that made it; empty: it is the data's own"""
    segments: tuple[Segment, ...] = ()
    """who wrote which of `tokens_T`, in order; empty: the model wrote them all"""
    dropped: bool = False
    """not trained on, although its reward counts in its group"""
    carried: tuple[tuple[int, int], ...] = ()
    """(version, tokens) of its parts, where it was carried over publications; empty: `version` made all of it"""
    experts: "npt.NDArray[np.int16] | None" = field(default=None, compare=False)
    """experts of each layer for the first tokens of prompt and response: [T x L x K], from the last request; None: not
    requested"""
    branches: tuple[Branch, ...] = ()
    """the sequences that `tokens_T` consists of, in order; empty: it is one, behind the prompt of its group"""
    reward: float | None = None
    """from the agent that made it; None: it is judged"""
    answers: tuple[Answer, ...] = field(default=(), compare=False)
    """to each request of the agent, in the order of their tokens; empty: no agent made it"""

    @property
    def own_T(self) -> tuple[bool, ...]:
        """Which tokens the model wrote."""
        if not self.segments:
            return (True,) * len(self.tokens_T)
        return tuple(segment.by_model for segment in self.segments for _ in range(segment.length))

    @property
    def own_tokens(self) -> tuple[int, ...]:
        """The tokens that the model wrote."""
        return tuple(compress(self.tokens_T, self.own_T)) if self.segments else self.tokens_T

    @property
    def own_logprobs(self) -> tuple[float, ...]:
        """Their log-probabilities [nats]."""
        return tuple(compress(self.logprobs_T, self.own_T)) if self.segments else self.logprobs_T

    @property
    def is_truncated(self) -> bool:
        """Whether it was cut off, by a limit of tokens, of the context, of its tools or of its session."""
        return self.finish_reason == "length"

    @property
    def trained_T(self) -> tuple[bool, ...]:
        """Mask of the tokens in the loss; the others are context."""
        return (False,) * len(self.tokens_T) if self.dropped else self.own_T

    @property
    def num_trained(self) -> int:
        """How many tokens are trained on: the length of the response, as losses and advantages count it."""
        return 0 if self.dropped else len(self.own_tokens)

    @property
    def versions(self) -> tuple[tuple[int, int], ...]:
        """How many of the tokens that the model wrote, one after the other, which version made."""
        runs = self.carried or ((self.version, len(self.tokens_T)),)
        if not self.segments:
            return runs
        own = iter(self.own_T)
        return tuple((version, sum(islice(own, tokens))) for version, tokens in runs)

    @property
    def oldest(self) -> int:
        """The oldest version that made any of its tokens."""
        return min((version for version, _ in self.carried), default=self.version)


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """What the learner reads at once: a prompt, and the tokens of a sample behind it."""

    prompt_T: tuple[int, ...]
    tokens_T: tuple[int, ...]
    """without the prompt's"""
    trained_T: tuple[bool, ...]
    logprobs: tuple[float, ...]
    """of the tokens that are trained on [nats]; 0 where no engine has given any"""
    engine: str
    """as of the sample"""
    experts: "npt.NDArray[np.int16] | None" = field(default=None, compare=False)

    @property
    def num_trained(self) -> int:
        """How many of its tokens are trained on."""
        return len(self.logprobs)


def sequences(prompt: Prompt, sample: Sample) -> tuple[TokenSequence, ...]:
    """Return what the learner reads of a sample of this prompt. One that is trained on nothing gives sequences, too."""
    trained_T = sample.trained_T
    if not sample.branches:
        logprobs = () if sample.dropped else sample.own_logprobs or (0.0,) * sample.num_trained
        return (TokenSequence(prompt.tokens_T, sample.tokens_T, trained_T, logprobs, sample.engine, sample.experts),)
    found, begin = [], 0
    for branch in sample.branches:
        part = slice(begin, begin := begin + branch.length)
        logprobs = tuple(compress(sample.logprobs_T[part], trained_T[part]))
        tokens_T = sample.tokens_T[part]
        found.append(TokenSequence(branch.prompt_T, tokens_T, trained_T[part], logprobs, sample.engine, branch.experts))
    return tuple(found)


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
    """judgements that failed; they got the score that the manifest has for them, or their sample was left out"""

    @property
    def is_mixed(self) -> bool:
        """Whether the samples do not all have the same reward: otherwise none is better than the others."""
        return len(set(self.rewards_G)) > 1

    @property
    def is_masked(self) -> bool:
        """Whether not one of its samples is trained on."""
        return all(sample.dropped for sample in self.group.samples_G)

    @property
    def has_signal(self) -> bool:
        """Whether rewards differ, and some sample is trained on."""
        return self.is_mixed and not self.is_masked

"""Chooses the reward function that `spec.reward` names, and applies it to groups.

groups ──► each part: who judges ──► threshold ──► x weight ──► sum ──► is it finite? ──► scored groups
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from rljob_api.sections import Part, Reward, RewardKind
from rljob_trainer.processes import pod_limits
from rljob_trainer.reporting.losses import Cause, Losses, Outage
from rljob_trainer.rewards import ahead
from rljob_trainer.rewards.ahead import Room
from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rewards.function import EarlyJudge, Failure, Judge, Response, Score
from rljob_trainer.rewards.text_match import exact_match, f1
from rljob_trainer.samples import Group, Prompt, ScoredGroup

log = logging.getLogger(__name__)

LARGEST = 1e30
"""of a reward: the learner computes advantages and losses in fp32, which ends at 3.4e38"""


@dataclass(frozen=True, slots=True)
class PartReward:
    """One of several rewards, or the only one."""

    judge: Judge
    name: str = "reward"
    function: str = ""
    """what judges, in the manifest's words"""
    weight: float = 1.0
    threshold: float | None = None
    first_line: bool = False
    failure_score: float | None = None
    """reward of a response that could not be judged; None: it is left out"""

    def begin(self, responses: Sequence[Response]) -> Iterable[Score] | None:
        """Begin to judge the responses to one prompt; None: they are judged with the others."""
        return self.judge.begin(self._read(responses)) if isinstance(self.judge, EarlyJudge) else None

    def scores(self, responses: Sequence[Response]) -> Iterator[Score]:
        """Yield a score, after the threshold, or a failure for each response. A score that is not finite stays it."""
        return map(self._settled, self.judge(self._read(responses)))

    def rewards(self, responses: Sequence[Response], begun: "Sequence[BegunRows]" = ()) -> "Judged":
        """Return a reward for each response. The score of failures hides no judge that fails on all of several."""
        ahead = {row for rows, _ in begun for row in rows}
        rest = [row for row in range(len(responses)) if row not in ahead]
        later = self.scores([responses[row] for row in rest]) if rest else ()
        known = dict(zip(rest, later, strict=True))
        for rows, scores in begun:
            known |= zip(rows, map(self._settled, scores), strict=True)
        found = [known[row] for row in range(len(responses))]
        failed = [score.reason if isinstance(score, Failure) else None for score in found]
        instead = None if len(failed) > 1 and all(failed) else self.failure_score
        counted = [instead if isinstance(score, Failure) else score for score in found]
        for response, score, reason in zip(responses, counted, failed, strict=True):
            if reason is not None:
                self._log(response, score, reason)
        return Judged(counted, failed)

    def _log(self, response: Response, score: float | None, reason: str) -> None:
        what = "left_out" if score is None else f"{score:g}"
        log.warning(
            "action=score_failure part=%s prompt=%s score=%s reason=%s",
            self.name, response.prompt.uid, what, reason.partition("\n")[0],
        )  # fmt: skip

    def _read(self, responses: Sequence[Response]) -> Sequence[Response]:
        """Return what the judge reads of the responses."""
        return [Response(each.prompt, first_line(each.text)) for each in responses] if self.first_line else responses

    def _settled(self, score: Score) -> Score:
        if isinstance(score, Failure) or self.threshold is None or not math.isfinite(score):
            return score
        return float(score >= self.threshold)


BegunRows = tuple[range, Iterable[Score]]
"""responses that a part has begun to judge, by their places, and what it says of them"""


@dataclass(frozen=True, slots=True)
class Judged:
    """What one part says of all responses, in order."""

    scores: Sequence[float | None]
    """None: the response is left out"""
    failed: Sequence[str | None]
    """why a response could not be judged; None: it was"""


@dataclass(frozen=True, slots=True)
class Begun:
    """A group that is being judged."""

    group: Group
    """holds the samples, whose identities are its key"""
    scores: Sequence[Iterable[Score] | None]
    """what each part says; None: nothing yet"""


@dataclass(frozen=True, slots=True)
class Rewards:
    """Scores groups. Judges elsewhere begin with each as soon as it is sampled; the loop waits for them."""

    parts: tuple[PartReward, ...]
    losses: Losses = field(default_factory=Losses)
    _begun: "dict[tuple[int, ...], Begun]" = field(default_factory=dict, repr=False)

    def begin(self, group: Group) -> None:
        """Begin to judge a group that will be scored, while others are sampled. May be called in any thread."""
        responses = _responses(group)
        said = [part.begin(responses) for part in self.parts] if responses else []
        if any(each is not None for each in said):
            self._begun[_key(group)] = Begun(group, said)

    def score(self, groups: Sequence[Group]) -> tuple[ScoredGroup, ...]:
        """Return the groups with a reward for each sample, in the same order, without samples that were not judged.

        Raises RewardError and AwayError.
        """
        responses = [response for group in groups for response in _responses(group)]
        begun = [(rows, self._begun.pop(_key(group), None)) for group, rows in zip(groups, _rows(groups), strict=True)]
        judged = [
            part.rewards(
                responses, [(rows, said) for rows, each in begun if each and (said := each.scores[number]) is not None]
            )
            for number, part in enumerate(self.parts)
        ]
        totals = [self._total(response, judged, row) for row, response in enumerate(responses)]
        return tuple(
            self._scored(group, judged, totals, rows) for group, rows in zip(groups, _rows(groups), strict=True)
        )

    def _total(self, response: Response, judged: Sequence[Judged], row: int) -> float | None:
        """Return the reward of a response; None: it is left out."""
        scores = [said.scores[row] for said in judged]
        given = [score for score in scores if score is not None]
        if len(given) == len(scores):
            try:
                return combined(self.parts, given, response.prompt)
            except RewardError as error:
                log.warning("action=score_failure prompt=%s score=left_out reason=%s", response.prompt.uid, error)
                self.losses.note(Cause.JUDGE, 1, error)
                return None
        reason = next(said.failed[row] for said in judged if said.scores[row] is None)
        self.losses.note(Cause.JUDGE, 1, RewardError(reason))
        return None

    def _scored(
        self, group: Group, judged: Sequence[Judged], totals: Sequence[float | None], rows: range
    ) -> ScoredGroup:
        kept = [row for row in rows if totals[row] is not None]
        samples_G = tuple(group.samples_G[row - rows.start] for row in kept)
        by_part = zip(self.parts, judged, strict=True) if len(self.parts) > 1 else ()
        return ScoredGroup(
            group=group if len(kept) == len(rows) else replace(group, samples_G=samples_G),
            rewards_G=tuple(total for row in kept if (total := totals[row]) is not None),
            parts_G={
                part.name: tuple(score for row in kept if (score := said.scores[row]) is not None)
                for part, said in by_part
            },
            failures=sum(said.failed[row] is not None for said in judged for row in rows),
        )


def _responses(group: Group) -> list[Response]:
    return [Response(group.prompt, sample.text) for sample in group.samples_G]


def _key(group: Group) -> tuple[int, ...]:
    """Name the samples of a group: the same question is asked more than once, and samples may be equal."""
    return tuple(map(id, group.samples_G))


def _rows(groups: Sequence[Group]) -> Iterator[range]:
    """Yield the places of each group's responses among all."""
    first = 0
    for group in groups:
        yield range(first, first := first + len(group.samples_G))


def combined(parts: Sequence[PartReward], scores: Sequence[float], prompt: Prompt) -> float:
    """Return the weighted sum of the parts' scores of one response.

    Raises RewardError if that is not a number that the learner can use; the text names the question and what judged.
    """
    reward = sum(part.weight * score for part, score in zip(parts, scores, strict=True))
    if abs(reward) <= LARGEST:  # false for NaN
        return reward
    terms = " + ".join(
        f"{part.weight:g} x {score:g} ({part.function or part.name})" for part, score in zip(parts, scores, strict=True)
    )
    raise RewardError(
        f"prompt {prompt.uid}: the reward is {reward:g}, which is {terms}; a finite number of at most {LARGEST:.2g} is "
        f"expected. Question: {prompt.question!r:.200}"
    )


@dataclass(frozen=True, slots=True)
class RewardContext:
    """Where rewards are computed."""

    log: Path
    """receives the output of users' functions"""
    environ: Mapping[str, str]
    """source of the headers that services need"""
    with_metadata: bool = False
    """whether services get the metadata of prompts"""
    alive: Callable[[], None] = lambda: None
    """called regularly while responses are judged"""
    losses: Losses = field(default_factory=Losses)
    outage: Callable[[str, int], Outage] | None = None
    """makes what waits for a service, from its name and number of tries; None: failures are not waited for"""


def rewards(spec: Reward, around: RewardContext, stack: ExitStack) -> Rewards:
    """Return what scores groups in the way that `spec.reward` says; `stack` ends what it has started.

    Raises RewardError if a reward cannot be loaded.
    """
    in_processes = sum(part.kind in (RewardKind.PYTHON, RewardKind.MATH) for part in spec.judgings)
    made = tuple(part_reward(part, around, stack, in_processes) for part in spec.judgings)
    return Rewards(made, around.losses)


def part_reward(part: Part, around: RewardContext, stack: ExitStack, in_processes: int) -> PartReward:
    return PartReward(
        judge=judge(part, around, stack, in_processes),
        name=part.name,
        function=part.function or (part.remote.url if part.remote else str(part.kind)),
        weight=part.weight,
        threshold=part.threshold,
        first_line=part.first_line,
        failure_score=part.failure_score,
    )


def judge(part: Part, around: RewardContext, stack: ExitStack, in_processes: int) -> Judge:
    """Return the reward function; `in_processes` parts share the machine's cores and memory.

    Imports are local because each costs seconds that other kinds do not need.
    """
    match part.kind:
        case RewardKind.TASK:
            from rljob_trainer.rewards.task import task_score

            return task_score
        case RewardKind.EXACT_MATCH:
            return exact_match
        case RewardKind.F1:
            return f1
        case RewardKind.PYTHON | RewardKind.MATH:
            from rljob_trainer.rewards.python import Machine, python_reward

            function = python_reward(part, around.log, around.alive, machine=Machine.here(in_processes))
            stack.callback(function.close)
            return function
        case RewardKind.REMOTE:
            from rljob_trainer.rewards.remote import EarlyRemote, remote_reward

            assert part.remote is not None, "the manifest's rules ask for it"
            outage = around.outage and around.outage(f"the judge {part.remote.url}", part.remote.retries + 1)
            reward = remote_reward(part, around.with_metadata, around.environ, around.alive, outage)
            service = EarlyRemote(reward, Room(pod_limits.memory_bytes() // ahead.SHARE))
            stack.callback(service.close)
            return service


def first_line(text: str) -> str:
    """Return the first line, trimmed, without a final full stop."""
    return text.partition("\n")[0].strip().removesuffix(".").rstrip()

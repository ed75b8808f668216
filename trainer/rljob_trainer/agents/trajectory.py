"""A closed session as a sample: each branch that counts is a sequence to train on. Pure.

    turns   0 ─► 1 ─► 2          branches   prompt of 0 │ 0 1 2
                 └──► 3                     prompt of 0, 0, 1 │ 3
            4                               prompt of 4 │ 4

What the model wrote is trained on once: a branch that shares turns with an earlier one has them in its prompt.

Axes: T tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby

from rljob_api.sections import Branches
from rljob_trainer.agents.outcome import Failed, Outcome, Returned
from rljob_trainer.conversations.errors import GenerateError, TooSlowError
from rljob_trainer.gateway.client import GatewayError
from rljob_trainer.gateway.record import Record
from rljob_trainer.gateway.tree import Turn, leaves, path
from rljob_trainer.generator import GenerationFailedError, RolloutTimeoutError
from rljob_trainer.samples import Answer, Branch, Sample, Segment


@dataclass(frozen=True, slots=True)
class Counting:
    """What of a session is trained on."""

    branches: Branches
    drop_outgrown: bool
    """whether a sample that exceeds the context is left out"""
    judged: bool
    """whether the job has a reward; else the agent must give one"""
    across_versions: bool = False
    """whether weights may change between two answers: rollouts are ahead of training"""


def trajectory(ended: Outcome, record: Record, counting: Counting) -> Sample:
    """Return the sample of a session and of how its agent ended.

    An agent that ended because its session had reached a limit has not failed. Raises RolloutTimeoutError where no
    engine answered, GatewayError where the agent has failed after its gateway had ended during a request,
    GenerationFailedError where the weights have changed meanwhile, TooSlowError where the agent was
    late, and GenerateError where it has failed otherwise.
    """
    if record.away is not None:
        raise RolloutTimeoutError(record.away)
    if isinstance(ended, Failed) and (record.over is None or ended.is_late):
        refused = f"; its first refused request: {record.first_refusal}" if record.refused else ""
        if record.cut_off and not ended.is_late:
            raise GatewayError(f"its gateway has ended during a request, and then the agent {ended.reason}{refused}")
        raise (TooSlowError if ended.is_late else GenerateError)(ended.reason + refused)
    if not any(turn.tokens_T for turn in record.turns):
        raise GenerateError("never got an answer of the model")
    if not counting.across_versions and len({turn.version for turn in record.turns}) > 1:
        raise GenerationFailedError("the weights have changed between two answers")
    returned = ended if isinstance(ended, Returned) else Returned()
    if returned.reward is None and not counting.judged:
        raise GenerateError("returned no reward, and there is no spec.reward to judge its session")
    return _sample(record, returned, counting)


def _sample(record: Record, returned: Returned, counting: Counting) -> Sample:
    last = record.turns[-1]
    parts = list(parted(record.turns, counting.branches))
    turns = [*chain.from_iterable(part.stretches for part in parts)]
    versions = tuple(_joined(each for turn in turns for each in turn.versions))
    return Sample(
        tokens_T=tuple(token for each in turns for token in each.tokens_T),
        logprobs_T=tuple(logprob for each in turns for logprob in each.logprobs_T),
        text=session_text(record.turns) if returned.text is None else returned.text,
        version=max((version for version, _ in versions), default=last.version),
        finish_reason="length" if record.over is not None else last.finish_reason,
        engine=last.engine,
        segments=tuple(Segment(len(each.tokens_T), each.text, each.by_model) for each in turns),
        dropped=record.over == "context" and counting.drop_outgrown,
        carried=versions if len(versions) > 1 else (),
        branches=tuple(part.branch for part in parts),
        reward=returned.reward,
        answers=tuple(_answers(parts)),
    )


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens of one author."""

    tokens_T: tuple[int, ...]
    logprobs_T: tuple[float, ...]
    text: str
    by_model: bool
    versions: tuple[tuple[int, int], ...]
    """(version, tokens): which weights made how many; what was given counts to the answer that follows"""


@dataclass(frozen=True, slots=True)
class Part:
    """A branch, and who wrote it."""

    branch: Branch
    stretches: tuple[Stretch, ...]
    answers: tuple[Answer, ...]
    """those among its own tokens, with their places there"""


def parted(turns: Sequence[Turn], counted: Branches) -> Iterator[Part]:
    """Yield the branches that count, in the order of their last turns."""
    seen: set[int] = set()
    for leaf in leaves(turns) if counted is Branches.ALL else (turns[-1].number,):
        way = path(turns, leaf)
        shared = [turn for turn in way if turn.number in seen]
        new = way[len(shared) :]
        seen.update(turn.number for turn in new)
        stretches = [*_merged(each for turn in new for each in (_given(turn), _said(turn)))]
        prompt = [] if stretches[0].by_model else stretches[:1]
        rest = stretches[len(prompt) :]
        before = [*(each for turn in shared for each in (_given(turn), _said(turn))), *prompt]
        if not any(each.by_model for each in rest):
            continue
        branch = Branch(
            prompt_T=tuple(token for each in before for token in each.tokens_T),
            text="".join(each.text for each in before),
            length=sum(len(each.tokens_T) for each in rest),
            experts=way[-1].experts,
            asked_tokens=sum(asked_tokens(way, len(shared))),
            cached_tokens=sum(turn.cached for turn in new if turn.given_T),
        )
        before_T = sum(len(each.tokens_T) for each in prompt)
        yield Part(branch, tuple(rest), tuple(each for each in _placed(new, -before_T) if each.begin >= 0))


def _placed(turns: Sequence[Turn], begin: int) -> Iterator[Answer]:
    """Yield answers; the first token of what the first one was given is at `begin`."""
    for turn in turns:
        begin += len(turn.given_T)
        made = (turn.finish_reason, turn.engine, turn.began, turn.seconds, turn.calls)
        yield Answer(begin, len(turn.tokens_T), *made)
        begin += len(turn.tokens_T)


def _answers(parts: Sequence[Part]) -> Iterator[Answer]:
    """Yield the answers of all branches with their places in the sample."""
    begin = 0
    for part in parts:
        yield from (replace(each, begin=begin + each.begin) for each in part.answers)
        begin += part.branch.length


def asked_tokens(way: Sequence[Turn], first: int) -> Iterator[int]:
    """Yield the length of the prompt of each request on the way to a turn, from the turn of index `first` on.

    A turn that was given nothing is the rest of an answer, by other weights.
    """
    before = 0
    for index, turn in enumerate(way):
        before += len(turn.given_T)
        if index >= first and turn.given_T:
            yield before
        before += len(turn.tokens_T)


def session_text(turns: Sequence[Turn]) -> str:
    """Return what model and environment have written, from the first answer to the last of the last branch."""
    first, *rest = path(turns, turns[-1].number)
    return first.said + "".join(turn.given + turn.said for turn in rest)


def _given(turn: Turn) -> Stretch:
    versions = ((turn.versions[0][0], len(turn.given_T)),)
    return Stretch(turn.given_T, (0.0,) * len(turn.given_T), turn.given, by_model=False, versions=versions)


def _said(turn: Turn) -> Stretch:
    """Return an answer; one that was forced into a format is context, as its log-probabilities are not the model's."""
    logprobs_T = turn.logprobs_T if turn.trained else (0.0,) * len(turn.tokens_T)
    return Stretch(turn.tokens_T, logprobs_T, turn.said, by_model=turn.trained, versions=turn.versions)


def _merged(stretches: Iterator[Stretch]) -> Iterator[Stretch]:
    """Yield neighbours of one author as one."""
    for by_model, run in groupby((each for each in stretches if each.tokens_T), key=lambda each: each.by_model):
        same = list(run)
        tokens_T = tuple(token for each in same for token in each.tokens_T)
        logprobs_T = tuple(logprob for each in same for logprob in each.logprobs_T)
        versions = tuple(_joined(each for stretch in same for each in stretch.versions))
        yield Stretch(tokens_T, logprobs_T, "".join(each.text for each in same), by_model, versions)


def _joined(versions: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield neighbours of one version as one."""
    for version, run in groupby(versions, key=lambda each: each[0]):
        yield version, sum(tokens for _, tokens in run)

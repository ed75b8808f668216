"""The trajectories that a run has kept, with who wrote what of them. It only reads, one group at a time.

    rollouts/step-0000003.jsonl.zst ─► Trajectory ─► Row: a line of a table
                                                 └─► Piece: what one author wrote, token by token

Axes: T tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, groupby, islice, repeat
from pathlib import Path
from typing import Any

from rljob_trainer.rundir.missing_path import nearest
from rljob_trainer.rundir.rollout_files import DIRECTORY, PROMPT_FIELDS, Dump, DumpError, sample_of, step_of
from rljob_trainer.samples import Answer, Prompt, Sample

RUNS = Path("runs")
"""where runs are whose manifest names no directory"""
CUT = "abort"
"""how a part of an answer ends that other weights have continued"""
KEEPS = "spec.debug.dumpRollouts: true keeps the samples of each step"


class NothingKeptError(ValueError):
    """There are no trajectories at a path; the text says what was looked for, and what would keep them."""


class Author(StrEnum):
    """Who wrote tokens."""

    PROMPT = "prompt"
    MODEL = "model"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One sample with its reward."""

    number: int
    """among all samples of its step, from 0"""
    prompt: Prompt
    sample: Sample
    reward: float | None
    """None: nothing is judged"""
    scores: Mapping[str, float] = field(default_factory=dict)
    """what each of several rewards says"""


@dataclass(frozen=True, slots=True)
class Row:
    """A trajectory in figures."""

    number: int
    prompt: str
    """its uid"""
    turns: int
    """answers of the model"""
    calls: int
    """of functions, in all answers"""
    branches: int
    tokens: int
    """without the prompt's"""
    trained_tokens: int
    reward: float | None
    finish_reason: str
    cut_off: bool
    dropped: bool
    versions: tuple[int, ...]
    """of the weights that made it"""
    engine: str
    seconds: float | None
    """from the first request to the last answer [s]; None: no agent made it"""
    model_seconds: float | None
    """of these, those until the answers were there, all answers together [s]"""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one author wrote without a break. Log-probabilities are of tokens that the model wrote [nats]."""

    author: Author
    branch: int
    """from 0"""
    text: str
    tokens_T: tuple[int, ...]
    logprobs_T: tuple[float, ...] = ()
    versions: tuple[tuple[int, int], ...] = ()
    """(version, tokens): which weights made how many, in order"""
    trained: bool = False
    answers: tuple[Answer, ...] = ()
    """of an agent's session, that it consists of"""


def kept(path: Path) -> tuple[Dump, tuple[int, ...]]:
    """Return the files of a run and their steps.

    `path` is a run's directory, its name below `runs`, the directory of the files, or one of them. Raises
    NothingKeptError.
    """
    if not path.exists() and path.name == str(path) and (RUNS / path).is_dir():
        path = RUNS / path
    if not path.exists():
        raise NothingKeptError(
            f"{path}: looked for a run's directory, or the name of a run below {RUNS}; {nearest(path)}"
        )
    if path.is_file():
        if (step := step_of(path)) is None:
            raise NothingKeptError(f"{path}: is not a file of rollouts; nearest valid: step-0000000.jsonl.zst")
        return Dump(path.parent), (step,)
    for directory in (path, path / DIRECTORY):
        if steps := Dump(directory).steps():
            return Dump(directory), steps
    raise NothingKeptError(f"{path}: this run has kept no samples; {KEEPS}")


def trajectories(dump: Dump, step: int) -> Iterator[Trajectory]:
    """Yield all samples of a step in the order of its file. Raises DumpError, for some damage after the last one."""
    number = 0
    for place, line in enumerate(islice(dump.lines(step), 1, None), 2):
        where = f"{dump.path(step)}: step {step}, line {place}"
        try:
            prompt = _prompt(line["prompt"])
            rewards: Sequence[float] = line["rewards_G"]
            for index, content in enumerate(line["samples"]):
                scores = {name: scores_G[index] for name, scores_G in line["parts_G"].items()}
                yield Trajectory(number, prompt, sample_of(content, where), rewards[index] if rewards else None, scores)
                number += 1
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise DumpError(f"{where}: not a group of samples: {type(error).__name__}: {error}") from error


def row(trajectory: Trajectory) -> Row:
    """Return a trajectory in figures."""
    sample = trajectory.sample
    answers = [*_whole(sample.answers)]
    return Row(
        number=trajectory.number,
        prompt=trajectory.prompt.uid,
        turns=len(answers) or sum(segment.by_model for segment in sample.segments) or 1,
        calls=sum(len(answer.calls) for answer in sample.answers),
        branches=len(sample.branches) or 1,
        tokens=len(sample.tokens_T),
        trained_tokens=sample.num_trained,
        reward=trajectory.reward,
        finish_reason=sample.finish_reason,
        cut_off=sample.is_truncated,
        dropped=sample.dropped,
        versions=tuple(dict.fromkeys(version for version, tokens in sample.versions if tokens)) or (sample.version,),
        engine=sample.engine,
        seconds=_span(answers) if answers else None,
        model_seconds=sum(answer.seconds for answer in answers) if answers else None,
    )


def pieces(trajectory: Trajectory) -> Iterator[Piece]:
    """Yield all parts in order; each branch begins with its prompt."""
    prompt, sample = trajectory.prompt, trajectory.sample
    versions = _version_of_each(sample)
    lengths = [branch.length for branch in sample.branches] or [len(sample.tokens_T)]
    begins = dict(zip(accumulate(lengths, initial=0), range(len(lengths)), strict=False))
    stretches = [(each.length, each.text, each.by_model) for each in sample.segments]
    begin = branch = 0
    for length, text, by_model in stretches or [(len(sample.tokens_T), sample.text, True)]:
        if begin in begins:
            branch = begins.pop(begin)
            asked = sample.branches[branch] if sample.branches else None
            yield Piece(
                author=Author.PROMPT,
                branch=branch,
                text=asked.text if asked else prompt.text,
                tokens_T=asked.prompt_T if asked else prompt.tokens_T,
            )
        answers = tuple(each for each in sample.answers if begin <= each.begin < begin + length)
        part = slice(begin, begin := begin + length)
        yield Piece(
            author=Author.MODEL if by_model else Author.ENVIRONMENT,
            branch=branch,
            text=text,
            tokens_T=sample.tokens_T[part],
            logprobs_T=sample.logprobs_T[part] if by_model else (),
            versions=tuple((each, len([*same])) for each, same in groupby(versions[part])) if by_model else (),
            trained=by_model and not sample.dropped,
            answers=answers,
        )


def _prompt(content: Mapping[str, Any]) -> Prompt:
    fields = {name: content[name] for name in PROMPT_FIELDS}
    return Prompt(**{**fields, "tokens_T": tuple(content["tokens_T"])}, metadata={})


def _whole(answers: Sequence[Answer]) -> Iterator[Answer]:
    """Yield answers without the parts that other weights have continued them with."""
    before: Answer | None = None
    for each in answers:
        if before is None or before.finish_reason != CUT or before.began != each.began:
            yield each
        before = each


def _span(answers: Sequence[Answer]) -> float:
    return max(each.began + each.seconds for each in answers) - min(each.began for each in answers)


def _version_of_each(sample: Sample) -> list[int]:
    runs = sample.carried or ((sample.version, len(sample.tokens_T)),)
    return [version for version, tokens in runs for version in repeat(version, tokens)]

"""What a run has left on the disk, looked at without the run: checkpoints, journal, rollouts. It only reads.

    iter_0000010/                      ─► CheckpointFacts
    journal.jsonl                      ─► JournalFacts
    rollouts/, step-0000003.jsonl.zst  ─► RolloutFacts
    checkpoints/, the run's directory  ─► all of these that there are

Damage is listed in `problems`; only a path that leads to none of these raises.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from rljob_trainer.rundir import checkpoints, rollout_files
from rljob_trainer.rundir.checkpoints import CheckpointError
from rljob_trainer.rundir.journal import FILE_NAME as JOURNAL
from rljob_trainer.rundir.journal import Audit, JournalError, files, read
from rljob_trainer.rundir.missing_path import contents, nearest
from rljob_trainer.rundir.retries import Patience, StorageError
from rljob_trainer.rundir.rollout_files import Dump, DumpError

AT_ONCE = Patience(longest_s=0.0)
"""a user waits for the answer, and can ask again"""
KINDS = (
    f"a checkpoint (iter_*/), {JOURNAL}, rollouts ({rollout_files.DIRECTORY}/ or a file of them),"
    f" or a run's directory with {checkpoints.DIRECTORY}/"
)


class NothingFoundError(ValueError):
    """A path leads to nothing that could be looked at; the text says what was looked for, and what is there."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file of a checkpoint."""

    name: str
    size: int
    """bytes"""
    state: str
    """`verified`; `changed`, `missing`, or `not listed`, which does not matter"""


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """A checkpoint. What it says of itself is None where that cannot be read."""

    path: str
    step: int | None
    layout: str | None = None
    precision: str | None = None
    model: str | None = None
    """fingerprint of the model that training began with"""
    data: str | None = None
    """fingerprint of the training questions"""
    prompts: tuple[int, int] | None = None
    """where the questions continue: epoch and offset"""
    files: tuple[FileFacts, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JournalFacts:
    """A journal. Prompts are counted as often as they were issued."""

    path: str
    steps: int = 0
    """whose prompts were consumed"""
    issued: int = 0
    consumed: int = 0
    committed: int = 0
    """consumed in steps that the newest checkpoint holds"""
    commits: tuple[tuple[int, str], ...] = ()
    """steps done, and the checkpoint that holds them"""
    outstanding: tuple[str, ...] = ()
    """issued and not consumed, oldest first"""
    torn: int = 0
    """bytes of a last line that a kill has cut off; the run removes it when it resumes"""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepFacts:
    """The rollouts of a step."""

    step: int
    rounds: tuple[int, ...] = ()
    """groups of each; dynamic sampling makes several"""
    samples: int = 0
    reward: float | None = None
    """mean over all samples"""
    tokens: int = 0
    """of responses"""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """One sample, as people read it."""

    step: int
    uid: str
    prompt: str
    response: str
    label: str
    reward: float
    finish_reason: str
    version: int


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """Rollouts: those of a step, or of all steps in a directory."""

    path: str
    steps: tuple[StepFacts, ...]
    made: Mapping[str, Any] = field(default_factory=dict)
    """what decided the samples of the last step"""
    sample: SampleFacts | None = None
    """the first one of the last step"""
    problems: tuple[str, ...] = ()


Facts = CheckpointFacts | JournalFacts | RolloutFacts


def inspect(path: Path) -> tuple[Facts, ...]:
    """Return what is known of everything that the path leads to. Raises NothingFoundError."""
    found = tuple(_all(path))
    if not found:
        there = contents(path) if path.is_dir() else nearest(path)
        raise NothingFoundError(f"{path}: looked for {KINDS}; {there}")
    return found


def _all(path: Path) -> Iterator[Facts]:
    if path.is_file():
        yield from _of_file(path)
    elif path.is_dir() and (_named_step(path.resolve()) is not None or (path / checkpoints.MANIFEST).is_file()):
        yield of_checkpoint(path)
    elif path.is_dir():
        yield from map(of_checkpoint, reversed(checkpoints.complete(path)))
        yield from map(of_checkpoint, reversed(checkpoints.complete(path / checkpoints.DIRECTORY)))
        if (path / JOURNAL).is_file():
            yield of_journal(path / JOURNAL)
        for directory in (path, path / rollout_files.DIRECTORY):
            if steps := Dump(directory).steps():
                yield of_rollouts(directory, steps)


def _of_file(path: Path) -> Iterator[Facts]:
    if path.suffix == ".jsonl":
        yield of_journal(path)
    elif (step := rollout_files.step_of(path)) is not None:
        yield of_rollouts(path.parent, (step,))


def of_checkpoint(path: Path) -> CheckpointFacts:
    """Return what a checkpoint says of itself, and whether its files are as they were written."""
    there = path.resolve()  # `.` has no name
    try:
        digests = checkpoints.digests_of(there, patience=AT_ONCE)
    except (OSError, StorageError) as error:
        problem = f"{path}: a file cannot be read: {error}"
        return CheckpointFacts(str(path), _named_step(there), problems=(problem,))
    try:
        said = checkpoints.described(there, AT_ONCE)
    except (CheckpointError, StorageError) as error:
        files = tuple(_files(there, digests, {}))
        return CheckpointFacts(str(path), _named_step(there), files=files, problems=(str(error),))
    damage = checkpoints.damage_of(there, said, digests)
    return CheckpointFacts(
        path=str(path),
        step=said.step,
        layout=said.layout,
        precision=said.precision,
        model=said.model,
        data=said.data_fingerprint or None,
        prompts=said.prompts,
        files=tuple(_files(there, digests, said.files)),
        problems=(f"{path}: {damage}",) if damage else (),
    )


def _named_step(path: Path) -> int | None:
    """Return the step in a name, also of one that was set aside: `damaged-iter_0000010`."""
    named = checkpoints.NAME.search(path.name)
    return int(named[0].removeprefix("iter_")) if named else None


def _files(path: Path, there: Mapping[str, str], listed: Mapping[str, str]) -> Iterator[FileFacts]:
    for name in sorted(there.keys() | listed.keys()):
        size = (path / name).stat().st_size if name in there else 0
        match there.get(name), listed.get(name):
            case None, _:
                state = "missing"
            case _, None:
                state = "not listed"
            case found, wanted:
                state = "verified" if found == wanted else "changed"
        yield FileFacts(name, size, state)


def of_journal(path: Path) -> JournalFacts:
    """Return what a journal holds, and whether it contradicts itself."""
    audit, problems, commits, torn, committed = Audit(), [], [], 0, 0
    try:
        for file in files(path):
            whole = 0
            for number, (record, end) in enumerate(read(file), 1):
                whole = end
                if fault := audit.fault(record):
                    problems.append(f"{file}:{number}: {fault}")
                if record.event == "committed":
                    commits.append((record.step, record.checkpoint or ""))
                    committed = audit.sum.consumed
            torn = file.stat().st_size - whole
    except (OSError, JournalError) as error:
        return JournalFacts(str(path), problems=(str(error),))
    return JournalFacts(
        path=str(path),
        steps=audit.sum.steps,
        issued=audit.sum.issued,
        consumed=audit.sum.consumed,
        committed=committed,
        commits=tuple(commits),
        outstanding=tuple(audit.sum.waiting),
        torn=torn,
        problems=tuple(problems),
    )


def of_rollouts(directory: Path, steps: Sequence[int]) -> RolloutFacts:
    """Return what the rollouts of these steps hold, and whether their files are whole."""
    dump = Dump(directory)
    looked = [_step(dump, step) for step in steps]
    facts = tuple(fact for fact, _, _ in looked)
    _, header, lines = looked[-1]
    return RolloutFacts(
        path=str(directory if len(steps) > 1 else dump.path(steps[0])),
        steps=facts,
        made=header.get("made", {}),
        sample=_sample(steps[-1], made) if (made := next((line for line in lines if line["samples"]), None)) else None,
        problems=tuple(problem for fact in facts for problem in fact.problems),
    )


def _step(dump: Dump, step: int) -> tuple[StepFacts, Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    try:
        header, lines = dump.whole(step)
    except DumpError as error:
        return StepFacts(step, problems=(str(error),)), {}, ()
    rewards = [float(reward) for line in lines for reward in line["rewards_G"]]
    tokens = sum(len(sample["tokens_T"]) for line in lines for sample in line["samples"])
    mean = fmean(rewards) if rewards else None
    return StepFacts(step, tuple(header["rounds"]), len(rewards), mean, tokens), header, lines


def _sample(step: int, line: Mapping[str, Any]) -> SampleFacts:
    prompt, sample = line["prompt"], line["samples"][0]
    return SampleFacts(
        step=step,
        uid=prompt["uid"],
        prompt=prompt["text"],
        response=sample["text"],
        label=prompt["label"],
        reward=line["rewards_G"][0],
        finish_reason=sample["finish_reason"],
        version=sample["version"],
    )

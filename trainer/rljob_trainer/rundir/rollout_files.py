"""Rollouts on disk: the scored samples of each step, a file for each, to be read by people and trained on again.

    rollouts/step-0000000.jsonl.zst
      {"format": "rljob-rollouts", "version": 2, "step": 0, "rounds": [4], "made": {...}}
      {"prompt": {"uid": "0:17", "question": ..., "text": ..., "tokens_T": [...], "label": ...},
       "samples": [{"tokens_T": [...], "logprobs_T": [...], "version": 0, ...}, ...], "rewards_G": [...], ...}
      ... one such line for each group; dynamic sampling makes them in several rounds of groups
      {"xxh3_128": "..."}

JSON lines, compressed with zstd: `zstdcat FILE | jq` shows them. Numbers are written so that they read back to the same
bit, text in ASCII with escapes. The last line holds the digest of all before it, so a file is whole or refused. `made`
is what decided the samples; a run that trains on them must have it the same. A prompt's metadata is not written:
the reader has the questions.

Axes: G samples of one prompt, T tokens.
"""

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow
import xxhash

from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_trainer.private_files import PRIVATE
from rljob_trainer.rundir import names
from rljob_trainer.rundir.atomic_files import write_atomically
from rljob_trainer.rundir.retries import PATIENT, Patience
from rljob_trainer.samples import Answer, Branch, Group, Prompt, Sample, ScoredGroup, Segment

FORMAT, VERSION = "rljob-rollouts", 2
DIRECTORY = names.ROLLOUTS
"""below a run's directory"""
PROMPT_FIELDS = ("uid", "question", "text", "tokens_T", "label")
OF_AGENTS = ("branches", "reward", "answers")
"""fields that only samples of agents have"""
SAMPLE_FIELDS = tuple(field.name for field in fields(Sample) if field.name not in ("experts", *OF_AGENTS))
BRANCH_FIELDS = tuple(field.name for field in fields(Branch) if field.name != "experts")
"""without the experts of a rollout, which would be most of a file"""
MOST_OF_A_GROUP = 1 << 30
"""of a line that is read by itself [bytes]"""
REWARD_FIELDS = tuple(field.name for field in fields(ScoredGroup) if field.name != "group")
DIGEST = "xxh3_128"

Made = Mapping[str, Any]
"""what decided the samples: name as people know it -> value, as JSON has it"""


class DumpError(RunError):
    """Rollouts cannot be written, read or trained on; the text names file and step, and what was expected."""

    exit = Exit.BAD_INPUT


@dataclass(frozen=True)
class Dump:
    """The files of one run."""

    directory: Path
    patience: Patience = PATIENT

    def rewind(self, first: int, made: Made) -> "Dump":
        """Delete the steps from `first` on: they are sampled again. Return itself. Raises DumpError.

        Earlier steps of another configuration would leave a mixture that no run has trained on.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        for step in self.steps():
            if step >= first:
                self.path(step).unlink()
        for leftover in self.directory.glob("*.draft"):
            leftover.unlink()
        if kept := self.steps():
            self.read(kept[-1], made)
        return self

    def write(self, step: int, rounds: Sequence[Sequence[ScoredGroup]], made: Made) -> Path:
        """Write the groups of a step; the file is there, whole and on the disk, or as it was. Raises StorageError."""
        sizes = [len(groups) for groups in rounds]
        header = {"format": FORMAT, "version": VERSION, "step": step, "rounds": sizes, "made": made}
        content = b"".join(_line(each) for each in (header, *(_record(group) for groups in rounds for group in groups)))
        path, whole = self.path(step), _compressed(content + _line({DIGEST: xxhash.xxh3_128_hexdigest(content)}))
        try:
            self.patience(path, lambda: write_atomically(path, whole, PRIVATE))
        except OSError as error:
            raise DumpError(f"{path}: step {step} cannot be written: {error}") from error
        return path

    def read(self, step: int, made: Made) -> "Recorded":
        """Return what a step's file holds; raise DumpError unless it is whole and was made as `made` says."""
        sizes, lines = self._lines(step, made)
        return Recorded(f"{self.path(step)}: step {step}", sizes, lines)

    def steps(self) -> tuple[int, ...]:
        """Return the steps that have files."""
        steps = [step_of(path) for path in self.directory.glob("step-*")]
        return tuple(sorted(step for step in steps if step is not None))

    def path(self, step: int) -> Path:
        """Return the file of a step."""
        return self.directory / f"step-{step:07d}.jsonl.zst"

    def require(self, steps: range) -> None:
        """Raise DumpError unless there is a file for each of these steps."""
        there = self.steps()
        if (missing := min({*steps}.difference(there), default=None)) is not None:
            raise DumpError(self._absent(missing, there))

    def _absent(self, step: int, there: Sequence[int]) -> str:
        found = f"steps {there[0]} to {there[-1]}" if there else "no rollouts at all"
        return f"{self.path(step)}: step {step} is not there; {self.directory} has {found}"

    def lines(self, step: int) -> Iterator[dict[str, Any]]:
        """Yield the header and the lines of the groups, of which one is in memory at a time.

        Raises DumpError; damage that only the digest shows, behind the last line.
        """
        where, digest, last = f"{self.path(step)}: step {step}", xxhash.xxh3_128(), b""
        for number, line in enumerate(self._stored_lines(step, where), 1):
            if last:
                yield _object(last, f"{where}, line {number - 1}")
                digest.update(last)
            elif number == 1:
                _check_header(_object(line, f"{where}, line 1"), step, where)
            last = line
        if _object(last or b"{}", where) != {DIGEST: digest.hexdigest()}:
            raise DumpError(f"{where}: damaged or cut off: expected a last line with the {DIGEST} of all before it")

    def _stored_lines(self, step: int, where: str) -> Iterator[bytes]:
        try:
            with (
                pyarrow.input_stream(str(self.path(step)), compression="zstd") as stream,
                io.BufferedReader(stream) as lines,
            ):
                while line := lines.readline(MOST_OF_A_GROUP + 1):
                    if len(line) > MOST_OF_A_GROUP:
                        raise DumpError(f"{where}: a line has more than {MOST_OF_A_GROUP} bytes")
                    yield line
        except FileNotFoundError as error:
            raise DumpError(self._absent(step, self.steps())) from error
        except (OSError, pyarrow.ArrowException) as error:
            raise DumpError(f"{where}: expected JSON lines compressed with zstd: {error}") from error

    def whole(self, step: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the header and the lines of the groups; raise DumpError unless the file is whole and of this step."""
        path = self.path(step)
        where = f"{path}: step {step}"
        try:
            stored = self.patience(path, path.read_bytes)
            with pyarrow.input_stream(pyarrow.py_buffer(stored), compression="zstd") as stream:
                content: bytes = stream.read()
        except FileNotFoundError as error:
            raise DumpError(self._absent(step, self.steps())) from error
        except (OSError, pyarrow.ArrowException) as error:
            raise DumpError(f"{where}: expected JSON lines compressed with zstd: {error}") from error
        body, last = _parted(content)
        header, groups = _parsed(body, where)
        _check_header(header, step, where)
        if last != {DIGEST: xxhash.xxh3_128_hexdigest(body)}:
            expected = f"expected {_promised(header)} groups and a last line with the {DIGEST} of all before it"
            found = f"the digest {last[DIGEST]}, which is not theirs" if last else "no such line"
            raise DumpError(f"{where}: damaged or cut off: {expected}, found {found}")
        return header, groups

    def _lines(self, step: int, made: Made) -> tuple[tuple[int, ...], list[dict[str, Any]]]:
        """Return the sizes of the rounds and the lines of the groups, when the rest of the file is valid."""
        where = f"{self.path(step)}: step {step}"
        header, groups = self.whole(step)
        then: Made = header["made"]
        if differs := sorted(name for name in made.keys() | then.keys() if made.get(name) != then.get(name)):
            was, now = (json.dumps(given.get(differs[0]), ensure_ascii=False) for given in (then, made))
            raise DumpError(f"{where}: made with {differs[0]} {was}, and this run has {now}")
        return tuple(header["rounds"]), groups


def step_of(path: Path) -> int | None:
    """Return the step that a file's name says; None: it is another file."""
    name = re.fullmatch(r"step-(\d{7,})\.jsonl\.zst", path.name)
    return int(name[1]) if name else None


@dataclass(frozen=True, slots=True)
class Recorded:
    """A step as it was written."""

    where: str
    """how messages begin"""
    sizes: tuple[int, ...]
    """groups of each round"""
    lines: Sequence[dict[str, Any]]

    def groups(self, number: int, prompts: Sequence[Prompt]) -> tuple[ScoredGroup, ...]:
        """Return the groups of a round, from 0; `prompts` are those that the run asks in it. Raises DumpError."""
        if number >= len(self.sizes):
            raise DumpError(f"{self.where}: expected round {number + 1}, found {len(self.sizes)} rounds")
        if self.sizes[number] != len(prompts):
            raise DumpError(f"{self.where}: expected {len(prompts)} groups, found {self.sizes[number]}")
        first = sum(self.sizes[:number])
        return tuple(
            _group(self.lines[place], prompt, f"{self.where}, line {place + 2}")
            for place, prompt in enumerate(prompts, start=first)
        )


def _record(scored: ScoredGroup) -> dict[str, Any]:
    prompt = scored.group.prompt
    return {
        "prompt": {name: getattr(prompt, name) for name in PROMPT_FIELDS},
        "samples": [_sample_record(sample) for sample in scored.group.samples_G],
        **{name: getattr(scored, name) for name in REWARD_FIELDS},
    }


def _sample_record(sample: Sample) -> dict[str, Any]:
    segments = [asdict(segment) for segment in sample.segments]
    record = {name: getattr(sample, name) for name in SAMPLE_FIELDS} | {"segments": segments}
    if sample.branches:
        branches = [{name: getattr(branch, name) for name in BRANCH_FIELDS} for branch in sample.branches]
        record |= {"branches": branches, "reward": sample.reward, "answers": [*map(asdict, sample.answers)]}
    return record


def _group(line: dict[str, Any], prompt: Prompt, where: str) -> ScoredGroup:
    asked = {name: _tuples(value) for name, value in line["prompt"].items()}
    for name in PROMPT_FIELDS:
        if asked.get(name) != getattr(prompt, name):
            wanted, found = (json.dumps(value)[:80] for value in (getattr(prompt, name), asked.get(name)))
            raise DumpError(f"{where}: expected prompt {prompt.uid} with {name} {wanted}, found {found}")
    samples = tuple(sample_of(sample, where) for sample in line["samples"])
    judged = {name: value for name, value in line.items() if name not in ("prompt", "samples")}
    if judged.keys() != set(REWARD_FIELDS):
        raise DumpError(f"{where}: expected {', '.join(REWARD_FIELDS)}, found {', '.join(judged)}")
    return ScoredGroup(Group(prompt, samples), **{name: _tuples(value) for name, value in judged.items()})


def sample_of(sample: dict[str, Any], where: str) -> Sample:
    """Return a sample as it was written; `where` begins messages. Raises DumpError."""
    if sample.keys() - set(OF_AGENTS) != set(SAMPLE_FIELDS):  # of a time when samples had other fields
        raise DumpError(f"{where}: expected samples with {', '.join(SAMPLE_FIELDS)}, found {', '.join(sample)}")
    parts = {
        "segments": tuple(Segment(**segment) for segment in sample["segments"]),
        "branches": tuple(Branch(**_tuples(branch)) for branch in sample.get("branches", ())),
        "answers": tuple(Answer(**_tuples(answer)) for answer in sample.get("answers", ())),
    }
    return Sample(**{name: _tuples(value) for name, value in (sample | parts).items()})


def _compressed(content: bytes) -> memoryview:
    buffer = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(buffer, "zstd") as stream:
        stream.write(content)
    return memoryview(buffer.getvalue())


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tuples(inner) for name, inner in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _line(content: Mapping[str, Any]) -> bytes:
    # json writes the shortest decimal that reads back to the same double, and lone surrogates as escapes.
    return json.dumps(content, separators=(",", ":")).encode("ascii") + b"\n"


def _object(line: bytes, where: str) -> dict[str, Any]:
    """Return a line as an object. Raises DumpError."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{where}: damaged or cut off: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise DumpError(f"{where}: expected an object, found {line[:80]!r}")
    return content


def _promised(header: Mapping[str, Any]) -> int | str:
    """Return how many groups a header promises, which may be damaged, too."""
    rounds = header.get("rounds")
    return sum(rounds) if isinstance(rounds, list) and all(isinstance(each, int) for each in rounds) else "its"


def _parted(content: bytes) -> tuple[bytes, dict[str, Any]]:
    """Return what stands before the last line, and the last line if it holds a digest, else {}."""
    start = content.rfind(b"\n", 0, len(content) - 1) + 1
    try:
        last = json.loads(content[start:])
    except ValueError:
        return content, {}
    return (content[:start], last) if isinstance(last, dict) and DIGEST in last else (content, {})


def _parsed(body: bytes, where: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the header, and the lines of the groups as far as they can be read."""
    header, *lines = body.splitlines() or [b""]
    try:
        first = json.loads(header)
    except ValueError as error:
        raise DumpError(f"{where}: line 1: expected a header with format {FORMAT!r}: {error}") from error
    if not isinstance(first, dict):
        raise DumpError(f"{where}: line 1: expected a header with format {FORMAT!r}, found {header[:80]!r}")
    groups = []
    for line in lines:
        try:
            groups.append(json.loads(line))
        except ValueError:  # cut off or damaged: the digest shows it
            break
    return first, groups


def _check_header(header: Mapping[str, Any], step: int, where: str) -> None:
    for name, wanted in (("format", FORMAT), ("version", VERSION), ("step", step)):
        if header.get(name) != wanted:
            raise DumpError(f"{where}: line 1: expected {name} {wanted!r}, found {header.get(name)!r}")

"""`rljob validate`: everything that is wrong with manifests, a problem a line. Needs none of the trainer's packages."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rljob_api.errors import ABSENT, ManifestError, Problem
from rljob_api.exits import Exit
from rljob_api.reading import manifest
from rljob_api.reading.document import MOST_CHARACTERS
from rljob_api.sections import RLJob
from rljob_api.sizing import model_shape
from rljob_api.sizing.misfits import misfits
from rljob_cli.terminal.options import STDIN
from rljob_trainer.preflight import Findings, look_at_files
from rljob_trainer.preflight.model_files import ModelFiles, model_files
from rljob_trainer.preflight.teacher import teacher_shape

MOST_BYTES = 4 * MOST_CHARACTERS
"""of a manifest: the longest character of UTF-8 has four"""


UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""what a file of UTF-16 begins with"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What validation says of one manifest."""

    file: str
    problems: tuple[Problem, ...]
    """what breaks a rule of manifests"""
    findings: Findings
    """what the files have shown that the manifest names"""

    @property
    def exit_code(self) -> Exit:
        return Exit.BAD_MANIFEST if self.problems else Exit.BAD_INPUT if self.findings.problems else Exit.OK

    def lines(self) -> list[str]:
        found = [f"{self.file}: {problem}" for problem in (*self.problems, *self.findings.problems)]
        warned = [f"{self.file}: warning: {warning}" for warning in self.findings.warnings]
        if found:
            return found + warned
        return [f"{self.file}: {' '.join(('valid', *(f'({note})' for note in self.notes())))}", *warned]

    def notes(self) -> tuple[str, ...]:
        """Return what was not checked."""
        elsewhere = ", ".join(self.findings.elsewhere)
        return (
            *((f"not checked, because not on this machine: {elsewhere}",) if elsewhere else ()),
            *self.findings.unseen,
        )


def validate(paths: list[Path]) -> tuple[str, Exit]:
    """Return what to print about the manifests, and the exit code."""
    verdicts = [verdict(path) for path in paths]
    text = "\n".join(line for judged in verdicts for line in judged.lines())
    codes = {judged.exit_code for judged in verdicts}
    return text, next((code for code in (Exit.BAD_MANIFEST, Exit.BAD_INPUT) if code in codes), Exit.OK)


def verdict(path: Path) -> Verdict:
    name = "stdin" if path == STDIN else str(path)
    try:
        job, files = load(path)
    except ManifestError as error:
        return Verdict(name, error.problems, Findings())
    return Verdict(name, (), looked(job, files, here=False))


def looked(job: RLJob, files: ModelFiles | None, *, here: bool) -> Findings:
    """Return what the files are like; one that this machine cannot read now is a problem."""
    try:
        return look_at_files(job, files, here=here)
    except OSError as error:
        return Findings((unread(error),))


def unread(error: OSError) -> Problem:
    return Problem("manifest", str(error.filename or ABSENT), f"names a file that cannot be read: {error.strerror}")


def load(path: Path) -> tuple[RLJob, ModelFiles | None]:
    """Return the job in a file, and its model's files if they are on this machine.

    Raises ManifestError with all that is wrong, also with what the model does not allow.
    """
    job = manifest.load(read(path))
    try:
        files, teacher = model_files(job.spec.model.checkpoint), teacher_shape(job.spec)
    except OSError as error:
        raise ManifestError((unread(error),)) from error
    if files:
        model = model_shape.shape(files.config)
        beside = model_shape.teacher_problems(teacher, model, job.spec) if teacher else ()
        if broken := (*misfits(model, job.spec), *beside):
            raise ManifestError(broken)
    return job, files


def read(path: Path) -> str:
    """Return a manifest's text; `-` is the standard input. Raises ManifestError when the text cannot be read."""
    try:
        if path == STDIN:
            return of_file(sys.stdin.buffer)
        with path.open("rb") as file:
            return of_file(file)
    except OSError as error:
        raise ManifestError((Problem("manifest", ABSENT, f"cannot be read: {error.strerror}"),)) from error
    except UnicodeDecodeError as error:
        raise ManifestError((not_utf8(error),)) from error


def not_utf8(error: UnicodeDecodeError) -> Problem:
    """Return the problem of a file in another encoding, with the place of its first foreign byte."""
    before: bytes = error.object[: error.start]
    if error.object.startswith(UTF_16):
        return Problem("manifest", ABSENT, "is UTF-16; save it as UTF-8")
    if b"\0" in error.object:
        return Problem("manifest", ABSENT, "is a binary file; a text in UTF-8 is expected")
    line, column = before.count(b"\n") + 1, len(before.rpartition(b"\n")[2].decode()) + 1
    rule = f"is not UTF-8: byte 0x{error.object[error.start]:02x}; save the file as UTF-8"
    return Problem(f"line {line}, column {column}", ABSENT, rule)


def of_file(file: BinaryIO) -> str:
    """Return the text of an open file. Raises ManifestError before more of it is read than a manifest can have."""
    content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        rule = f"has more than {MOST_CHARACTERS} characters: is it a manifest?"
        raise ManifestError((Problem("manifest", ABSENT, rule),))
    return content.decode("utf-8")

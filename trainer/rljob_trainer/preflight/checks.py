"""The thin shell: opens what a manifest names, and has it judged."""

import logging
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from rljob_api import hub, objects
from rljob_api.errors import ManifestError, Problem, RunError
from rljob_api.exits import Exit
from rljob_api.sections import RLJob, Spec
from rljob_api.sizing.known_models import KNOWN
from rljob_api.sizing.model_shape import CHECKPOINT, TEACHER, quantised, shape
from rljob_trainer.data.foreign_files import no_directory, no_file
from rljob_trainer.preflight.downloads import download, file_of, file_on_this_machine
from rljob_trainer.preflight.findings import Findings, total
from rljob_trainer.preflight.functions import look_at_functions
from rljob_trainer.preflight.machine import judge_machine, look_at_sandbox, read_machine
from rljob_trainer.preflight.model_files import ModelFiles, model_files
from rljob_trainer.preflight.teacher import look_at_weights
from rljob_trainer.preflight.weights import judge_weights, read_weights
from rljob_trainer.rundir.retries import PATIENT, judge_volume

log = logging.getLogger(__name__)
VARIABLE = re.compile(r"\$(\w+|\{\w+\})")
"""a variable of a shell"""


class PreflightError(RunError, RuntimeError):
    """What a manifest names is not as it has to be; the text has every problem, with its field."""

    exit = Exit.BAD_INPUT


def require(job: RLJob, directory: Path) -> None:
    """Look at all that a run in `directory` on this machine needs; log what is doubtful.

    Raises PreflightError for what is wrong, and StorageError where a volume stays away.
    """
    if (away := download(job.spec)).problems:
        raise PreflightError("; ".join(map(str, away.problems)))
    found = PATIENT("the files that the manifest names", partial(_look, job, directory))
    for warning in found.warnings:
        log.warning("action=preflight warning=%r", str(warning))
    if found.problems:
        raise PreflightError("; ".join(map(str, found.problems)))


def _look(job: RLJob, directory: Path) -> Findings:
    try:
        files = model_files(job.spec.model.checkpoint)
    except ManifestError as error:
        return Findings(error.problems)
    return look_at_files(job, files, here=True) + look_at_machine(job, files, directory)


def look_at_files(job: RLJob, files: ModelFiles | None, *, here: bool) -> Findings:
    """Look at the model's files, functions of the user's own and questions; `here`: the run will be on this machine, so
    they must be.

    `files` are the model's, None where it is not on this machine.
    """
    spec = job.spec
    if (misspelt := look_at_spelling(spec)).problems:
        return misspelt
    found = look_at_model(spec, files, here) + look_at_dump(spec, here) + look_at_teacher(spec, here)
    found += look_at_functions(spec, here) + look_at_sandbox(spec, here, os.environ)
    for field, source in spec.data.sources.items():
        if (file := file_of(source)) and file_on_this_machine(file[1]) is None:
            found += look_at_path(f"{field}.{file[0]}", file[1], no_file, here)
    try:
        # Only here, because it needs packages of the trainer.
        from rljob_trainer.preflight.questions import look_at_questions
    except ModuleNotFoundError as error:
        skipped = f"{error.name} is not installed, so questions, tokenizer and chat template were not looked at"
        return found + Findings(unseen=(skipped,))
    return found + look_at_questions(spec, files)


def look_at_machine(job: RLJob, files: ModelFiles | None, directory: Path, *, has_leftovers: bool = False) -> Findings:
    """Look at the disk and the ports of this machine for a run in `directory`, and at what it shall train on again.

    `has_leftovers`: processes of the same run are there, which are ended before it starts; a port may be theirs.
    """
    machine = read_machine(directory, () if has_leftovers else (job.spec.runtime.metrics_port,))
    return judge_machine(job.spec, shape(files.config) if files else None, machine) + own_dump(job.spec, directory)


def look_at_path(field: str, path: str, fault_of: Callable[[Path], str | None], here: bool) -> Findings:
    """Return what it means that a path leads to nothing that can be used: `fault_of` says what else is there.

    Raises OSError where its volume is away.
    """
    try:
        fault = None if is_remote(path) else fault_of(Path(path))
    except OSError as error:
        judge_volume(error)
        fault = f"cannot be looked at: {error.strerror}"
    if fault is None:
        return elsewhere(field, path, here)
    return Findings((Problem(field, path, fault),))


def is_remote(text: str) -> bool:
    """Return whether a value names something on the hub or in a store, which is downloaded and verified then."""
    return hub.is_reference(text) or objects.is_reference(text)


def elsewhere(field: str, path: str, here: bool) -> Findings:
    """Return what a path that does not exist means: a mistake, if the run is to be on this machine."""
    is_model = field in (CHECKPOINT, TEACHER)
    of_hub = hub.meant(path, is_model)
    if here:
        return Findings((Problem(field, path, "is not on this machine", of_hub),))
    kind = "model" if is_model else "data set"
    return Findings(elsewhere=(path if of_hub is None else f"{path}; the {kind} of the hub is {of_hub}",))


def look_at_spelling(spec: Spec) -> Findings:
    """Find paths as a shell reads them. They are taken as they are: a run would make a directory named `~`."""
    return total(
        Findings((Problem(field, path, "is taken as it is: ~ and $NAME are for a shell", expanded(path)),))
        for field, path in named_paths(spec)
        if path.startswith("~") or VARIABLE.search(path)
    )


def expanded(path: str) -> str:
    """Return what a shell would make of a path here."""
    try:
        meant = str(Path(os.path.expandvars(path)).expanduser())
    except RuntimeError:  # of an unknown user
        meant = path
    return "the path in full" if meant.startswith("~") or VARIABLE.search(meant) else meant


def named_paths(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield the fields that name files and directories, with their paths."""
    yield CHECKPOINT, spec.model.checkpoint
    if spec.algorithm.teacher is not None:
        yield TEACHER, spec.algorithm.teacher.checkpoint
    if spec.checkpoint.directory is not None:
        yield "spec.checkpoint.directory", spec.checkpoint.directory
    for field, source in spec.data.sources.items():
        if (file := file_of(source)) is not None:
            yield f"{field}.{file[0]}", file[1]
    if spec.debug.replay is not None:
        yield "spec.debug.replay", spec.debug.replay


def look_at_model(spec: Spec, files: ModelFiles | None, here: bool) -> Findings:
    checkpoint = spec.model.checkpoint
    if checkpoint in KNOWN:
        return Findings()  # we make its files ourselves, from a package
    if is_remote(checkpoint):  # a download is compared with its hashes
        if files is None:
            return Findings(unseen=(f"not checked until it is downloaded: the family and sizes of {checkpoint}",))
        problem = quantised(files.config)
        return Findings((problem,) if problem else ())
    if files is None:
        return look_at_path(CHECKPOINT, checkpoint, no_directory, here)
    return judge_weights(read_weights(Path(checkpoint), files.config))


def look_at_teacher(spec: Spec, here: bool) -> Findings:
    """Return whether the model that a learner learns from is there, and whole."""
    teacher = spec.algorithm.teacher
    if teacher is None or not spec.debug.learner:
        return Findings()
    if is_remote(teacher.checkpoint):
        return Findings()
    if teacher.checkpoint not in KNOWN and not Path(teacher.checkpoint).is_dir():
        return look_at_path(TEACHER, teacher.checkpoint, no_directory, here)
    return look_at_weights(spec)


def look_at_dump(spec: Spec, here: bool) -> Findings:
    """Return whether there are rollouts to train on again, and enough of them."""
    if spec.debug.replay is None:
        return Findings()
    field, directory = "spec.debug.replay", Path(spec.debug.replay)
    if not directory.is_dir():
        return look_at_path(field, str(directory), no_directory, here)
    steps = len(list(directory.glob("step-*.jsonl.zst")))
    if not steps:
        rule = "holds no rollouts; a run with spec.debug.dumpRollouts writes them to rollouts/ in its directory"
        inside = directory / "rollouts"
        return Findings((Problem(field, str(directory), rule, str(inside) if inside.is_dir() else None),))
    if steps < spec.training.steps:
        rule = f"is more than the {steps} steps that spec.debug.replay holds"
        return Findings((Problem("spec.training.steps", spec.training.steps, rule, str(steps)),))
    return Findings()


def own_dump(spec: Spec, directory: Path) -> Findings:
    """Return whether a run would train on rollouts of its own directory, which it begins by clearing."""
    if spec.debug.replay is None or Path(spec.debug.replay).resolve().parent != directory.resolve():
        return Findings()
    rule = "is in this run's own directory; set spec.checkpoint.directory to another one"
    return Findings((Problem("spec.debug.replay", spec.debug.replay, rule),))

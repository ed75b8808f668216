"""The teacher of a distillation: its files, its shape beside the student's, and its tokens."""

from dataclasses import replace
from pathlib import Path

from rljob_api.errors import ManifestError, Problem
from rljob_api.sections import Spec
from rljob_api.sizing import model_shape
from rljob_api.sizing.known_models import KNOWN
from rljob_api.sizing.model_shape import CHECKPOINT, TEACHER, Shape
from rljob_trainer.preflight.findings import Findings
from rljob_trainer.preflight.model_files import model_files
from rljob_trainer.preflight.weights import judge_weights, read_weights


def teacher_shape(spec: Spec) -> Shape | None:
    """Return the shape of the teacher; None when there is none, or not on this machine. Raises ManifestError."""
    teacher = spec.algorithm.teacher
    if teacher is None or not spec.debug.learner:
        return None
    try:
        files = model_files(teacher.checkpoint)
        return model_shape.shape(files.config) if files else None
    except ManifestError as error:
        raise ManifestError(tuple(map(of_teacher, error.problems))) from error


def look_at_weights(spec: Spec) -> Findings:
    """Look at the files of a teacher that is on this machine."""
    assert spec.algorithm.teacher is not None
    checkpoint = spec.algorithm.teacher.checkpoint
    try:
        files = model_files(checkpoint)
    except ManifestError as error:
        return Findings(tuple(map(of_teacher, error.problems)))
    if files is None or checkpoint in KNOWN:
        return Findings()
    found = judge_weights(read_weights(Path(checkpoint), files.config))
    return replace(
        found,
        problems=tuple(map(of_teacher, found.problems)),
        warnings=tuple(map(of_teacher, found.warnings)),
    )


def of_teacher(problem: Problem) -> Problem:
    """Return the problem of a checkpoint as the teacher's."""
    return replace(problem, field=TEACHER) if problem.field == CHECKPOINT else problem

"""The teacher of a distillation, found and compared with the student before anything is started."""

from pathlib import Path

from rljob_api.sections import Spec
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.packages import checkpoint
from rljob_trainer.data.tokenizer import load_config, load_tokenizer
from rljob_trainer.data.vocabulary import difference

FIELD = "algorithm.teacher.checkpoint"


def teacher_directory(spec: Spec, student: Path, cache: Path) -> Path | None:
    """Return the directory of the teacher's checkpoint; None where no learner has one.

    Raises ModelError when it is none, DataError when it cannot judge the tokens of the model in `student`.
    """
    if spec.algorithm.teacher is None or not spec.debug.learner:
        return None
    teacher = checkpoint(spec.algorithm.teacher.checkpoint, cache, FIELD)
    if found := difference(load_tokenizer(student).get_vocab(), load_tokenizer(teacher, FIELD).get_vocab()):
        raise DataError(f"{FIELD} {teacher}: its tokenizer is not that of {student}: {found}")
    own, wanted = (load_config(each).vocab_size for each in (teacher, student))
    if own < wanted:
        raise DataError(f"{FIELD} {teacher}: knows {own} tokens, and the student may sample {wanted} (vocab_size)")
    return teacher

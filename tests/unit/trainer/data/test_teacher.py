"""A teacher is found and compared with its student before anything is started."""

import json
from pathlib import Path

import pytest

from rljob_api.reading.manifest import load
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.packages import ModelError
from rljob_trainer.data.teacher import teacher_directory
from support.api.bad_manifests import table
from support.trainer.tiny_models import tiny_qwen3


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    return tiny_qwen3(tmp_path / "teacher", seed=7)


def spec(teacher: Path, more: str = ""):
    algorithm = f"  algorithm: {{name: distillation, teacher: {{checkpoint: {teacher}}}}}\n{more}"
    return load(table()["good"].replace("  reward:\n", f"{algorithm}  reward:\n")).spec


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_teacher_with_the_student_s_tokens_is_found(tiny_llama_dir: Path, teacher: Path):
    assert teacher_directory(spec(teacher), tiny_llama_dir, teacher) == teacher
    assert teacher_directory(load(table()["good"]).spec, tiny_llama_dir, teacher) is None


def test_nobody_needs_a_teacher_where_nothing_is_trained(tiny_llama_dir: Path, tmp_path: Path):
    rollouts = spec(tmp_path / "absent", "  debug: {rolloutOnly: true}\n")
    assert teacher_directory(rollouts, tiny_llama_dir, tmp_path) is None


def test_a_teacher_that_is_not_there_is_reported_by_its_field(tiny_llama_dir: Path, tmp_path: Path):
    with pytest.raises(ModelError, match=r"absent: no such directory \(algorithm.teacher.checkpoint wants one"):
        teacher_directory(spec(tmp_path / "absent"), tiny_llama_dir, tmp_path)


def test_a_teacher_with_other_tokens_is_refused(tiny_llama_dir: Path, teacher: Path):
    content = json.loads((teacher / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    names = {token: text for text, token in vocabulary.items()}
    vocabulary[names[300]], vocabulary[names[301]] = 301, 300
    (teacher / "tokenizer.json").write_text(json.dumps(content))

    with pytest.raises(DataError, match=r"its tokenizer is not that of .*: 2 of 512 tokens differ, first 300: "):
        teacher_directory(spec(teacher), tiny_llama_dir, teacher)


def test_a_teacher_that_cannot_judge_every_token_is_refused(tiny_llama_dir: Path, teacher: Path):
    edit(teacher / "config.json", vocab_size=500)

    with pytest.raises(DataError, match=r"knows 500 tokens, and the student may sample 512 \(vocab_size\)"):
        teacher_directory(spec(teacher), tiny_llama_dir, teacher)

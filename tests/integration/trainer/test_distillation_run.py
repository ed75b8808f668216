"""A student comes closer to its teacher, in a whole run."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rljob_api.exits import Exit
from support.trainer.tiny_models import tiny_qwen3
from support.trainer.whole_run import WholeRun

Begin = Callable[..., WholeRun]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    runs: list[WholeRun] = []

    def start(model: Path, **sections: object) -> WholeRun:
        run = WholeRun(model, tmp_path, **sections)
        runs.append(run)
        run.start()
        return run

    yield start
    for run in runs:
        run.stop()


@pytest.mark.long
def test_a_student_comes_closer_to_its_teacher(
    begin: Begin, tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    teacher = tiny_qwen3(tmp_path_factory.mktemp("teacher"), seed=7, layers=3)
    run = begin(
        tiny_llama_dir,
        algorithm={"name": "distillation", "teacher": {"checkpoint": str(teacher)}},
        rollout={"samplesPerPrompt": 16},
        training={"steps": 12, "optimizer": {"learningRate": 5.0e-3}},
        checkpoint={"interval": 100},
    )
    assert run.end() == Exit.OK, run.output
    divergences = [record["kl"] for record in run.records("step")]
    assert len(divergences) == 12
    assert sum(divergences[-3:]) < 0.8 * sum(divergences[:3]), divergences
    (first,) = run.records("first_step")
    assert "KL to the reference" not in {check["name"] for check in first["checks"]}
    assert run.left_behind() == []

"""Whole runs of PPO: real Ray, Megatron-core, SGLang and router, on a tiny model and its critic."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rljob_api.exits import Exit
from support.trainer.whole_run import WholeRun

pytestmark = pytest.mark.timeout(900)

STEPS = 12
PPO: dict[str, Any] = {
    "algorithm": {
        "name": "ppo",
        "kl": {"coefficient": 0.001, "addedTo": "Reward"},
        "critic": {"learningRate": 5e-3, "lambda": 0.9, "warmupSteps": 2},
    },
    "training": {"steps": STEPS, "gpusPerNode": 2, "stepsPerRollout": 2},
    "checkpoint": {"interval": 4, "hfExport": True},
    "debug": {"dumpRollouts": True},
}


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[list[WholeRun]]:
    made: list[WholeRun] = []
    yield made
    for run in made:
        run.stop()


def begun(runs: list[WholeRun], directory: Path, model: Path, **sections: Any) -> WholeRun:
    directory.mkdir()
    runs.append(WholeRun(model, directory, **sections))
    runs[-1].start()
    return runs[-1]


def weights(run: WholeRun) -> bytes:
    return (run.run_directory / "hf" / "model.safetensors").read_bytes()


def of_critic(run: WholeRun) -> list[list[float]]:
    names = ("value_loss", "value_clip_fraction", "explained_variance", "critic_grad_norm")
    return [[record[name] for name in names] for record in run.records("step")]


@pytest.mark.long
def test_ppo_trains_its_critic_first_and_a_run_that_was_killed_ends_with_the_same_weights(
    runs: list[WholeRun], tmp_path: Path, tiny_llama_dir: Path
) -> None:
    whole = begun(runs, tmp_path / "whole", tiny_llama_dir, **PPO)
    assert whole.end() == Exit.OK, whole.output
    steps = whole.records("step")
    assert [record["loss"] is None for record in steps] == [True] * 2 + [False] * (STEPS - 2)
    assert all(value is not None for record in of_critic(whole) for value in record)
    assert steps[0]["value_clip_fraction"] < 1
    before, *_, after = whole.records("evaluation")
    assert after["greedy"] > before["greedy"] + 0.3, "it learns"  # from 0.04 to 0.94; rewards of single steps are noisy

    replay = {"replay": str(whole.run_directory / "rollouts"), "dumpRollouts": False}
    killed = begun(runs, tmp_path / "killed", tiny_llama_dir, **PPO | {"debug": replay})
    killed.until(lambda: killed.steps() >= 6)
    killed.kill_everything()
    killed.start()
    assert killed.end() == Exit.OK, killed.output
    assert of_critic(killed) == of_critic(whole)
    assert weights(killed) == weights(whole)

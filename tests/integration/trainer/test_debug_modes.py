"""Parts of a run by themselves: real Ray, Megatron-core, SGLang and router, on a tiny model."""

from pathlib import Path
from typing import Any

import pytest

from rljob_trainer.rundir.rollout_files import Dump
from support.trainer.whole_run import PROMPTS_PER_STEP, Finish, WholeRun, expected_journal, uids, without_commits

pytestmark = pytest.mark.timeout(900)


def weights(run: WholeRun) -> bytes:
    return (run.run_directory / "hf" / "model.safetensors").read_bytes()


def losses(run: WholeRun) -> list[float]:
    return [record["loss"] for record in run.records("step")]


def first_step(run: WholeRun) -> dict[str, float]:
    """Return what the first step has shown."""
    (record,) = run.records("first_step")
    return {check["name"]: check["value"] for check in record["checks"]}


def logs(run: WholeRun) -> list[str]:
    return sorted(path.name for path in (run.run_directory / "logs").iterdir())


@pytest.mark.long
def test_a_replay_ends_with_the_weights_of_the_dumped_run_to_the_bit(finish: Finish, tiny_llama_dir: Path) -> None:
    changes: dict[str, Any] = {
        "training": {"steps": 4},
        "checkpoint": {"hfExport": True, "interval": 2},
        "algorithm": {"kl": {"coefficient": 0.001}},
    }
    live = finish("live", tiny_llama_dir, **changes, debug={"dumpRollouts": True})
    dump = live.run_directory / "rollouts"

    replay = finish("replay", tiny_llama_dir, **changes, debug={"replay": str(dump)})

    assert Dump(dump).steps() == (0, 1, 2, 3)
    assert weights(replay) == weights(live)
    assert losses(replay) == losses(live)
    assert replay.journal == live.journal == expected_journal(4, PROMPTS_PER_STEP, 2, uids())
    assert not any("engine" in name or "router" in name for name in logs(replay))
    assert len(replay.records("evaluation")) == 0
    assert first_step(replay) == first_step(live)
    assert first_step(live)["KL to the reference"] == 0.0
    assert first_step(live)["engine against learner, largest |difference| [nats]"] < 1e-3


ALONE = {"training": {"steps": 2}, "debug": {"rolloutOnly": True, "dumpRollouts": True}}


def test_rollouts_alone_keep_the_weights(finish: Finish, tiny_qwen3_dir: Path) -> None:
    alone = finish("alone", tiny_qwen3_dir, **ALONE)
    before, after = alone.records("evaluation")
    assert before["greedy"] == after["greedy"], "the same weights give the same greedy answers"
    assert [(record["version"], record["loss"]) for record in alone.records("step")] == [(0, None), (0, None)]
    assert not (alone.run_directory / "checkpoints").exists()
    work = without_commits(expected_journal(2, PROMPTS_PER_STEP, 2, uids()))
    assert alone.journal == work


@pytest.mark.long
def test_rollouts_train_alike_in_other_layouts(finish: Finish, tiny_qwen3_dir: Path) -> None:
    alone = finish("alone", tiny_qwen3_dir, **ALONE)
    debug = {"replay": str(alone.run_directory / "rollouts")}
    one = finish("one", tiny_qwen3_dir, training={"steps": 2}, debug=debug)
    tensor = finish("tensor", tiny_qwen3_dir, training={"steps": 2, "gpusPerNode": 2, "tensorParallel": 2}, debug=debug)
    data = finish("data", tiny_qwen3_dir, training={"steps": 2, "gpusPerNode": 2}, debug=debug)

    assert losses(tensor) == pytest.approx(losses(one), abs=1e-5)
    assert losses(data) == pytest.approx(losses(one), abs=1e-5)
    assert one.records("step")[0]["logprob_mismatch"] < 1e-4, "engines held the same weights"

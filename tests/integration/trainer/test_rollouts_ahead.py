"""Whole runs whose rollouts are ahead of training: real Ray, Megatron-core, SGLang servers and router."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow
import pytest

from rljob_api.exits import Exit
from support.trainer.whole_run import PROMPTS_PER_STEP, WholeRun, expected_journal, uids

pytestmark = pytest.mark.timeout(900)

Begin = Callable[..., WholeRun]
STEPS = 12
LONG = {"engines": 2, "contextLength": 256, "sampling": {"maxNewTokens": 160}}
"""responses that take longer than a training step, so that a publication meets them"""


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts runs, and ends what a failed test has left."""
    runs: list[WholeRun] = []

    def started(model: Path, name: str = "first", **sections: object) -> WholeRun:
        (tmp_path / name).mkdir()
        run = WholeRun(model, tmp_path / name, **sections)
        runs.append(run)
        run.start()
        return run

    yield started
    for run in runs:
        run.stop()


def versions(run: WholeRun, step: int) -> list[list[list[int]]]:
    """Return of each sample of a step that was carried over publications which version made how many of its tokens."""
    path = run.run_directory / "rollouts" / f"step-{step:07d}.jsonl.zst"
    with pyarrow.input_stream(str(path), compression="zstd") as stream:
        _, *groups, _ = map(json.loads, stream.read().splitlines())
    return [sample["carried"] for group in groups for sample in group["samples"] if sample["carried"]]


def servers(run: WholeRun) -> list[int]:
    """Return the pids of the run's SGLang schedulers."""
    return [process.pid for process in run.processes() if process.name().startswith("sglang::sched")]


@pytest.mark.long
def test_responses_are_carried_over_publications_and_a_killed_run_leaves_the_same_journal(
    begin: Begin, tiny_qwen3_dir: Path
) -> None:
    run = begin(
        tiny_qwen3_dir,
        placement="Disaggregated",
        algorithm={"clipHigh": 0.28},
        rollout={**LONG, "async": {"maxStaleness": 2, "partial": True}},
        training={"steps": STEPS},
        checkpoint={"interval": 3},
        evaluation={"interval": 6},
        debug={"dumpRollouts": True},
    )
    run.until(lambda: run.steps() >= 4)
    run.kill_everything()
    run.start()
    run.until(lambda: run.steps() >= 8)
    time.sleep(0.3)  # answers are on their way
    run.kill(servers(run)[0])
    assert run.end() == Exit.OK, run.output
    assert run.left_behind() == []

    assert run.journal == expected_journal(STEPS, PROMPTS_PER_STEP, 3, uids(), ahead=2)
    steps = run.records("step")
    assert [record["step"] for record in steps] == list(range(1, STEPS + 1))
    assert steps[0]["staleness"] == 0.0
    assert 0 < max(record["staleness"] for record in steps) <= max(record["max_staleness"] for record in steps) <= 2
    assert max(record["clip_fraction"] for record in steps) > 0, "the ratio is that to the engines"
    assert [record["step"] for record in run.records("evaluation")] == [0, 6, STEPS]
    assert "Mismatch" not in {record["name"] for record in run.records("finding")}
    found = [(step, runs) for step in range(STEPS) for runs in versions(run, step)]
    assert len(found) > STEPS, "publications met responses that were being made"
    assert all(step - 2 <= runs[0][0] <= runs[-1][0] <= step for step, runs in found)


@pytest.mark.long
def test_the_parts_of_a_carried_response_have_the_learner_s_probabilities_and_a_replay_trains_on_them_alike(
    begin: Begin, tiny_llama_dir: Path
) -> None:
    sections = {
        "placement": "Disaggregated",
        "algorithm": {"importanceSampling": {"kind": "Truncate"}},
        "rollout": {**LONG, "async": {"partial": True}},
        "training": {"steps": 4, "optimizer": {"learningRate": 1e-9}},
    }
    run = begin(tiny_llama_dir, **sections, debug={"dumpRollouts": True})
    assert run.end() == Exit.OK, run.output
    assert sum(len(versions(run, step)) for step in range(1, 4)) > 4
    steps = run.records("step")
    assert [record["version"] for record in steps] == [1, 2, 3, 4]
    assert max(record["logprob_mismatch"] for record in steps) < 1e-4, "all versions are one policy"
    assert max(record["importance_weight"] for record in steps) == pytest.approx(1.0, abs=1e-3)

    replay = begin(tiny_llama_dir, "replay", **sections, debug={"replay": str(run.run_directory / "rollouts")})
    assert replay.end() == Exit.OK, replay.output
    assert replay.journal == run.journal == expected_journal(4, PROMPTS_PER_STEP, 2, uids(), ahead=1)
    for name in ("loss", "grad_norm", "staleness", "importance_weight"):
        # Beside engines a rank has fewer threads, and a sum in another order.
        wanted = pytest.approx([record[name] for record in steps], rel=1e-6)
        assert [record[name] for record in replay.records("step")] == wanted


@pytest.mark.long
def test_weights_published_every_second_step_reach_engines_that_all_died_before(
    begin: Begin, tiny_llama_dir: Path
) -> None:
    run = begin(
        tiny_llama_dir,
        placement="Disaggregated",
        rollout={"engines": 1, "async": {"maxStaleness": 2, "updateInterval": 2}},
        training={"steps": 30},
        evaluation={"interval": 15},
        checkpoint={"interval": 100},
    )
    run.until(lambda: run.steps() >= 5)
    run.kill(servers(run)[0])
    assert run.end() == Exit.OK, run.output
    assert run.left_behind() == []
    assert run.journal[-1]["event"] == "committed"
    steps = run.records("step")
    assert max(record["max_staleness"] for record in steps) == 2
    assert [record["version"] for record in steps if record["step"] in (1, 2, 3, 15, 30)] == [0, 2, 2, 15, 30]
    assert [record["publish_wait_seconds"] > 0 for record in steps[:4]] == [False, True, False, True]

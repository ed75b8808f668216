"""A rank of the learner that is killed: the run goes on with new ranks, and engines and driver stay what they are."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rljob_api.exits import Exit
from rljob_trainer.reporting.reading.history import read_history
from support.trainer.whole_run import PROMPTS_PER_STEP, WholeRun, expected_journal, uids

pytestmark = pytest.mark.timeout(900)

STEPS, INTERVAL = 16, 4
Begin = Callable[..., WholeRun]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    runs: list[WholeRun] = []

    def begun(model: Path, **sections: Any) -> WholeRun:
        run = WholeRun(model, tmp_path, **sections)
        runs.append(run)
        run.start()
        return run

    yield begun
    for run in runs:
        run.stop()


def processes(run: WholeRun, name: str) -> set[int]:
    """Return the pids of the run's processes whose command line holds a word."""
    found = set()
    for process in run.processes():
        try:
            if name in " ".join(process.cmdline()):
                found.add(process.pid)
        except psutil.Error:  # it has just ended
            continue
    return found


@pytest.mark.parametrize(
    ("transport", "ahead"),
    [
        pytest.param("Broadcast", False),
        pytest.param("Broadcast", True, marks=pytest.mark.long),
        pytest.param("Disk", False, marks=pytest.mark.long),
        pytest.param("Delta", True, marks=pytest.mark.long),
    ],
)
def test_new_ranks_go_on_at_the_newest_checkpoint_beside_the_same_engines(
    begin: Begin, tiny_llama_dir: Path, transport: str, ahead: bool
) -> None:
    rollout = {"async": {"maxStaleness": 1, "partial": True}} if ahead else {}
    run = begin(
        tiny_llama_dir,
        placement="Disaggregated",
        weightSync={"transport": transport},
        rollout=rollout,
        training={"steps": STEPS, "gpusPerNode": 2},
        checkpoint={"interval": INTERVAL},
    )
    run.until(lambda: run.steps() >= INTERVAL + 2)
    engines, drivers, ranks = (
        processes(run, "sglang"),
        processes(run, "rljob_trainer.driver"),
        processes(run, "RankHost"),
    )
    assert len(ranks) == 2 and len(drivers) == 1
    run.kill(min(ranks))
    run.until(lambda: run.records("run")[-1]["new_ranks"])
    run.until(lambda: run.steps() >= STEPS - 1)
    assert processes(run, "rljob_trainer.driver") == drivers, "the driver goes on"
    assert engines <= processes(run, "sglang"), "engines go on"
    assert len(new := processes(run, "RankHost")) == 2 and not new & ranks, "all ranks are new"
    assert run.end() == Exit.OK, run.output
    assert run.left_behind() == []

    *_, first, again = run.records("run")
    assert again["attempt"] == first["attempt"], "it is the same attempt"
    assert again["step"] % INTERVAL == 0 and again["step"] > 0, "it goes on from a checkpoint"
    assert run.journal == expected_journal(STEPS, PROMPTS_PER_STEP, INTERVAL, uids(), ahead=int(ahead))
    assert [record["step"] for record in run.records("step")] == list(range(1, STEPS + 1))
    assert max(record["logprob_mismatch"] for record in run.records("step")) < 1e-4, "engines have the new weights"
    assert run.records("engine") == [], "no engine was taken out of service"
    (found,) = [record for record in run.records("finding") if record["name"] == "LostRank"]
    assert "learner rank" in found["evidence"] and "engines continued" in found["evidence"]
    assert "continues with new ranks of the learner" in run.output
    history = read_history(run.run_directory)
    assert sum(history.parts.values()) == pytest.approx(history.seconds, rel=0.01), "every second has its part"
    assert history.parts["redone"] == pytest.approx(again["lost_seconds"], rel=0.01) and again["lost_seconds"] > 0.0


@pytest.mark.long
def test_a_rank_that_is_lost_again_before_a_new_checkpoint_ends_the_attempt(begin: Begin, tiny_llama_dir: Path) -> None:
    run = begin(
        tiny_llama_dir,
        placement="Disaggregated",
        training={"steps": STEPS, "gpusPerNode": 2},
        checkpoint={"interval": 100},
    )
    run.until(lambda: run.steps() >= 1)
    before = len(run.records("run"))
    for starts in (1, 2):
        run.until(lambda: run.steps() >= 1 and len(processes(run, "RankHost")) == 2)
        run.kill(min(processes(run, "RankHost")))
        run.until(lambda: len(run.records("run")) == before + starts)  # noqa: B023 - it is called in this turn alone
    first, again, last = run.records("run")[-3:]
    assert (again["attempt"], again["new_ranks"]) == (first["attempt"], True)
    assert (last["attempt"], last["new_ranks"]) == (first["attempt"] + 1, False)
    assert run.end() == Exit.OK, run.output
    assert run.left_behind() == []

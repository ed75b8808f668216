"""Runs that go on from where their manifest says: with damaged checkpoints, anew, from a named step, or not at all.

They imitate, so that no engine has to start; what is resumed is the same.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.exits import Exit
from rljob_trainer.reporting.reading.history import read_history
from support.trainer.whole_run import PROMPTS_PER_STEP, WholeRun, expected_journal, imitation, uids

pytestmark = pytest.mark.timeout(900)

STEPS, INTERVAL = 16, 2
JOURNAL = expected_journal(STEPS, PROMPTS_PER_STEP, INTERVAL, uids())
NEWEST = "iter_0000016"
Prepare = Callable[..., WholeRun]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_llama_dir: Path) -> Iterator[WholeRun]:
    """A run that has ended, for others to go on from."""
    run = imitating(tiny_llama_dir, tmp_path_factory.mktemp("finished"))
    finish(run)
    yield run
    run.stop()


@pytest.fixture
def prepare(tmp_path: Path, tiny_llama_dir: Path) -> Iterator[Prepare]:
    """Returns runs that have not begun, or that have gone as far as another, and ends what a failed test has left."""
    runs: list[WholeRun] = []

    def prepared(like: WholeRun | None = None, **checkpoint: Any) -> WholeRun:
        run = imitating(tiny_llama_dir, tmp_path, **checkpoint)
        if like:
            shutil.copytree(like.run_directory, run.run_directory)
        runs.append(run)
        return run

    yield prepared
    for run in runs:
        run.stop()


def imitating(model: Path, place: Path, **checkpoint: Any) -> WholeRun:
    directory = {"directory": str(place / "run"), "interval": INTERVAL, "keep": 10}
    run = WholeRun(model, place, training={"steps": STEPS}, checkpoint=directory | checkpoint)
    run.manifest.write_text(yaml.safe_dump(imitation(yaml.safe_load(run.manifest.read_text()))))
    return run


def finish(run: WholeRun) -> None:
    run.start()
    assert run.end() == Exit.OK, run.output
    assert run.journal == JOURNAL


def ask_for(run: WholeRun, **checkpoint: Any) -> None:
    """Change the manifest's checkpoint section."""
    content = yaml.safe_load(run.manifest.read_text())
    content["spec"]["checkpoint"] |= checkpoint
    run.manifest.write_text(yaml.safe_dump(content))


def begun(run: WholeRun) -> list[int]:
    """Return the steps that each start of the driver has begun with."""
    return [record["step"] for record in run.records("run")]


def test_a_damaged_newest_checkpoint_is_skipped_and_reported(prepare: Prepare, finished: WholeRun) -> None:
    run = prepare(finished)
    shard = next((run.run_directory / "checkpoints" / NEWEST).glob("*.distcp"))
    shard.unlink()

    finish(run)
    assert begun(run) == [*begun(finished), 14]
    assert "resumes from iter_0000014; damaged: " in run.output
    (finding,) = run.records("finding")
    assert finding["name"] == "DamagedCheckpoint"
    assert f"missing files ['{shard.name}']; kept as damaged-{NEWEST}" in finding["evidence"]
    assert "DamagedCheckpoint" in (run.run_directory / "report.html").read_text()
    assert (run.run_directory / "checkpoints" / f"damaged-{NEWEST}").is_dir()

    history = read_history(run.run_directory)
    assert sum(history.parts.values()) == pytest.approx(history.seconds, rel=0.01), "every second has its part"
    assert history.parts["redone"] == pytest.approx(run.records("run")[1]["lost_seconds"], rel=0.01)
    assert history.parts["recovery"] > 0, "from the end of the first run to the start of the second"


def test_a_bit_that_changed_in_the_newest_checkpoint_is_found_by_the_rank_that_reads_it(
    prepare: Prepare, finished: WholeRun
) -> None:
    run = prepare(finished)
    shard = next((run.run_directory / "checkpoints" / NEWEST).glob("*.distcp"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)

    finish(run)
    assert begun(run)[-1] == 14
    assert f"{shard.name}: bytes " in run.output and "iter_0000014 is the next to try" in run.output
    (finding,) = run.records("finding")
    assert finding["name"] == "DamagedCheckpoint"
    assert f"are not as they were written; kept as damaged-{NEWEST}" in finding["evidence"]
    assert (run.run_directory / "checkpoints" / f"damaged-{NEWEST}").is_dir()


@pytest.mark.long
def test_a_fresh_run_that_is_killed_goes_on_from_itself_and_a_step_can_be_named(
    prepare: Prepare, finished: WholeRun
) -> None:
    run = prepare(finished, resume="Fresh")
    run.start()
    aside = run.run_directory / "set-aside"
    saved = run.run_directory / "checkpoints" / "iter_0000002"
    run.until(lambda: (aside / "events.jsonl").exists() and run.steps() >= 3 and saved.exists())
    run.kill(json.loads((run.run_directory / "control.json").read_text())["pid"])
    assert run.end() == Exit.OK, run.output
    assert run.journal == JOURNAL
    assert begun(run)[0] == 0
    assert begun(run)[1] in range(2, STEPS, INTERVAL), "the second attempt did not begin anew"
    assert (aside / "journal.jsonl").read_text() == (run.run_directory / "journal.jsonl").read_text()
    assert (aside / "checkpoints" / NEWEST).is_dir()

    ask_for(run, resume="Auto", resumeStep=2)
    finish(run)
    assert begun(run)[-1] == 2
    assert (run.run_directory / "set-aside.2" / "checkpoints" / NEWEST).is_dir()


def test_a_run_that_must_go_on_and_cannot_says_what_it_has_looked_for(prepare: Prepare) -> None:
    run = prepare(resume="MustResume")
    run.start()
    assert run.end() == Exit.BAD_INPUT, run.output
    assert f"looked for a checkpoint {run.run_directory}/checkpoints/iter_*" in run.output
    assert run.left_behind() == []

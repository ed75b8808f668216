"""Damage to what a run leaves behind is found when another goes on from it. See `docs/sabotages.md`."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rljob_api.exits import Exit
from support.trainer.sabotaged_run import HEALTHY, Prepare, finish, named
from support.trainer.tiny_models import tiny_llama
from support.trainer.whole_run import PROMPTS_PER_STEP, WholeRun, expected_journal, merged, uids

pytestmark = pytest.mark.timeout(900)

STEPS, INTERVAL = 4, 2
KEPT: dict[str, Any] = {"checkpoint": {"interval": INTERVAL, "keep": 10}, "debug": {"dumpRollouts": True}}
ROLLOUTS = Path("run") / "rollouts"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, sure_model: Path) -> Path:
    """The directory of a run of four steps with two checkpoints and all rollouts. Read only."""
    directory = tmp_path_factory.mktemp("finished")
    run = WholeRun(sure_model, directory, **merged(HEALTHY, merged(KEPT, {"training": {"steps": STEPS}})))
    try:
        return finish(run).directory
    finally:
        run.stop()


@pytest.fixture
def go_on(prepare: Prepare, finished: Path, tmp_path: Path, sure_model: Path) -> WholeRun:
    """The same run in a directory of its own, with two further steps to take."""
    shutil.copytree(finished / "run", tmp_path / "run")
    return prepare(sure_model, held_out=True, **merged(KEPT, {"training": {"steps": STEPS + 2}}))


def shards(run: WholeRun, step: int) -> list[Path]:
    return sorted((run.run_directory / "checkpoints" / f"iter_{step:07d}").glob("*.distcp"))


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_flipped_bit_and_a_torn_line_are_found_and_the_run_goes_on_before_them(go_on: WholeRun) -> None:
    (shard, *_) = shards(go_on, STEPS)
    flip_a_bit(shard)
    with (go_on.run_directory / "journal.jsonl").open("a") as journal:
        journal.write('{"event":"issued","step":4,"prom')

    finish(go_on)

    assert [record["step"] for record in go_on.records("run")][-1] == INTERVAL
    (damage,) = [record for record in go_on.records("finding") if record["name"] == "DamagedCheckpoint"]
    assert f"{shard.name}: bytes " in damage["evidence"]
    assert f"not as they were written; kept as damaged-iter_{STEPS:07d}" in damage["evidence"]
    assert go_on.journal == expected_journal(STEPS + 2, PROMPTS_PER_STEP, INTERVAL, uids())


def lose_shards(run: WholeRun) -> None:
    for step in (INTERVAL, STEPS):
        shards(run, step)[0].unlink()


def double_a_line(run: WholeRun) -> None:
    journal = run.run_directory / "journal.jsonl"
    first, second, *others = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([first, second, second, *others]))


def change_a_question(run: WholeRun) -> None:
    questions = run.directory / "questions.jsonl"
    questions.write_text(questions.read_text().replace("25 + 26", "25 + 62"))


CONTRADICTIONS: dict[str, tuple[Callable[[WholeRun], None], str, str]] = {
    "checkpoints without a shard": (lose_shards, "no checkpoint can be read: ", "CheckpointDamaged"),
    "a line of the journal twice": (
        double_a_line,
        "journal.jsonl:3: consumed step 0 where 1 was next",
        "RljobJournalDamaged",
    ),
    "other questions": (
        change_a_question,
        "the training questions are not those it was trained on",
        "ResumeMismatch",
    ),
}
"""by what contradicts: what does it, the message, and what `rljob doctor` says"""


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_run_does_not_go_on_from_what_contradicts_it(go_on: WholeRun, name: str) -> None:
    damage, message, code = CONTRADICTIONS[name]
    damage(go_on)
    finish(go_on, Exit.BAD_INPUT)
    assert message in go_on.output
    assert named(go_on)[0] == code


def test_rollouts_of_another_model_are_not_trained_on(prepare: Prepare, finished: Path, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other", tied=False, seed=1)
    run = finish(prepare(other, held_out=True, debug={"replay": str(finished / ROLLOUTS)}), Exit.BAD_INPUT)
    assert "step-0000000.jsonl.zst: step 0: made with spec.model.checkpoint, by its fingerprint, " in run.output
    assert named(run)[0] == "ReplayFailed"


def test_damaged_rollouts_are_not_trained_on(
    prepare: Prepare, finished: Path, sure_model: Path, tmp_path: Path
) -> None:
    dump = shutil.copytree(finished / ROLLOUTS, tmp_path / "rollouts")
    flip_a_bit(dump / "step-0000000.jsonl.zst")
    run = finish(prepare(sure_model, held_out=True, debug={"replay": str(dump)}), Exit.BAD_INPUT)
    message = r"step-0000000\.jsonl\.zst: step 0: (damaged or cut off|expected JSON lines compressed with zstd): "
    assert re.search(message, run.output)
    assert named(run)[0] == "ReplayFailed"

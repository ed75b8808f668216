"""A run on a training file that is too large to be held in memory, killed and resumed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rljob_api.exits import Exit
from rljob_trainer.data.sources import HELD_BYTES
from support.trainer.whole_run import PROMPTS_PER_STEP, WholeRun, expected_journal, imitation, merged, uids

pytestmark = pytest.mark.timeout(900)

STEPS, INTERVAL = 12, 2
ROWS = 16_500
NOTE = "n" * 4096
"""what makes the file large, and what no prompt has"""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large.jsonl"
    with path.open("w") as file:
        for n in range(ROWS):
            file.write(json.dumps({"question": f"{n} + {n} + {n} =", "answer": str(3 * n), "note": NOTE}) + "\n")
    assert path.stat().st_size > HELD_BYTES
    return path


@pytest.fixture
def runs(tmp_path: Path, tiny_llama_dir: Path, large: Path) -> Iterator[dict[str, WholeRun]]:
    """Two runs of one job, not started."""
    made: dict[str, WholeRun] = {}
    for name in ("whole", "killed"):
        directory = tmp_path / name
        directory.mkdir()
        run = WholeRun(
            tiny_llama_dir, directory, training={"steps": STEPS}, checkpoint={"hfExport": True, "interval": INTERVAL}
        )
        job = imitation(yaml.safe_load(run.manifest.read_text()))
        train = {"data": {"train": {"jsonl": str(large)}}}
        run.manifest.write_text(yaml.safe_dump(job | {"spec": merged(job["spec"], train)}))
        made[name] = run
    yield made
    for run in made.values():
        run.stop()


@pytest.mark.long
def test_a_run_that_is_killed_twice_ends_with_the_same_journal_and_weights(runs: dict[str, WholeRun]) -> None:
    whole, killed = runs["whole"], runs["killed"]
    whole.start()
    assert whole.end() == Exit.OK, whole.output
    assert whole.journal == expected_journal(STEPS, PROMPTS_PER_STEP, INTERVAL, uids(epochs=1, rows=ROWS))

    for step in (3, 7):
        killed.start()
        killed.until(lambda reached=step: killed.steps() >= reached)
        killed.kill_everything()
    killed.start()
    assert killed.end() == Exit.OK, killed.output
    issued = [(record["step"], record["prompts"]) for record in whole.journal if record["event"] == "issued"]
    again = [(record["step"], record["prompts"]) for record in killed.journal if record["event"] == "issued"]
    assert sorted(dict(again).items()) == issued, "each step has its own prompts, however often it is taken"
    assert [record for record in killed.records("run") if record["step"]], "it went on from a checkpoint"
    model = Path("hf") / "model.safetensors"
    assert (killed.run_directory / model).read_bytes() == (whole.run_directory / model).read_bytes()
    assert killed.left_behind() == []

"""Two days of a run, compressed: storage errors every minute, a judge away for ten, 1 % of environments failing."""

from collections import Counter

import pytest

from rljob_trainer.reporting.events import read_events
from rljob_trainer.reporting.losses import AwayError
from rljob_trainer.reporting.records import StepRecord
from rljob_trainer.rundir.checkpoints import checked, complete
from rljob_trainer.rundir.journal import audited, recorded
from support.trainer.hostile_world import PROMPTS, World, run

STEPS = 280
"""of ten minutes each"""
SAMPLES = ("Generate", "Refused", "Judge", "Group")


def test_a_run_of_two_days_finishes_and_what_was_lost_is_in_the_status(tmp_path, monkeypatch):
    world = World()
    with monkeypatch.context() as patch:
        world.break_files(patch)
        ended = run(tmp_path, STEPS, world)
    assert ended.finished
    assert world.clock.now > 2 * 86_400 * 0.97

    losses = ended.status.progress.losses
    lost = sum(losses[cause] for cause in SAMPLES if cause in losses)
    assert losses["Generate"] > 0 and losses["Judge"] > 0 and losses["Storage"] > STEPS / 2
    assert ended.learner.samples == ended.asked - lost, "each sample was trained on, or is counted as lost"
    assert lost < 0.05 * ended.asked
    assert ended.learner.smallest >= 2
    assert any(waited.startswith("the judge: ServerDisconnectedError") for waited in ended.waits)
    assert ended.status.waits_for is None

    records, torn = recorded(tmp_path / "journal.jsonl")
    assert (list(audited(records, ended.stream.uids)), torn) == ([], 0)
    consumed = Counter(uid for record in records if record.event == "consumed" for uid in record.prompts)
    assert (len(consumed), set(consumed.values())) == (STEPS * PROMPTS, {1})

    checkpoints = complete(tmp_path / "checkpoints")
    assert [checked(path).step for path in checkpoints] == [STEPS, STEPS - 20]
    assert list((tmp_path / "checkpoints").glob("damaged-*")) == []
    steps = [record.step for record in read_events(tmp_path / "events.jsonl") if isinstance(record, StepRecord)]
    assert steps == list(range(1, STEPS + 1))


def test_a_judge_that_stays_away_ends_the_attempt_with_a_name_and_not_the_job(tmp_path):
    with pytest.raises(AwayError, match=r"the judge has not worked for \d+ s .*ServerDisconnectedError"):
        run(tmp_path, 10, World(judge_away=(500.0, 1e9)))

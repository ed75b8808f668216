"""The order in which prompts are issued depends on steps alone, and survives kills."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_trainer.data.prompt_scheduler import Lead, PromptScheduler
from rljob_trainer.data.prompts import PromptStream
from rljob_trainer.data.read_ahead import Held
from rljob_trainer.rundir.journal import Journal, JournalError
from rljob_trainer.samples import Prompt

ROWS, PROMPTS = 7, 2


def stream() -> PromptStream:
    return PromptStream(Held([Prompt(str(row), "", "", (), "", {}) for row in range(ROWS)]), seed=0, shuffle=True)


def events(journal: Journal) -> list[str]:
    return [f"{record.event} {record.step}" for record in journal.records]


@pytest.mark.parametrize(
    ("lead", "last"),
    [
        (Lead(9), [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (Lead(9, 1), [1, 2, 3, 4, 5, 6, 7, 8, 8]),
        (Lead(9, 3), [3, 4, 5, 6, 7, 8, 8, 8, 8]),
        (Lead(9, 2, 2), [2, 2, 4, 4, 6, 6, 8, 8, 8]),
        (Lead(9, 3, 2), [3, 3, 5, 5, 7, 7, 8, 8, 8]),
    ],
    ids=["none", "one", "three", "two, every second", "three, every second"],
)
def test_a_step_begins_when_the_engines_hold_weights_that_are_new_enough_for_it(lead, last):
    assert [lead.last(step) for step in range(9)] == last


@given(st.integers(1, 40), st.integers(1, 6), st.data())
def test_there_is_always_a_step_ahead_and_never_one_beyond_the_bound(steps, max_staleness, data):
    interval = data.draw(st.integers(1, max_staleness))
    lead = Lead(steps, max_staleness, interval)
    for step in range(steps):
        published = step - step % interval
        assert min(step + 1, steps - 1) <= lead.last(step) <= published + max_staleness


def test_prompts_are_issued_before_their_turn_and_consumed_in_order(tmp_path):
    journal = Journal(tmp_path / "journal")
    scheduler = PromptScheduler(stream(), journal, Lead(3, max_staleness=1), PROMPTS)
    for step in range(3):
        scheduler.issue(step, PROMPTS)
        journal.consumed(step)
    assert events(journal) == ["issued 0", "issued 1", "consumed 0", "issued 2", "consumed 1", "consumed 2"]
    journal.check(stream().uids)


def test_further_rounds_take_what_comes_next(tmp_path):
    journal = Journal(tmp_path / "journal")
    scheduler = PromptScheduler(stream(), journal, Lead(3, max_staleness=1), first_round=3)
    scheduler.issue(0, 3)
    assert len(scheduler.issue(0, 2)) == 2
    assert events(journal) == ["issued 0", "issued 1", "issued 0"]
    journal.consumed(0)
    assert len(scheduler.issue(1, 3)) == 3
    journal.check(stream().uids)


class Killed(Exception):
    """The process is gone."""


def run(path: Path, lead: Lead, interval: int, kill_after: int | None = None) -> None:
    """Take all steps, or die at the n-th thing that is done; begin where a process that died has left off."""
    journal, prompts = Journal(path), stream()
    saved = max((record.step for record in journal.records if record.event == "committed"), default=0)
    journal.rewind(saved, f"iter_{saved}")
    prompts.seek(prompts.position_after(journal.issued_count))
    scheduler, done = PromptScheduler(prompts, journal, lead, PROMPTS), 0

    def act(what, *arguments):
        nonlocal done
        if done == kill_after:
            raise Killed
        done += 1
        return what(*arguments)

    try:
        for step in range(saved, lead.steps):
            act(list, scheduler.begin(step))
            act(journal.consumed, step)
            if (step + 1) % interval == 0:
                act(journal.committed, step + 1, f"iter_{step + 1}")
    finally:
        journal.check(stream().uids)
        journal.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    max_staleness=st.integers(0, 4),
    interval=st.integers(1, 3),
    saves=st.integers(1, 4),
    kills=st.lists(st.integers(0, 12), max_size=4),
)
def test_a_run_killed_anywhere_leaves_the_journal_of_one_that_was_not(tmp_path, max_staleness, interval, saves, kills):
    lead = Lead(8, max_staleness, min(interval, max(1, max_staleness)))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for path in (whole, killed):
        path.unlink(missing_ok=True)
    run(whole, lead, saves)
    for kill_after in kills:
        try:
            run(killed, lead, saves, kill_after)
        except Killed:
            continue
    run(killed, lead, saves)
    assert killed.read_bytes() == whole.read_bytes()


def test_what_was_issued_before_a_kill_is_asked_again_and_not_issued_again(tmp_path):
    journal = Journal(tmp_path / "journal")
    before = dict(PromptScheduler(stream(), journal, Lead(9, 2), PROMPTS).begin(0))
    journal.consumed(0)
    journal.committed(1, "iter_1")
    resumed = stream()
    resumed.seek(resumed.position_after(journal.issued_count))
    after = dict(PromptScheduler(resumed, journal, Lead(9, 2), PROMPTS).begin(1))
    assert {step: after[step] for step in (1, 2)} == {step: before[step] for step in (1, 2)}
    assert events(journal)[-1] == "issued 3"


def test_a_run_that_waits_for_its_weights_takes_over_what_one_ahead_has_issued(tmp_path):
    journal = Journal(tmp_path / "journal")
    before = dict(PromptScheduler(stream(), journal, Lead(9, 2), PROMPTS).begin(0))
    journal.consumed(0)
    resumed = stream()
    resumed.seek(resumed.position_after(journal.issued_count))
    scheduler = PromptScheduler(resumed, journal, Lead(9), PROMPTS)
    taken = {}
    for step in (1, 2, 3):
        taken[step] = scheduler.issue(step, PROMPTS)
        journal.consumed(step)
    assert [taken[1], taken[2]] == [before[1], before[2]]
    assert journal.outstanding == ()
    journal.check(stream().uids)


@pytest.mark.parametrize("first_round", [1, 3])
def test_another_number_of_prompts_after_a_resume_is_refused(tmp_path, first_round):
    journal = Journal(tmp_path / "journal")
    list(PromptScheduler(stream(), journal, Lead(9, 1), PROMPTS).begin(0))
    journal.consumed(0)
    scheduler = PromptScheduler(stream(), journal, Lead(9, 1), first_round)
    with pytest.raises(JournalError, match=rf"step 1 was issued 2 prompts .* now asks for {first_round}"):
        list(scheduler.begin(1))

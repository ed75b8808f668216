"""Every invariant holds of an honest run, and each small break of it is seen, by its name."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rljob_api.status import AttemptStatus, JobProgress, LastCheckpoint, Phase, RecoveryStep
from rljob_cli.chaos.invariants import (
    Broken,
    Invariant,
    Trail,
    continued_from,
    held,
    journal,
    steps_done,
    unnamed,
    unrecovered,
)
from rljob_cli.chaos.seen import Inside, Refused, Seen, Unequal, said
from rljob_cli.jobs.jobs import Job
from rljob_trainer.rundir.journal import Record, Sum, record_of
from support.api.sample_rljob_status import NOON
from support.cli.sample_job import job
from support.trainer.whole_run import expected_journal, uids

Lines = list[dict[str, Any]]


def lines(steps: int, interval: int = 5, ahead: int = 0) -> Lines:
    """Return the journal of an honest run over several epochs of 40 rows."""
    return expected_journal(steps, 4, interval, uids(epochs=4), ahead)


def written(records: Lines) -> bytes:
    return b"".join(json.dumps(each, separators=(",", ":")).encode() + b"\n" for each in records)


def at(step: int, version: int | None = None, saved: int = 0, attempt: int = 1, **changes: Any) -> Job:
    """Return a job at a step, with the newest checkpoint and the running attempt; earlier ones ended with -9."""
    starts = [AttemptStatus(number=n, cluster="c", start_after=NOON, started=NOON) for n in range(1, attempt + 1)]
    ended = [each.model_copy(update={"ended": NOON, "exit_code": -9}) for each in starts[:-1]]
    given = {
        "attempt": attempt,
        "attempts": (*ended, starts[-1]),
        "began": f"attempt {attempt}",
        "recovery": (),
        "progress": JobProgress(step=step, weight_version=step if version is None else version),
        "last_checkpoint": LastCheckpoint(step=saved, path="/c", verified=True, time=NOON) if saved else None,
    }
    return job(**given | changes)


def head(drivers: int = 1) -> Inside:
    running = frozenset((pid, 5) for pid in range(1, drivers + 1))
    return Inside({"driver": running, "router": frozenset(), "engine": frozenset(), "rank": frozenset()}, None, 3, 1.0)


def broken_by(*looks: Job | Seen) -> list[Invariant]:
    """Return what these looks break, in turn."""
    trail, found = Trail(), []
    for each in looks:
        found += trail.add_seen(each if isinstance(each, Seen) else Seen(0.0, each, {"head": head()}))
    return [each.invariant for each in found]


def broken_by_journals(*contents: bytes, saved: int = 0) -> list[Broken]:
    trail = Trail(checkpoint=saved)
    return [each for content in contents for each in trail.add_journal([content])]


# honest runs


@pytest.mark.parametrize("ahead", [0, 2])
def test_the_journal_of_an_honest_run_breaks_nothing(ahead: int):
    grown = [written(lines(steps, ahead=ahead)) for steps in (1, 3, 17, 35)]
    assert broken_by_journals(*grown, saved=0) == []


def test_a_journal_that_was_rewound_to_its_checkpoint_breaks_nothing():
    # 13 steps, killed; back to step 10, and on to step 22.
    assert broken_by_journals(written(lines(13)), written(lines(10)), written(lines(22)), saved=10) == []


def test_a_line_that_is_being_written_counts_as_not_there():
    assert broken_by_journals(written(lines(3))[:-7]) == []


def test_a_journal_that_continues_a_full_one_is_compared_where_both_have_prompts():
    full = lines(20)
    issued = [uid for each in full if each["event"] == "issued" for uid in each["prompts"]]
    first = Record("continued", 20, (), "iter_0000020", len(issued), len(issued), ())
    rest = first.line() + written(lines(30)[len(full) :])
    assert broken_by_journals(written(lines(22)), rest) == []
    swapped = rest.replace(b'"2:', b'"3:')
    assert [each.invariant for each in broken_by_journals(written(lines(22)), swapped)] == [Invariant.PROMPTS_IN_ORDER]


def full_journal(*ends: int) -> list[bytes]:
    """Return the files of the journal of an honest run, each full after some steps; the last is the newest."""
    files, begin, sum_ = list[bytes](), 0, Sum()
    for end in ends:
        first = [] if not begin else [sum_.continued(begin, f"iter_{begin:07d}").line()]
        some = lines(end)[len(lines(begin)) :]
        for each in some:
            sum_.add(record_of(json.dumps(each, separators=(",", ":")).encode(), "here"))
        files.append(b"".join(first) + written(some))
        begin = end
    return files


def test_a_journal_of_several_files_is_one():
    trail = Trail()
    files = full_journal(10, 20, 27)
    assert trail.add_journal(files) == []
    assert (trail.full, trail.issued_before, len(trail.issued)) == ({10, 20}, 0, 27 * 4)
    grown = full_journal(10, 20, 30, 33)
    assert continued_from(grown[3]) == 30
    assert trail.add_journal(grown[2:]) == []
    assert (trail.full, len(trail.issued)) == ({10, 20, 30}, 33 * 4)


def test_a_prompt_that_comes_twice_in_two_files_is_seen():
    first, second, newest = full_journal(10, 20, 27)
    again = json.loads(written(lines(1)).split(b"\n")[0])["prompts"][0]  # of the first step
    place = json.loads(second.split(b"\n")[1])["prompts"][0]
    twice = second.replace(json.dumps(place).encode(), json.dumps(again).encode())
    assert Trail().add_journal([first, second, newest]) == []
    assert [each.invariant for each in Trail().add_journal([first, twice])][:1] == [Invariant.PROMPTS_ONCE]


def test_a_file_that_does_not_follow_the_one_before_is_seen():
    first, _, newest = full_journal(10, 20, 27)
    (found,) = Trail().add_journal([first, newest])
    assert found.invariant is Invariant.PROMPTS_ONCE
    assert found.text.startswith("journal/until-0000020.jsonl: comes to ")


def test_a_run_that_goes_back_before_a_full_file_has_it_read_again():
    trail = Trail()
    assert trail.add_journal(full_journal(10, 20, 27)) == []
    assert trail.add_journal(full_journal(10, 17)[1:]) == []
    assert trail.full == {10}


@pytest.mark.parametrize("content", [b"", b"{}\n", b'{"event":"continued"', written(lines(2))])
def test_a_file_that_follows_none_begins_a_journal(content: bytes):
    assert continued_from(content) is None


def weights(refused: tuple[Refused, ...] = (), unequal: tuple[Unequal, ...] = ()) -> list[Invariant]:
    """Return what a head breaks that shows these, 50 s after the start."""
    inside = replace(head(), refused=refused, unequal=unequal)
    return [each.invariant for each in Trail().add_seen(Seen(50.0, at(3), {"head": inside}))]


DIFFERS = "1 of 14 tensors differ from the learner's: model.norm.weight"


@pytest.mark.parametrize(
    ("refused", "broken"),
    [
        (Refused("engine-0", 9.0, "its process is gone", 0), []),
        (Refused("engine-0", 9.0, "its process is gone", 3), [Invariant.REFUSED_IDLE]),
        (Refused("engine-0", 9.0, DIFFERS, 0), [Invariant.WEIGHTS_EQUAL]),
        (Refused("engine-0", 9.0, DIFFERS, 3), [Invariant.WEIGHTS_EQUAL, Invariant.REFUSED_IDLE]),
        (Refused("engine-0", 90.0, DIFFERS, 3), []),  # before the start
    ],
)
def test_an_engine_with_other_weights_or_samples_of_it_are_seen(refused: Refused, broken: list[Invariant]):
    assert weights(refused=(refused,)) == broken


def test_copies_of_ranks_that_differ_are_seen():
    assert weights(unequal=(Unequal(9.0, "model.norm.weight: ranks 0 and 1"),)) == [Invariant.WEIGHTS_EQUAL]
    assert weights(unequal=(Unequal(90.0, "model.norm.weight: ranks 0 and 1"),)) == []


def test_an_honest_history_breaks_nothing():
    assert (
        broken_by(
            at(3),
            at(7, saved=5),
            at(8, saved=5),
            at(8, saved=5, attempt=2),
            at(5, saved=5, attempt=2),
            at(9, saved=5, attempt=2),
        )
        == []
    )


def test_a_resume_by_new_ranks_in_the_same_attempt_may_go_back_to_the_checkpoint():
    again = {"began": "continues with new ranks of the learner"}
    assert broken_by(at(8, saved=5), at(8, saved=5, **again), at(5, saved=5, **again), at(6, saved=5, **again)) == []


def test_old_attempts_may_leave_the_status():
    before = at(8, attempt=3)
    assert broken_by(before, at(9, attempt=3, attempts=before.status.attempts[1:])) == []


# breaks


def without(records: Lines, event: str, step: int) -> Lines:
    return [each for each in records if (each["event"], each["step"]) != (event, step)]


def changed(records: Lines, event: str, step: int, change: Callable[[list[str]], list[str]]) -> Lines:
    return [
        each | {"prompts": change(each["prompts"])} if (each["event"], each["step"]) == (event, step) else each
        for each in records
    ]


def in_both(records: Lines, step: int, change: Callable[[list[str]], list[str]]) -> Lines:
    return changed(changed(records, "issued", step, change), "consumed", step, change)


FORGED: dict[str, tuple[list[Lines], Invariant]] = {
    "a prompt is consumed in two steps": (
        [changed(lines(9), "consumed", 7, lambda prompts: [*prompts, lines(9)[1]["prompts"][0]])],
        Invariant.PROMPTS_ONCE,
    ),
    "a prompt is issued again": (
        [in_both(lines(9), 7, lambda prompts: [lines(9)[0]["prompts"][0], *prompts[1:]])],
        Invariant.PROMPTS_ONCE,
    ),
    "a step is consumed twice": ([[*lines(4), lines(4)[-2]]], Invariant.PROMPTS_ONCE),
    "a step is left out": ([without(without(lines(9), "issued", 3), "consumed", 3)], Invariant.PROMPTS_ONCE),
    "a prompt of an epoch is never issued": (
        [in_both(lines(25), 7, lambda prompts: prompts[1:])],
        Invariant.PROMPTS_ONCE,
    ),
    "a prompt is not consumed": (
        [changed(lines(9), "consumed", 7, lambda prompts: prompts[1:])],
        Invariant.PROMPTS_IN_ORDER,
    ),
    "prompts are consumed in another order": (
        [changed(lines(9), "consumed", 7, lambda prompts: prompts[::-1])],
        Invariant.PROMPTS_IN_ORDER,
    ),
    "a resume issues other prompts": (
        [lines(8), in_both(lines(9), 7, lambda prompts: prompts[::-1])],
        Invariant.PROMPTS_IN_ORDER,
    ),
    "a resume leaves a prompt out": (
        [lines(8), in_both(lines(9), 6, lambda prompts: prompts[1:])],
        Invariant.PROMPTS_IN_ORDER,
    ),
    "a commit of a step that was not consumed": ([without(lines(5), "consumed", 4)], Invariant.PROMPTS_ONCE),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_journal_that_breaks_an_invariant_is_seen(name: str):
    journals, invariant = FORGED[name]
    found = broken_by_journals(*map(written, journals))
    assert [each.invariant for each in found][:1] == [invariant], found


def test_a_journal_that_is_damaged_is_seen():
    assert [each.invariant for each in broken_by_journals(b'{"event":\n')] == [Invariant.PROMPTS_ONCE]


def test_a_journal_that_went_behind_the_checkpoint_is_seen():
    (found,) = broken_by_journals(written(lines(13)), written(lines(4)), saved=10)
    assert str(found) == "steps-from-checkpoint: the journal ends after step 4, and a checkpoint holds step 10"


TWO_RUN = tuple(AttemptStatus(number=n, cluster="c", start_after=NOON, started=NOON) for n in (1, 2))
STATUSES: dict[str, tuple[list[Job | Seen], Invariant]] = {
    "the step goes behind the checkpoint": (
        [at(8, saved=5), at(4, saved=4, attempt=2)],
        Invariant.STEPS_FROM_CHECKPOINT,
    ),
    "the step begins anew": ([at(8, saved=5), at(0, attempt=2)], Invariant.STEPS_FROM_CHECKPOINT),
    "the version falls": ([at(8), at(9, version=7)], Invariant.VERSIONS_RISE),
    "the version falls a little later": (
        [at(8), at(8), at(10, version=10), at(11, version=9)],
        Invariant.VERSIONS_RISE,
    ),
    "two drivers in one head": ([Seen(0.0, at(8), {"head": head(2)})], Invariant.ONE_DRIVER),
    "a driver in each of two heads": ([Seen(0.0, at(8), {"old": head(), "new": head()})], Invariant.ONE_DRIVER),
    "two attempts run": ([at(8, attempt=2, attempts=TWO_RUN)], Invariant.ONE_DRIVER),
    "an attempt that had ended runs": (
        [at(8, attempt=3), at(9, attempt=3, attempts=at(9).status.attempts)],
        Invariant.HISTORY_STAYS,
    ),
    "the number of the attempt falls": ([at(8, attempt=3), at(9, attempt=2)], Invariant.HISTORY_STAYS),
    "an attempt is left out": (
        [at(8, attempt=3, attempts=at(8, attempt=3).status.attempts[::2])],
        Invariant.HISTORY_STAYS,
    ),
}


@pytest.mark.parametrize("name", STATUSES)
def test_a_status_that_breaks_an_invariant_is_seen(name: str):
    looks, invariant = STATUSES[name]
    assert invariant in broken_by(*looks)


def test_an_exit_code_that_changes_is_seen():
    before = at(8, attempt=2)
    first, second = before.status.attempts
    assert broken_by(before, at(8, attempts=(first.model_copy(update={"exit_code": 0}), second), attempt=2)) == [
        Invariant.HISTORY_STAYS
    ]


def test_a_fault_of_which_the_status_says_nothing_is_seen():
    (found,) = unnamed("engine-kill of it", said(at(8), at(9)))
    assert found.invariant is Invariant.STATUS_NAMES_FAULT
    assert unnamed("engine-kill of it", ("RestartEngine engine-0 generation 1",)) == []


def test_a_job_that_fails_or_stays_unwell_is_seen():
    failed = unrecovered("engine-kill of it", at(8, phase=Phase.FAILED), 60)
    late = unrecovered("engine-kill of it", at(8, phase=Phase.RECOVERING), 60)
    assert failed.invariant is late.invariant is Invariant.RECOVERS
    assert str(failed).startswith("recovers: after engine-kill of it: the job has failed: ")
    assert "not well within 60 s; it is Recovering at step 8 with " in str(late)


def test_pods_of_a_job_that_has_ended_are_seen():
    (found,) = held(at(8, phase=Phase.SUCCEEDED), ["sums-1-head"], 120.0)
    assert str(found) == "nothing-held: ml/sums is Succeeded, and has pods after their 120 s: sums-1-head"
    assert held(at(8, phase=Phase.TRAINING), ["sums-1-head"], 0.0) == held(at(8, phase=Phase.FAILED), [], 0.0) == []


def test_every_invariant_is_broken_by_a_test():
    forged = {invariant for _, invariant in (*FORGED.values(), *STATUSES.values())}
    alone = {Invariant.STATUS_NAMES_FAULT, Invariant.RECOVERS, Invariant.NOTHING_HELD}
    assert forged | alone | {Invariant.WEIGHTS_EQUAL, Invariant.REFUSED_IDLE} == set(Invariant)


# what the status says


def test_what_a_status_says_of_a_fault_is_found_by_comparing_it_with_the_one_before():
    before = at(8)
    restart = RecoveryStep(time=NOON + timedelta(seconds=9), action="RestartEngine", target="engine-1", cause="c")
    assert said(before, at(9)) == ()
    assert said(before, at(9, recovery=(restart,))) == ("RestartEngine engine-1",)
    assert said(at(8, recovery=(restart,)), at(9, recovery=(restart,))) == ()
    assert said(before, at(8, attempt=2)) == ("attempt 1 ended with -9: None",)
    assert said(before, at(8, began="continues with new ranks")) == ("continues with new ranks",)


def test_an_engine_that_dies_or_has_restarted_is_said():
    before = at(8)
    engines = before.status.engines
    assert engines is not None
    first, *rest = engines.items
    again = engines.model_copy(update={"items": (first.model_copy(update={"restarts": first.restarts + 1}), *rest)})
    assert said(before, at(8, engines=again)) == (f"{first.name} restarted",)


def test_steps_are_counted_by_the_newest_line_that_knows():
    assert [steps_done(journal(written(lines(steps)))) for steps in (0, 1, 5, 6)] == [0, 1, 5, 6]
    assert steps_done((Record("continued", 20),)) == 20

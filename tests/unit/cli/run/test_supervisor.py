"""What `rljob run` does about its driver: restarts, orders to engines, silence, interrupts. No process, no waiting."""

from pathlib import Path
from queue import SimpleQueue
from typing import cast

import pytest

from rljob_api.adjustments import Adjustments
from rljob_api.control import EngineOrder, EngineState, EngineStatus, Progress, RunState, SavedCheckpoint, Status
from rljob_api.exits import Exit
from rljob_api.known_failure import KnownFailure
from rljob_api.reading.manifest import parse
from rljob_api.recovery import Backoff
from rljob_api.sections import Recovery
from rljob_cli.run import supervisor
from rljob_cli.run.driver import Driver, DriverUnreachableError, Ended, Event, Interrupted, StatusReceived
from rljob_cli.run.supervisor import RunResult, Supervisor, Timing
from support.trainer.whole_run import manifest

PID = 2**22 + 1
"""above all that Linux gives to processes"""
DEAD, HEALTHY = EngineState.DEAD, EngineState.HEALTHY
INTERRUPT = Interrupted(2)


def seen(*states: EngineState, pid: int = PID, after_s: float = 0.0, **changes: object) -> StatusReceived:
    """Return a report of a driver that trains, with engines in these states, so long after the one before."""
    engines = tuple(
        EngineStatus(name=f"engine-{i}", state=state, since=0.0, last_error="it died") for i, state in enumerate(states)
    )
    progress = Progress(step=3, steps=10, last_step_seconds={"train": 1.0})
    usual = {"state": RunState.RUNNING, "engines": engines, "progress": progress, "phase_since": after_s}
    return StatusReceived(pid, Status(**{**usual, **changes}))


class FakeDriver:
    """One start: its events come at once, and every call is kept."""

    pid = PID

    def __init__(
        self,
        events: SimpleQueue[Event],
        script: list[Event],
        failures: int,
        words: str | None,
        known: KnownFailure | None,
    ) -> None:
        self.calls: list[object] = []
        self._events, self._failures, self._words, self._known = events, failures, words, known
        for event in script:
            events.put(event)

    def order(self, engine: str, order: EngineOrder) -> None:
        self._ask((engine, order.generation))

    def drain(self) -> None:
        self._ask("drain")

    def kill(self) -> None:
        self.calls.append("kill")
        self._events.put(Ended(-9))

    def kill_with_stacks(self) -> None:
        self.calls.append("kill with stacks")
        self._events.put(Ended(-6))

    def last_words(self) -> str | None:
        return self._words

    def known_failure(self) -> KnownFailure | None:
        return self._known

    def _ask(self, call: object) -> None:
        if self._failures:
            self._failures -= 1
            raise DriverUnreachableError("no answer")
        self.calls.append(call)


class Stage:
    """A supervisor, the events of its drivers in order, and what the user sees."""

    def __init__(
        self,
        *scripts: list[Event],
        failures: int = 0,
        words: str | None = None,
        known: KnownFailure | None = None,
        backoff_s: float = 0.0,
        device: str = "Cpu",
        **recovery: object,
    ) -> None:
        self.notes: list[str] = []
        self.drivers: list[FakeDriver] = []
        self.cleaned = 0
        self.less: list[Adjustments] = []
        self._now = 1000.0
        self._scripts, self._failures, self._words, self._known = list(scripts), failures, words, known
        timing = Timing(tick_s=0.0, backoff=Backoff(first_s=backoff_s))
        start, clean = self._start, self._clean
        spec = parse(manifest(Path("model"), Path("directory"), runtime={"device": device})).spec
        spec = spec.model_copy(update={"recovery": Recovery(**recovery)})
        self._supervisor = Supervisor(start, clean, spec, self, 1, timing, lambda: self._now)

    def run(self) -> RunResult:
        return self._supervisor.run()

    @property
    def calls(self) -> list[object]:
        return [call for driver in self.drivers for call in driver.calls]

    def update(self, status: Status) -> None:
        self._now += status.phase_since

    def note(self, text: str) -> None:
        self.notes.append(text)

    def _start(self, attempt: int, less: Adjustments, events: SimpleQueue[Event]) -> Driver:
        self.less.append(dict(less))
        self.drivers.append(FakeDriver(events, self._scripts.pop(0), self._failures, self._words, self._known))
        return cast(Driver, self.drivers[-1])

    def _clean(self) -> None:
        self.cleaned += 1


def test_a_dead_engine_is_restarted_once_however_often_it_is_reported_dead():
    stage = Stage([seen(DEAD, HEALTHY), seen(DEAD, HEALTHY, heartbeat=2.0), Ended(0)])
    assert stage.run() == RunResult(Exit.OK, "done")
    assert stage.calls == [("engine-0", 1)]
    assert stage.notes == ["engine-0: restarted as generation 1 (it died)"]


def test_a_driver_whose_ray_has_lost_a_process_is_ended_and_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor.RayProcesses, "lost", lambda ray, patience_s: "raylet (pid 7)")
    stage = Stage([seen(HEALTHY), seen(HEALTHY)], driver_restarts=0)
    assert stage.run().reason.startswith("a required process is gone")
    assert stage.calls == ["kill"]
    assert stage.notes[0] == "raylet (pid 7) is gone"


def test_an_order_that_the_driver_did_not_answer_is_given_again():
    stage = Stage([seen(DEAD, HEALTHY), seen(DEAD, HEALTHY), Ended(0)], failures=1)
    stage.run()
    assert stage.calls == [("engine-0", 1)]
    assert stage.notes == ["engine-0: restarted as generation 1 (it died)"]


def test_an_engine_without_restarts_left_is_noted_once():
    stage = Stage([seen(DEAD, HEALTHY)] * 3 + [Ended(0)], engine_restarts=0)
    stage.run()
    assert stage.calls == []
    assert stage.notes == ["engine-0 died 1 times since step 3: it died; continuing without it until a step completes"]


def test_an_engine_that_came_back_and_died_again_is_noted_again():
    stage = Stage([seen(DEAD, HEALTHY), seen(HEALTHY, HEALTHY), seen(DEAD, HEALTHY), Ended(0)], engine_restarts=0)
    stage.run()
    assert len(stage.notes) == 2


KNOWN = KnownFailure("DiskFull", "the disk is full", "Free some", "engine-0.log: No space left")


@pytest.mark.parametrize("code", [Exit.FAILED, -9])
def test_a_known_failure_is_noted_after_the_last_words(code: int):
    stage = Stage([Ended(code)], words="OSError: x", known=KNOWN, driver_restarts=0)
    stage.run()
    assert stage.notes == ["OSError: x", "DiskFull: the disk is full. Free some"]


GENERAL = KnownFailure("PythonException", "a Python program failed", "Read the traceback", "driver.log: OSError: x")


@pytest.mark.parametrize(("words", "noted"), [("OSError: x", ["OSError: x"]), (None, [str(GENERAL)])])
def test_a_general_failure_is_not_noted_beside_the_last_words(words: str | None, noted: list[str]):
    stage = Stage([Ended(Exit.FAILED)], words=words, known=GENERAL, driver_restarts=0)
    stage.run()
    assert stage.notes == noted


def test_a_general_failure_is_not_noted_beside_the_error_that_the_driver_reported():
    failed = seen(HEALTHY, state=RunState.FAILED, exit_reason="CheckpointError: no shard")
    stage = Stage([failed, Ended(Exit.FAILED)], known=GENERAL, driver_restarts=0)
    stage.run()
    assert stage.notes == ["CheckpointError: no shard"]


def test_a_failure_of_a_driver_that_was_killed_is_noted_too():
    stage = Stage([seen(DEAD, DEAD)], [Ended(0)], engine_restarts=0, known=KNOWN)
    stage.run()
    assert stage.notes.count("DiskFull: the disk is full. Free some") == 1


@pytest.mark.parametrize("code", [Exit.OK, Exit.PREEMPTED])
def test_an_end_in_order_needs_no_diagnosis(code: int):
    stage = Stage([Ended(code)], [Ended(0)], known=KNOWN)
    stage.run()
    assert KNOWN.title not in " ".join(stage.notes)


def test_after_a_learner_ran_out_of_memory_the_next_attempt_gets_smaller_micro_batches():
    known = KnownFailure("TrainOutOfMemory", "the learner runs out of GPU memory", "Lower it", "rank-0.log: CUDA")
    stage = Stage([Ended(4)], [Ended(4)], [Ended(0)], known=known, device="Gpu")
    stage.run()
    assert stage.less == [{}, {"training.maxTokensPerGpu": 7372}, {"training.maxTokensPerGpu": 6635}]
    assert stage.notes[1].endswith("; restarting in 0 s with training.maxTokensPerGpu 7372")


def test_a_driver_without_engines_is_killed_and_started_again():
    stage = Stage([seen(DEAD, DEAD)], [Ended(0)], engine_restarts=0)
    assert stage.run().exit_code == Exit.OK
    assert stage.calls == ["kill"]
    assert any(note.startswith("no engine is left: engine-0 died") for note in stage.notes)


def test_a_silent_driver_is_killed_with_its_stacks_and_the_user_sees_why():
    silence = [seen(HEALTHY, after_s=19.0, phase="train") for _ in range(4)]
    stage = Stage(silence, [Ended(0)])
    stage.run()
    assert stage.calls == ["kill with stacks"]
    assert stage.notes[0] == "no progress for 76 s in phase train"
    assert stage.notes[1].startswith("attempt 1: ")


def test_a_driver_whose_heartbeat_moves_is_not_silent():
    stage = Stage([*(seen(HEALTHY, after_s=19.0, heartbeat=float(i)) for i in range(9)), Ended(0)])
    stage.run()
    assert stage.calls == []


def test_a_pause_of_our_own_is_not_the_driver_s_silence():
    stage = Stage([seen(HEALTHY), seen(HEALTHY, after_s=5000.0), seen(HEALTHY), Ended(0)])
    stage.run()
    assert stage.calls == []


def test_a_report_of_an_earlier_driver_is_not_taken_for_this_one_s():
    stage = Stage([seen(DEAD, HEALTHY, pid=PID + 1), Ended(0)])
    stage.run()
    assert (stage.calls, stage.notes) == ([], [])


def test_an_interrupted_run_saves_and_ends():
    stage = Stage([seen(HEALTHY), INTERRUPT, seen(HEALTHY), Ended(Exit.PREEMPTED)])
    assert stage.run().exit_code == Exit.PREEMPTED
    assert stage.calls == ["drain"]
    assert stage.notes == ["saving after this step, then stopping; interrupt again to stop without saving"]


def test_a_drain_that_was_not_answered_is_asked_for_again():
    stage = Stage([seen(HEALTHY), INTERRUPT, seen(HEALTHY), seen(HEALTHY), Ended(Exit.PREEMPTED)], failures=1)
    stage.run()
    assert stage.calls == ["drain"]


def test_the_second_interrupt_ends_without_saving():
    stage = Stage([seen(HEALTHY), INTERRUPT, INTERRUPT])
    assert stage.run().exit_code == Exit.INTERRUPTED
    assert stage.calls == ["drain", "kill"]
    assert stage.notes[-1] == "interrupted again: stopping without saving"


def test_an_interrupt_before_the_driver_reported_ends_it_at_once():
    stage = Stage([INTERRUPT])
    assert stage.run().exit_code == Exit.PREEMPTED
    assert stage.calls == ["kill"]


def test_a_driver_that_is_killed_while_it_saves_has_failed():
    stage = Stage([seen(HEALTHY), INTERRUPT, Ended(-9)])
    assert stage.run() == RunResult(Exit.FAILED, "while ending: killed by SIGKILL")


def test_an_interrupt_between_two_attempts_ends_the_run():
    stage = Stage([Ended(Exit.LOST_PEER)], [Ended(Exit.LOST_PEER), INTERRUPT], backoff_s=60.0)
    assert stage.run() == RunResult(Exit.PREEMPTED, "interrupted before the next attempt")
    assert len(stage.drivers) == 2


@pytest.mark.parametrize("code", [Exit.BAD_MANIFEST, Exit.BAD_INPUT, Exit.DIVERGED])
def test_what_would_fail_again_is_not_started_again(code: Exit):
    stage = Stage([Ended(code)])
    assert stage.run().exit_code == code
    assert stage.cleaned == 1


def test_a_driver_is_started_again_until_its_restarts_are_used_up():
    stage = Stage([Ended(Exit.LOST_PEER)], [Ended(Exit.LOST_PEER)], driver_restarts=1)
    assert stage.run().exit_code == Exit.BUDGET_EXHAUSTED
    assert (len(stage.drivers), stage.cleaned) == (2, 2)


def test_a_new_checkpoint_gives_a_driver_its_restarts_back():
    saved = SavedCheckpoint(step=3, path="checkpoints/3", verified=True)
    ends = Ended(Exit.LOST_PEER)
    stage = Stage([ends], [seen(HEALTHY, checkpoint=saved), ends], [Ended(0)], driver_restarts=1)
    assert stage.run().exit_code == Exit.OK


def test_an_error_that_the_driver_could_not_report_is_shown_from_its_log():
    stage = Stage([seen(HEALTHY), Ended(Exit.BAD_INPUT)], words="DataError: row 3")
    stage.run()
    assert stage.notes == ["DataError: row 3"]


@pytest.mark.parametrize("code", [Exit.OK, Exit.PREEMPTED])
def test_the_log_of_a_driver_that_ended_well_is_not_shown(code: Exit):
    stage = Stage([seen(HEALTHY), Ended(code)], words="DataError: row 3")
    stage.run()
    assert stage.notes == []


def test_an_error_that_the_driver_reported_is_shown_once():
    failed = seen(HEALTHY, state=RunState.FAILED, exit_reason="DataError: row 3")
    stage = Stage([failed, failed, Ended(Exit.BAD_INPUT)], words="DataError: row 3")
    stage.run()
    assert stage.notes == ["DataError: row 3"]


def test_what_a_run_begins_with_is_shown_once():
    stage = Stage([seen(HEALTHY), seen(HEALTHY, began="from step 3"), seen(HEALTHY, began="from step 3"), Ended(0)])
    stage.run()
    assert stage.notes == ["from step 3"]


def test_engines_that_die_while_a_driver_ends_are_left_alone():
    stage = Stage([seen(DEAD, HEALTHY, state=RunState.FINISHED), Ended(0)])
    assert stage.run().exit_code == Exit.OK

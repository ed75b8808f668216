"""The preStop hook: how long it keeps a pod, with a clock of its own and over a real socket."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rljob_api.control import (
    EVICT,
    EVICTION_TOKEN_VARIABLE,
    TOKEN_VARIABLE,
    Eviction,
    EvictionResult,
    eviction_token,
    eviction_token_of,
)
from rljob_trainer.control.pod_eviction import Answer, NoAnswer, await_end, post, say
from rljob_trainer.processes.ports import free_ports

DRAINING, UNNEEDED = EvictionResult(outcome="Draining"), EvictionResult(outcome="Unneeded")
STALLED = EvictionResult(outcome="Draining", stalled=True)
REFUSED, UNREACHABLE = NoAnswer.REFUSED, NoAnswer.UNREACHABLE


def waits(*answers: Answer, grace_s: float = 100.0, linger_s: float = 0.0) -> tuple[str, float]:
    """Return why the hook ends and after what time [s]; the last answer is repeated."""
    now, left = [0.0], list(answers)
    ask: Callable[[], Answer] = lambda: left.pop(0) if len(left) > 1 else left[0]  # noqa: E731
    why = await_end(ask, grace_s, linger_s, lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds))
    return why, now[0]


@pytest.mark.parametrize(
    ("answers", "why", "after_s"),
    [
        ([REFUSED], "no driver listens", 0),
        ([DRAINING, DRAINING, REFUSED], "the driver has ended: no driver listens", 2),
        ([DRAINING], "the grace period of 100 s is over", 100),
        ([DRAINING, STALLED], "the driver makes no progress", 1),
        ([UNNEEDED], "the run continues without this pod", 10),
        ([UNNEEDED, DRAINING, DRAINING, REFUSED], "the driver has ended: no driver listens", 3),
        ([UNREACHABLE], "the driver does not answer", 5),
        ([DRAINING, UNREACHABLE], "the driver has ended: the driver does not answer", 20),
        ([UNREACHABLE, DRAINING, UNREACHABLE, DRAINING, REFUSED], "the driver has ended: no driver listens", 4),
    ],
)
def test_a_pod_stays_until_the_driver_has_saved_and_ended(answers: Sequence[Answer], why: str, after_s: float) -> None:
    assert waits(*answers) == (why, after_s)


@pytest.mark.parametrize(("grace_s", "after_s"), [(100.0, 17.0), (10.0, 10.0)])
def test_the_head_stays_until_the_operator_has_read_how_the_driver_ended(grace_s: float, after_s: float) -> None:
    assert waits(DRAINING, DRAINING, REFUSED, grace_s=grace_s, linger_s=15.0)[1] == after_s


def test_a_head_without_a_driver_ends_at_once() -> None:
    assert waits(REFUSED, linger_s=15.0)[1] == 0


@pytest.mark.parametrize(
    ("environ", "token"),
    [
        ({TOKEN_VARIABLE: "t"}, eviction_token("t")),
        ({EVICTION_TOKEN_VARIABLE: "e"}, "e"),
        ({}, None),
    ],
)
def test_the_head_derives_its_token_and_other_pods_have_it(environ: dict[str, str], token: str | None) -> None:
    assert eviction_token_of(environ) == token


def test_a_port_at_which_nothing_listens_means_that_there_is_no_driver() -> None:
    (port,) = free_ports("127.0.0.1")[:1]
    eviction = Eviction(pod="p", holds="Learner")
    assert post(f"http://127.0.0.1:{port}{EVICT}", "t", eviction) is REFUSED


def test_a_head_whose_name_is_unknown_does_not_answer() -> None:
    assert post(f"http://head.invalid:8643{EVICT}", "t", Eviction(pod="p", holds="Learner")) is UNREACHABLE


def test_the_log_is_that_of_the_first_process_which_may_be_written_to(tmp_path: Path) -> None:
    for process in (10, 9, 1):
        (tmp_path / f"{process}/fd").mkdir(parents=True)
    (tmp_path / "1/fd").rmdir()  # of another container: its files cannot be opened
    (tmp_path / "self").mkdir()
    say("ends: no driver listens", tmp_path)
    assert (tmp_path / "9/fd/2").read_text() == "rljob eviction: ends: no driver listens\n"
    assert not (tmp_path / "10/fd/2").exists()

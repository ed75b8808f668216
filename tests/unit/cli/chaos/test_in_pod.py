"""What runs in a pod: finds processes by their role, and the newest step. The signal goes to a real process."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rljob_cli.chaos.seen import ROLES, UnreadableError, inside
from rljob_cli.cluster import in_pod
from rljob_cli.cluster.chaos_verb import TEXT
from rljob_cli.cluster.in_pod import newest_records, newest_step, processes, refused, unequal

DRIVER = b"python\0-m\0rljob_trainer.driver\0--manifest\0/etc/rljob/manifest.yaml\0"
EMPTY = {"processes": {role: [] for role in ROLES}, "hit": None, "step": None, "refused": [], "unequal": []}


def process(proc: Path, pid: int, line: bytes, started: int = 5, parent: int = 1) -> None:
    """Write what /proc says of a process."""
    directory = proc / str(pid)
    directory.mkdir()
    (directory / "cmdline").write_bytes(line)
    numbers = " ".join(["0"] * 17)
    (directory / "stat").write_text(f"{pid} (a) name) S {parent} {numbers} {started} 0 0\n")


def found(proc: Path, role: str) -> list[int]:
    return [each["pid"] for each in processes(proc)[role]]


def test_processes_are_found_by_their_role(tmp_path: Path):
    process(tmp_path, 10, DRIVER)
    process(tmp_path, 11, b"sglang::router\0")
    process(tmp_path, 12, b"sglang::scheduler\0")
    process(tmp_path, 13, b"ray::RankHost.stay\0")
    process(tmp_path, 14, b"sglang::detokenizer\0")
    process(tmp_path, 15, b"python\0-m\0rljob_trainer.processes.guard\0")
    process(tmp_path, 16, b"bash\0-c\0ps | grep sglang::router\0")
    process(tmp_path, 17, b"")
    (tmp_path / "self").mkdir()
    assert {role: found(tmp_path, role) for role in ROLES} == {
        "driver": [10],
        "router": [11],
        "engine": [12],
        "rank": [13],
    }


def test_the_oldest_comes_first_and_a_fork_is_not_a_second_driver(tmp_path: Path):
    process(tmp_path, 20, DRIVER, started=9)
    process(tmp_path, 21, DRIVER, started=9, parent=20)
    process(tmp_path, 30, b"sglang::scheduler_TP1\0", started=8)
    process(tmp_path, 31, b"sglang::scheduler_TP0\0", started=7)
    assert (found(tmp_path, "driver"), found(tmp_path, "engine")) == ([20], [31, 30])


def test_two_drivers_are_two(tmp_path: Path):
    process(tmp_path, 20, DRIVER)
    process(tmp_path, 40, DRIVER)
    assert found(tmp_path, "driver") == [20, 40]


def test_the_newest_step_is_found_behind_other_records_and_a_torn_one(tmp_path: Path):
    events = tmp_path / "events.jsonl"
    records = [
        {"kind": "step", "step": 3, "time": 50.0},
        {"kind": "step", "step": 4, "time": 90.0},
        {"kind": "samples"},
    ]
    events.write_text("".join(json.dumps(each) + "\n" for each in records) + '{"kind": "step", "st')
    assert newest_step(newest_records(events), now=100.0) == {"step": 4, "age": 10.0}


@pytest.mark.parametrize("content", [None, "", "x" * 10, '[1]\n"kind"\n{"kind": "step"}\n'])
def test_a_run_without_steps_has_no_newest_one(tmp_path: Path, content: str | None):
    if content is not None:
        (tmp_path / "events.jsonl").write_text(content)
    assert newest_step(newest_records(tmp_path / "events.jsonl"), now=1.0) is None


def test_only_the_end_of_a_long_record_is_read(tmp_path: Path):
    events = tmp_path / "events.jsonl"
    step = json.dumps({"kind": "step", "step": 4, "time": 1.0})
    events.write_text(f"{step}\n{'x' * in_pod.TAIL}\n")
    assert newest_step(newest_records(events), now=1.0) is None
    events.write_text(f"{'x' * in_pod.TAIL}\n{step}\n")
    assert newest_step(newest_records(events), now=1.0) == {"step": 4, "age": 0.0}


def step(number: int, time: float, engine_0: int, max_staleness: int = 0) -> dict[str, Any]:
    samples = {"engine-0": engine_0, "engine-1": 4}
    made = {"kind": "step", "step": number, "time": time, "engine_samples": samples}
    return made | ({"max_staleness": max_staleness} if max_staleness else {})


FAILED = {"kind": "engine", "time": 30.5, "engine": "engine-0", "error": "1 of 14 tensors differ", "return_seconds": 20}


@pytest.mark.parametrize(
    ("steps", "samples"),
    [
        ([step(3, 30.0, 4), step(4, 40.0, 2), step(5, 50.0, 0), step(6, 60.0, 4)], 0),  # step 4 had begun before
        ([step(3, 31.0, 4), step(4, 40.0, 2), step(5, 50.0, 0), step(6, 60.0, 4)], 2),
        ([step(3, 31.0, 4), step(4, 40.0, 2, max_staleness=1), step(5, 50.0, 0)], 0),  # made for step 3
        ([step(3, 31.0, 4), step(4, 40.0, 2, max_staleness=1), step(5, 50.0, 3, max_staleness=1)], 3),
        ([step(4, 40.0, 2)], 0),  # when it began is not known
        ([step(3, 31.0, 4), step(4, 51.0, 2)], 0),  # it was back
    ],
)
def test_samples_of_a_refused_engine_are_counted_in_steps_that_began_after(steps: list[Any], samples: int):
    (found,) = refused([*steps, FAILED | {"cause": "PublishFailed"}], now=60.5)
    assert found == {"engine": "engine-0", "age": 30.0, "error": "1 of 14 tensors differ", "samples": samples}


def test_an_engine_that_ended_or_is_not_back_yet_says_nothing_of_samples():
    steps = [step(3, 31.0, 4), step(4, 40.0, 2)]
    assert refused([*steps, FAILED | {"cause": "ProcessExited"}], now=60.0) == []
    assert refused([*steps, FAILED | {"cause": "PublishFailed", "return_seconds": None}], now=60.0) == []


def test_unequal_copies_are_found_among_the_findings():
    records = [
        {"kind": "finding", "time": 5.0, "name": name, "evidence": "w"} for name in ("LostRank", "UnequalCopies")
    ]
    assert unequal(records, now=9.0) == [{"age": 4.0, "evidence": "w"}]


def test_its_text_runs_alone_and_signals_a_process(tmp_path: Path):
    """A rank's command line, `ray::RankHost`, is the first word of a real process here."""
    with subprocess.Popen(["ray::RankHost", "60"], executable="/bin/sleep") as rank:
        given = [sys.executable, "-I", "-c", TEXT, str(tmp_path)]
        assert len(TEXT) < 4096
        seen = inside(subprocess.run(given, capture_output=True, check=True).stdout)
        (others,) = [len(seen.processes["rank"]) - 1]
        assert rank.pid in {pid for pid, _ in seen.processes["rank"]}
        # The newest of them is this test's, unless a run has begun beside it.
        draw = "0.0" if not others else "0.999999"
        hit = inside(subprocess.run([*given, "rank", "SIGKILL", draw], capture_output=True, check=True).stdout).hit
        assert hit == rank.pid
        assert rank.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize(
    "answer",
    [b"", b"{", b"[]", b"{}", b"[" * 100_000, json.dumps(EMPTY | {"processes": {}}).encode(), b'{"processes": 1}'],
)
def test_an_answer_of_another_program_is_refused(answer: bytes):
    with pytest.raises(UnreadableError, match="not an answer of this command"):
        inside(answer)


def test_an_answer_of_a_pod_without_a_run_is_read():
    seen = inside(json.dumps(EMPTY).encode())
    assert (seen.hit, seen.step, seen.processes["driver"]) == (None, None, frozenset())


def test_a_record_of_any_depth_hides_no_others(tmp_path: Path):
    events = tmp_path / "events.jsonl"
    step = json.dumps({"kind": "step", "step": 4, "time": 90.0})
    events.write_text(f"{'[' * 50_000}\n{step}\n")
    assert newest_step(newest_records(events), now=100.0) == {"step": 4, "age": 10.0}

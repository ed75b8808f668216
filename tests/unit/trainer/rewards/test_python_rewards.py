"""Users' functions in a process of their own: what they get, what they may return, and whatever else they do."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

from rljob_api.sections import Judges, Judging, RewardKind
from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rewards.function import Failure, Response, Score
from rljob_trainer.rewards.python import Machine, PythonReward, python_reward
from support.trainer.judging import prompt, responses, write_module
from support.waiting import until

JUDGES = """
    import asyncio, os, subprocess, sys, tempfile, time
    from decimal import Decimal
    from pathlib import Path

    def begins_to_hang():
        return tempfile.mkstemp(prefix="hangs-", dir=Path(__file__).parent)

    def hang():
        begins_to_hang()
        time.sleep(600)

    def wait_for(file):
        while not Path(file).exists():
            time.sleep(0.01)
        return 1.0

    def judge(question, response, label, metadata):
        \"\"\"Return a number, or do as asked.\"\"\"
        return eval(response)

    def seen(question, response, label, metadata):
        assert (question, response, label, dict(metadata)) == ("47 + 36", "84", "83", {"level": 3})
        return 0.5

    def best(question, responses, label, metadata):
        return [float(response == max(responses)) for response in responses]

    def as_asked(question, responses, label, metadata):
        return eval(responses[0])

    together = asyncio.Barrier(3)

    async def meet(question, response, label, metadata):
        async with asyncio.timeout(20):
            await together.wait()
        return float(response)

    async def patient(question, response, label, metadata):
        if response == "sleep":
            await asyncio.sleep(600)
        if response == "block":
            hang()
        return eval(response)

    def narrow(response, label):
        return 0.0

    def keyword(*, question, response, label, metadata):
        return 0.0
"""


@pytest.fixture(scope="module")
def judges(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the directory of an importable module called `judges`."""
    directory = tmp_path_factory.mktemp("judges")
    write_module(directory, JUDGES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(directory))
        yield directory


Make = Callable[..., PythonReward]
ONE_PROCESS = Machine(cores=1, memory_bytes=2**40)


@pytest.fixture(scope="module")
def make(judges: Path) -> Iterator[Make]:
    """Make rewards, each once: after whatever a test does to its process, the next test gets a new one.

    Their time passes when a function begins to hang, and not before.
    """
    with ExitStack() as stack:

        def clock() -> float:
            return 1e6 * len(list(judges.glob("hangs-*")))

        @cache
        def made(name: str = "judge", **fields: Any) -> PythonReward:
            spec = Judging(kind=RewardKind.PYTHON, function=f"judges:{name}", **fields)
            reward = python_reward(spec, judges / "reward.log", lambda: None, clock, ONE_PROCESS)
            stack.callback(reward.close)
            return reward

        yield made


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less than one does for real functions."""
    for name in ("GRACE_S", "REST_S", "STOPS_S"):
        monkeypatch.setattr(f"rljob_trainer.processes.function_workers.{name}", 0.2)


def reasons(scores: list[Score]) -> list[str | float]:
    return [score.reason if isinstance(score, Failure) else score for score in scores]


def is_left(log: Path) -> bool:
    """Return whether a process still serves that writes to this log."""
    found = psutil.process_iter(["cmdline"])
    return any(str(log) in (process.info["cmdline"] or []) for process in found)


def test_a_function_receives_question_response_label_and_metadata(make: Make):
    assert list(make("seen")([Response(prompt(level=3), "84")])) == [0.5]


def test_a_function_of_groups_gets_all_responses_to_a_prompt_and_only_them(make: Make):
    asked = [*responses("a", "c", "b", of=prompt(uid="0:1")), *responses("z", "y", of=prompt(uid="0:2"))]
    assert list(make("best", judges=Judges.GROUP)(asked)) == [0.0, 1.0, 0.0, 1.0, 0.0]


def test_calls_of_an_async_function_go_on_together(make: Make):
    assert list(make("meet")(responses("3", "1", "2"))) == [3.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("jugde", r"judges has no function jugde; it has "),
        ("narrow", r"judges:narrow takes \(response, label\); a reward takes \(question, response, label, met"),
        ("keyword", r"judges:keyword takes \(\*, question, response, label, metadata\)"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_when_it_is_loaded(make: Make, name: str, said: str):
    with pytest.raises(RewardError, match=said):
        make(name)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_module", r"cannot import bad: ModuleNotFoundError"),
        ("raise SystemExit(3)", r"cannot import bad: SystemExit: 3"),
        ("import os; os._exit(3)", r"ended with code 3 while it was loaded"),
        ("print('oh'); import os; os.abort()", r"(?s)killed by signal 6 while it was loaded; log:.*oh"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused(judges: Path, source: str, said: str):
    write_module(judges, source, "bad")
    with pytest.raises(RewardError, match=said):
        python_reward(Judging(kind=RewardKind.PYTHON, function="bad:judge"), judges / "bad.log", lambda: None)
    until(lambda: not is_left(judges / "bad.log"))


def test_an_import_that_takes_too_long_is_refused_and_the_trainer_gives_signs_of_life_meanwhile(
    judges: Path, monkeypatch: pytest.MonkeyPatch
):
    beats: list[None] = []
    monkeypatch.setattr("rljob_trainer.processes.function_workers.START_S", 2.0)
    write_module(judges, "import time; time.sleep(600)", "slow")
    with pytest.raises(RewardError, match=r"reward.function slow:judge: its import took longer than 2 s; log:"):
        spec = Judging(kind=RewardKind.PYTHON, function="slow:judge")
        python_reward(spec, judges / "slow.log", lambda: beats.append(None), lambda: 0.75 * len(beats))
    assert len(beats) == 3


@pytest.mark.parametrize(
    ("function", "text", "said"),
    [
        ("judge", "float('nan')", "judges:judge returned nan for prompt 0:0; a finite number is wanted"),
        ("judge", "float('inf')", "judges:judge returned inf for"),
        ("judge", "10 ** 400", "judges:judge returned 1000"),
        ("judge", "None", "judges:judge returned None for"),
        ("judge", "'1.0'", "judges:judge returned '1.0' for"),
        ("judge", "1 / 0", "judges:judge failed on prompt 0:0: ZeroDivisionError: division by zero"),
        ("judge", "sys.exit(2)", "judges:judge failed on prompt 0:0: SystemExit: 2"),
        ("judge", "bytearray(10 ** 10)", "judges:judge needed more than 256 MiB (memoryMib) on prompt 0:0"),
        ("patient", "None", "judges:patient returned None for prompt 0:0"),
        ("patient", "1 / 0", "judges:patient failed on prompt 0:0: ZeroDivisionError"),
        ("patient", "bytearray(10 ** 10)", "judges:patient needed more than 256 MiB"),
    ],
)
def test_a_call_that_gives_no_number_fails_alone(make: Make, function: str, text: str, said: str):
    failed, number = reasons(list(make(function, memory_mib=256)(responses(text, "2.5"))))
    assert failed.startswith(said)
    assert number == 2.5


@pytest.mark.parametrize("chosen", [None, "3"])
def test_numpy_in_a_function_has_one_thread_unless_the_manifest_says_otherwise(
    make: Make, monkeypatch: pytest.MonkeyPatch, chosen: str | None
):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
        if chosen is not None:
            monkeypatch.setenv(name, chosen)
    asked = "float(__import__('os').environ['{}_NUM_THREADS'])"
    in_new_process = make("judge", memory_mib=300 + int(chosen or 1))
    (omp, openblas) = reasons(list(in_new_process(responses(asked.format("OMP"), asked.format("OPENBLAS")))))
    assert omp == openblas == float(chosen or 1)


SECRETS = {"RLJOB_TOKEN": "of nothing", "RAY_AUTH_TOKEN": "of nothing", "HF_TOKEN": "of nothing", "JUDGE_KEY": "secret"}


@pytest.mark.parametrize(("kept", "seen"), [((), 0.0), (("JUDGE_KEY",), 1.0)])
def test_a_function_gets_no_secret_of_the_driver_that_it_does_not_name(
    make: Make, monkeypatch: pytest.MonkeyPatch, kept: tuple[str, ...], seen: float
):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MAX_TOKENS", "7")
    in_new_process = make("judge", secret_env=kept, memory_mib=311 + len(kept))
    asked = f"sum(name in os.environ for name in {list(SECRETS)})"
    assert list(in_new_process(responses(asked, "int(os.environ['MAX_TOKENS'])"))) == [seen, 7.0]


@pytest.mark.parametrize(("text", "worth"), [("True", 1.0), ("1", 1.0), ("Decimal('0.5')", 0.5)])
def test_any_kind_of_number_is_a_reward(make: Make, text: str, worth: float):
    assert list(make()(responses(text))) == [worth]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1.0]", "judges:as_asked returned a list of 1 for prompt 0:7, which has 2 responses"),
        ("[1.0, float('nan')]", "judges:as_asked returned nan for prompt 0:7"),
        ("1.0", "judges:as_asked returned 1.0 for prompt 0:7; with judges: Group a list of 2 finite numbers is wanted"),
        ("'ab'", "judges:as_asked returned 'ab' for prompt 0:7"),
        ("1 / 0", "judges:as_asked failed on prompt 0:7: ZeroDivisionError"),
    ],
)
def test_a_failed_call_over_a_group_fails_all_of_its_responses(make: Make, text: str, said: str):
    found = reasons(list(make("as_asked", judges=Judges.GROUP)(responses(text, "x", of=prompt()))))
    assert [reason.startswith(said) for reason in found] == [True, True]


def test_a_function_that_hangs_is_killed_with_its_stack_in_the_log_and_the_next_call_has_a_new_process(
    make: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rljob_trainer.processes.function_workers.TRACE_S", 2.0)
    hung, number = reasons(list(make(timeout_seconds=1)(responses("hang()", "2.5"))))
    assert hung.startswith("judges:judge took longer than 1 s (timeoutSeconds) on prompt 0:0; log:")
    assert re.search(r'judges\.py", line \d+ in judge', hung)
    assert number == 2.5


def test_a_function_that_hangs_in_one_long_instruction_is_killed(make: Make):
    hung = reasons(list(make(timeout_seconds=1)(responses("begins_to_hang() and len(str(7 ** 10 ** 8))"))))
    assert hung[0].startswith("judges:judge took longer than 1 s")


def test_an_async_function_that_sleeps_too_long_is_cancelled_alone(make: Make):
    slept, number = reasons(list(make("patient", timeout_seconds=1)(responses("sleep", "2.5"))))
    assert slept == "judges:patient took longer than 1 s (timeoutSeconds) on prompt 0:0"
    assert number == 2.5


@pytest.mark.usefixtures("impatience")
def test_an_async_function_that_blocks_the_others_is_killed(make: Make):
    found = reasons(list(make("patient", timeout_seconds=1, concurrency=2)(responses("block", "1", "2.5"))))
    assert found[0].startswith("judges:patient took longer than 1 s (timeoutSeconds) on prompt 0:0; log:")
    assert found[2] == 2.5


@pytest.mark.usefixtures("impatience")
def test_a_call_that_is_larger_than_a_pipe_does_not_wait_for_a_process_that_reads_nothing(make: Make):
    found = reasons(list(make("patient", timeout_seconds=1, concurrency=2)(responses("block", "1" * 2**22))))
    assert all("took longer" in reason or "process of judges:patient" in reason for reason in found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("os._exit(3)", "the process of judges:judge ended with code 3 on prompt 0:0; log:"),
        ("os.kill(os.getpid(), 9)", "the process of judges:judge was killed by signal 9 on prompt 0:0"),
        ("os.abort()", "the process of judges:judge was killed by signal 6 on prompt 0:0"),
        ("os.closerange(3, 99)", "the process of judges:judge "),
    ],
)
def test_a_function_that_takes_its_process_down_fails_and_the_next_call_has_a_new_one(make: Make, text: str, said: str):
    ended, number = reasons(list(make()(responses(text, "2.5"))))
    assert ended.startswith(said)
    assert number == 2.5


@pytest.mark.parametrize("junk", ["b'\\0\\0\\x40\\0what?'", "b'\\0\\0\\0\\5what?'", "b'junk'", "b'\\0\\0\\0\\2{}'"])
@pytest.mark.usefixtures("impatience")
def test_a_function_that_writes_into_the_connection_fails_and_hangs_nobody(make: Make, junk: str):
    ours = "next(fd for fd in range(3, 99) if os.path.realpath(f'/proc/self/fd/{fd}').count('socket:'))"
    failed, number = reasons(list(make(timeout_seconds=21)(responses(f"os.write({ours}, {junk})", "2.5"))))
    assert failed.startswith("the process of judges:judge ")
    assert number == 2.5


def test_what_a_function_prints_is_in_the_log_and_cannot_stop_it(make: Make, judges: Path):
    texts = ["print('x' * 8 * 2**20) or 1", "print('seen', file=sys.stderr) or 2", "os.system('echo shell') or 3"]
    assert list(make()(responses(*texts))) == [1.0, 2.0, 3.0]
    assert (judges / "reward.log").read_text().endswith(f"{'x' * 8 * 2**20}\nseen\nshell\n")


def test_the_traceback_of_a_failure_is_in_the_log(make: Make, judges: Path):
    list(make()(responses("1 / 0")))
    assert "ZeroDivisionError" in (judges / "reward.log").read_text()


def test_a_forked_child_that_returns_too_does_not_answer(make: Make):
    assert list(make()(responses("os.fork() and 1 or 0", "2", "3"))) == [1.0, 2.0, 3.0]


def test_what_a_function_has_started_ends_with_the_reward(make: Make):
    reward = make(memory_mib=317)
    started = "subprocess.Popen(['sleep', '600'], start_new_session=True).pid"
    (pid,) = reward(responses(started))
    processes = [psutil.Process(int(pid)), psutil.Process(reward.worker.workers[0].start().process.pid)]
    reward.close()
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert alive == []


TRAINER = """
import sys
from pathlib import Path
from support.trainer.judging import responses
from rljob_api.sections import Judges, Judging, RewardKind
from rljob_trainer.rewards.python import python_reward

reward = python_reward(Judging(kind=RewardKind.PYTHON, function="judges:judge"), Path(sys.argv[1]), lambda: None)
print(reward.worker.workers[0].start().process.pid, flush=True)
list(reward(responses("time.sleep(600)")))
"""


def test_a_function_hanging_in_its_call_ends_when_its_trainer_is_killed(judges: Path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(judges), *sys.path])}
    command = [sys.executable, "-c", TRAINER, str(judges / "killed.log")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None
        worker = psutil.Process(int(trainer.stdout.readline()))
        trainer.send_signal(signal.SIGKILL)
    worker.wait(60)


def test_the_trainer_gives_signs_of_life_while_a_long_call_goes_on(make: Make, tmp_path: Path):
    beats = iter([tmp_path / "first", tmp_path / "second", tmp_path / "third"])
    reward = replace(make(), alive=lambda: next(beats, tmp_path / "more").touch())
    assert list(reward(responses(f"wait_for({str(tmp_path / 'third')!r})"))) == [1.0]


def test_a_reward_that_nobody_takes_to_the_end_leaves_no_call_under_way(make: Make):
    reward = make("patient", timeout_seconds=30)
    process = reward.worker.workers[0].start().process
    assert next(iter(reward(responses("1", "sleep")))) == 1.0
    assert list(reward(responses("2"))) == [2.0]
    assert process.exit is not None


@pytest.mark.parametrize(
    ("label", "text", "worth"),
    [
        ("83", "The answer is 83.", 1.0),
        ("83", "84", 0.0),
        ("1/2", r"So we get $\frac{2}{4}$", 1.0),
        (r"\frac{1}{2}", r"\boxed{0.5}", 1.0),
        (r"$\sqrt{8}$", r"$2\sqrt{2}$", 1.0),
        (r"2\sqrt{2}", r"$\sqrt{8}$", 1.0),
        (r"2\sqrt{2}", "2", 0.0),
        (r"\boxed{\pi}", r"It is $\pi$.", 1.0),
        ("The answer is $5$", "5", 1.0),
        ("83", "", 0.0),
        ("83", "no idea", 0.0),
    ],
)
def test_math_compares_values_not_texts(math_reward: PythonReward, label: str, text: str, worth: float):
    assert list(math_reward([Response(prompt(label), text)])) == [worth]


def test_a_label_that_is_no_mathematics_is_reported(math_reward: PythonReward):
    (failure,) = math_reward([Response(prompt(""), "83")])
    assert "math-verify failed on prompt 0:7: ValueError: math-verify finds no answer in the label ''" in str(failure)


def test_math_is_judged_in_any_thread(math_reward: PythonReward):
    found: list[Score] = []
    thread = threading.Thread(target=lambda: found.extend(math_reward([Response(prompt(), "83")])))
    thread.start()
    thread.join()
    assert found == [1.0]


@pytest.fixture(scope="module")
def math_reward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PythonReward]:
    log = tmp_path_factory.mktemp("math") / "reward.log"
    reward = python_reward(Judging(kind=RewardKind.MATH), log, lambda: None)
    yield reward
    reward.close()

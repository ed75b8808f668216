"""Reward functions that run a model's code, in the sandbox of one machine."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rljob_api.sections import Judges, Judging, RewardKind
from rljob_trainer.processes import sandbox
from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rewards.function import Failure, Response
from rljob_trainer.rewards.python import PythonReward, python_reward
from support.trainer.escapes import ESCAPES, attempt, key_of_the_session
from support.trainer.judging import prompt, responses, write_module

JUDGES = """
    import os
    import subprocess
    import sys
    import time

    def runs(question, response, label, metadata):
        return eval(response)

    def gets_out(question, response, label, metadata):
        code = metadata["attempts"][response]
        said = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True).stdout
        return 1.0 if said.startswith("ESCAPED") else 0.0

    async def later(question, responses, label, metadata):
        return [float(len(each)) for each in responses]

    def forge(answer):
        for fd in range(3, 64):
            try: os.write(fd, answer + bytes([10]))
            except OSError: pass
        time.sleep(60)
"""
TRIED = ("own environment", "the run's files", "localhost", "a key of the user", "shared memory", "a fork bomb")


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("judges")
    write_module(directory, JUDGES, "boxed")
    (directory / "secret.txt").write_text("answers")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(directory))
        patch.setenv("RLJOB_SECRET", "of nothing")
        yield directory


def reward(module: Path, name: str = "runs", **fields: object) -> PythonReward:
    spec = Judging(kind=RewardKind.PYTHON, function=f"boxed:{name}", sandbox="Namespaces", concurrency=1, **fields)
    return python_reward(spec, module / "reward.log", lambda: None)


@pytest.fixture(scope="module")
def judge(module: Path) -> Iterator[PythonReward]:
    made = reward(module, memory_mib=256, timeout_seconds=20)
    yield made
    made.close()


def test_a_function_in_a_sandbox_scores(judge: PythonReward):
    assert list(judge(responses("0.5", "2", "True"))) == [0.5, 2.0, 1.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("None", "boxed:runs returned None for prompt 0:0; a finite number is wanted"),
        ("1 / 0", "boxed:runs failed on prompt 0:0: ZeroDivisionError: division by zero"),
        ("os._exit(3)", "boxed:runs failed on prompt 0:0: the tool's process ended with code 3"),
        ("bytearray(10**9)", "boxed:runs needed more than 256 MiB (memoryMib) on prompt 0:0"),
        ("forge(b'[' * 100_000)", "boxed:runs failed on prompt 0:0: the tool has written into its own answer"),
        ("forge(b'{}')", "the process of boxed:runs gave an answer that was not ours on prompt 0:0"),
        ("'1.0'", "boxed:runs returned '1.0' for prompt 0:0"),
    ],
)
def test_a_call_that_gives_no_number_fails_alone(judge: PythonReward, text: str, said: str):
    failed, number = judge(responses(text, "2.5"))
    assert isinstance(failed, Failure)
    assert failed.reason.startswith(said)
    assert number == 2.5


def test_code_of_a_model_gets_as_little_as_a_tool_does(module: Path):
    names = {"RUN": str(module), "PORT": 9, "KEY": key_of_the_session()}
    attempts = {name: attempt(ESCAPES[name], names) for name in TRIED}
    made = reward(module, "gets_out", memory_mib=512)
    try:
        scores = list(made([Response(prompt(attempts=attempts), name) for name in TRIED]))
    finally:
        made.close()
    assert all(score == 0.0 or (isinstance(score, Failure) and "more than" in score.reason) for score in scores)


def test_an_async_function_over_groups_runs_there_too(module: Path):
    made = reward(module, "later", judges=Judges.GROUP)
    try:
        assert list(made(responses("a", "bb", of=prompt()))) == [1.0, 2.0]
    finally:
        made.close()


def test_a_function_that_cannot_be_called_is_refused_at_the_start(module: Path):
    with pytest.raises(RewardError, match="boxed has no function missing; it has runs"):
        reward(module, "missing")


def test_a_machine_without_sandbox_refuses_the_run(module: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sandbox, "refusal", lambda: "the kernel refuses user namespaces")
    with pytest.raises(RewardError, match=r"reward\.sandbox Namespaces is impossible here: the kernel refuses user"):
        reward(module)


def test_the_sandboxes_end_with_the_reward(module: Path):
    made = reward(module)
    assert list(made(responses("1"))) == [1.0]
    pids = [server.pid for server in made.worker.servers]
    made.close()
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=30)
    assert alive == []

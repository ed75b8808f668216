"""Agents that are programs: what they get, what counts as their result, and what is left of them."""

import asyncio
import json
import sys
from pathlib import Path

import psutil
import pytest

from rljob_api.sections import Agent
from rljob_trainer.agents.command_process import Output, last_line
from rljob_trainer.agents.commands import RESULT_BYTES, Commands, environment, result
from rljob_trainer.agents.outcome import Failed, Returned
from rljob_trainer.conversations.errors import GenerateError
from support.waiting import becomes_true

URL = "http://127.0.0.1:1/sessions/a/v1"
TASK = {"question": "1 + 1 =", "label": "2", "metadata": {"level": 3}}


@pytest.fixture
def ends(tmp_path):
    """Return how a program ends, which is given as Python."""

    def ended(text, **more):
        async def ran():
            commands = Commands(agent(text, **more), tmp_path / "agents.log")
            try:
                return await commands.call((TASK, URL, "key"))
            finally:
                await commands.close()

        return asyncio.run(ran())

    return ended


def agent(text, **more):
    return Agent(command=(sys.executable, "-c", text), **more)


def test_a_program_has_its_task_its_session_and_a_directory_of_its_own(ends, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("OTHER_TOKEN", "given")
    seen = tmp_path / "seen.json"
    ended = ends(
        "import json, os, pathlib, sys\n"
        "pathlib.Path('left').write_text('here')\n"
        f"facts = dict(os.environ, here=os.getcwd(), stdin=sys.stdin.read())\n"
        f"facts['task'] = pathlib.Path(os.environ['RLJOB_TASK']).read_text()\n"
        f"pathlib.Path({str(seen)!r}).write_text(json.dumps(facts))",
        secret_env=("OTHER_TOKEN",),
    )
    assert ended == Returned()
    facts = json.loads(seen.read_text())
    assert json.loads(facts["stdin"]) == json.loads(facts["task"]) == TASK
    assert (facts["OPENAI_BASE_URL"], facts["OPENAI_API_KEY"]) == (URL, "key")
    assert (facts["ANTHROPIC_BASE_URL"], facts["ANTHROPIC_API_KEY"]) == (URL.removesuffix("/v1"), "key")
    assert ("HF_TOKEN" in facts, facts["OTHER_TOKEN"]) == (False, "given")
    assert facts["here"] == facts["TMPDIR"] != str(Path.cwd())
    assert not Path(facts["here"]).exists()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('print("log"); print(\'{"reward": 0.5}\')', Returned(reward=0.5)),
        ('print(\'{"text": "42"}\')', Returned(text="42")),
        ("print(42)", Returned()),
        (
            'import os; open(os.environ["RLJOB_RESULT"], "w").write("{\\"reward\\": 1}"); print(\'{"reward": 0}\')',
            Returned(1.0),
        ),
    ],
    ids=["last line", "text", "no result", "file"],
)
def test_a_result_is_in_the_file_or_in_the_last_line(ends, text, wanted):
    assert ends(text) == wanted


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ('{"reward": 2}', Returned(reward=2.0)),
        ('{"text": ""}', Returned(text="")),
        ("{}", Returned()),
        ('{"reward": NaN}', None),
        ('{"reward": true}', None),
        ('{"reward": 1' + "0" * 400 + "}", None),
        ("0.5", None),
        ("[" * 50_000, None),
        ('{"text": "' + "x" * RESULT_BYTES + '"}', None),
    ],
    ids=["reward", "text", "nothing", "nan", "bool", "huge", "number", "deep", "long"],
)
def test_a_file_that_is_no_result_is_a_failure(tmp_path, content, wanted):
    file = tmp_path / "result.json"
    file.write_text(content)
    read = result(file, "")
    assert read == wanted if wanted else isinstance(read, Failed)


def test_a_program_that_fails_says_why_and_its_output_is_in_the_log(ends, tmp_path):
    ended = ends("import sys; print('looked'); sys.exit('no such tool')")
    assert isinstance(ended, Failed)
    assert ended.reason.startswith("ended with 1; log:\n")
    assert "no such tool" in ended.reason
    assert "looked" in (tmp_path / "agents.log").read_text()


def test_a_program_that_takes_too_long_is_killed_with_all_that_it_has_started(ends, tmp_path):
    note = tmp_path / "pid"
    ended = ends(
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], start_new_session=True)\n"
        f"pathlib.Path({str(note)!r}).write_text(str(child.pid))\n"
        "time.sleep(1000)",
        timeout_seconds=3,
    )
    assert ended == Failed("took longer than 3 s (rollout.agent.timeoutSeconds)", is_late=True)
    assert not psutil.pid_exists(int(note.read_text()))


def test_what_a_program_leaves_behind_is_killed_when_it_ends(ends, tmp_path):
    note = tmp_path / "pid"
    ended = ends(
        "import pathlib, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], start_new_session=True)\n"
        f"pathlib.Path({str(note)!r}).write_text(str(child.pid))",
    )
    assert ended == Returned()
    assert not psutil.pid_exists(int(note.read_text()))


def test_a_program_whose_call_is_given_up_is_killed(tmp_path):
    note = tmp_path / "pid"
    text = f"import os, pathlib, time; pathlib.Path({str(note)!r}).write_text(str(os.getpid())); time.sleep(1000)"

    async def scene():
        commands = Commands(agent(text), tmp_path / "agents.log")
        call = asyncio.ensure_future(commands.call((TASK, URL, "key")))
        await becomes_true(lambda: note.exists() and bool(note.read_text()))
        await commands.close()
        assert call.cancelled()

    asyncio.run(scene())
    assert not psutil.pid_exists(int(note.read_text()))


def test_a_program_has_no_more_memory_than_the_manifest_says(ends):
    ended = ends("x = bytearray(300 << 20)", memory_mib=128)
    assert isinstance(ended, Failed)
    assert "MemoryError" in ended.reason


def test_of_much_output_the_beginning_and_the_end_are_kept():
    output = Output(4)
    for part in (b"abc", b"def", b"ghijk", b"l"):
        output.add(part)
    assert output.text == "abcd\n... 4 bytes ...\nijkl"


@pytest.mark.parametrize(
    ("parts", "line"),
    [((b"one\ntwo\n\n",), "two"), ((b"x" * 30,), ""), ((b"x" * 30 + b"\nend",), "end"), ((), "")],
)
def test_the_last_line_is_that_of_standard_output(parts, line):
    lines = Output(8)
    for part in parts:
        lines.add(part)
    assert last_line(lines) == line


def test_search_paths_mean_the_same_in_the_program_s_directory(tmp_path):
    found = environment({"PATH": "bin:/usr/bin", "PYTHONPATH": "own"}, (), tmp_path, URL, "key")
    assert found["PATH"] == f"{Path.cwd() / 'bin'}:/usr/bin"
    assert found["PYTHONPATH"] == str(Path.cwd() / "own")


def test_a_program_that_is_not_there_is_found_before_the_run(tmp_path):
    with pytest.raises(GenerateError, match=r"rollout\.agent\.command no-such-agent: is not a program"):
        Commands(Agent(command=("no-such-agent",)), tmp_path / "agents.log").check(lambda: None)

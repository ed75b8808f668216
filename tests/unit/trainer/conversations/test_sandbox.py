"""Code that a model writes, and a user's tool, cannot reach what lies outside of their sandbox: tried, not assumed."""

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from multiprocessing import shared_memory
from pathlib import Path

import pytest
import yaml

from rljob_api.sections import RLJob, Tools
from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.conversations.tool_calls import ToolCall
from rljob_trainer.conversations.toolbox import Toolbox, tools
from rljob_trainer.preflight.findings import Findings
from rljob_trainer.preflight.machine import look_at_sandbox
from rljob_trainer.processes import sandbox
from support.processes import gone
from support.trainer.escapes import ESCAPES, HELPERS, attempt, held, key_of_the_session
from support.waiting import until

QUICKSTART = Path(__file__).parents[4] / "docs" / "examples" / "quickstart.yaml"
SECRET = "token-of-the-control-endpoint"  # of nothing
FORGED = "Error: the tool has written into its own answer"
OWN = '''
import os

def finds(path: str) -> str:
    """
    Look whether a path is there.

    Args:
        path: where
    """
    return str(os.path.exists(path)) + " " + str(os.environ.get("RLJOB_SECRET"))

def runs(code: str) -> str:
    """
    Run code in this process, as careless tools do.

    Args:
        code: what
    """
    exec(code)
    return "done"
'''


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """What the code shall not reach, on this machine."""
    run = tmp_path_factory.mktemp("run")
    (run / "secret.txt").write_text(SECRET)
    (run / "handbook_tools.py").write_text(OWN)
    memory = shared_memory.SharedMemory(create=True, size=8)
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as stack:
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0rljob-{os.getpid()}")
        abstract.listen(1)
        local = stack.enter_context(socket.socket(socket.AF_UNIX))
        local.bind(str(run / "socket"))
        local.listen(1)
        yield {
            "RUN": str(run),
            "HOME": str(Path.home()),
            "DRIVER": os.getpid(),
            "KEY": key_of_the_session(),
            "PORT": server.getsockname()[1],
            "ABSTRACT": f"\0rljob-{os.getpid()}",
            "SHARED": memory.name,
        }
    memory.close()
    memory.unlink()


@pytest.fixture(scope="module")
def say(machine):
    """Return a function that calls a tool in a sandbox, always the same one."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("RLJOB_SECRET", SECRET)
        patch.syspath_prepend(machine["RUN"])
        patch.chdir(machine["RUN"])
        given = Tools(
            functions=("python", "handbook_tools:finds", "handbook_tools:runs"),
            memory_mib=512,
            concurrency=1,
            timeout_seconds=20,
        )
        box = Toolbox(tools(given), given, Path(machine["RUN"]) / "tools.log")
        stack.callback(box.close)
        yield lambda name, **arguments: asyncio.run(box.result(ToolCall(name, arguments)))


@pytest.mark.parametrize("escape", ESCAPES)
def test_code_of_a_model_does_not_get_out(escape, say, machine):
    said = say("python", code=attempt(ESCAPES[escape], machine))
    assert held(said), said
    assert say("python", code="print(6 * 7)") == "42", "the sandbox goes on"


def test_the_same_code_does_get_out_without_a_sandbox(machine, monkeypatch):
    # Otherwise the tests above could pass because their code never works.
    monkeypatch.setenv("RLJOB_SECRET", SECRET)
    given = Tools(functions=("python",), sandbox="None")
    box = Toolbox(tools(given), given, Path(machine["RUN"]) / "open.log")
    header = "\n".join(f"{name} = {value!r}" for name, value in machine.items()) + HELPERS
    try:
        for code in (
            "open(f'/proc/{os.getppid()}/environ').read()",
            "open(RUN + '/secret.txt').read()",
            ESCAPES["localhost"],
        ):
            said = asyncio.run(box.result(ToolCall("python", {"code": f"{header}\n{code}\nprint('ESCAPED')"})))
            assert said == "ESCAPED"
    finally:
        box.close()


def test_code_computes_with_the_packages_of_python(say):
    assert say("python", code="import numpy; print(numpy.arange(4).sum())") == "6"
    assert say("python", code="open('/tmp/x', 'w').write('1'); print(open('/tmp/x').read())") == "1"
    assert say("python", code="from multiprocessing import Pool\nprint(sum(Pool(2).map(abs, [-1, -2])))") == "3"


def test_a_call_leaves_neither_files_nor_processes_to_the_next(say):
    left = (
        "import os, subprocess\n"
        "os.makedirs('/tmp/left/behind'); open('/tmp/left/behind/x', 'w').close(); os.chmod('/tmp/left', 0)\n"
        "open('/dev/shm/left', 'w').close()\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=subprocess.DEVNULL)"
    )
    assert say("python", code=left) == "(nothing was printed)"
    seen = say(
        "python",
        code="import os; print(*map(os.listdir, ('/tmp', '/dev/shm')), sum(n.isdigit() for n in os.listdir('/proc')))",
    )
    assert "left" not in seen
    assert seen.endswith("[] 3")  # the first process, the call, and the one that runs the code


def test_what_cannot_be_removed_ends_the_sandbox_and_the_next_call_gets_a_new_one(say):
    deep = "import os\nos.chdir('/tmp')\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')"
    say("python", code=deep)
    assert "d" not in say("python", code="import os; print(*os.listdir('/tmp'), sep='\\n')").splitlines()


def test_a_tool_of_the_user_sees_its_module_and_no_neighbour_of_it(say, machine):
    assert say("finds", path=f"{machine['RUN']}/handbook_tools.py") == "True None"
    assert say("finds", path=f"{machine['RUN']}/secret.txt") == "False None"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("""b'{"text": "early"}' + end""", "early"),
        ("""b'{"text": "early"}' + end + b'{"text": "FORGED"}' + end""", FORGED),
        ("b'[' * 100_000 + end", FORGED),
        ("""b'{"text": {"a": 1}}' + end""", FORGED),
        ("b'[1, 2]' + end", FORGED),
        ("b'{}' * 600_000", "Error: the result has more than 1 MiB"),
    ],
)
def test_code_in_the_process_of_a_tool_answers_its_own_call_at_most(answer, said, say):
    write = f"    try: os.write(fd, {answer})\n    except OSError: pass"
    assert (
        say("runs", code=f"import os, time\nend = bytes([10])\nfor fd in range(3, 64):\n{write}\ntime.sleep(60)")
        == said
    )
    assert say("finds", path="/usr") == "True None"


def test_code_that_moves_the_modules_of_tools_ends_its_sandbox(say, machine):
    top = "/".join(machine["RUN"].split("/")[:3])
    moved = f"import os; os.rename({top!r}, '/tmp/elsewhere')"
    assert say("python", code=moved) in ("(nothing was printed)", "Error: the tool ended the pod that ran it")
    assert say("finds", path="/tmp/elsewhere") == "False None"


def test_paths_that_the_author_names_can_be_read(machine, tmp_path):
    (tmp_path / "handbook.txt").write_text("page 1")
    (tmp_path / "handbook.txt").chmod(0o666)
    given = Tools(functions=("python",), read_only_paths=(str(tmp_path / "handbook.txt"),))
    box = Toolbox(tools(given), given, tmp_path / "tools.log")
    code = f"path = {str(tmp_path / 'handbook.txt')!r}\nprint(open(path).read(), flush=True)\nopen(path, 'a')"
    try:
        said = asyncio.run(box.result(ToolCall("python", {"code": code})))
    finally:
        box.close()
    assert said.startswith("page 1")
    assert "Read-only file system" in said


def test_a_sandbox_ends_with_all_its_processes_when_the_toolbox_closes(tmp_path):
    given = Tools(functions=("python",), concurrency=1)
    box = Toolbox(tools(given), given, tmp_path / "tools.log")
    asyncio.run(box.result(ToolCall("python", {"code": "pass"})))
    pid = box._places[0].server.pid
    box.close()
    until(lambda: gone(pid))


def test_code_that_takes_too_long_is_ended(tmp_path):
    given = Tools(functions=("python",), concurrency=1, timeout_seconds=1)
    box = Toolbox(tools(given), given, tmp_path / "tools.log")
    try:
        said = asyncio.run(box.result(ToolCall("python", {"code": "while True: pass"})))
    finally:
        box.close()
    assert said == "Error: no result within 1 s"


def test_a_machine_that_allows_no_sandbox_refuses_the_run_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "refusal", lambda: "the kernel refuses user namespaces")
    given = Tools(functions=("python",))
    with pytest.raises(
        GenerateError, match=r'sandbox: "Namespaces" is impossible here: the kernel .*; nearest valid: None'
    ):
        Toolbox(tools(given), given, tmp_path / "tools.log")


def test_why_there_is_no_sandbox_comes_from_the_kernel():
    # The kernel knows no namespace of this number.
    program = "from rljob_trainer.processes import sandbox as s; s.NAMESPACES = 1; exit(s.main(s.Settings(), ['x']))"
    tried = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (tried.returncode, tried.stderr) == (
        sandbox.REFUSED,
        "sandbox: the kernel refuses user namespaces (unshare): Invalid argument\n",
    )
    assert sandbox.refusal() is None


def test_the_calculator_alone_needs_no_sandbox(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "refusal", lambda: "no")
    given = Tools(functions=("calculator",))
    box = Toolbox(tools(given), given, tmp_path / "tools.log")
    try:
        assert asyncio.run(box.result(ToolCall("calculator", {"expression": "6 * 7"}))) == "42"
    finally:
        box.close()


def test_preflight_names_the_field_where_this_machine_allows_no_sandbox(monkeypatch):
    spec = with_tools(sandbox="Namespaces")
    assert look_at_sandbox(spec, True, {}) == Findings()
    monkeypatch.setattr(sandbox, "refusal", lambda: "the kernel refuses user namespaces")
    (problem,) = look_at_sandbox(spec, True, {}).problems
    assert str(problem).startswith('spec.rollout.tools.sandbox: "Namespaces" is impossible here: the kernel refuses')
    assert look_at_sandbox(spec, False, {}) == Findings()
    assert look_at_sandbox(with_tools(sandbox="None"), True, {}) == Findings()


def with_tools(**settings):
    manifest = yaml.safe_load(QUICKSTART.read_text())
    manifest["spec"]["rollout"]["tools"] = {"functions": ["python"], **settings}
    return RLJob.model_validate(manifest).spec

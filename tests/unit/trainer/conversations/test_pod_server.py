"""Code of a model in a pod of tools does not get out, and leaves nothing. The server is real, in namespaces."""

import asyncio
import http.client
import os
import socket
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from rljob_api.sections import Tools
from rljob_api.tool_protocol import CALL, HEALTH
from rljob_trainer.conversations import pod_server
from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.conversations.tool_calls import ToolCall
from rljob_trainer.conversations.tool_pods import Pool, ToolPod
from rljob_trainer.conversations.toolbox import Tool, Toolbox
from rljob_trainer.processes.file_removal import remove_all
from rljob_trainer.reporting.losses import AwayError, Losses
from rljob_trainer.sandboxes import call_process
from rljob_trainer.sandboxes.call_process import CallProcess, Limits, Usage, usage, verdict
from support.trainer import pod_tools
from support.trainer.escapes import IN_PODS, attempt, held, key_of_the_session
from support.trainer.synthetic_run import Clock
from support.trainer.tool_pod import TOKEN, tool_pod
from support.waiting import eventually

PYTHON = "rljob_trainer.tools.python:python"
OWN = "support.trainer.pod_tools"
LONG = "x" * 100_000  # a single argument of a program may have 128 KiB


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """What the code shall not reach, on this machine."""
    run = tmp_path_factory.mktemp("run")
    (run / "secret.txt").write_text("answers")
    (run / "handbook_tools.py").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as stack:
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0rljob-pod-{os.getpid()}")
        abstract.listen(1)
        yield {
            "RUN": str(run),
            "HOME": str(Path.home()),
            "DRIVER": os.getpid(),
            "KEY": key_of_the_session(),
            "PORT": server.getsockname()[1],
            "ABSTRACT": f"\0rljob-pod-{os.getpid()}",
            "SHARED": "rljob-of-others",
        }


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """A pod, whose image has modules of the tests."""
    with tool_pod(tmp_path_factory.mktemp("pod") / "log") as found:
        yield found


@pytest.fixture(scope="module")
def pod(pool):
    given = Tools(functions=("python",), memory_mib=512, timeout_seconds=20)
    return ToolPod(pool.addresses[0], pool.token, given)


@pytest.mark.parametrize("escape", IN_PODS)
def test_code_of_a_model_does_not_get_out(escape, pod, machine):
    said = pod.call(PYTHON, {"code": attempt(IN_PODS[escape], machine)})
    assert held(said), said
    assert pod.call(PYTHON, {"code": "print(6 * 7)"}) == "42", "the server goes on"


def test_code_computes_with_the_packages_of_python(pod):
    assert pod.call(PYTHON, {"code": "import numpy; print(numpy.arange(4).sum())"}) == "6"
    assert pod.call(PYTHON, {"code": "open('/tmp/x', 'w').write('1'); print(open('/tmp/x').read())"}) == "1"
    pools = "from multiprocessing import Pool\nprint(sum(Pool(2).map(abs, [-1, -2])))"
    assert pod.call(PYTHON, {"code": pools}) == "3"


def test_a_call_leaves_neither_files_nor_processes_to_the_next(pod):
    left = (
        "import os, subprocess\n"
        "os.makedirs('/tmp/left/behind'); open('/tmp/left/behind/x', 'w').close(); os.chmod('/tmp/left', 0)\n"
        "open('/dev/shm/left', 'w').close()\n"
        "os.chdir('/dev/shm')\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=subprocess.DEVNULL)"
    )
    assert pod.call(PYTHON, {"code": left}) == "(nothing was printed)"
    look = "import os; print(*map(os.listdir, ('/tmp', '/dev/shm')), sum(n.isdigit() for n in os.listdir('/proc')))"
    seen = pod.call(PYTHON, {"code": look})
    assert "left" not in seen
    assert seen.endswith("[] 3"), "the server, the call, and the code"


def test_code_sees_no_variable_of_the_server(pod):
    seen = pod.call(PYTHON, {"code": "import os; print(sorted(os.environ))"})
    assert "RLJOB" not in seen
    assert "PYTHONPATH" not in seen


def test_a_tool_of_the_user_runs_in_the_pod(pod):
    pod.load(f"{OWN}:later")
    assert pod.call(f"{OWN}:later", {"text": "ab"}) == "AB"
    assert pod.call(f"{OWN}:rude", {}) == "Error: the tool's process ended with code 3"
    assert pod.call(f"{OWN}:loud", {}) == "Error: the result has more than 1 MiB"
    assert pod.call(f"{OWN}:greedy", {}) == "Error: more than 512 MiB of memory were needed"


def test_a_tool_that_was_used_is_imported_before_its_next_call(pod):
    tool = f"{OWN}:was_imported_before"
    assert pod.call(tool, {"moment": pod_tools.moment()}) == "false"
    # The pauses are those in which a model generates.
    eventually(lambda: pod.call(tool, {"moment": pod_tools.moment()}), lambda said: said == "true", poll_s=0.5)


def test_a_request_that_no_pipe_holds_arrives(pod):
    assert pod.call(PYTHON, {"code": f"print({len(LONG)} + len('{LONG}'))"}) == f"{2 * len(LONG)}"


def test_a_call_with_other_limits_gets_a_process_with_these(pool):
    for memory_mib in (512, 64, 512):
        given = Tools(functions=("python",), memory_mib=memory_mib)
        said = ToolPod(pool.addresses[0], pool.token, given).call(f"{OWN}:greedy", {"num_bytes": 200 << 20})
        wanted = str(200 << 20) if memory_mib == 512 else "Error: more than 64 MiB of memory were needed"
        assert said == wanted


def test_a_process_that_ended_while_it_waited_takes_no_call():
    waiting = CallProcess.start(64 << 20)
    assert waiting.can_take(Limits(1.0, 64 << 20))
    assert not waiting.can_take(Limits(1.0, 65 << 20))
    waiting.process.kill()
    waiting.process.wait()
    assert not waiting.can_take(Limits(1.0, 64 << 20))
    waiting.close()


def test_a_tool_that_the_image_lacks_is_refused_with_the_reason(pod):
    with pytest.raises(GenerateError, match=r"nowhere:tool cannot be used in a pod, .*No module named 'nowhere'"):
        pod.load("nowhere:tool")
    with pytest.raises(GenerateError, match="has no attribute 'missing'"):
        pod.call(f"{OWN}:missing", {})


def test_code_that_takes_too_long_is_ended(pool):
    short = ToolPod(pool.addresses[0], pool.token, Tools(functions=("python",), timeout_seconds=1))
    assert short.call(PYTHON, {"code": "while True: pass"}) == "Error: no result within 1 s"


def test_a_pod_accepts_the_drivers_token_only(pool):
    for token in ("", "control-token", TOKEN[:-1]):
        stranger = ToolPod(pool.addresses[0], token, Tools(functions=("python",)))
        with pytest.raises(GenerateError, match="401: the token is not the driver's"):
            stranger.call(PYTHON, {"code": "print(1)"})


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", HEALTH, "", 200),
        ("GET", "/v1/status", "", 404),
        ("POST", "/v1/status", '{"path": "a:b", "memoryMib": 1}', 404),
        ("POST", CALL, "[]", 400),
        ("POST", CALL, '{"path": "a:b"}', 400),
        ("POST", CALL, "x" * (pod_server.MOST_REQUEST + 1), 413),
    ],
)
def test_other_requests_are_refused(pool, method, path, body, status):
    connection = http.client.HTTPConnection(*pool.addresses[0])
    if status == 413:  # refused before it is read
        connection.putrequest(method, path)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders()
    else:
        connection.request(method, path, body, {"Authorization": f"Bearer {TOKEN}"})
    assert connection.getresponse().status == status
    connection.close()


def test_the_server_is_the_first_process_or_ends():
    with pytest.raises(OSError, match="not the first process"):
        pod_server.end_all_others()


@pytest.mark.parametrize(
    ("used", "passed_s", "said"),
    [
        (Usage(64, 1 << 20), 1.99, None),
        (Usage(65, 0), 0.0, "more than 64 processes and threads were started"),
        (Usage(1, (1 << 20) + 1), 0.0, "more than 1 MiB of memory were needed"),
        (Usage(), 2.0, "no result within 2 s"),
    ],
)
def test_a_call_ends_at_each_of_its_limits(used, passed_s, said):
    assert verdict(used, passed_s, Limits(2.0, 1 << 20)) == said


def test_threads_and_memory_of_all_processes_but_the_first_count(tmp_path):
    for pid, text in {
        "1": "Threads:\t9\nRssAnon:\t  900 kB\n",
        "2": "Name:\tx\nVmRSS:\t  99 kB\nRssAnon:\t  10 kB\nRssFile:\t  70 kB\nRssShmem:\t  19 kB\nThreads:\t3\n",
        "3": "VmRSS:\t  5 kB\nThreads:\t1\n",  # gVisor
        "4": "State:\tZ (zombie)\nThreads:\t1\n",
    }.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "status").write_text(text)
    (tmp_path / "5").mkdir()  # ended
    (tmp_path / "self").mkdir()
    assert usage(tmp_path) == Usage(5, 34 << 10)


def test_all_files_of_a_directory_are_removed_and_none_outside(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    left = tmp_path / "left"
    (left / "a" / "b" / "c").mkdir(parents=True)
    (left / "a" / "b" / "file").touch()
    (left / "a" / ".left-1").touch()
    (left / ".left-1").mkdir()
    (left / "link").symlink_to(tmp_path / "kept")
    (left / "a" / "b" / "link").symlink_to(tmp_path / "kept")
    (left / "a" / "b").chmod(0)
    remove_all(left)
    assert list(left.iterdir()) == []
    assert (tmp_path / "kept" / "file").exists()


def test_mounts_stay_with_the_directories_above_them(tmp_path):
    left, module = tmp_path / "left", tmp_path / "left" / "a" / "b" / "module.py"
    module.parent.mkdir(parents=True)
    module.touch()
    for name in ("file", "a/file", "a/b/file", "a/c/file", "a/b/d/e/file", ".left-1"):
        (left / name).parent.mkdir(parents=True, exist_ok=True)
        (left / name).touch()
    (left / "a" / "b" / "d").chmod(0)
    (left / "a").chmod(0)
    remove_all(left, frozenset({str(module)}))
    assert [str(path.relative_to(left)) for path in sorted(left.rglob("*"))] == ["a", "a/b", "a/b/module.py"]


def test_mounts_inside_of_directories_are_found_with_their_names(tmp_path):
    (tmp_path / "mountinfo").write_text(
        "1 0 0:1 / / rw - tmpfs none rw\n"
        "2 1 0:1 /tmp /tmp rw - tmpfs none rw\n"
        "3 2 0:2 /home/x /tmp/my\\040tools/x.py ro - ext4 /dev/vda rw\n"
        "4 2 0:2 /home/y /usr/lib/y ro - ext4 /dev/vda rw\n"
    )
    assert pod_server.mounts((Path("/tmp"), Path("/dev/shm")), tmp_path / "mountinfo") == {"/tmp/my tools/x.py"}


def test_memory_counts_that_no_page_of_a_process_shows(tmp_path):
    (tmp_path / "2").mkdir()
    status = (
        "Threads:\t1\nRssAnon:\t  1 kB\nRssShmem:\t  2 kB\nVmSwap:\t  4 kB\nVmPTE:\t  8 kB\nHugetlbPages:\t  16 kB\n"
    )
    (tmp_path / "2" / "status").write_text(status)
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "unix").write_text("Num\n" + "socket\n" * (call_process.OURS + 3))
    assert usage(tmp_path) == Usage(1, (31 << 10) + 3 * call_process.SOCKET_BYTES)


def toolbox(pool: Pool, log: Path, **limits) -> Toolbox:
    given = Tools(functions=("python",), **limits)
    return Toolbox((Tool("python", PYTHON, {}),), given, log, pool=pool)


def test_a_call_takes_another_pod_when_one_is_away(pool, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as door:
        gone = door.getsockname()
    box = toolbox(Pool((gone, *pool.addresses), pool.token), tmp_path / "log")
    try:
        assert asyncio.run(box.result(ToolCall("python", {"code": "print(6 * 7)"}))) == "42"
    finally:
        box.close()


def test_a_run_ends_when_no_pod_takes_a_call_for_long(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as door:
        gone = door.getsockname()
    passed = iter([0.0, 299.0, 301.0])
    known, given = (Tool("python", PYTHON, {}),), Tools(functions=("python",))
    pauses: list[float] = []
    pool = Pool((gone,), TOKEN)
    box = Toolbox(known, given, tmp_path / "log", clock=lambda: next(passed), pool=pool, pause=pauses.append)
    try:
        with pytest.raises(AwayError, match=r"no pod has taken a call of a tool for 300 s: pod 127\.0\.0\.1"):
            asyncio.run(box.result(ToolCall("python", {"code": ""})))
    finally:
        box.close()
    assert len(pauses) == 1


class LostPod:
    """A pod that ends in the middle of each call."""

    def __init__(self) -> None:
        self.calls = 0
        self.door = socket.create_server(("127.0.0.1", 0))

    def serve(self, num: int) -> None:
        for _ in range(num):
            connection, _ = self.door.accept()
            connection.recv(1)
            connection.close()
            self.calls += 1


def test_a_call_costs_two_pods_at_most(tmp_path):
    lost = LostPod()
    thread = threading.Thread(target=lost.serve, args=(2,))
    thread.start()
    known, given = (Tool("python", PYTHON, {}),), Tools(functions=("python",))
    pool = Pool((lost.door.getsockname(),), TOKEN)
    box = Toolbox(known, given, tmp_path / "log", pool=pool, pause=lambda _: None)
    try:
        said = asyncio.run(box.result(ToolCall("python", {"code": ""})))
    finally:
        box.close()
        thread.join()
        lost.door.close()
    assert (said, lost.calls) == ("Error: the tool ended the pod that ran it", 2)


def test_a_second_call_is_refused_while_one_runs(monkeypatch):
    server = pod_server.ToolServer("0" * 64, ())
    monkeypatch.setattr(pod_server, "digest", lambda _: "0" * 64)
    server._busy.acquire()
    with pytest.raises(pod_server.RequestError) as refused:
        server.answer(CALL, "Bearer x", b'{"path": "a:b", "arguments": {}, "memoryMib": 64}')
    assert refused.value.args[0] == 409


def test_tools_get_no_variable_with_a_secret():
    assert set(call_process.ENVIRONMENT) == {
        "HOME", "PATH", "LANG", "PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
    }  # fmt: skip


def test_what_a_call_waits_for_is_known_and_the_run_is_alive(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as door:
        gone = door.getsockname()
    known, given, losses = (Tool("python", PYTHON, {}),), Tools(functions=("python",)), Losses()
    clock, seen, pauses = Clock(), [], []

    def pause(seconds: float) -> None:
        clock.now += seconds
        pauses.append(seconds)

    box = Toolbox(
        known, given, tmp_path / "log", clock, Pool((gone,), TOKEN), pause, losses, 60.0,
        lambda: seen.append(losses.waiting_for),
    )  # fmt: skip
    try:
        with pytest.raises(AwayError, match="no pod has taken a call of a tool for 60 s"):
            box.load()
    finally:
        box.close()
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, *[10.0] * 5]
    assert len(seen) == 10 and all("a pod for tools: pod 127.0.0.1" in each for each in seen)
    assert losses.waiting_for is None

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from rljob_trainer.processes import keeper
from rljob_trainer.processes.kept_process import KeptProcess, ProcessError
from rljob_trainer.processes.ports import free_ports
from support.processes import gone
from support.waiting import until

TREE = """
import subprocess, sys, tempfile, time
open(tempfile.mkdtemp() + "/scratch", "w").close()
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""
PART = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b"sglang::part", 0, 0, 0)
time.sleep(600)
"""
SERVER_WITH_A_PART = f"""
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-S", "-c", {PART!r}]).pid, flush=True)
time.sleep(600)
"""
PART_WITH_A_HELPER = """
import ctypes, os, signal
ctypes.CDLL(None).prctl(15, b"sglang::part", 0, 0, 0)
stop, write = os.pipe()
helper = os.fork()
if helper == 0:
    os.close(write)
    os.read(stop, 1)
    os._exit(0)
print(os.getpid(), helper, flush=True)
input_ = os.open(os.environ["HELPER_ENDS"], os.O_RDONLY)
os.close(write)
os.waitpid(helper, 0)
print("helper ended", flush=True)
signal.pause()
"""
OWNER = """
import sys, time
from pathlib import Path
from rljob_trainer.processes.kept_process import KeptProcess
print(KeptProcess(["sleep", "600"], {}, Path(sys.argv[1])).pid, flush=True)
time.sleep(600)
"""


def start(script: str, log: Path) -> KeptProcess:
    return KeptProcess([sys.executable, "-S", "-c", script], {}, log)


def printed_pid(log: Path) -> int:
    until(lambda: log.exists() and log.read_text().endswith("\n"))
    return int(log.read_text())


def test_stopping_kills_children_that_have_a_session_of_their_own(tmp_path: Path) -> None:
    process = start(TREE, tmp_path / "log")
    child = printed_pid(tmp_path / "log")
    process.stop()
    assert not psutil.pid_exists(process.pid)
    assert not psutil.pid_exists(child)


def test_a_socket_that_is_handed_down_outlives_the_server_and_no_other_file_is(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, (tmp_path / "own").open("w") as own:
        handed = listening.fileno()
        os.set_inheritable(own.fileno(), True)
        script = f"""
import os, socket
ours = [each for each in os.listdir("/proc/self/fd") if int(each) > 2]
ours = [int(each) for each in ours if os.path.exists("/proc/self/fd/" + each)]
client, _ = socket.socket(fileno={handed}).accept()
client.sendall(repr(ours).encode())
"""
        for _ in range(2):
            process = KeptProcess([sys.executable, "-S", "-c", script], {}, tmp_path / "log", (handed,))
            with socket.create_connection(listening.getsockname(), timeout=60) as client:
                assert client.recv(1000).decode() == f"[{handed}]"
            assert process.wait(60)


def test_scratch_files_go_with_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    process = start(TREE, tmp_path / "log")
    printed_pid(tmp_path / "log")
    assert list(tmp_path.glob("rljob-*/*/scratch"))
    process.stop()
    assert not list(tmp_path.glob("rljob-*"))


def test_an_exit_shows_the_code_and_the_last_words(tmp_path: Path) -> None:
    process = start("import sys; sys.exit('no such model')", tmp_path / "log")
    exit_ = process.wait(60)
    assert exit_ is not None
    assert (exit_.reason, exit_.code, exit_.log_tail) == ("the server ended", 1, "no such model\n")


def test_a_running_process_has_no_exit(tmp_path: Path) -> None:
    process = start(TREE, tmp_path / "log")
    assert process.wait(0.01) is None
    process.stop()


def test_stopping_twice_is_harmless(tmp_path: Path) -> None:
    process = start(TREE, tmp_path / "log")
    process.stop()
    process.stop()


def test_the_death_of_a_named_part_ends_the_whole_server(tmp_path: Path) -> None:
    process = start(SERVER_WITH_A_PART, tmp_path / "log")
    part = printed_pid(tmp_path / "log")
    until(lambda: is_watched_by_the_keeper_of(process, part))
    os.kill(part, signal.SIGKILL)
    exit_ = process.wait(60)
    assert exit_ is not None
    assert exit_.reason == f"sglang::part (pid {part}) ended"
    assert not psutil.pid_exists(process.pid)


def test_a_program_that_a_part_starts_may_end(tmp_path: Path) -> None:
    """Between fork and exec it has the part's name: `lscpu` of SGLang's scheduler was taken for a second one."""
    end, log = tmp_path / "end", tmp_path / "log"
    os.mkfifo(end)
    command = f"subprocess.Popen([sys.executable, '-S', '-c', {PART_WITH_A_HELPER!r}])"
    server = f"import signal, subprocess, sys; {command}; signal.pause()"
    process = KeptProcess([sys.executable, "-S", "-c", server], {"HELPER_ENDS": str(end)}, log)
    until(lambda: log.exists() and log.read_text().endswith("\n"))
    part, helper = (int(pid) for pid in log.read_text().split())
    until(lambda: is_watched_by_the_keeper_of(process, part))  # it has looked at both
    assert not is_watched_by_the_keeper_of(process, helper)
    end.write_text("now")
    until(lambda: "helper ended" in log.read_text())
    os.kill(part, signal.SIGKILL)
    exit_ = process.wait(60)
    assert exit_ is not None
    assert exit_.reason == f"sglang::part (pid {part}) ended", "and not its helper"


def test_a_part_that_ends_while_the_keeper_looks_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends after its name was read and before it can be watched."""
    with subprocess.Popen(["sleep", "0"]) as ended:
        ended.wait()
    monkeypatch.setattr(keeper, "LOOK_FOR_PARTS_S", 0.01)
    monkeypatch.setattr(keeper, "descendants", lambda root: [ended.pid])
    monkeypatch.setattr(keeper, "part_name", lambda pid: "sglang::part")
    read, write = os.pipe()
    server = cast(Any, SimpleNamespace(pid=os.getpid()))  # it runs
    with os.fdopen(read) as owner:
        monkeypatch.setattr("sys.stdin", owner)
        reason = keeper.watch(server, set(), Path("/nowhere"))
    os.close(write)
    assert reason == f"sglang::part (pid {ended.pid}) ended"


def is_watched_by_the_keeper_of(process: KeptProcess, pid: int) -> bool:
    parent = psutil.Process(process.pid).parent()
    assert parent is not None
    try:
        return any(f"Pid:\t{pid}\n" in file.read_text() for file in Path(f"/proc/{parent.pid}/fdinfo").iterdir())
    except FileNotFoundError:  # the keeper has closed a file meanwhile
        return False


def test_a_server_does_not_outlive_an_owner_that_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "log")], env=environment, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    with owner.stdout as output:
        pid = int(output.readline())
    owner.kill()
    owner.wait()
    until(lambda: not psutil.pid_exists(pid))


def test_a_server_does_not_outlive_a_keeper_that_is_killed(tmp_path: Path) -> None:
    process = start("import time; time.sleep(600)", tmp_path / "log")
    psutil.Process(process.pid).parent().kill()  # type: ignore[union-attr]  # the keeper is there
    until(lambda: gone(process.pid))
    until(lambda: process.exit is not None)
    assert process.exit is not None
    assert process.exit.reason == "its keeper was killed"


def test_a_program_that_does_not_exist_is_reported_by_name(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="no-such-program"):
        KeptProcess(["no-such-program"], {}, tmp_path / "log")


def test_ports_are_different_and_outside_the_ranges_of_others() -> None:
    first, second = free_ports("127.0.0.1")
    assert first != second
    assert {20000 <= port <= 32767 for port in (first, second)} == {True}


def test_a_keeper_notes_only_names_below_the_shared_memory(tmp_path: Path) -> None:
    (tmp_path / keeper.NOTES).write_text("/dev/shm/sgl_1\n/etc/passwd\n/dev/shm/../passwd\n/dev/shm/psm_2")
    assert keeper.noted(tmp_path) == {"/dev/shm/sgl_1", "/dev/shm/psm_2"}


def test_a_keeper_that_noted_nothing_leaves_nothing(tmp_path: Path) -> None:
    assert keeper.noted(tmp_path) == set()

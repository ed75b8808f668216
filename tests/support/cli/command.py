"""The `rljob` command as a process of its own, and what a terminal would show of it."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCES = os.pathsep.join(str(ROOT / name) for name in ("crds", "operator", "trainer"))
PLAIN = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": SOURCES, "PYTHONUTF8": "1"}


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str = ""


def rljob(*arguments: str, kubeconfig: Path | None = None, **variables: str) -> Ended:
    """Run `rljob ARGUMENTS` in a pipe, with nothing of this process's environment."""
    done = subprocess.run(
        command(arguments),
        env=environment(kubeconfig, variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def started(*arguments: str, kubeconfig: Path) -> "subprocess.Popen[str]":
    """Start `rljob ARGUMENTS`; its output comes through pipes."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command(arguments), env=environment(kubeconfig), stdout=pipe, stderr=pipe, text=True)


def on_terminal(*arguments: str, kubeconfig: Path | None = None, until: str = "", **variables: str) -> Ended:
    """Run `rljob ARGUMENTS` on a terminal of 80 columns; with `until`, interrupt it as soon as it has written that."""
    ours, its = pty.openpty()
    given = environment(kubeconfig, {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", **variables})
    with subprocess.Popen(command(arguments), env=given, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        written = b""
        for part in _until_closed(ours):
            written += part
            if until and until.encode() in written:
                process.send_signal(signal.SIGINT)
                until = ""
        os.close(ours)
        return Ended(process.wait(60), written.decode())


def command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "rljob_cli", *arguments]


def environment(kubeconfig: Path | None = None, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**PLAIN, **({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {}), **(variables or {})}


def _until_closed(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux: the other side is closed
            return
        if not part:
            return
        yield part

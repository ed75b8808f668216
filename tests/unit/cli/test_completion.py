"""Completion as kubectl asks for it; names of jobs need a cluster and are tested with one."""

import subprocess
import sys

import pytest

from support.cli.command import environment


def completed(*words: str) -> list[str]:
    command = [sys.executable, "-c", "from rljob_cli.completion import main; main()", *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("t",), ["top", ":4"]),
        (("plot", "-o", ""), ["text", "json", "svg", ":4"]),
        (("logs", "--fol"), ["--follow", ":4"]),
        (("init", "--where", ""), ["here", "cluster", ":4"]),
        (("init", "--algorithm", "g"), ["grpo", "gspo", ":4"]),
        (("validate", ""), [":4"]),
        (("runs", ""), ["list", "prune", ":4"]),
        (("runs", "p"), ["prune", ":4"]),
        (("runs", "prune", "/rljob", "--keep"), ["--keep-last-checkpoint", ":4"]),
        (("runs", "/rljob", "--de"), ["--depth", ":4"]),
        (("status", ""), [":4"]),
    ],
)
def test_words_become_candidates_and_a_directive(words: tuple[str, ...], expected: list[str]) -> None:
    assert completed(*words) == expected

"""Completion of `kubectl rljob`: kubectl runs the program `kubectl_complete-rljob` with the words typed so far.

It prints a word a line, and at last `:` and a number that gives the shell further directives (as cobra does).
"""

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from io import StringIO

from rljob_cli.main import app

NO_FILES = 4
"""cobra: offer no names of files"""


def main() -> None:
    """Complete the last of the words; it may be empty."""
    sys.stdout.write("\n".join([*candidates(sys.argv[1:] or [""]), f":{NO_FILES}"]) + "\n")


def candidates(words: Sequence[str]) -> list[str]:
    """Return what the last word may become."""
    # The protocol of typer's script for bash: its Python classes are private.
    os.environ |= {
        "_RLJOB_COMPLETE": "complete_bash",
        "COMP_WORDS": shlex.join(["rljob", *words]),
        "COMP_CWORD": str(len(words)),
    }
    found = StringIO()
    with redirect_stdout(found), suppress(SystemExit):
        app(prog_name="rljob")
    return [line for line in found.getvalue().splitlines() if line]

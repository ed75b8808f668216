"""Looks for secrets in the logs that a session of tests has left.

What is known to be one: variables of the processes that ran meanwhile, and what tests note, as the tokens that a fake
head gets and those of kubeconfigs. What looks like one: a bearer token, a token of a ServiceAccount, a value behind the
name of such a variable.
"""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rljob_api.control import EVICTION_TOKEN_VARIABLE, TOKEN_VARIABLE
from rljob_operator.job.pods import RAY_TOKEN_VARIABLE
from rljob_trainer.engines.key import KEY_VARIABLE

VARIABLES = (TOKEN_VARIABLE, EVICTION_TOKEN_VARIABLE, RAY_TOKEN_VARIABLE, KEY_VARIABLE)
LOGS = re.compile(r"(?:\.(?:log|out|err)(?:\.\d+)?|^(?:stdout|stderr|output|log))$")
"""names of files that processes write what happens into"""
SHORTEST = 16
"""of what can be looked for: no other text is by chance as long [characters]"""
WORD = re.compile(rb"[A-Za-z0-9_-]{%d,}" % SHORTEST)
NAMES = "|".join((*VARIABLES, "api[-_]key"))
FORMS = re.compile(
    rb"[Bb]earer [A-Za-z0-9._~+/-]{20,}|Authorization['\"]?: ?['\"]?(?:Bearer|Basic) [^*\s'\"]"
    rb"|\beyJ[\w-]{20,}\.eyJ[\w-]{20,}"
    rb"|(?:" + NAMES.encode() + rb")['\"]?\s*[=:]\s*['\"]?[A-Za-z0-9_-]{20,}"
)
EVERY_S = 2.0
"""between two looks at the processes [s]"""

_known: set[bytes] = set()


def note(secret: str) -> None:
    """Have a secret looked for when the session ends."""
    words = [word for word in WORD.findall(secret.encode()) if len(word) >= SHORTEST]
    _known.update(words[-1:])  # of a signed token, its signature


def note_those_of_processes() -> None:
    """Note the secrets among the variables of all processes of this machine that may be read."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
        except OSError:  # it has ended, or is another user's
            continue
        for variable in variables:
            name, _, value = variable.partition(b"=")
            if name.decode(errors="replace") in VARIABLES:
                note(value.decode(errors="replace"))


@contextmanager
def watching_processes() -> Iterator[None]:
    """Note the secrets of processes again and again."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(EVERY_S):
            note_those_of_processes()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def found_in(directory: Path) -> list[str]:
    """Return `FILE:LINE: what` for each secret in a log below a directory, without the secret."""
    logs = (Path(place, name) for place, _, names in os.walk(directory) for name in names if LOGS.search(name))
    return [
        f"{path}:{number}: {what}"
        for path in sorted(logs)
        if path.is_file()
        for number, what in found(path.read_bytes())
    ]


def found(content: bytes) -> Iterator[tuple[int, str]]:
    """Yield the numbers of lines with secrets, and what each is."""
    places = [(match.start(), "looks like a secret") for match in FORMS.finditer(content)]
    places += [(match.start(), "is a token of this session") for match in WORD.finditer(content) if match[0] in _known]
    for start, what in sorted(places):
        yield content.count(b"\n", 0, start) + 1, what


@pytest.fixture(scope="session", autouse=True)
def logs_without_secrets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail at the end of a session whose suites import this, when all processes have ended."""
    with watching_processes():
        yield
    found = found_in(tmp_path_factory.getbasetemp())
    assert not found, "\n".join(["secrets in logs:", *found[:50]])

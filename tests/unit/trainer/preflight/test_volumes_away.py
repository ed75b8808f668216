"""A volume that is away for a moment is no finding about a file: the look is repeated, and an attempt at worst."""

import errno
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rljob_api.exits import Exit
from rljob_api.reading.manifest import parse
from rljob_trainer import preflight
from rljob_trainer.driver import exit_of
from rljob_trainer.preflight import checks
from rljob_trainer.rundir.retries import Patience, StorageError
from support.trainer.preflight_place import Place
from support.trainer.whole_run import manifest

OPEN, STAT = io.open, os.stat


class Volume:
    """Looks for files below a directory and opens them, and fails where it is told to."""

    def __init__(self, root: Path, fails: Callable[[int], bool]) -> None:
        self._root, self._fails = str(root), fails
        self.asked: list[str] = []

    def open(self, file: Any, *given: Any, **more: Any) -> Any:
        self._ask(file)
        return OPEN(file, *given, **more)

    def stat(self, file: Any, *given: Any, **more: Any) -> Any:
        self._ask(file)
        return STAT(file, *given, **more)

    def _ask(self, file: Any) -> None:
        if str(file).startswith(self._root):
            self.asked.append(str(file))
            if self._fails(len(self.asked)):
                raise OSError(errno.ESTALE, "Stale file handle", str(file))


@pytest.fixture
def asked_for(taught: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], bool]], list[str]]:
    """Return what looks at all files on a volume that fails so, and gives what was asked for."""
    settings = json.loads((taught.model / "tokenizer_config.json").read_text())
    (taught.model / "chat_template.jinja").write_text(settings["chat_template"])
    job = parse(manifest(taught.model, taught.root, **taught.spec))
    seconds = iter(range(0, 10**6, 30))
    monkeypatch.setattr(checks, "PATIENT", Patience(pause=lambda _: None, clock=lambda: float(next(seconds))))

    def looked(fails: Callable[[int], bool]) -> list[str]:
        volume = Volume(taught.root, fails)
        with monkeypatch.context() as patched:
            patched.setattr(io, "open", volume.open)
            patched.setattr(os, "stat", volume.stat)
            preflight.require(job, taught.root / "run")
        return volume.asked

    return looked


def test_whichever_file_cannot_be_read_for_a_moment_the_run_begins(
    asked_for: Callable[[Callable[[int], bool]], list[str]],
) -> None:
    files = asked_for(lambda _: False)
    assert len({Path(file).name for file in files}) > 5, files
    for number in range(1, len(files) + 1):
        assert len(asked_for(lambda now, number=number: now == number)) > len(files)


def test_a_volume_that_stays_away_ends_the_attempt_and_not_the_job(
    asked_for: Callable[[Callable[[int], bool]], list[str]],
) -> None:
    for first in range(1, len(asked_for(lambda _: False)) + 1):
        with pytest.raises(StorageError, match="Stale file handle") as caught:
            asked_for(lambda now, first=first: now >= first)
        assert exit_of(caught.value) is Exit.AWAY

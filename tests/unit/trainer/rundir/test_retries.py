"""A file that is still being written is read again, a bounded number of times."""

import errno
from pathlib import Path

import pytest
from transformers import AutoConfig

from rljob_trainer.reporting.losses import Losses
from rljob_trainer.rundir.retries import PAUSES_S, Patience, StorageError, patiently
from support.trainer.synthetic_run import Clock

WHOLE = '{"model_type": "llama", "hidden_size": 64}'


def test_half_a_configuration_is_read_again_until_the_other_process_has_written_it(tmp_path: Path):
    path, paused = tmp_path / "config.json", []
    path.write_text(WHOLE[:20])

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 2:
            path.write_text(WHOLE)

    found = patiently(lambda: AutoConfig.from_pretrained(tmp_path), pause)
    assert (found.hidden_size, paused) == (64, list(PAUSES_S[:2]))


def test_one_that_stays_broken_is_an_error_after_the_last_try(tmp_path: Path):
    (tmp_path / "config.json").write_text(WHOLE[:20])
    paused: list[float] = []
    with pytest.raises(OSError, match="valid JSON"):
        patiently(lambda: AutoConfig.from_pretrained(tmp_path), paused.append)
    assert paused == list(PAUSES_S)


def test_a_file_that_is_not_there_is_not_waited_for(tmp_path: Path):
    paused: list[float] = []
    with pytest.raises(FileNotFoundError):
        patiently((tmp_path / "config.json").read_text, paused.append)
    assert paused == []


def tried(number: int, failures: int, longest_s: float) -> tuple[object, list[float], list[float]]:
    """Return what becomes of an operation that fails so often, the pauses, and the signs of life."""
    clock, beats, pauses, left = Clock(), [], [], [number] * failures

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        clock.now += seconds

    def work() -> str:
        if left:
            raise OSError(left.pop(), "no")
        return "done"

    try:
        result = Patience(longest_s, alive=lambda: beats.append(clock.now), pause=pause, clock=clock)("a file", work)
    except (OSError, StorageError) as error:
        result = type(error)
    return result, pauses, beats


def test_pauses_grow_up_to_half_a_minute_with_a_sign_of_life_before_each():
    result, pauses, beats = tried(errno.EIO, 8, 600.0)
    assert (result, pauses) == ("done", [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0])
    assert beats == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 61.0, 91.0]


def test_an_outage_is_waited_for_as_long_as_it_may_last():
    result, pauses, _ = tried(errno.ESTALE, 1000, 100.0)
    assert (result, sum(pauses)) == (StorageError, 91.0)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOENT, FileNotFoundError), (errno.EUCLEAN, OSError), (errno.EACCES, StorageError)],
)
def test_an_error_that_does_not_pass_is_not_waited_for(number, kind):
    assert tried(number, 1, 600.0) == (kind, [], [])


def test_what_is_awaited_is_known_until_it_comes():
    losses, seen = Losses(), []
    left = [OSError(errno.ESTALE, "Stale file handle")]

    def work() -> None:
        if left:
            raise left.pop()

    Patience(losses=losses, pause=lambda seconds: seen.append(losses.waiting_for))("iter_0000020", work)
    assert seen == ["the volume with iter_0000020: [Errno 116] Stale file handle"]
    assert (losses.waiting_for, losses.take(), losses.take()) == (None, {"Storage": 1}, {})

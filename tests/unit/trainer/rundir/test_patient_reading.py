"""A file that is still being written is read again, a bounded number of times."""

from pathlib import Path

import pytest
from transformers import AutoConfig

from rljob_trainer.rundir.patient_reading import PAUSES_S, patiently

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

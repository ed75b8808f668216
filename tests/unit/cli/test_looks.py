"""What a terminal shows is what it showed before: texts, columns, colours. `make generate` writes the files anew."""

from pathlib import Path

import pytest

from support.cli.looks import LOOKS, look

FILES = Path(__file__).parent / "looks"


@pytest.mark.parametrize("name", list(LOOKS))
def test_a_look_is_the_one_that_is_kept(name: str) -> None:
    assert look(LOOKS[name]()) == (FILES / f"{name}.txt").read_text()


def test_no_look_is_kept_that_nothing_has() -> None:
    assert {file.stem for file in FILES.iterdir()} == set(LOOKS)

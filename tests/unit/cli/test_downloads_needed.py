"""Commands that read a model or data of the hub end where the hub does not give them."""

import pytest
import typer

from rljob_api.exits import Exit
from rljob_cli import main
from rljob_trainer.data.hub import HubError
from support.trainer.synthetic_run import job


def test_a_hub_that_refuses_ends_the_command_with_its_words(monkeypatch, capsys: pytest.CaptureFixture[str]):
    def refused(_spec: object) -> object:
        raise HubError("Qwen/Qwen3-4B: 401, a token is missing")

    monkeypatch.setattr(main, "download", refused)
    with pytest.raises(typer.Exit) as ended:
        main.need_downloads(job(3).spec)
    assert ended.value.exit_code == Exit.BAD_INPUT
    assert capsys.readouterr().err == "Qwen/Qwen3-4B: 401, a token is missing\n"

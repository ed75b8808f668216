"""The page about the command line leaves nothing out."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_cli.main import app
from support.cli.verbs import VERBS
from support.tables import each_of

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "command-line.md").read_text()
OPTIONS = [
    (verb, name)
    for verb in VERBS
    for option in VERBS[verb].params[1:]
    if option.param_type_name == "option"
    for name in option.opts
]


def section(verb):
    return PAGE.partition(f"\n## rljob {verb}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("code", Exit)
def test_every_exit_code_has_a_row_with_its_meaning(code):
    assert f"\n| {code.value} | {code.meaning} |\n" in PAGE


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_section_that_shows_its_call(verb):
    assert f"\nrljob {verb} " in section(verb)


@each_of(OPTIONS)
def test_every_option_stands_in_the_section_of_its_verb(verb, option):
    assert f"`{option}`" in section(verb)


def test_the_plan_on_the_page_is_the_one_that_is_printed(monkeypatch):
    monkeypatch.chdir(ROOT)
    command = "$ rljob plan docs/examples/quickstart.yaml\n"
    _, _, shown = section("plan").partition(command)
    printed = CliRunner().invoke(app, command.split()[2:]).stdout
    assert shown.partition("\n```")[0].split("\n") == [line.rstrip() for line in printed.splitlines()]

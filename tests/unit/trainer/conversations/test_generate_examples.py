"""The generate functions of the documentation do what their first lines promise."""

import importlib
import re
from pathlib import Path

import pytest

from rljob_api.sections import Sampling
from rljob_trainer.conversations.function import load
from support.trainer.scripted_model import Says

EXAMPLES = Path(__file__).parents[4] / "docs" / "examples" / "generate"
DOCS = EXAMPLES.parents[1] / "generate.md"
LONG = Sampling(max_new_tokens=500)


@pytest.fixture(autouse=True)
def as_a_reader_would(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)


def example(name: str):
    return load(f"{name}:generate").call


def texts(sample) -> list[tuple[str, bool]]:
    return [(segment.text, segment.by_model) for segment in sample.segments]


def test_the_calculator_gives_results_until_the_turn_ends(made):
    script = [Says("It is <<19 * 21>>", ends="stop"), Says("and <<1 -- 1>>", ends="stop"), Says("399.")]
    (sample,), asked = made(example("calculator"), [shown(each) for each in script], sampling=LONG)
    assert [text for text, by_model in texts(sample) if not by_model] == [" 399 ", " 2 "]
    assert sample.text == "399."
    assert asked[0].stop == (">>",)


def shown(said: Says) -> Says:
    """Return what an engine makes of a stop string: its tokens stay, its text goes."""
    return Says(said.text.removesuffix(">>"), said.ends)


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("2 * (3 + 4)", "14"),
        ("-7 - -2", "-5"),
        ("2 **", "(invalid syntax (<unknown>, line 1))"),
        ("2 ** 9", "(cannot calculate 2 ** 9)"),
        ("exit()", "(cannot calculate exit())"),
    ],
)
def test_the_calculator_calculates_and_does_nothing_else(expression, result):
    assert importlib.import_module("calculator").result(expression) == result


def test_the_sandbox_runs_blocks_and_replies_with_what_they_print(made):
    block = "Let me see.\n```python\nprint(6 * 7)\n```"
    (sample,), _ = made(example("python_sandbox"), [Says(block), Says("42.")], sampling=LONG)
    (_, (reply, by_model), _) = texts(sample)
    assert "<|im_start|>user\nIt printed:\n42<|im_end|>" in reply
    assert (by_model, sample.text, sample.finish_reason) == (False, "42.", "stop")


@pytest.mark.parametrize(
    ("code", "said", "seconds"),
    [
        ("pass", r"\(nothing\)", 60),
        ("1 / 0", "ZeroDivisionError: division by zero", 60),
        ("import os; print(len(os.environ))", "[0-9]", 60),
        ("x = bytearray(10**9)", "MemoryError", 60),
        ("while True: pass", r"\(nothing within 1 s\)", 1),
        ("import subprocess; subprocess.Popen(['sleep', '60'])", r"\(nothing", 1),
        ("print('x' * 10**6)", "x{100}<", 60),
        ("while True: print('x' * 10**6)", r"\(more than 1 MiB\)", 60),
    ],
)
def test_the_sandbox_survives_what_models_write(code, said, seconds, made, monkeypatch):
    sandbox = importlib.import_module("python_sandbox")
    monkeypatch.setattr(sandbox, "SECONDS", seconds)
    monkeypatch.setattr(sandbox, "MOST_SHOWN", 100)
    (sample,), _ = made(
        sandbox.generate, [Says(f"```python\n{code}\n```"), Says("So.")], sampling=Sampling(max_new_tokens=900)
    )
    assert re.search(said, sample.segments[1].text)


def documented(directory: Path) -> None:
    """Write the first function of the page about generate functions to a module."""
    found = re.search(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert found is not None
    (directory / "second_chance.py").write_text(found[1])


def test_the_function_of_the_documentation_asks_once_more(made, tmp_path, monkeypatch):
    documented(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    function = example("second_chance")
    (sample,), _ = made(function, [Says("No idea."), Says("2")])
    assert (sample.text, len(sample.segments)) == ("2", 3)
    (sample,), _ = made(function, [Says("It is 2.")])
    assert (sample.text, len(sample.segments)) == ("It is 2.", 1)

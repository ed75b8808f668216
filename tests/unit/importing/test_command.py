"""The command that starts a training, and its arguments."""

import pytest

from rljob_importing.command import System, flags, launches, overrides
from rljob_importing.words import Given, Word


def command(text: str, line: int = 1, file: str = "") -> tuple[Word, ...]:
    return tuple(Word(word, line, file) for word in text.split())


@pytest.mark.parametrize(
    ("text", "system", "before", "words"),
    [
        ("python3 train.py --a 1", System.SLIME, "python3", "--a 1"),
        ("ray job submit -- python3 /x/train_async.py", System.SLIME, "ray job submit -- python3", ""),
        ("python3 -m verl.trainer.main_ppo a=1", System.VERL, "python3 -m", "a=1"),
        ("python3 -m recipe.dapo.main_dapo a=1", System.VERL, "python3 -m", "a=1"),
        ("uv run examples/run_grpo.py --config c.yaml", System.NEMO_RL, "uv run", "--config c.yaml"),
    ],
)
def test_a_training_is_found_behind_what_starts_it(text: str, system: System, before: str, words: str):
    (found,) = launches([command("ls train"), command(text)])

    assert (found.system, found.before, found.words) == (system, command(before), command(words))
    assert found.torn_at == 0


def test_flags_after_a_line_without_a_backslash_belong_to_the_training_before():
    torn = [command("--layers 3", 7, "m.sh"), command("--b 2", 9), command("--c 3", 11)]
    (found,) = launches([command("python3 train.py --a 1"), *torn])

    assert [word.text for word in found.words] == ["--a", "1", "--layers", "3", "--b", "2", "--c", "3"]
    assert found.torn_at == 9


def test_flags_before_a_training_belong_to_none():
    assert launches([command("--a 1")]) == ()


def test_a_flag_has_the_values_behind_it_and_behind_its_equals_sign():
    found, loose = flags(command("x -- --a 1 2 --b=3 4 --c", 5, "f.sh"))

    assert loose == command("x --", 5, "f.sh")
    assert found == (
        Given("a", command("1 2", 5, "f.sh"), "--a 1 2", 5, "f.sh"),
        Given("b", command("3 4", 5, "f.sh"), "--b=3 4", 5, "f.sh"),
        Given("c", (), "--c", 5, "f.sh"),
    )


@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("a.b=1", "a.b", "1"),
        ("+a.b=x=y", "a.b", "x=y"),
        ("++a@b/c=", "a@b/c", ""),
        ("a='x'", "a", "x"),
        ('a="x"', "a", "x"),
        ("a=''", "a", ""),
        ("a='", "a", "'"),
        ("a='x\"", "a", "'x\""),
        ("a=xax", "a", "xax"),
    ],
)
def test_an_override_has_a_name_and_a_value_without_its_quotes(word: str, name: str, value: str):
    assert tuple(overrides([Word(word, 3, "f.sh")])) == (Given(name, (Word(value, 3, "f.sh"),), word, 3, "f.sh"),)


@pytest.mark.parametrize("word", ["a", "--a=1", "+++a=1", "1=2", "$@"])
def test_other_words_are_no_overrides(word: str):
    assert tuple(overrides([Word(word, 1)])) == ()

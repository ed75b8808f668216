"""Finds the command that starts a training in a script, and splits it into arguments."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rljob_importing.entries import NEMO_RL, VERL
from rljob_importing.shell import Command
from rljob_importing.words import Given, Word


class System(StrEnum):
    SLIME = "slime"
    VERL = "verl"
    NEMO_RL = "nemo-rl"


PROGRAMS = {
    re.compile(r"(.*/)?train(_async)?\.py"): System.SLIME,
    VERL: System.VERL,
    NEMO_RL: System.NEMO_RL,
}
LOOKED_FOR = (
    "train.py or train_async.py (slime, Miles), verl.trainer.main_ppo or sft_trainer (verl), run_grpo.py (NeMo-RL)"
)
OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.@/-]*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Launch:
    """The command that starts a training."""

    system: System
    program: Word
    words: tuple[Word, ...]
    """the arguments of the program"""
    before: tuple[Word, ...] = ()
    """the words before the program: what starts it, such as `ray job submit`"""
    torn_at: int = 0
    """line that begins with a flag because the one before has no backslash at its end; 0: there is none"""


def launches(commands: Sequence[Command]) -> tuple[Launch, ...]:
    """Return the commands that start a training, for example behind `ray job submit … --`."""
    found: list[Launch] = []
    torn: list[list[Command]] = []
    for command in commands:
        if found and command[0].text.startswith("--"):
            torn[-1].append(command)
            continue
        for index, word in enumerate(command):
            system = next((system for program, system in PROGRAMS.items() if program.fullmatch(word.text)), None)
            if system:
                found.append(Launch(system, word, command[index + 1 :], command[:index]))
                torn.append([])
                break
    return tuple(map(_joined, found, torn))


def _joined(launch: Launch, torn: Sequence[Command]) -> Launch:
    """Return the launch with the flags of the commands after it, which bash does not take for its own."""
    words = (word for command in torn for word in command)
    torn_at = next(filter(None, map(_line, torn)), 0)
    return replace(launch, words=(*launch.words, *words), torn_at=torn_at)


def _line(command: Command) -> int:
    """Return the line of a command's first word that stands in the script itself."""
    return next((word.line for word in command if not word.file), 0)


def flags(words: Sequence[Word]) -> tuple[tuple[Given, ...], tuple[Word, ...]]:
    """Return `--flag value…` and `--flag=value` arguments, and the words that belong to none."""
    found: list[tuple[Word, list[Word]]] = []
    loose: list[Word] = []
    for word in words:
        if word.text.startswith("--") and len(word.text) > 2:
            found.append((word, []))
        elif found:
            found[-1][1].append(word)
        else:
            loose.append(word)
    return tuple(_given(flag, values) for flag, values in found), tuple(loose)


def _given(flag: Word, values: Sequence[Word]) -> Given:
    name, equals, value = flag.text.partition("=")
    first = (Word(value, flag.line, flag.file, flag.unknown),) if equals else ()
    words = (*first, *values)
    shown = " ".join([flag.text, *(each.text for each in values)])
    return Given(name.removeprefix("--"), words, shown, flag.line, flag.file)


def overrides(words: Sequence[Word]) -> Iterator[Given]:
    """Yield Hydra's overrides `a.b=c`; `others` returns the other words."""
    for word in words:
        found = OVERRIDE.fullmatch(word.text)
        if found:
            value = Word(_unquoted(found[2]), word.line, word.file, word.unknown)
            yield Given(found[1], (value,), word.text, word.line, word.file)


def others(words: Sequence[Word]) -> tuple[Word, ...]:
    """Return the words that are no overrides: options of Hydra, and what cannot be read."""
    return tuple(word for word in words if word.text and not OVERRIDE.fullmatch(word.text))


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text

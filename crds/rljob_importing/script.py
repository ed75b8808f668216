"""The entrance: the text of a launch script or configuration of slime, Miles, verl or NeMo-RL becomes an RLJob."""

import re
from collections.abc import Mapping, Sequence

from rljob_importing import command, entries, finish, nemo_rl, settings, shell, slime, unread, verl, verl_sft
from rljob_importing.command import Launch, System
from rljob_importing.draft import Draft, NoteKind
from rljob_importing.entries import Training
from rljob_importing.environment import carry_environment
from rljob_importing.finish import Imported
from rljob_importing.settings import SettingsError
from rljob_importing.shell import Files
from rljob_importing.shell_words import ShellError, TooMuchError
from rljob_importing.verl_given import DEFAULT
from rljob_importing.words import Given, Word

YAML, PYTHON = (".yaml", ".yml"), ".py"
MOST_BASES = 10
"""configurations that one builds on, one after the other"""
BASE = "defaults"
DEFAULTS = {System.VERL: DEFAULT, System.NEMO_RL: nemo_rl.DEFAULT}
UNREAD = re.compile(r"\$\{.*\}|\$\(.*\)", re.DOTALL)


class NoTrainingError(ValueError):
    """A text that starts no training that is known here."""


def imported(text: str, name: str, files: Files, given: Mapping[str, str]) -> Imported:
    """Return the RLJob that a script or configuration describes.

    `name` is the name of its file, `files` finds sourced files, `given` has values of variables. Nothing is run.
    Raises NoTrainingError.
    """
    stem = name.rpartition("/")[2].rpartition(".")[0] or name
    if name.endswith(PYTHON):
        raise NoTrainingError(
            "is a launcher in Python, which is not read: import the command that it prints or runs, as a bash script"
        )
    draft = from_configuration(text, files) if name.endswith(YAML) else from_script(text, files, given)
    return finish.finished(draft, stem.removeprefix("run-").removeprefix("run_"))


def from_configuration(text: str, files: Files) -> Draft:
    """Return the draft of a YAML configuration of NeMo-RL or verl. Raises NoTrainingError."""
    try:
        found = with_bases(settings.from_yaml(text), files)
    except SettingsError as error:
        raise NoTrainingError(str(error)) from error
    sections = {each.name.partition(".")[0] for each in found}
    if "actor_rollout_ref" in sections:
        training = Training.FULLY_ASYNC if "async_training" in sections else Training.ALTERNATING
        return verl.draft(settings.followed(found), training)
    if sections.intersection(("policy", *nemo_rl.SECTIONS, *nemo_rl.LACKING)):
        return from_nemo_rl(settings.followed(found))
    raise NoTrainingError("is not a configuration of verl (actor_rollout_ref) or NeMo-RL (grpo, policy)")


def from_nemo_rl(given: Sequence[Given], program: str = "") -> Draft:
    """Return the draft of a configuration of NeMo-RL. Raises NoTrainingError."""
    section = nemo_rl.section_of(given, program)
    if section in nemo_rl.LACKING:
        trained = ", ".join(nemo_rl.SECTIONS)
        raise NoTrainingError(f"is NeMo-RL's {section}, which rljob does not train; it reads the sections {trained}")
    return nemo_rl.draft(given, program)


def with_bases(found: Sequence[Given], files: Files) -> tuple[Given, ...]:
    """Return settings over those of the files that `defaults` names, as NeMo-RL reads them. Raises SettingsError."""
    layers = [tuple(found)]
    for _ in range(MOST_BASES):
        named = [word.text for given in layers[0] if given.name == BASE for word in given.words]
        if len(named) > MOST_BASES:
            raise SettingsError(f"{BASE} names {len(named)} configurations; at most {MOST_BASES} are read")
        texts = [(path, files(path)) for path in named if path.endswith(YAML)]
        bases = [settings.from_yaml(text, path.rpartition("/")[2]) for path, text in texts if text is not None]
        layers[0] = tuple(given for given in layers[0] if given.name != BASE or not bases)
        if not bases:
            break
        layers = [*bases, *layers]
    return settings.merged(*layers)


def from_script(text: str, files: Files, given: Mapping[str, str]) -> Draft:
    """Return the draft of a bash script. Raises NoTrainingError."""
    try:
        script = shell.read(text, files, given)
    except TooMuchError as error:
        raise NoTrainingError(f"too large to be read: {error}") from error
    except ShellError as error:
        raise NoTrainingError(f"not a bash script: {error}") from error
    found = command.launches(script.commands)
    if not found:
        raise NoTrainingError(f"starts no training; looked for {command.LOOKED_FOR}")
    first = next((each for each in found if not entries.why_not(each.program.text)), None)
    if first is None:
        program = found[0].program
        raise NoTrainingError(f"line {program.line}: {program.text} {entries.why_not(program.text)}")
    draft = from_launch(first, files)
    carry_environment(draft, first.before)
    if first.torn_at:
        why = f"line {first.torn_at}: bash ends the command before it, where a \\ is missing; its flags are read here"
        draft.note(NoteKind.CHECK, None, why)
    for note in script.notes:
        draft.note(NoteKind.UNKNOWN, None, note)
        if note.endswith(shell.MISSING) and first.system in DEFAULTS:
            what = note.removesuffix(shell.MISSING).partition(": the ")[2].partition(" is ")[0].partition(" was ")[0]
            unread.doubt(draft, DEFAULTS[first.system], f"the {what}")
    for other in (each for each in found if each is not first):
        if entries.EVALUATES.fullmatch(other.program.text):
            continue
        draft.note(NoteKind.LOST, None, f"line {other.program.line}: a second training; it needs another RLJob")
    return draft


def from_launch(launch: Launch, files: Files) -> Draft:
    """Return the draft of a command. Raises NoTrainingError."""
    overrides = tuple(command.overrides(launch.words))
    match launch.system:
        case System.SLIME:
            return slime.draft(command.flags(launch.words)[0], launch.program)
        case System.VERL:
            training = entries.of_verl(launch.program.text) or Training.ALTERNATING
            given = settings.followed(overrides)
            drafted = verl_sft.draft(given, launch) if training is Training.SFT else verl.draft(given, training)
            unread.note(drafted, command.others(launch.words), DEFAULT)
            return drafted
        case System.NEMO_RL:
            flags = {given.name: given for given in command.flags(launch.words)[0]}
            path = flags["config"].words[0].text if "config" in flags and flags["config"].words else ""
            text = files(path) if path else None
            if path and text is None:
                raise NoTrainingError(f"its configuration {path} was not found")
            try:
                base = with_bases(settings.from_yaml(text, path.rpartition("/")[2]), files) if text else ()
            except SettingsError as error:
                raise NoTrainingError(f"{path}: {error}") from error
            drafted = from_nemo_rl(settings.followed(settings.merged(base, overrides)), launch.program.text)
            unread.note(drafted, [word for word in launch.words if is_unread(word)], nemo_rl.DEFAULT)
            return drafted


def is_unread(word: Word) -> bool:
    """Return whether a word is a variable of unknown arguments, and nothing else."""
    return bool(word.unknown) and UNREAD.fullmatch(word.text) is not None

"""The entrance: the text of a launch script or configuration of slime, Miles, verl or NeMo-RL becomes an RLJob."""

from collections.abc import Mapping, Sequence

from rljob_importing import command, finish, nemo_rl, settings, shell, slime, verl
from rljob_importing.command import Launch, System
from rljob_importing.draft import Draft, NoteKind
from rljob_importing.environment import carry_environment
from rljob_importing.finish import Imported
from rljob_importing.settings import SettingsError
from rljob_importing.shell import Files
from rljob_importing.shell_words import ShellError, TooMuchError
from rljob_importing.words import Given

YAML, PYTHON = (".yaml", ".yml"), ".py"
MOST_BASES = 10
"""configurations that one builds on, one after the other"""
BASE = "defaults"


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
        return verl.draft(settings.followed(found))
    if "policy" in sections or "grpo" in sections:
        return nemo_rl.draft(settings.followed(found))
    raise NoTrainingError("is no configuration of verl (actor_rollout_ref) or NeMo-RL (grpo, policy)")


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
    draft = from_launch(found[0], files)
    carry_environment(draft, found[0].before)
    if found[0].torn_at:
        why = (
            f"line {found[0].torn_at}: bash ends the command before it, where a \\ is missing; its flags are read here"
        )
        draft.note(NoteKind.CHECK, None, why)
    for note in script.notes:
        draft.note(NoteKind.UNKNOWN, None, note)
    for other in found[1:]:
        draft.note(NoteKind.LOST, None, f"line {other.program.line}: a second training; it needs an RLJob of its own")
    return draft


def from_launch(launch: Launch, files: Files) -> Draft:
    """Return the draft of a command. Raises NoTrainingError."""
    overrides = tuple(command.overrides(launch.words))
    match launch.system:
        case System.SLIME:
            return slime.draft(command.flags(launch.words)[0], launch.program)
        case System.VERL:
            return verl.draft(settings.followed(overrides))
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
            return nemo_rl.draft(settings.followed(settings.merged(base, overrides)))

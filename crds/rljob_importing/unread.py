"""Words of a command that are no settings: options of Hydra, and variables whose arguments are not known."""

from collections.abc import Sequence

from rljob_importing.draft import Draft, NoteKind
from rljob_importing.words import Given, Word

NAMES = ("--config-name", "-cn")
OWN = ("ppo_trainer", "ppo_megatron_trainer", "ppo_veomni_trainer", "dapo_trainer", "dapo_megatron_trainer", "config")
OWN_ENDS = ("_ppo_trainer", "_ppo_megatron_trainer", "sft_trainer", "sft_trainer_engine", "entropy_trainer")
"""configurations of verl itself, which hold its defaults"""


def note(draft: Draft, words: Sequence[Word], default: str) -> None:
    """Note the words. A default is a guess where an unknown word may hold its argument: its origin says so."""
    missing = [word for word in words if word.unknown]
    for word in missing:
        why = f"{'; '.join(dict.fromkeys(word.unknown))[:300]}: arguments in it are missing here"
        draft.note(NoteKind.UNKNOWN, _given(word), why)
    for name, word in _configurations([word for word in words if not word.unknown]):
        if name not in OWN and not name.endswith(OWN_ENDS):
            why = "its settings are not read; settings that are not in the command have verl's defaults"
            draft.note(NoteKind.UNKNOWN, _given(word), why)
    if missing:
        places = " and ".join(
            f"{word.text[:50]} of {word.file} line {word.line}".replace("of  ", "of ") for word in missing
        )
        doubt(draft, default, places)


def doubt(draft: Draft, default: str, places: str) -> None:
    """Say of each default that it is a guess, because an argument that is not known may set the field."""
    for path, origin in draft.origins.items():
        if origin.startswith(default):
            draft.origins[path] = f"a guess: {places} may set it"


def _configurations(words: Sequence[Word]) -> list[tuple[str, Word]]:
    """Return the names of configurations; a path alone says nothing."""
    found = []
    for index, word in enumerate(words):
        flag, equals, name = word.text.partition("=")
        if flag in NAMES:
            value = name if equals else words[index + 1].text if index + 1 < len(words) else ""
            found.append((value.strip("\"'").removesuffix(".yaml"), word))
    return found


def _given(word: Word) -> Given:
    return Given(word.text, (word,), word.text, word.line, word.file)

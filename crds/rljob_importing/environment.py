"""Environment variables that a launch hands to Ray, `--runtime-env-json '{"env_vars": {…}}'`, as `runtime.env`."""

import json
import re
from collections.abc import Iterator, Sequence

from rljob_api.credentials import holds_secret, names_secret
from rljob_importing.draft import Draft, NoteKind, origin
from rljob_importing.words import Given, Word

FLAG, FILE_FLAG = "--runtime-env-json", "--runtime-env"
NAME = re.compile(r"[A-Za-z_]\w*")
OURS = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "the learner sets it with training.sequenceParallel",
    "PYTHONUNBUFFERED": "logs are written line by line",
    "PYTHONBUFFERED": "logs are written line by line",
    "MASTER_ADDR": "Ray places the ranks",
}
PATHS = frozenset({"PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD"})
"""variables whose directories belong to the image of the other system"""


def carry_environment(draft: Draft, words: Sequence[Word]) -> None:
    """Carry over the variables of a submission; `words` stand before the program that it starts."""
    for flag, value in _options(words):
        given = Given(flag.removeprefix("--"), (value,), flag, value.line, value.file)
        if flag == FILE_FLAG:
            draft.note(NoteKind.UNKNOWN, given, f"{value.text} is not read; set its env_vars in spec.runtime.env")
            continue
        variables = _variables(value.text)
        if variables is None:
            draft.note(NoteKind.UNKNOWN, given, "its variables are not known; set them in spec.runtime.env")
            continue
        for name, text in variables.items():
            draft.arguments += 1
            draft.listed += 1
            _carry(draft, Given(name, (Word(text, value.line, value.file),), f"{name}={text}", value.line, value.file))


def _carry(draft: Draft, given: Given) -> None:
    if names_secret(given.name) or holds_secret(given.text):
        hidden = Given(given.name, (), f"{given.name} (hidden)", given.line, given.file)
        why = "a manifest holds no secret; set it with valueFrom and secretKeyRef in spec.runtime.env"
        draft.note(NoteKind.LOST, hidden, why)
    elif given.name in OURS:
        draft.note(NoteKind.NEEDLESS, given, OURS[given.name])
    elif "${" in given.text or not NAME.fullmatch(given.name):
        why = f"its value is not known without running the script; set spec.runtime.env.{given.name}"
        draft.note(NoteKind.UNKNOWN, given, why)
    else:
        draft.put(f"runtime.env.{given.name}", given.text, origin(given))
        if given.name in PATHS:
            draft.note(NoteKind.CHECK, given, "its directories have to be in the image or on a volume of the pods")


def _options(words: Sequence[Word]) -> Iterator[tuple[str, Word]]:
    """Yield the options of a runtime environment with their values."""
    for index, word in enumerate(words):
        flag, equals, value = word.text.partition("=")
        if flag in (FLAG, FILE_FLAG) and equals:
            yield flag, Word(value, word.line, word.file, word.unknown)
        elif flag in (FLAG, FILE_FLAG) and index + 1 < len(words):
            yield flag, words[index + 1]


def _variables(text: str) -> dict[str, str] | None:
    """Return the variables of a runtime environment; None: the text is none."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    variables = content.get("env_vars", {}) if isinstance(content, dict) else None
    return {str(name): str(value) for name, value in variables.items()} if isinstance(variables, dict) else None

"""`rljob import` and `rljob export slime`: reads scripts and manifests, and finds the files that a script sources."""

import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rljob_api.exits import Exit
from rljob_api.reading import manifest
from rljob_cli.manifest.validate import read as read_manifest
from rljob_cli.terminal.options import STDIN
from rljob_importing.draft import NoteKind
from rljob_importing.export_slime import text as slime_text
from rljob_importing.finish import Imported
from rljob_importing.manifest_text import text as manifest_text
from rljob_importing.script import NoTrainingError
from rljob_importing.script import imported as import_text
from rljob_importing.shell import Files

MOST_BYTES = 2**20
"""of a script or a sourced file"""
MOST_PARENTS = 4
"""directories above the script in which a sourced file is looked for"""
UNKNOWN_PREFIX = re.compile(r".*[})]|\$\w+")
"""an expansion at the start of a path, which only a run of the script could know"""
COUNTED = {
    NoteKind.CHECK: "to check",
    NoteKind.UNKNOWN: "not known",
    NoteKind.LOST: "without counterpart",
    NoteKind.NEEDLESS: "not needed",
    NoteKind.UNLISTED: "misspelled or unknown",
}


@dataclass(frozen=True, slots=True)
class Read:
    """What the command prints."""

    summary: str
    manifest: str
    exit_code: Exit


def imported(path: Path, given: Mapping[str, str]) -> Read:
    """Return the manifest of a script, and what to say about it."""
    name = "stdin" if path == STDIN else str(path)
    try:
        text = of_file(sys.stdin.buffer, name) if path == STDIN else read(path)
        found = import_text(text, "imported" if path == STDIN else path.name, files_beside(path), given)
    except (OSError, UnicodeDecodeError, NoTrainingError) as error:
        return Read(f"{name}: {error}", "", Exit.BAD_INPUT)
    code = Exit.BAD_MANIFEST if found.problems else Exit.OK
    return Read(summary(name, found), manifest_text(found, name), code)


def exported(path: Path) -> str:
    """Return the flags of slime for a manifest. Raises ManifestError."""
    return slime_text(manifest.load(read_manifest(path)), "stdin" if path == STDIN else str(path))


def read(path: Path) -> str:
    """Return a script's text. Raises OSError, UnicodeDecodeError."""
    with path.open("rb") as file:
        return of_file(file, str(path))


def of_file(file: BinaryIO, name: str) -> str:
    """Return the text of an open file. Raises OSError, UnicodeDecodeError."""
    content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(f"{name} has more than {MOST_BYTES} bytes")
    return content.decode()


def files_beside(script: Path) -> Files:
    """Return the search for sourced files: as named, beside the script, and in the directories above it."""
    home = Path.cwd() if script == STDIN else script.resolve().parent
    above = (home, *home.parents)[: MOST_PARENTS + 1]

    def text(named: str) -> str | None:
        relative = UNKNOWN_PREFIX.sub("", named, count=1).lstrip("/") if "$" in named else named
        for directory in (*above, Path.cwd()):
            path = directory / relative
            try:
                if path.is_file():
                    return read(path)
            except (OSError, UnicodeDecodeError):
                return None
        return None

    return text


def summary(name: str, found: Imported) -> str:
    """Return, for example, `run.sh: 57 arguments: 3 without counterpart; the manifest is valid`."""
    counts = Counter(note.kind for note in found.notes)
    parts = [f"{counts[kind]} {words}" for kind, words in COUNTED.items() if counts[kind]]
    ends = "the manifest is valid" if not found.problems else "the manifest is not valid yet:"
    lines = [f"{name}: {found.arguments} arguments: {', '.join(parts) or 'all are fields'}; {ends}"]
    for problem in found.problems:
        origin = found.origin_of(problem)
        lines.append(f"{name}: {problem}{f' (from {origin})' if origin else ''}")
    return "\n".join(lines)

"""From a draft to a manifest: without fields that would have no effect, and with the problems that are left."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rljob_api.errors import ManifestError, Problem
from rljob_api.reading import manifest
from rljob_importing.draft import Draft, Note, NoteKind

API_VERSION = "rljob.dev/v1alpha1"
UNNAMED = "imported"
WITHOUT_EFFECT = re.compile(
    r"(would (not be|clip|change|be no different|have no)|is never reached|has nothing to measure on)"
)
"""how the rules begin that refuse a setting only because it would be ignored: leaving it out changes nothing"""
ARGUMENT = re.compile(r".*, (\S+ )?line \d+", re.DOTALL)
"""the origin of a field that an argument sets; others are defaults"""
MOST_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class Imported:
    """An RLJob made from another system's settings."""

    content: Mapping[str, Any]
    """the manifest"""
    origins: Mapping[str, str]
    """by the path of a field below `spec`"""
    notes: tuple[Note, ...]
    problems: tuple[Problem, ...]
    """why the manifest is not valid; empty: it is"""
    arguments: int
    listed: int
    """how many of the arguments are known names"""

    def origin_of(self, problem: Problem) -> str:
        """Return where the field of a problem comes from; empty: from no argument."""
        path = problem.field.removeprefix("spec.").partition("[")[0]
        return self.origins.get(path, "")


def finished(draft: Draft, name: str) -> Imported:
    """Return the manifest of a draft. The draft changes: settings without effect are left out, with a note."""
    metadata = {"name": manifest.dns_label(name) or UNNAMED}
    for _ in range(MOST_ROUNDS):
        content = {"apiVersion": API_VERSION, "kind": "RLJob", "metadata": metadata, "spec": draft.spec}
        problems = problems_of(content)
        idle = [each for each in problems if WITHOUT_EFFECT.match(each.rule)]
        if not [_left_out(draft, problem) for problem in idle if _is_ours(draft, problem)]:
            break
    return Imported(content, draft.origins, tuple(draft.notes), problems, draft.arguments, draft.listed)


def problems_of(content: Mapping[str, Any]) -> tuple[Problem, ...]:
    try:
        manifest.parse(content)
    except ManifestError as error:
        return error.problems
    return ()


def _is_ours(draft: Draft, problem: Problem) -> bool:
    path = problem.field.removeprefix("spec.")
    return any(each == path or each.startswith(f"{path}.") for each in draft.origins)


def _left_out(draft: Draft, problem: Problem) -> str:
    """Remove the field of a problem, and note its arguments."""
    path = problem.field.removeprefix("spec.")
    for each, origin in draft.origins.items():
        if (each == path or each.startswith(f"{path}.")) and ARGUMENT.match(origin):
            draft.notes.append(Note(NoteKind.NEEDLESS, origin, f"left out: spec.{each} {problem.rule}"))
    draft.remove(path)
    return path

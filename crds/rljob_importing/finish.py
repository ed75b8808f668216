"""From a draft to a manifest: without fields that would have no effect, and with the problems that are left."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
SAMPLES = "spec.rollout.samplesPerPrompt"
WITHOUT_GROUPS = ("ppo", "distillation", "reinforcePlusPlus")
"""algorithms that do not compare the responses of a prompt"""
OTHER_FAMILY = re.compile(
    r"minimax|qwen-?3[-_.]?next|qwen-?3\.[5-9]|qwen-?[23](?:\.5)?[-_.]?(?:vl|omni|audio)|gpt-?oss|glm-?5|glm-?4\.\d+[-_]?flash"
    r"|glm-?4\.7-30b|glm-?4(?:\.\d)?v\b|gemma-?2\b|gemma-?3n|gemma-?3-(?:4|12|27)b|deepseek-?v(?:2|3\.2|4)|llama-?4"
    r"|mamba|jamba|\bphi-?\d|mimo|step-?3|olmo|falcon|internlm|baichuan|chatglm|hunyuan|ernie|seed-oss|smollm3|exaone",
    re.IGNORECASE,
)
"""in the names of checkpoints whose families rljob does not train"""
OWN_TURN = re.compile(r"qwen-?2|qwq|llama-?3\.[1-3]|smollm-?2?\b", re.IGNORECASE)
"""in the names of checkpoints whose chat templates begin with their own system turn"""


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
    _judge_model(draft)
    for _ in range(MOST_ROUNDS):
        content = {"apiVersion": API_VERSION, "kind": "RLJob", "metadata": metadata, "spec": draft.spec}
        problems = problems_of(content)
        idle = [each for each in problems if WITHOUT_EFFECT.match(each.rule)]
        if not [_left_out(draft, problem) for problem in idle if _is_ours(draft, problem)]:
            break
    left = tuple(_with_reason(draft, problem) for problem in (*problems, *draft.undecided))
    return Imported(content, draft.origins, tuple(draft.notes), left, draft.arguments, draft.listed)


def _with_reason(draft: Draft, problem: Problem) -> Problem:
    """Say why one sample is not enough for an algorithm that compares none, and what makes as many samples."""
    name = draft.spec.get("algorithm", {}).get("name")
    if (problem.field, problem.value) != (SAMPLES, 1) or name not in WITHOUT_GROUPS:
        return problem
    why = (
        f"{name} needs no group, but rljob makes at least 2 responses to each prompt; half of promptsPerStep keeps the"
    )
    return replace(problem, rule=f"{problem.rule}: {why} number of samples")


def _judge_model(draft: Draft) -> None:
    """Note what the name of the checkpoint says, which may not be here to be read."""
    name = str(draft.spec.get("model", {}).get("checkpoint", "")).rpartition("/")[2]
    data = draft.spec.get("data", {})
    origin = draft.origins.get("model.checkpoint", "")
    if found := OTHER_FAMILY.search(name):
        why = f"{found[0]} names a family that rljob does not train; docs/models.md has those that it trains"
        draft.notes.append(Note(NoteKind.LOST, origin, why))
    elif OWN_TURN.search(name) and data.get("chatTemplate", True) and "systemPrompt" not in data:
        why = "its chat template adds a system turn by itself, which rljob leaves out; spec.data.systemPrompt sets one"
        draft.notes.append(Note(NoteKind.CHECK, origin, why))


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

"""Which tools run in a sandbox, and what they can read in it."""

from collections.abc import Sequence

from rljob_api.errors import Problem
from rljob_api.sections import Tools, ToolSandbox
from rljob_api.sizing.tool_pods import needs_isolation
from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.processes import sandbox
from rljob_trainer.sandboxes.namespaces import box


def sandbox_for(settings: Tools, paths: Sequence[str]) -> sandbox.Settings | None:
    """Return the sandbox of the tools at these paths, `module:function`; None: they need none.

    Raises GenerateError if this machine cannot have one.
    """
    if not needs_isolation(settings):
        return None
    if (problem := sandbox_problem(settings)) is not None:
        raise GenerateError(str(problem))
    return box(paths, settings.read_only_paths)


def sandbox_problem(settings: Tools, *, has_pods: bool = False) -> Problem | None:
    """Return why the tools cannot have the sandbox that they need here; None: they can, or need none.

    `has_pods`: there are pods for them.
    """
    field = "spec.rollout.tools.sandbox"
    if not needs_isolation(settings):
        return None
    if has_pods:
        if settings.read_only_paths:
            rule = "are in no pod of tools, which has the files of the image alone; leave it out, or see `sandbox`"
            return Problem("spec.rollout.tools.readOnlyPaths", list(settings.read_only_paths), rule)
        return None
    if settings.sandbox is ToolSandbox.PODS:
        return Problem(field, settings.sandbox, "is impossible here: only a cluster has pods", ToolSandbox.NAMESPACES)
    if (reason := sandbox.refusal()) is None:
        return None
    without = "None; then the tools can read the run's files and environment and use its network"
    return Problem(field, ToolSandbox.NAMESPACES, f"is impossible here: {reason}", without)

"""How many separate pods the tools of a job have in a cluster. Pure."""

from rljob_api.sections import Spec, Tools, ToolSandbox

HARMLESS = frozenset({"calculator"})
"""tools that run no code of a model or a user"""


def needs_isolation(tools: Tools) -> bool:
    """Return whether code of a model or a user runs, unless the author accepts what it can do."""
    return tools.sandbox is not ToolSandbox.NONE and not HARMLESS.issuperset(tools.functions)


def num_tool_pods(spec: Spec) -> int:
    """Return the number of pods; 0: the job has no tools, or they run elsewhere."""
    tools = spec.rollout.tools
    if tools is None or not spec.has_engines or not needs_isolation(tools):
        return 0
    return tools.concurrency if tools.sandbox in (None, ToolSandbox.PODS) else 0

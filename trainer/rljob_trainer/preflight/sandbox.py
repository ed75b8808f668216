"""Whether this machine can isolate tools."""

from collections.abc import Mapping

from rljob_api.sections import Spec
from rljob_api.tool_protocol import PODS_VARIABLE
from rljob_trainer.conversations.isolation import sandbox_problem
from rljob_trainer.preflight.findings import Findings


def look_at_sandbox(spec: Spec, here: bool, environ: Mapping[str, str]) -> Findings:
    """Try a sandbox, if the run will be on this machine and its tools need one; pods for them have theirs."""
    tools = spec.rollout.tools
    if not here or tools is None or not spec.debug.engines:
        return Findings()
    problem = sandbox_problem(tools, has_pods=PODS_VARIABLE in environ)
    return Findings() if problem is None else Findings((problem,))

"""Whether this machine can isolate tools, and reward functions."""

from collections.abc import Iterator, Mapping

from rljob_api.errors import Problem
from rljob_api.rules.reward import judgings
from rljob_api.sections import Spec
from rljob_api.tool_protocol import PODS_VARIABLE
from rljob_trainer.conversations.isolation import sandbox_problem
from rljob_trainer.preflight.findings import Findings
from rljob_trainer.processes import sandbox

WITHOUT = "then the function can read the run's files and use its network"


def look_at_sandbox(spec: Spec, here: bool, environ: Mapping[str, str]) -> Findings:
    """Try a sandbox, if the run will be here and its tools or rewards need one; pods for tools have theirs."""
    if not here or not spec.debug.engines:
        return Findings()
    return Findings((*_tools(spec, environ), *_rewards(spec)))


def _tools(spec: Spec, environ: Mapping[str, str]) -> Iterator[Problem]:
    tools = spec.rollout.tools
    if tools is not None and (problem := sandbox_problem(tools, has_pods=PODS_VARIABLE in environ)):
        yield problem


def _rewards(spec: Spec) -> Iterator[Problem]:
    fields = [f"{path}.sandbox" for path, judging in judgings(spec) if judging.sandbox is not None]
    if fields and (reason := sandbox.refusal()) is not None:
        yield Problem(fields[0], "Namespaces", f"is impossible here: {reason}", f"leave it out; {WITHOUT}")

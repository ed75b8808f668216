"""Whether this machine has the disk, the ports and the isolation that a run needs."""

import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rljob_api.errors import Problem
from rljob_api.rules.reward import judgings
from rljob_api.sections import Precision, Spec
from rljob_api.sizing.memory import BYTES
from rljob_api.sizing.model_shape import Shape
from rljob_api.tool_protocol import PODS_VARIABLE
from rljob_trainer.conversations.isolation import sandbox_problem
from rljob_trainer.preflight.findings import Findings
from rljob_trainer.processes import sandbox

GIB = 2**30
ADAM_BYTES = 8
"""of each parameter in a checkpoint: two moments in fp32"""
MASTER_BYTES = 4
"""of each parameter in a checkpoint of bf16 weights"""
WITHOUT_SANDBOX = "then the function can read the run's files and use its network"


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine's resources."""

    free_bytes: int
    """on the disk of the run's directory"""
    checkpoint_bytes: int
    """that checkpoints of this run take there already; they make room when they are replaced"""
    taken_ports: tuple[int, ...]
    """those of the ports asked for that another program has"""


def read_machine(directory: Path, ports: tuple[int, ...]) -> Machine:
    """Look at the disk of a directory that need not exist, and at ports; 0 stands for any free one."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    return Machine(
        free_bytes=shutil.disk_usage(existing).free,
        checkpoint_bytes=sum(path.stat().st_size for path in (directory / "checkpoints").rglob("*") if path.is_file()),
        taken_ports=tuple(port for port in ports if port and is_taken(port)),
    )


def is_taken(port: int) -> bool:
    with socket.socket() as attempt:
        # As a server would: a connection that was closed a minute ago does not hold the port.
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def judge_machine(spec: Spec, model: Shape | None, machine: Machine) -> Findings:
    """Return what does not fit; without the model's shape its checkpoints have no size."""
    return Findings((*(room(spec, model, machine) if model and spec.debug.learner else ()), *ports(spec, machine)))


def room(spec: Spec, model: Shape, machine: Machine) -> Iterator[Problem]:
    """Yield a problem where `keep` checkpoints, one that is being written and the export do not fit the disk."""
    one, keep = checkpoint_bytes(spec, model), spec.checkpoint.keep
    export = model.parameters * BYTES[spec.training.precision] if spec.checkpoint.hf_export else 0
    there = machine.free_bytes + machine.checkpoint_bytes
    needed = (keep + 1) * one + export
    if needed <= there:
        return
    most = (there - export) // one - 1
    rule = (
        f"and one in the making are {keep + 1} x {size(one)}{f' and {size(export)} of export' if export else ''}"
        f" = {size(needed)}, and the disk of checkpoint.directory has {size(there)}"
    )
    nearest = f"{most}" if most >= 1 else "a checkpoint.directory on another disk"
    yield Problem("spec.checkpoint.keep", keep, rule, nearest)


def checkpoint_bytes(spec: Spec, model: Shape) -> int:
    """Return the size of one checkpoint: weights, Adam's moments, and master weights beside bf16; each once."""
    precision = spec.training.precision
    master = MASTER_BYTES if precision is Precision.BF16 else 0
    return model.parameters * (BYTES[precision] + master + ADAM_BYTES)


def ports(spec: Spec, machine: Machine) -> Iterator[Problem]:
    wanted = spec.runtime.metrics_port
    if wanted in machine.taken_ports:
        yield Problem("spec.runtime.metricsPort", wanted, "is in use by another program here", "0, for any free port")


def size(number: int) -> str:
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{number / 2**20:.1f} MiB"


def look_at_sandbox(spec: Spec, here: bool, environ: Mapping[str, str]) -> Findings:
    """Try a sandbox, if the run will be here and its tools or rewards need one; pods for tools have theirs."""
    if not here or not spec.debug.engines:
        return Findings()
    return Findings((*_unisolated_tools(spec, environ), *_unisolated_rewards(spec)))


def _unisolated_tools(spec: Spec, environ: Mapping[str, str]) -> Iterator[Problem]:
    tools = spec.rollout.tools
    if tools is not None and (problem := sandbox_problem(tools, has_pods=PODS_VARIABLE in environ)):
        yield problem


def _unisolated_rewards(spec: Spec) -> Iterator[Problem]:
    fields = [f"{path}.sandbox" for path, judging in judgings(spec) if judging.sandbox is not None]
    if fields and (reason := sandbox.refusal()) is not None:
        yield Problem(fields[0], "Namespaces", f"is impossible here: {reason}", f"leave it out; {WITHOUT_SANDBOX}")

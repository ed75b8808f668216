"""The server of a pod of tools on this machine: the first process of namespaces of its own, as in a container.

Its socket comes from outside of the namespaces, where the network is.
"""

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rljob_api.tool_protocol import DIGEST_VARIABLE, MODULE, digest, tools_token
from rljob_trainer.conversations.tool_pods import Pool
from rljob_trainer.processes import sandbox

TOKEN = tools_token("control-token")
ROOT = Path(__file__).parents[3]


@contextmanager
def tool_pod(log: Path) -> Iterator[Pool]:
    """Run a pod's server, which can read this repository's code."""
    packages = [str(ROOT / name) for name in ("trainer", "crds", "tests")]
    box = sandbox.Settings(
        read_only=tuple(packages),
        environment={"PYTHONPATH": os.pathsep.join(packages), DIGEST_VARIABLE: digest(TOKEN)},
        processes=resource.getrlimit(resource.RLIMIT_NPROC)[1],  # a pod has no limit of its own
        restricts_itself=True,
        file_bytes=1 << 26,  # /tmp has twice as much, as in a pod
    )
    command = sandbox.command_line(box, [sys.executable, "-m", MODULE, "--listen=fd:0"])
    with socket.create_server(("127.0.0.1", 0)) as door, log.open("ab") as output:
        address = door.getsockname()
        process = subprocess.Popen(command, stdin=door, stdout=output, stderr=output)
    try:
        yield Pool((address,), TOKEN)
    finally:
        process.kill()
        process.wait()

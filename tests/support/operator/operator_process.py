"""The operator as a process of its own, as in a cluster: under its ServiceAccount's token, with the chart's rules."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from local_cluster.binaries import binary
from local_cluster.kubectl import Kubectl
from support import secrets_in_logs
from support.operator.python_programs import Start, forked

ROOT = Path(__file__).parents[3]
MODULE = ("-m", "rljob_operator")
KUBERNETES = "1.34.0"
STORAGE = json.dumps({"emptyDir": {}})


def install_rights(kubectl: Kubectl, namespace: str, *values: str) -> None:
    """Apply the chart's ServiceAccount, rules and policies, as `helm install rljob` would, and nothing else of it."""
    rendered = helm("template", namespace, "--namespace", namespace, *values)
    _apply_rights(kubectl, rendered)


IMAGE = "--set=image.repository=registry.example/rljob-operator"
"""names the image that somebody has built"""


def upgrade_rights(kubectl: Kubectl, namespace: str, *values: str) -> None:
    """Do the same as `helm upgrade` would, which looks into the cluster."""
    looking = ("--dry-run=server", "--api-versions=ray.io/v1/RayCluster", f"--kubeconfig={kubectl.kubeconfig}")
    _apply_rights(kubectl, helm("template", namespace, "--namespace", namespace, *looking, *values))


def _apply_rights(kubectl: Kubectl, rendered: str) -> None:
    wanted = [
        part
        for part in rendered.split("\n---\n")
        if re.search(r"^kind: (ServiceAccount|.*Role.*|ValidatingAdmissionPolicy.*)$", part, re.M)
    ]
    kubectl("apply", "--server-side", "-f", "-", given="\n---\n".join(wanted))


def helm(verb: str, *arguments: str) -> str:
    """Run the real helm on the chart; `template` takes the release's name first."""
    name = arguments[:1] if verb == "template" else ()
    # helm knows only the Kubernetes that it was built with, and ours was built from a module that does not say.
    server = () if verb == "package" else (f"--kube-version={KUBERNETES}", IMAGE)
    chart = str(ROOT / "charts" / "rljob")
    command = [str(binary("helm", os.environ)), verb, *name, chart, *server, *arguments[len(name) :]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def kubeconfig_of_operator(kubectl: Kubectl, namespace: str, directory: Path) -> Path:
    """Return a kubeconfig that is the operator's ServiceAccount and nobody else."""
    return kubeconfig_of(kubectl, namespace, f"{namespace}-operator", directory)


def kubeconfig_of(kubectl: Kubectl, namespace: str, account: str, directory: Path) -> Path:
    """Return a kubeconfig that is this ServiceAccount, in its namespace."""
    token = kubectl("create", "token", account, "-n", namespace, "--duration=1h").strip()
    secrets_in_logs.note(token)
    admin = json.loads(kubectl("config", "view", "--raw", "--flatten", "-o", "json"))
    cluster = admin["clusters"][0]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [{"name": account, "user": {"token": token}}],
        "contexts": [
            {"name": account, "context": {"cluster": cluster["name"], "user": account, "namespace": namespace}}
        ],
        "current-context": account,
    }
    path = directory / f"{account}-{namespace}.kubeconfig"
    path.write_text(json.dumps(config))
    return path


def check(identity: Path, namespace: str, *more: str) -> tuple[int, str]:
    """Run what `helm test` runs in a pod, with this kubeconfig of the operator; return exit code and output."""
    command = [sys.executable, "-m", "rljob_operator.installation", f"--kubeconfig={identity}"]
    command += [f"--namespace={namespace}", f"--lease={namespace}-operator", f"--lease-namespace={namespace}", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


class OperatorProcess:
    """One replica."""

    def __init__(
        self,
        kubeconfig: Path,
        namespace: str,
        service_url: str,
        log: Path,
        program: Sequence[str] = MODULE,
        identity: str | None = None,
        log_level: str = "DEBUG",
        more: Sequence[str] = (),
        watches_all: bool = False,
        start: Start = forked,
    ) -> None:
        """It watches its own namespace, or all; `identity` is its name in the Lease, absent: one of its own.

        Of an argument that is given twice, the one in `more` holds. Who measures it starts it as `spawned`.
        """
        self._log = log
        arguments = [
            f"--kubeconfig={kubeconfig}",
            f"--lease-namespace={namespace}",
            f"--lease={namespace}-operator",
            f"--service-url={service_url}",
            "--port=0",
            "--image=rljob/trainer:test",
            f"--storage={STORAGE}",
            f"--log-level={log_level}",
            *([] if watches_all else [f"--namespace={namespace}"]),
            *([f"--identity={identity}"] if identity else []),
            *more,
        ]
        self._process = start([*program, *arguments], log)

    def __enter__(self) -> "OperatorProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout_s: float) -> int:
        """Return the exit code."""
        self._process.join(timeout_s)
        assert self._process.exitcode is not None, f"still running after {timeout_s} s"
        return self._process.exitcode

    def get(self, path: str) -> tuple[int, str]:
        """Return the status and the text of one of its own pages."""
        deadline = time.monotonic() + 30
        while (found := re.search(r"action=serve port=(\d+)", self.log)) is None:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)
        with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()

    def terminate(self, timeout_s: float = 30) -> int:
        """Ask it to end, as a node does, and return its exit code."""
        self._process.terminate()
        return self.wait(timeout_s)

    def pause(self) -> None:
        """Freeze it: it answers nothing and renews nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

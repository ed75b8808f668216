"""A release of the chart in a real cluster, by the real helm."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import yaml

from local_cluster.binaries import binary
from local_cluster.kubectl import Kubectl, Manifest
from support.operator.operator_process import IMAGE, ROOT, helm

CHART = ROOT / "charts" / "rljob"


class Release:
    """The chart in a namespace, under the namespace's name."""

    def __init__(self, kubectl: Kubectl, namespace: str, chart: Path = CHART) -> None:
        self.namespace = namespace
        self._chart = chart
        self._common = ["--kubeconfig", str(kubectl.kubeconfig), "--namespace", namespace]

    def install(self, *options: str) -> str:
        """Install it, wait until its pods are ready, and return the notes."""
        return self._helm(["install", self.namespace, str(self._chart), "--wait", "--timeout=2m", IMAGE, *options])

    def upgrade(self, chart: Path, *options: str) -> str:
        """Upgrade it to another chart with the same values."""
        return self._helm(["upgrade", self.namespace, str(chart), "--wait", "--reset-then-reuse-values", *options])

    def uninstall(self) -> None:
        self._helm(["uninstall", self.namespace, "--wait", "--ignore-not-found"])

    def _helm(self, arguments: Sequence[str]) -> str:
        command = [str(binary("helm", os.environ)), *arguments, *self._common]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout


def rendered(*values: str, release: str = "rl") -> dict[str, Manifest]:
    """Return what the chart makes in namespace `rljob`: by kind and name, `Role/rl-operator`."""
    documents = yaml.safe_load_all(helm("template", release, "--namespace", "rljob", *values))
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in documents if each}

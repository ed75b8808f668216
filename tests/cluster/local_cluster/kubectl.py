"""Talks to a cluster as its users do: through kubectl."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_cluster.errors import ClusterError

Manifest = dict[str, Any]
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@dataclass(frozen=True, slots=True)
class Kubectl:
    """A kubectl and whom it is. Each method raises ClusterError with what kubectl said if it fails."""

    program: Path
    kubeconfig: Path

    def __call__(self, *arguments: str, given: str | None = None) -> str:
        """Run `kubectl ARGUMENTS` with this standard input, and return its standard output."""
        command = [str(self.program), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        """The variable by which other clients find this cluster."""
        return {"KUBECONFIG": str(self.kubeconfig)}

    def apply(self, *manifests: Manifest) -> None:
        """Apply these objects, on the server's side: KubeRay's CRDs do not fit into an annotation."""
        self("apply", "--server-side", "-f", "-", given=json.dumps(_list(manifests)))

    def make_namespace(self, name: str) -> None:
        """Make a namespace, unless it is there, that enforces the Pod Security Standard `restricted`."""
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(RESTRICTED)}})

    def wait_for_crds(self) -> None:
        """Wait until all CRDs are served."""
        while not self._has_all_crds():
            pass

    def _has_all_crds(self) -> bool:
        """Wait for the CRDs; return False if one was too new to be waited for."""
        try:
            self("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        except ClusterError as error:
            # kubectl up to 1.34 at least takes a null list of conditions for a mistake instead of waiting.
            if ".status.conditions accessor error" not in str(error):
                raise
            return False
        return True

    def get(self, *arguments: str) -> Manifest:
        """Return the object, or the list of objects, that `kubectl get ARGUMENTS` finds."""
        found: Manifest = json.loads(self("get", *arguments, "-o", "json"))
        return found

    def names(self, *arguments: str) -> list[str]:
        """Return the names of the objects that `kubectl get ARGUMENTS` lists."""
        return [item["metadata"]["name"] for item in self.get(*arguments)["items"]]


def _list(manifests: Sequence[Manifest]) -> Manifest:
    return {"apiVersion": "v1", "kind": "List", "items": list(manifests)}

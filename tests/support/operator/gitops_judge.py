"""What GitOps tools say of an object, by their own code (`tests/cluster/modules/gitops`)."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_cluster.kubectl import Manifest


@dataclass(frozen=True, slots=True)
class GitOpsJudge:
    """Flux's kstatus, and Argo CD's Lua."""

    program: Path

    def kstatus(self, content: Manifest) -> str:
        """Return one of Current, InProgress, Failed, Terminating."""
        return str(self._ask(content, "kstatus")["status"])

    def flux(self, content: Manifest, kustomization: Path) -> str:
        """Return the same by the healthCheckExprs of a Kustomization, which is JSON in this file."""
        return str(self._ask(content, "flux", kustomization)["status"])

    def health(self, content: Manifest, script: Path) -> tuple[str, str]:
        """Return status and message; raise RuntimeError if the script fails, or answers with something else."""
        answer = self._ask(content, "health", script)
        return str(answer["status"]), str(answer["message"])

    def actions(self, content: Manifest, script: Path) -> set[str]:
        """Return the names of the actions that are offered and not disabled."""
        offered = self._ask(content, "actions", script)
        return {name for name, action in offered.items() if not action.get("disabled")}

    def act(self, content: Manifest, script: Path) -> Manifest:
        """Return the object after an action."""
        changed: Manifest = self._ask(content, "action", script)
        return changed

    def _ask(self, content: Manifest, *arguments: str | Path) -> Any:
        command = [str(self.program), *map(str, arguments)]
        done = subprocess.run(command, input=json.dumps(content), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return json.loads(done.stdout)

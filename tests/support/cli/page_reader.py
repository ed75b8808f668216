"""Somebody who follows a page: a shell in an empty directory, and an environment that has only rljob's wheel."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.cli.empty_environment import built_wheel, installed


@dataclass(frozen=True, slots=True)
class Reader:
    """A shell, which sees neither this checkout nor this process's packages."""

    directory: Path
    environment: dict[str, str]

    def types(self, script: str) -> str:
        """Run commands, and return what they print; fails with all output if one of them does."""
        command = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(
            command, cwd=self.directory, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def new_reader(directory: Path, kubeconfig: Path, **programs: Path) -> Reader:
    """Return a reader of this cluster in an empty directory, with these programs by name, and rljob from its wheel."""
    work, path, dist = (directory / name for name in ("work", "programs", "dist"))
    work.mkdir()
    path.mkdir()
    python = installed(directory, built_wheel(dist), "cluster", "cluster").path
    for name, program in programs.items():
        (path / name).symlink_to(program)
    given = {"PATH": f"{python / 'bin'}:{path}:{os.defpath}", "HOME": str(directory), "KUBECONFIG": str(kubeconfig)}
    return Reader(work, given)

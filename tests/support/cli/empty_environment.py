"""rljob's wheel, and environments that have nothing but what a lock and the wheel bring."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from local_cluster.binaries import cache
from support.cluster.locks import pins

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class EmptyEnvironment:
    """A virtual environment of its own; its programs see neither this checkout nor a cluster."""

    path: Path

    def run(self, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a program of the environment in an empty directory beside it."""
        work = self.path.parent / "work"
        work.mkdir(exist_ok=True)
        environment = {"HOME": str(work), "KUBECONFIG": str(work / "absent"), "PATH": f"{self.path}/bin:/usr/bin:/bin"}
        command = [self.path / "bin" / program, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=work)

    def mib(self) -> float:
        """Return the size of all files."""
        return sum(file.lstat().st_size for file in self.path.rglob("*") if file.is_file()) / 2**20


def built_wheel(directory: Path) -> Path:
    """Build the wheel with the tools of the lock, without a network."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = directory.glob("*.whl")
    return wheel


def installed(directory: Path, wheel: Path, extra: str, lock: str) -> EmptyEnvironment:
    """Install a lock by its hashes, then the wheel without any index: the lock has all that its extra needs."""
    environment = EmptyEnvironment(directory / "environment")
    python = environment.path / "bin" / "python"
    uv(directory, "venv", "--python", sys.executable, str(environment.path))
    install = ("pip", "install", "--python", str(python))
    uv(directory, *install, "--require-hashes", "-r", str(ROOT / "requirements" / f"{lock}.txt"))
    uv(directory, *install, "--no-index", f"{wheel}[{extra}]")
    return environment


def uv(directory: Path, *arguments: str) -> None:
    """Run uv quietly."""
    done = subprocess.run([uv_program(), "-q", *arguments], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def uv_program() -> Path:
    """Return the uv of `make setup`, whose cache has the files of the locks."""
    return cache(os.environ).parent / f"uv-{pins('tools')['uv']}" / "bin" / "uv"

"""The lock files: which version of which package they pin."""

from local_cluster.project_images import REPOSITORY


def text(lock: str) -> str:
    """Return the lock of this name: `cpu`, `gpu`, `operator`, `trainer`."""
    return (REPOSITORY / "requirements" / f"{lock}.txt").read_text()


def pins(lock: str) -> dict[str, str]:
    """Return the version of each package."""
    lines = text(lock).splitlines()
    return dict(line.split()[0].split("==") for line in lines if "==" in line and not line.startswith((" ", "#")))

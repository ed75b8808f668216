"""The project's own images, built as `images/` says, and given to the nodes' containerd without a registry.

debootstrap ─► base ─┐
requirements/*.txt ──┴─► layers of the dependencies (kept in the cache) ─► our code ─► containerd

Everything is kept in the cache: the base, and buildah's layers, for as long as locks and Dockerfiles stay as they are.
"""

import fcntl
import hashlib
import logging
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from local_cluster.binaries import cache
from local_cluster.errors import ClusterError
from local_cluster.node_cluster import NodeCluster
from local_cluster.packages import program

log = logging.getLogger(__name__)

REPOSITORY = Path(__file__).parents[3]
BASE = "rljob.local/base:bookworm"
MIRROR_VARIABLE = "DEBIAN_MIRROR"
"""where the base image's packages come from, for a machine whose own apt does not know Debian bookworm"""
TARGETS = ("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Release: bookworm")
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
"""those that this machine trusts: a package index behind a proxy of the house is signed by one of them"""
FROM_ENVIRONMENT = ("PIP_INDEX_URL",)
"""build arguments of the same name"""
COMPRESSION = ("--quiet", "--compression-format=zstd", "--compression-level=1")
"""half the size, in less time than a disk takes to write the rest"""


@dataclass(frozen=True, slots=True)
class ProjectImage:
    """One image of `images/`."""

    repository: str
    dockerfile: str
    targets: tuple[str, ...] = ()
    """the last is the image; those before are built apart, for buildah keeps all that a build writes until it ends"""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """build arguments"""


OPERATOR = ProjectImage("rljob.local/operator", "images/operator/Dockerfile")
TRAINER = ProjectImage("rljob.local/trainer", "images/trainer/Dockerfile", ("cuda", "torch", "trainer"))
GPU_TRAINER = replace(TRAINER, repository="rljob.local/trainer-gpu", arguments={"LOCK": "gpu"})
INPUTS = [REPOSITORY / "requirements" / f"{lock}.txt" for lock in ("trainer", "gpu", "operator")]
INPUTS += [REPOSITORY / image.dockerfile for image in (OPERATOR, TRAINER)]
"""what the large layers follow from"""


def load(image: ProjectImage, cluster: NodeCluster, environ: Mapping[str, str]) -> str:
    """Give an image to the nodes of this cluster, building what is not in the cache; return its name.

    Raises ClusterError. The tag follows from the content, so that nothing old is ever run in its place.
    """
    started = time.monotonic()
    with built(image, environ) as (buildah, root, identity):
        name = f"{image.repository}:{identity[:12]}"
        if not cluster.has_image(name):
            with tempfile.TemporaryDirectory(dir=root) as scratch:
                archive = Path(scratch) / "image.tar"
                run(*buildah, "push", *COMPRESSION, identity, f"oci-archive:{archive}:{name}")
                cluster.import_archive(archive)
    log.info("action=load image=%s seconds=%.0f", name, time.monotonic() - started)
    return name


def prepare(environ: Mapping[str, str]) -> None:
    """Build the images of the operator and of CPU pods into the cache. Raises ClusterError."""
    for image in (TRAINER, OPERATOR):
        with built(image, environ):
            log.info("action=build image=%s", image.repository)


@contextmanager
def built(image: ProjectImage, environ: Mapping[str, str]) -> Iterator[tuple[list[str], Path, str]]:
    """Build an image; give buildah's command line, the directory of the images and the image's id. Raises ClusterError.

    Meanwhile no other process builds.
    """
    root = cache(environ).parent / "images"
    root.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(root):
        buildah = _buildah(root, storage(root, [path.read_bytes() for path in INPUTS]))
        yield buildah, root, _build(image, buildah, root, environ)


def storage(root: Path, inputs: Sequence[bytes]) -> Path:
    """Return the directory of layers made from these files. Those made from others are removed: they fill a disk."""
    digest = hashlib.sha256(b"\0".join(inputs)).hexdigest()
    kept = root / f"layers-{digest[:16]}"
    for other in root.glob("layers*"):
        if other != kept:
            subprocess.run(["umount", str(other / "overlay")], capture_output=True, check=False)  # buildah leaves it
            shutil.rmtree(other)
    return kept


def _buildah(root: Path, layers: Path) -> list[str]:
    return [str(program("buildah")), f"--root={layers}", f"--runroot={root / 'run'}", "--storage-driver=overlay"]


def _build(image: ProjectImage, buildah: list[str], root: Path, environ: Mapping[str, str]) -> str:
    if subprocess.run([*buildah, "inspect", BASE], capture_output=True, check=False).returncode:
        _make_base(buildah, root, environ)
    arguments = {"BASE_IMAGE": BASE, **image.arguments} | {
        name: environ[name] for name in FROM_ENVIRONMENT if environ.get(name)
    }
    command = [*buildah, "build", "--quiet", "--layers", "--isolation=chroot", "--network=host"]
    command += [f"--build-arg={name}={value}" for name, value in arguments.items()]
    command.append(f"--file={image.dockerfile}")
    for stage in image.targets[:-1]:
        run(*command, f"--target={stage}", ".")
    command += [f"--target={target}" for target in image.targets[-1:]]
    return run(*command, f"--tag={image.repository}", ".").strip()


def _make_base(buildah: list[str], root: Path, environ: Mapping[str, str]) -> None:
    """Make a minimal Debian: what docker.io/library/debian is elsewhere."""
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        system = Path(scratch) / "system"
        mirror = mirror_of(environ)
        debootstrap = [str(program("debootstrap")), "--variant=minbase", "--include=ca-certificates", "bookworm"]
        run(*debootstrap, str(system), mirror)
        shutil.copyfile(AUTHORITIES, system / AUTHORITIES.relative_to("/"))
        (Path(scratch) / "Dockerfile").write_text("FROM scratch\nCOPY system /\n")
        run(*buildah, "build", "--quiet", "--isolation=chroot", f"--tag={BASE}", scratch)


def mirror_of(environ: Mapping[str, str]) -> str:
    """Return where packages of Debian bookworm come from: what the environment says, or this machine's own apt."""
    if named := environ.get(MIRROR_VARIABLE):
        return named
    known = [line for line in run(*TARGETS).splitlines() if line]
    if not known:
        raise ClusterError(
            f"apt of this machine has no source of bookworm; set {MIRROR_VARIABLE} to a mirror of Debian"
        )
    return known[0]


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        said = f"{done.stdout[-2000:]}{done.stderr[-4000:]}"
        raise ClusterError(f"`{' '.join(command)}` failed with {done.returncode}:\n{said}")
    return done.stdout


@contextmanager
def _one_at_a_time(root: Path) -> Iterator[None]:
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

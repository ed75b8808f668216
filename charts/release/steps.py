"""The parts of a release. Each writes into dist/ and returns its files, or raises MissingError with what it lacks."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from release import plugin, provenance

IMAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "operator": ("operator", ""),
    "trainer": ("trainer", "gpu"),
    "trainer-cpu": ("trainer", "trainer"),
}
"""by name: the directory of images/, and the lock"""
SUMS: Final = "SHA256SUMS"


class MissingError(Exception):
    """What a part of the release needs is not there; the others are built nevertheless."""


class FailedError(Exception):
    """A program that is there has failed."""


@dataclass(frozen=True, slots=True)
class Release:
    """What is to be built."""

    root: Path
    dist: Path
    uv: str
    helm: str
    url: str
    """where the files will be published, without a slash at the end"""
    images: tuple[str, ...]
    push: str
    """registry that images and chart are pushed to, such as ghcr.io/me; empty: none is"""
    started: datetime

    @property
    def version(self) -> str:
        return version(self.root)


def version(root: Path) -> str:
    """Return the one version of the project."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def python_packages(release: Release) -> list[Path]:
    """Build wheel and sdist."""
    run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-t",
        "sdist",
        "-d",
        str(release.dist),
        cwd=release.root,
    )
    return [wheel(release), *release.dist.glob("rljob-*.tar.gz")]


def wheel(release: Release) -> Path:
    return release.dist / f"rljob-{release.version}-py3-none-any.whl"


def kubectl_plugin(release: Release) -> list[Path]:
    """Build the archive of `kubectl rljob` from the lock and the wheel, and krew's manifest."""
    with tempfile.TemporaryDirectory() as scratch:
        install = (release.uv, "-q", "pip", "install", "--python", sys.executable, "--target", scratch, "--no-deps")
        run(*install, "--require-hashes", "-r", str(release.root / "requirements" / "cluster.txt"), cwd=scratch)
        run(*install, "--no-index", str(wheel(release)), cwd=scratch)
        content = plugin.archive(Path(scratch), release.root / "LICENSE")
    file = release.dist / f"kubectl-rljob-{release.version}-linux-amd64.tar.gz"
    file.write_bytes(content)
    manifest = release.dist / "rljob.yaml"
    uri = f"{release.url}/{file.name}"
    manifest.write_text(plugin.manifest(release.version, uri, sha256(file), release.url))
    return [file, manifest]


def chart(release: Release) -> list[Path]:
    """Package the chart, and push it if that was asked for."""
    run(release.helm, "package", str(release.root / "charts" / "rljob"), "--destination", str(release.dist))
    file = release.dist / f"rljob-{release.version}.tgz"
    if release.push:
        run(release.helm, "push", str(file), f"oci://{release.push}/charts")
    return [file]


def images(release: Release) -> list[Path]:
    """Build the images, push them if that was asked for, and write their ids and digests."""
    if not release.images:
        raise MissingError("none was asked for")
    builder = next((each for each in ("buildah", "docker") if shutil.which(each)), None)
    if builder is None:
        raise MissingError("neither buildah nor docker is installed")
    built = [_image(release, builder, name) for name in release.images]
    file = release.dist / "images.json"
    file.write_text(json.dumps(built, indent=2) + "\n")
    return [file]


def _image(release: Release, builder: str, name: str) -> Mapping[str, str | None]:
    directory, lock = IMAGES[name]
    tag = f"{release.push or 'localhost'}/rljob-{name}:{release.version}"
    arguments = {"LOCK": lock} if lock else {}
    arguments |= {key: os.environ[key] for key in ("BASE_IMAGE", "PIP_INDEX_URL") if os.environ.get(key)}
    with tempfile.TemporaryDirectory() as scratch:
        identity, digest = Path(scratch, "id"), Path(scratch, "digest")
        given = [f"--build-arg={key}={value}" for key, value in arguments.items()]
        file = f"images/{directory}/Dockerfile"
        run(builder, "build", f"--iidfile={identity}", f"--file={file}", f"--tag={tag}", *given, ".", cwd=release.root)
        if release.push and builder == "buildah":
            run(builder, "push", f"--digestfile={digest}", tag)
        elif release.push:
            run(builder, "push", tag)
            found = run(builder, "inspect", "--format={{index .RepoDigests 0}}", tag)
            digest.write_text(found.strip().rpartition("@")[2])
        pushed = digest.read_text().strip() if digest.exists() else None
        return {"name": tag, "id": identity.read_text().strip(), "digest": pushed}


def bills_of_materials(release: Release) -> list[Path]:
    """Return what `make sbom` has written."""
    found = sorted(release.dist.glob("sbom-*.cdx.json"))
    if not found:
        raise MissingError("run `make sbom`")
    return found


def statement(release: Release) -> list[Path]:
    """Write the provenance of all files so far, and of pushed images."""
    subjects = {file.name: sha256(file) for file in files(release)}
    listed = release.dist / "images.json"
    for image in json.loads(listed.read_text()) if listed.exists() else ():
        if image["digest"]:
            subjects[image["name"]] = image["digest"].removeprefix("sha256:")
    locks = {
        str(each.relative_to(release.root)): sha256(each) for each in (release.root / "requirements").glob("*.txt")
    }
    content = provenance.statement(subjects, _source(release.root), locks, release.started, datetime.now(UTC))
    file = release.dist / "provenance.intoto.json"
    file.write_text(json.dumps(content, indent=2) + "\n")
    return [file]


def _source(root: Path) -> provenance.Source:
    try:
        commit = run("git", "rev-parse", "HEAD", cwd=root).strip()
    except FailedError as error:
        raise MissingError(f"the source is not a clone: {error}") from error
    changed = bool(run("git", "status", "--porcelain", cwd=root).strip())
    try:
        uri = run("git", "remote", "get-url", "origin", cwd=root).strip()
    except FailedError:
        uri = root.as_uri()
    return provenance.Source(uri, commit, changed)


def sums(release: Release) -> list[Path]:
    """Write the sha256 of all files, as `sha256sum --check` reads them."""
    found = files(release)
    file = release.dist / SUMS
    file.write_text("".join(f"{sha256(each)}  {each.name}\n" for each in found))
    return [file]


def signature(release: Release) -> list[Path]:
    """Sign the sums, and with them all files, by cosign or notation."""
    file = release.dist / SUMS
    if shutil.which("cosign"):
        if not (key := os.environ.get("COSIGN_KEY")):
            raise MissingError("COSIGN_KEY is not set: the file of the key, or its URI")
        bundle = release.dist / f"{SUMS}.sigstore.json"
        run("cosign", "sign-blob", "--yes", f"--key={key}", f"--bundle={bundle}", str(file))
        return [bundle]
    if shutil.which("notation"):
        run("notation", "blob", "sign", "--signature-directory", str(release.dist), str(file))
        return sorted(release.dist.glob(f"{SUMS}.*.sig"))
    raise MissingError("neither cosign nor notation is installed")


def files(release: Release) -> list[Path]:
    """Return all files of the release that are there now."""
    return sorted(each for each in release.dist.iterdir() if each.is_file() and not each.name.startswith((".", SUMS)))


def sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def run(*command: str, cwd: Path | str | None = None) -> str:
    """Run a program and return its output. Raises MissingError, FailedError."""
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise MissingError(f"{command[0]} is not installed") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise FailedError(f"{' '.join(command[:3])}: {last[0] if last else f'exit code {done.returncode}'}")
    return done.stdout

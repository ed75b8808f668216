"""A release as `make release` builds it, without images and signature."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from local_cluster.binaries import binary
from release import steps
from release.__main__ import INCOMPLETE, PARTS, built
from release.steps import Release
from support.cli.empty_environment import ROOT, uv_program

VERSION = steps.version(ROOT)
MADE = [
    f"kubectl-rljob-{VERSION}-linux-amd64.tar.gz",
    f"rljob-{VERSION}-py3-none-any.whl",
    f"rljob-{VERSION}.tar.gz",
    f"rljob-{VERSION}.tgz",
    "rljob.yaml",
    "provenance.intoto.json",
]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dist = tmp_path_factory.mktemp("dist")
    helm = str(binary("helm", os.environ))
    release = Release(ROOT, dist, str(uv_program()), helm, "https://example.com/v1", (), "", datetime.now(UTC))
    assert built(release, PARTS, complete=True) == INCOMPLETE
    return dist


def test_all_files_are_there_and_have_their_sums(dist: Path) -> None:
    checked = subprocess.run(
        ["sha256sum", "--check", "SHA256SUMS"], cwd=dist, capture_output=True, text=True, check=True
    )
    assert sorted(checked.stdout.splitlines()) == sorted(f"{name}: OK" for name in MADE)


def test_the_provenance_names_each_file_by_its_content(dist: Path) -> None:
    said = json.loads((dist / "provenance.intoto.json").read_text())
    found = {each["name"]: each["digest"]["sha256"] for each in said["subject"]}
    assert found == {name: hashlib.sha256((dist / name).read_bytes()).hexdigest() for name in MADE[:-1]}


def test_the_sdist_builds_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    with tarfile.open(dist / f"rljob-{VERSION}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=tmp_path / f"rljob-{VERSION}", check=True, capture_output=True)
    wheel = f"rljob-{VERSION}-py3-none-any.whl"
    assert (tmp_path / wheel).read_bytes() == (dist / wheel).read_bytes()


def test_the_chart_has_its_version(dist: Path) -> None:
    with tarfile.open(dist / f"rljob-{VERSION}.tgz") as archive:
        content = archive.extractfile("rljob/Chart.yaml")
        assert content is not None
        assert yaml.safe_load(content.read())["appVersion"] == VERSION


def test_krew_s_manifest_names_the_archive(dist: Path) -> None:
    (platform,) = yaml.safe_load((dist / "rljob.yaml").read_text())["spec"]["platforms"]
    archive = dist / MADE[0]
    assert platform["uri"] == f"https://example.com/v1/{archive.name}"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()


def test_krew_s_own_linter_accepts_the_manifest(dist: Path) -> None:
    command = [binary("validate-krew-manifest", os.environ), "-manifest", dist / "rljob.yaml", "-skip-install"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "structural validation OK" in done.stderr


@pytest.mark.skipif(not shutil.which("python3.11"), reason="the archive is for Python 3.11")
def test_the_plugin_runs_through_a_link_as_krew_makes_it(dist: Path, tmp_path: Path) -> None:
    with tarfile.open(dist / MADE[0]) as archive:
        archive.extractall(tmp_path / "store", filter="data")
    link = tmp_path / "kubectl-rljob"
    link.symlink_to(tmp_path / "store" / "kubectl-rljob")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "absent")}
    version = subprocess.run([link, "--version"], env=environment, capture_output=True, text=True, check=False)
    assert (version.stdout, version.stderr) == (f"rljob {VERSION}\n", "")
    status = subprocess.run([link, "status"], env=environment, capture_output=True, text=True, check=False)
    assert status.stderr.startswith("no cluster is configured: ")

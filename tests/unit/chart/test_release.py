"""What a release says of its parts, and its exit codes."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from release import steps
from release.__main__ import FAILED, INCOMPLETE, built
from release.provenance import Source, statement
from release.steps import FailedError, MissingError, Release

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
SUMS = "7a5b62e0  rljob.whl\n"


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return Release(tmp_path, tmp_path, "uv", "helm", "https://example.com", (), "", NOON)


def made(release: Release) -> list[Path]:
    return [release.dist / "a.whl", release.dist / "b.tar.gz"]


def missing(release: Release) -> list[Path]:
    raise MissingError("helm is not installed")


def failing(release: Release) -> list[Path]:
    raise FailedError("buildah build: no space left on device")


@pytest.mark.parametrize(
    ("parts", "complete", "code"),
    [
        ({"a": made}, True, 0),
        ({"a": missing, "b": made}, False, 0),
        ({"a": missing, "b": made}, True, INCOMPLETE),
        ({"a": failing, "b": missing}, True, FAILED),
        ({"a": failing, "b": made}, False, FAILED),
    ],
)
def test_what_is_missing_ends_with_a_code_only_if_that_is_asked_for(release, parts, complete, code):
    assert built(release, parts, complete=complete) == code


def test_each_part_is_said_to_be_made_missing_or_failed(release, capsys):
    built(release, {"wheel, sdist": made, "chart": missing, "images": failing}, complete=False)
    assert capsys.readouterr().out == (
        "wheel, sdist    a.whl b.tar.gz\n"
        "chart           missing: helm is not installed\n"
        "images          failed: buildah build: no space left on device\n"
    )


def test_a_machine_without_a_builder_or_signer_says_so(release, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MissingError, match="neither buildah nor docker"):
        steps.images(replace(release, images=("operator",)))
    with pytest.raises(MissingError, match="neither cosign nor notation"):
        steps.signature(release)
    with pytest.raises(MissingError, match="helm is not installed"):
        steps.chart(release)


def program(directory: Path, name: str, script: str) -> None:
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o755)


def test_cosign_signs_the_sums_with_the_given_key(release, tmp_path, monkeypatch):
    (tmp_path / steps.SUMS).write_text(SUMS)
    programs = tmp_path / "programs"
    programs.mkdir()
    program(programs, "cosign", 'for each; do case "$each" in --bundle=*) echo "$@" > "${each#--bundle=}";; esac; done')
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.delenv("COSIGN_KEY", raising=False)
    with pytest.raises(MissingError, match="COSIGN_KEY is not set"):
        steps.signature(release)
    monkeypatch.setenv("COSIGN_KEY", "cosign.key")
    (bundle,) = steps.signature(release)
    assert bundle.read_text().split() == [
        "sign-blob",
        "--yes",
        "--key=cosign.key",
        f"--bundle={bundle}",
        str(tmp_path / steps.SUMS),
    ]


@pytest.mark.parametrize("push", ["", "registry.example/me"])
def test_an_image_is_pushed_only_if_that_is_asked_for(release, tmp_path, monkeypatch, push):
    programs, log = tmp_path / "programs", tmp_path / "log"
    programs.mkdir()
    program(
        programs,
        "buildah",
        f"""echo "$1" >> {log}
for each; do case "$each" in --iidfile=*|--digestfile=*) printf sha256:%s "$1" > "${{each#*=}}";; esac; done""",
    )
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    (tmp_path / "pyproject.toml").write_text('project.version = "1.2.3"')
    steps.images(replace(release, images=("operator",), push=push))
    assert log.read_text().split() == (["build", "push"] if push else ["build"])
    assert (tmp_path / "images.json").read_text().split() == [
        "[",
        "{",
        '"name":',
        f'"{push or "localhost"}/rljob-operator:1.2.3",',
        '"id":',
        '"sha256:build",',
        '"digest":',
        '"sha256:push"' if push else "null",
        "}",
        "]",
    ]


def test_the_provenance_names_files_commit_and_locks():
    said = statement({"b": "22", "a": "11"}, Source("https://git/x", "c0ffee", True), {"cpu.txt": "33"}, NOON, NOON)
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["predicateType"] == "https://slsa.dev/provenance/v1"
    assert said["subject"] == [
        {"name": "a", "digest": {"sha256": "11"}},
        {"name": "b", "digest": {"sha256": "22"}},
    ]
    build = said["predicate"]["buildDefinition"]
    assert build["internalParameters"] == {"uncommittedChanges": True}
    assert build["resolvedDependencies"] == [
        {"uri": "git+https://git/x", "digest": {"gitCommit": "c0ffee"}},
        {"name": "cpu.txt", "digest": {"sha256": "33"}},
    ]
    assert said["predicate"]["runDetails"]["metadata"]["startedOn"] == "2026-11-28T12:00:00Z"

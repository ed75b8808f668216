"""Environments and images install only files whose hashes are in the locks."""

import re

import pytest

from local_cluster.project_images import REPOSITORY
from support.cluster.locks import pins, text

LOCKS = ("cluster", "cpu", "gpu", "operator", "tools", "trainer")
PIN = re.compile(r"^([-a-z0-9_.]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)$", re.MULTILINE)
INSTALLS = re.compile(r"pip (install|sync|wheel) ")
OWN = re.compile(r"--editable \.|--no-index| /src *$")
"""what we build, or have built, ourselves"""
BUILDS = re.compile(r"--editable \.|pip wheel ")


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_of_a_lock_has_hashes(lock: str) -> None:
    found = PIN.findall(text(lock))
    assert {name: version for name, version, _ in found} == pins(lock)
    assert [name for name, _, hashes in found if not hashes] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_no_lock_has_the_package_that_compiles_for_minutes_and_is_not_used(lock: str) -> None:
    assert "llama-cpp-python" not in pins(lock)


@pytest.mark.parametrize("file", ["Makefile", "images/operator/Dockerfile", "images/trainer/Dockerfile"])
def test_no_file_is_installed_without_one(file: str) -> None:
    commands = re.split(r"\n|&&", (REPOSITORY / file).read_text().replace("\\\n", ""))
    installs = [each for each in commands if INSTALLS.search(each) and not OWN.search(each)]
    assert installs
    assert [line for line in installs if "--require-hashes" not in line] == []
    assert not re.search(r"pip install [^|\n]*==", (REPOSITORY / file).read_text())


@pytest.mark.parametrize("file", ["Makefile", "images/operator/Dockerfile", "images/trainer/Dockerfile"])
def test_no_build_fetches_its_tools_by_itself(file: str) -> None:
    """A build environment of pip or uv has the newest tools of the index, without hashes."""
    commands = re.split(r"\n|&&", (REPOSITORY / file).read_text().replace("\\\n", ""))
    builds = [each for each in commands if BUILDS.search(each)]
    assert builds
    assert [line for line in builds if "--no-build-isolation" not in line] == []


@pytest.mark.parametrize("lock", ["cluster", "operator", "trainer"])
def test_images_and_the_command_line_have_the_versions_that_are_tested(lock: str) -> None:
    assert pins(lock).items() <= pins("cpu").items()


def test_what_the_trainer_s_image_builds_is_in_its_lock() -> None:
    dockerfile = (REPOSITORY / "images/trainer/Dockerfile").read_text()
    built = set(re.findall(r"wanted = !?/\^([a-z]+)==/", dockerfile))
    assert built and built <= pins("trainer").keys()


@pytest.mark.parametrize("file", ["images/operator/Dockerfile", "images/trainer/Dockerfile"])
def test_an_image_begins_with_one_of_a_digest(file: str) -> None:
    dockerfile = (REPOSITORY / file).read_text()
    stages = re.findall(r"^FROM \S+ AS (\w+)$", dockerfile, re.MULTILINE)
    begins = set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) - set(stages)
    assert begins == {"${BASE_IMAGE}"}
    (base,) = re.findall(r"^ARG BASE_IMAGE=(\S+)$", dockerfile, re.MULTILINE)
    assert re.fullmatch(r"docker\.io/library/debian:bookworm-slim@sha256:[0-9a-f]{64}", base)

"""The operator's image installs only files whose hashes are in the lock."""

import re

from local_cluster.project_images import REPOSITORY

LOCK = (REPOSITORY / "requirements" / "operator.txt").read_text()
PIN = re.compile(r"^([-a-z0-9_.]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)$", re.MULTILINE)


def pins(lock: str) -> dict[str, str]:
    lines = (REPOSITORY / "requirements" / lock).read_text().splitlines()
    return dict(line.split()[0].split("==") for line in lines if "==" in line and not line.startswith((" ", "#")))


def test_every_package_of_the_operator_s_image_has_hashes() -> None:
    found = PIN.findall(LOCK)
    assert {name: version for name, version, _ in found} == pins("operator.txt")
    assert [name for name, _, hashes in found if not hashes] == []


def test_the_image_takes_no_file_without_one() -> None:
    installs = re.findall(r"pip install .*--requirement.*", (REPOSITORY / "images/operator/Dockerfile").read_text())
    assert installs
    assert all("--no-deps --require-hashes" in line for line in installs)


def test_the_operator_s_image_has_the_versions_that_are_tested() -> None:
    assert pins("operator.txt").items() <= pins("cpu.txt").items()

"""The largest manifests that an API server keeps cost webhook and operator neither time nor memory.

An answer may take 0.2 s of the processor and 60 MiB; the limits of time are generous, as other tests run beside it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.api.costly_manifests import LARGEST

TESTS = Path(__file__).parents[2]
SECONDS, MIB = 0.8, 60


@pytest.fixture(scope="module")
def measured() -> dict[str, tuple[float, float, str]]:
    command = [sys.executable, "-m", "support.operator.measured_manifests"]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=True)
    found: dict[str, tuple[float, float, str]] = json.loads(done.stdout)
    return found


def test_the_largest_manifests_take_little_time(measured: dict[str, tuple[float, float, str]]) -> None:
    assert {name: seconds for name, (seconds, _, _) in measured.items() if seconds > SECONDS} == {}


def test_the_largest_manifests_take_little_memory(measured: dict[str, tuple[float, float, str]]) -> None:
    assert {name: mib for name, (_, mib, _) in measured.items() if mib > MIB} == {}


def test_the_same_manifests_are_taken_by_all(measured: dict[str, tuple[float, float, str]]) -> None:
    taken = {name for name, (_, _, found) in measured.items() if found in ("taken", "Allowed", "Provisioning")}
    assert taken == {f"{name} by {judge}" for name in LARGEST for judge in ("validate", "webhook", "operator")}

"""`make sbom`: each package of each lock is in its bill of materials. It installs CycloneDX's tool once."""

import json
import subprocess
from pathlib import Path

import pytest

from support.cluster.locks import pins

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("lock", ["cluster", "operator", "trainer", "gpu", "cpu"])
def test_a_bill_of_materials_names_every_package_of_its_lock(lock: str) -> None:
    subprocess.run(["make", "-s", "sbom", f"LOCKS={lock}"], cwd=ROOT, check=True)
    bill = json.loads((ROOT / "dist" / f"sbom-{lock}.cdx.json").read_text())
    pinned = {f"{name}=={version}" for name, version in pins(lock).items()}
    assert bill["bomFormat"] == "CycloneDX"
    assert {f"{each['name']}=={each['version']}" for each in bill["components"]} == pinned

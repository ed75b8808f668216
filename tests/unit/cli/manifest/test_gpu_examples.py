"""The examples for GPUs are valid, fit the GPUs that they name, and refer to objects that stand beside them."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_api.reading.manifest import load
from rljob_cli.main import app

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "docs" / "examples" / "gpu"
OBJECTS = "-objects.yaml"
JOBS = sorted(path for path in EXAMPLES.glob("*.yaml") if not path.name.endswith(OBJECTS))
PAGE = (ROOT / "docs" / "examples.md").read_text()


def planned(path: Path, gpu: str):
    return CliRunner().invoke(app, ["plan", str(path), "--gpu", gpu, "-o", "json"])


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_an_example_is_valid_and_named_like_its_file_and_on_the_page(path: Path) -> None:
    assert load(path.read_text()).metadata.name == path.stem
    assert f"(examples/gpu/{path.name})" in PAGE


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_an_example_fits_gpus_of_80_gb_without_a_warning(path: Path) -> None:
    result = planned(path, "H100-80")
    assert result.exit_code == Exit.OK, result.output
    plan = json.loads(result.stdout)
    assert plan["fit"]["fits"]
    assert plan["warnings"] == []


def test_the_first_one_fits_the_smaller_gpu_that_it_names() -> None:
    assert planned(EXAMPLES / "gsm8k.yaml", "A100-40").exit_code == Exit.OK


def test_the_large_one_does_not_fit_without_its_layout() -> None:
    text = (EXAMPLES / "qwen3-30b-a3b.yaml").read_text()
    alone = text.replace("    tensorParallel: 4\n    sequenceParallel: true\n    expertParallel: 8\n", "")
    assert alone != text
    result = CliRunner().invoke(app, ["plan", "-", "--gpu", "H100-80"], input=alone)
    assert result.stdout.startswith("does not fit: ")


def test_what_the_large_one_refers_to_stands_beside_it(tmp_path: Path) -> None:
    objects = list(yaml.safe_load_all((EXAMPLES / f"qwen3-30b-a3b{OBJECTS}").read_text()))
    there = {(each["kind"], each["metadata"]["name"]) for each in objects}
    job = load((EXAMPLES / "qwen3-30b-a3b.yaml").read_text())
    assert there == {
        ("Namespace", job.metadata.namespace),
        ("PersistentVolumeClaim", "runs"),
        ("Secret", "hub"),
        ("ConfigMap", "rewards"),
        ("LocalQueue", job.spec.scheduling.queue),
    }
    assert {each["metadata"].get("namespace", job.metadata.namespace) for each in objects} == {job.metadata.namespace}
    (rewards,) = [each for each in objects if each["kind"] == "ConfigMap"]
    (tmp_path / "brief.py").write_text(rewards["data"]["brief.py"])
    brief = module(tmp_path / "brief.py").brief
    assert [brief("", "x" * length, "", {}) for length in (0, 2000, 4000)] == [1.0, 1.0, 0.5]


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found

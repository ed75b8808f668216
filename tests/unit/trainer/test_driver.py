"""The driver's command line."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from command import environment
from rljob_api.exits import Exit
from rljob_api.manifest import parse
from rljob_trainer.build import LOCAL, Address
from rljob_trainer.driver import _parser, exit_of, with_engines
from rljob_trainer.learners.errors import CriticMismatchError
from whole_run import manifest

GIVEN = ["--manifest", "m.yaml", "--directory", "d"]


def test_on_one_machine_it_listens_where_nobody_else_can_reach_it():
    assert _parser().parse_args(GIVEN).listen == LOCAL == Address("127.0.0.1", 0)


def test_it_imports_what_takes_seconds_only_when_ray_is_on_its_way():
    check = "import sys, rljob_trainer.driver; sys.exit(not {'torch', 'transformers'}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", check], env=environment(), check=False).returncode == 0


def test_in_a_cluster_it_listens_where_it_is_told():
    assert _parser().parse_args([*GIVEN, "--listen", "0.0.0.0:8643"]).listen == Address("0.0.0.0", 8643)


def test_in_a_cluster_it_is_told_where_prometheus_looks():
    assert _parser().parse_args(GIVEN).metrics_port == 0
    assert _parser().parse_args([*GIVEN, "--metrics-port", "8644"]).metrics_port == 8644


def test_its_log_goes_to_a_file_besides(tmp_path):
    (tmp_path / "m.yaml").write_text("kind: nothing")
    log = tmp_path / "logs" / "driver-attempt-1.log"
    command = [sys.executable, "-m", "rljob_trainer.driver", "--manifest", str(tmp_path / "m.yaml")]
    given = [*command, "--directory", str(tmp_path), "--log", str(log)]
    ended = subprocess.run(given, capture_output=True, text=True, env=environment(), check=False)
    assert ended.returncode == Exit.BAD_MANIFEST
    assert "action=end reason=ManifestError" in ended.stderr
    assert log.read_text() == ended.stderr


def test_in_a_cluster_it_looks_at_the_files_first_and_names_every_problem(tmp_path, tiny_llama_dir):
    raw = manifest(tiny_llama_dir, tmp_path, data={"labelKey": "result"})
    (tmp_path / "questions.jsonl").write_text('{"question": "1 + 1 =", "answer": "2"}\n')
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(raw))
    command = [sys.executable, "-m", "rljob_trainer.driver", "--manifest", str(tmp_path / "m.yaml"), "--preflight"]
    given = [*command, "--directory", str(tmp_path / "run")]
    ended = subprocess.run(given, capture_output=True, text=True, env=environment(), check=False)
    assert ended.returncode == Exit.BAD_INPUT
    (told,) = [line for line in ended.stderr.splitlines() if "PreflightError: " in line]
    for data in ("train", "heldOut"):
        assert f"spec.data.{data}.jsonl: line 1: no key `result` (data.labelKey)" in told
    assert not list((tmp_path / "run").glob("journal*")), "nothing has begun"


@pytest.mark.parametrize("address", ["8643", ":8643", "localhost:port"])
def test_an_address_without_host_or_port_is_refused(address, capsys):
    with pytest.raises(SystemExit):
        _parser().parse_args([*GIVEN, "--listen", address])
    assert "is not HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(("told", "engines"), [(None, 1), (3, 3)])
def test_the_command_line_has_the_last_word_on_the_number_of_engines(told, engines):
    job = parse(manifest(Path("model"), Path("directory")))
    assert with_engines(job, told).spec.rollout.engines == engines
    assert with_engines(job, told).spec.training == job.spec.training


def test_a_checkpoint_of_an_algorithm_without_a_critic_is_the_manifest_s_mistake():
    assert exit_of(CriticMismatchError("no critic")) is Exit.BAD_INPUT

"""The driver's command line."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rljob_api.adjustments import VARIABLE, written
from rljob_api.errors import ManifestError, Problem
from rljob_api.exits import Exit
from rljob_api.reading.manifest import parse
from rljob_doctor.known import known_failure, logged
from rljob_doctor.scan import scan
from rljob_trainer.algorithms.errors import AlgorithmError
from rljob_trainer.assembly.serving import LOCAL, Address
from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.data.errors import DataError
from rljob_trainer.driver import _parser, _Steps, exit_of, with_adjustments, with_engines
from rljob_trainer.engines.client import EngineRefusedError
from rljob_trainer.learners.errors import CriticMismatchError, LinkError, TrainingDivergedError
from rljob_trainer.reporting.records import CheckpointRecord, StepRecord
from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rundir.checkpoints import CheckpointError
from rljob_trainer.rundir.logs import AttemptLogs
from rljob_trainer.rundir.retries import StorageError
from rljob_trainer.rundir.rollout_files import DumpError
from support.cli.command import environment
from support.trainer.whole_run import manifest

GIVEN = ["--manifest", "m.yaml", "--directory", "d"]


def test_on_one_machine_it_listens_where_nobody_else_can_reach_it():
    assert _parser().parse_args(GIVEN).listen == LOCAL == Address("127.0.0.1", 0)


def test_it_imports_what_takes_seconds_only_when_ray_is_on_its_way():
    check = "import sys, rljob_trainer.driver; sys.exit(not {'torch', 'transformers'}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", check], env=environment(), check=False).returncode == 0


def test_in_a_cluster_it_listens_at_the_given_address():
    assert _parser().parse_args([*GIVEN, "--listen", "0.0.0.0:8643"]).listen == Address("0.0.0.0", 8643)


def test_in_a_cluster_it_gets_the_address_that_prometheus_scrapes():
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
    said = ended.stderr.splitlines()[-1]
    assert "ERROR" in said and logged(said).code == "RljobBadManifest"


def test_in_a_cluster_it_looks_at_the_files_first_and_names_every_problem(tmp_path, tiny_llama_dir):
    raw = manifest(
        tiny_llama_dir, tmp_path, data={"labelKey": "result"}, reward={"kind": "ExactMatch", "function": None}
    )
    (tmp_path / "questions.jsonl").write_text('{"question": "1 + 1 =", "answer": "2"}\n')
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(raw))
    command = [sys.executable, "-m", "rljob_trainer.driver", "--manifest", str(tmp_path / "m.yaml"), "--preflight"]
    given = [*command, "--directory", str(tmp_path / "run"), "--log", str(tmp_path / "run" / "logs" / "driver.log")]
    ended = subprocess.run(given, capture_output=True, text=True, env=environment(), check=False)
    assert ended.returncode == Exit.BAD_INPUT
    (said, diagnosed) = [line for line in ended.stderr.splitlines() if "PreflightError: " in line]
    assert logged(diagnosed).code == "DataKeyMissing"
    for data in ("train", "heldOut"):
        assert f"spec.data.{data}.jsonl: line 1: no key `result` (data.labelKey)" in said
    assert not list((tmp_path / "run").glob("journal*")), "nothing has begun"


@pytest.mark.parametrize("address", ["8643", ":8643", "localhost:port"])
def test_an_address_without_host_or_port_is_refused(address, capsys):
    with pytest.raises(SystemExit):
        _parser().parse_args([*GIVEN, "--listen", address])
    assert "is not HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(("said", "engines"), [(None, 1), (3, 3)])
def test_the_command_line_has_the_last_word_on_the_number_of_engines(said, engines):
    job = parse(manifest(Path("model"), Path("directory")))
    assert with_engines(job, said).spec.rollout.engines == engines
    assert with_engines(job, said).spec.training == job.spec.training


def test_ranks_that_do_not_reach_each_other_are_a_lost_peer_that_the_catalogue_knows():
    error = LinkError("rank 0 on a and rank 1 on b cannot exchange data over the network: no answer within 30 s")
    known = known_failure([scan("driver", f"rljob_trainer.learners.errors.LinkError: {error}".encode())])
    assert (exit_of(error), known and known.code) == (Exit.LOST_PEER, "NcclUnreachable")


def test_a_checkpoint_of_an_algorithm_without_a_critic_is_the_manifest_s_mistake():
    assert exit_of(CriticMismatchError("no critic")) is Exit.BAD_INPUT


def test_what_its_supervisor_changed_after_an_attempt_without_memory_counts(caplog):
    job = parse(manifest(Path("model"), Path("directory")))
    changed = with_adjustments(job, {VARIABLE: written({"training.maxTokensPerGpu": 900})})
    assert changed.spec.training.max_tokens_per_gpu == 900
    assert "training.maxTokensPerGpu 900" in caplog.text
    assert with_adjustments(job, {}) is job


def test_what_it_logged_before_two_steps_did_not_end_it(tmp_path: Path):
    log = tmp_path / "logs" / "driver-attempt-1.log"
    log.parent.mkdir()
    logs = AttemptLogs(tmp_path)
    log.write_text("ModuleNotFoundError: No module named 'deep_gemm'\n")
    steps = _Steps(logs)
    for _ in range(2):
        steps.record(CheckpointRecord.model_construct())
    assert logs.known_failure().code == "PythonModuleMissing"
    for _ in range(2):
        steps.record(StepRecord.model_construct(step=1))
    assert logs.known_failure() is None


def raised(error: Exception, cause: Exception | None) -> Exception:
    with pytest.raises(type(error)) as caught:
        raise error from cause
    return caught.value


@pytest.mark.parametrize(
    ("error", "cause", "steps_done", "code"),
    [
        (DataError("train.parquet cannot be read"), OSError(errno.ESTALE, "stale"), 0, Exit.AWAY),
        (DataError("train.parquet cannot be read"), OSError(errno.EACCES, "denied"), 0, Exit.BAD_INPUT),
        (ManifestError((Problem("spec.model", "m", "cannot be read"),)), OSError(errno.EIO, "i/o"), 0, Exit.AWAY),
        (DumpError("rollouts cannot be written"), OSError(errno.ENOSPC, "full"), 7, Exit.AWAY),
        (StorageError("iter_0000020: stale"), None, 0, Exit.AWAY),
        (OSError(errno.ESTALE, "stale", "events.jsonl"), None, 0, Exit.AWAY),
        (OSError(errno.EIO, "i/o"), None, 7, Exit.AWAY),
        (OSError(errno.EACCES, "no"), None, 0, Exit.FAILED),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), None, 0, Exit.FAILED),
        (CheckpointError("changed files"), None, 7, Exit.BAD_INPUT),
        (RewardError("no module"), None, 0, Exit.BAD_INPUT),
        (RewardError("not one of 8"), None, 7, Exit.FAILED),
        (GenerateError("not one of 8"), None, 0, Exit.BAD_INPUT),
        (GenerateError("not one of 8"), None, 7, Exit.FAILED),
        (EngineRefusedError("400"), None, 0, Exit.BAD_INPUT),
        (EngineRefusedError("400"), None, 7, Exit.FAILED),
        (AlgorithmError("failed"), None, 7, Exit.FAILED),
        (TrainingDivergedError("NaN"), OSError(errno.EIO, "i/o"), 7, Exit.DIVERGED),
    ],
)
def test_only_what_must_fail_again_is_never_retried(error, cause, steps_done, code):
    assert exit_of(raised(error, cause), steps_done) is code


def test_steps_that_were_done_are_counted(tmp_path: Path):
    steps = _Steps(AttemptLogs(tmp_path))
    steps.record(CheckpointRecord.model_construct(step=30))
    assert steps.done == 0
    steps.record(StepRecord.model_construct(step=31))
    assert steps.done == 31

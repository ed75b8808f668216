"""A whole run with real Ray and Megatron, and checkpoints in a real S3 server: its volume is lost, and it resumes."""

import shutil
from pathlib import Path

import yaml

from rljob_api.exits import Exit
from rljob_trainer.assembly.uploading import remote_of
from support.trainer.s3_server import S3Server
from support.trainer.whole_run import WholeRun, imitation, merged

PLACE = "s3://bucket/runs/sums/"


def with_steps(run: WholeRun, steps: int) -> None:
    job = yaml.safe_load(run.manifest.read_text())
    run.manifest.write_text(yaml.safe_dump(merged(job, {"spec": {"training": {"steps": steps}}})))


def test_a_run_whose_volume_is_lost_resumes_from_the_store(
    server: S3Server, tiny_llama_dir: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    run = WholeRun(tiny_llama_dir, directory, checkpoint={"remote": PLACE, "interval": 2})
    run.manifest.write_text(yaml.safe_dump(imitation(yaml.safe_load(run.manifest.read_text()))))
    try:
        with_steps(run, 4)
        run.start()
        assert run.end() == Exit.OK, run.output
        remote = remote_of(PLACE, server.environ())
        assert max(remote.whole()) == 4
        journal = (run.run_directory / "journal.jsonl").read_bytes()
        shutil.rmtree(run.run_directory)
        with_steps(run, 6)
        run.start()
        assert run.end() == Exit.OK, run.output
        assert "resumes from iter_0000004" in run.log()
        assert (run.run_directory / "journal.jsonl").read_bytes().startswith(journal)
        assert max(remote.whole()) == 6
    finally:
        run.stop()

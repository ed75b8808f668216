"""Checkpoints in a real S3 server: whole or not there, thinned out, restored on an empty volume."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rljob_api import sections
from rljob_api.control import Finding
from rljob_api.sections import Resume
from rljob_trainer.assembly.uploading import WithUploads, remote_of, restore
from rljob_trainer.remote.errors import NotThereError, RemoteAwayError, RemoteError
from rljob_trainer.rundir.checkpoints import DIRECTORY, MANIFEST, CheckpointError, checked, name_of
from rljob_trainer.rundir.journal import Journal
from rljob_trainer.rundir.remote_checkpoints import ASIDE, RemoteCheckpoints
from rljob_trainer.rundir.resume import begin
from rljob_trainer.rundir.retries import Patience
from rljob_trainer.rundir.uploads import Uploads, failing
from support.trainer.checkpoint_store import checkpoints
from support.trainer.s3_server import CuttingProxy, S3Server
from support.trainer.saved_run import checkpoint, saved_run
from support.waiting import until

PLACE = "s3://bucket/runs/sums"
IMPATIENT = Patience(longest_s=0.0)


def nothing(*_: object) -> None:
    """Take any call."""


@pytest.fixture
def remote(server: S3Server) -> RemoteCheckpoints:
    return remote_of(PLACE, server.environ())


@pytest.fixture
def there(server: S3Server) -> Path:
    """Where the server keeps the checkpoints."""
    return server.directory / "bucket" / "runs" / "sums"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run with checkpoints of steps 2 and 4."""
    return saved_run(tmp_path / "run", steps=4, interval=2)


@pytest.fixture
def uploads_to(run: Path, server: S3Server) -> Iterator[Callable[[Callable[[], RemoteCheckpoints]], Uploads]]:
    made: list[Uploads] = []

    def uploading(connect: Callable[[], RemoteCheckpoints]) -> Uploads:
        made.append(Uploads(PLACE, connect, run, 2, nothing, first_pause_s=0.05, longest_pause_s=0.05))
        return made[-1]

    yield uploading
    for each in made:
        each.close()


def wish(**changed: object) -> sections.Checkpoint:
    return sections.Checkpoint(remote=PLACE, **changed)  # type: ignore[arg-type]


def brought(directory: Path, server: S3Server, **changed: object) -> None:
    restore(directory, wish(**changed), "origin", server.environ(), IMPATIENT)


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_an_empty_volume_resumes_from_the_store(
    run: Path, remote: RemoteCheckpoints, server: S3Server, tmp_path: Path
) -> None:
    for step in (2, 4):
        remote.upload(run, checkpoint(run, step), 2, nothing)
    assert sorted(remote.whole()) == [2, 4]
    empty = tmp_path / "empty"
    brought(empty, server)
    start = begin(empty, wish(), "origin")
    assert start.step == 4
    assert start.found is not None
    assert files(start.found.path) == files(checkpoint(run, 4))
    journal = Journal(empty / "journal.jsonl")
    journal.rewind(4, name_of(4))
    assert (empty / "journal.jsonl").read_bytes() == (run / "journal.jsonl").read_bytes()


def test_a_named_step_is_restored(run: Path, remote: RemoteCheckpoints, server: S3Server, tmp_path: Path) -> None:
    for step in (2, 4):
        remote.upload(run, checkpoint(run, step), 2, nothing)
    brought(tmp_path / "empty", server, resume_step=2)
    assert begin(tmp_path / "empty", wish(resume_step=2), "origin").step == 2


def test_a_volume_with_checkpoints_asks_no_store(run: Path, server: S3Server) -> None:
    server.stop()
    brought(run, server)
    assert begin(run, wish(), "origin").step == 4


def test_half_an_upload_is_never_used(run: Path, remote: RemoteCheckpoints, there: Path, tmp_path: Path) -> None:
    remote.upload(run, checkpoint(run, 2), 2, nothing)

    def die(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remote.upload(run, checkpoint(run, 4), 2, die)
    assert sorted(remote.whole()) == [2]
    remote.upload(run, checkpoint(run, 4), 2, nothing)
    assert sorted(remote.whole()) == [2, 4]
    (there / name_of(4) / MANIFEST).unlink()
    assert remote.restore(tmp_path / "empty", None, nothing) == tmp_path / "empty" / DIRECTORY / name_of(2)


def test_only_the_newest_stay_and_half_uploads_before_them_go(
    run: Path, remote: RemoteCheckpoints, there: Path
) -> None:
    remote.upload(run, checkpoint(run, 2), 1, nothing)
    half = there / name_of(1)
    half.mkdir()
    (half / "common.pt").write_bytes(b"half")
    remote.upload(run, checkpoint(run, 4), 1, nothing)
    assert sorted(path.name for path in there.iterdir() if path.is_dir()) == [name_of(4)]


def test_what_was_damaged_in_the_store_is_passed_over(
    run: Path, remote: RemoteCheckpoints, there: Path, tmp_path: Path
) -> None:
    for step in (2, 4):
        remote.upload(run, checkpoint(run, step), 2, nothing)
    weights = next(path for path in (there / name_of(4)).iterdir() if path.name.endswith(".distcp"))
    weights.write_bytes(weights.read_bytes()[::-1])
    restored = remote.restore(tmp_path / "empty", None, nothing)
    assert restored is not None
    assert checked(restored).step == 2
    shutil.rmtree(tmp_path / "empty")
    (there / name_of(2) / MANIFEST).write_text("{}")
    with pytest.raises(CheckpointError, match="no checkpoint can be read"):
        remote.restore(tmp_path / "empty", None, nothing)


def test_later_checkpoints_of_a_past_that_was_given_up_are_set_aside(
    run: Path, remote: RemoteCheckpoints, there: Path
) -> None:
    remote.upload(run, checkpoint(run, 4), 2, nothing)
    remote.upload(run, checkpoint(run, 2), 2, nothing)
    assert sorted(remote.whole()) == [2]
    assert (there / name_of(4) / ASIDE).is_file()
    remote.upload(run, checkpoint(run, 4), 2, nothing)
    assert sorted(remote.whole()) == [2, 4]
    assert not (there / name_of(4) / ASIDE).exists()


def test_a_fresh_start_refuses_a_place_with_checkpoints(
    run: Path, remote: RemoteCheckpoints, server: S3Server, tmp_path: Path
) -> None:
    brought(tmp_path / "new", server, resume=Resume.FRESH)
    remote.upload(run, checkpoint(run, 2), 2, nothing)
    with pytest.raises(CheckpointError, match=r"holds checkpoints, the newest of step 2, .* name another place"):
        brought(tmp_path / "new", server, resume=Resume.FRESH)


@pytest.mark.parametrize(
    ("variable", "value", "error", "rule"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong", RemoteError, "SIGNATURE_DOES_NOT_MATCH"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", RemoteAwayError, "cannot be reached"),
    ],
)
def test_a_store_that_cannot_be_asked_is_not_an_empty_one(
    server: S3Server, tmp_path: Path, variable: str, value: str, error: type[RemoteError], rule: str
) -> None:
    with pytest.raises(error, match=rule):
        restore(tmp_path / "new", wish(), "origin", server.environ() | {variable: value}, IMPATIENT)


def test_a_bucket_that_is_gone_is_not_an_empty_one(server: S3Server, tmp_path: Path) -> None:
    (server.directory / "bucket").rmdir()
    with pytest.raises(NotThereError, match="s3://bucket"):
        brought(tmp_path / "new", server)


def test_a_restore_that_was_cut_continues(run: Path, remote: RemoteCheckpoints, there: Path, tmp_path: Path) -> None:
    remote.upload(run, checkpoint(run, 4), 2, nothing)

    def die(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remote.restore(tmp_path / "empty", None, die)
    assert begin(tmp_path / "empty", wish(), "origin").found is None
    assert remote.restore(tmp_path / "empty", None, nothing) is not None
    assert [path.name for path in (tmp_path / "empty" / DIRECTORY).iterdir()] == [name_of(4)]


def test_uploads_go_through_cut_connections(
    run: Path, server: S3Server, proxy: CuttingProxy, remote: RemoteCheckpoints, uploads_to
) -> None:
    uploads = uploads_to(lambda: remote_of(PLACE, server.environ(proxy.port)))
    proxy.cuts, proxy.after = 6, 200
    uploads.offer(checkpoint(run, 4))
    assert uploads.finish(60.0, nothing)
    assert proxy.cuts == 0
    assert sorted(remote.whole()) == [4]


def test_a_server_that_is_away_is_trouble_until_it_is_back(
    run: Path, server: S3Server, remote: RemoteCheckpoints, uploads_to
) -> None:
    server.stop()
    uploads = uploads_to(lambda: remote)
    uploads.offer(checkpoint(run, 2))
    until(lambda: uploads.trouble is not None)
    assert uploads.uses(checkpoint(run, 2))
    finding = failing(PLACE, str(uploads.trouble))
    assert finding.evidence.startswith(f"spec.checkpoint.remote {PLACE}: {PLACE}/")
    assert not uploads.finish(0.1, nothing)
    uploads.offer(checkpoint(run, 4))
    server.start()
    assert uploads.finish(60.0, nothing)
    assert (uploads.trouble, uploads.step) == (None, 4)
    assert 4 in remote.whole()
    assert not uploads.uses(checkpoint(run, 4))


def test_the_end_of_an_attempt_stops_an_upload_between_two_parts(
    run: Path, remote: RemoteCheckpoints, uploads_to
) -> None:
    reached, leaves = threading.Event(), threading.Event()

    def held() -> RemoteCheckpoints:
        reached.set()
        assert leaves.wait(60)
        return remote

    uploads = uploads_to(held)
    uploads.offer(checkpoint(run, 4))
    assert reached.wait(60)
    uploads.close()
    leaves.set()
    until(lambda: not uploads.alive)
    assert remote.whole() == {}


class Report:
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self.fails = False

    def progress(self) -> SimpleNamespace:
        return SimpleNamespace(step=1)

    def uploaded(self, step: int | None, is_failing: bool) -> bool:
        changed, self.fails = is_failing != self.fails, is_failing
        return changed

    def found(self, finding: Finding, step: int) -> None:
        self.findings.append(finding.name)


def test_training_continues_while_the_store_is_away_and_the_end_waits_for_the_upload(
    server: S3Server, remote: RemoteCheckpoints, tmp_path: Path, uploads_to
) -> None:
    uploads, report = uploads_to(lambda: remote), Report()
    local = checkpoints(tmp_path / "new" / DIRECTORY, keep=1)
    local.saved = lambda _, path, __: uploads.offer(path)
    local.uses = uploads.uses
    both = WithUploads(local, uploads, report, nothing)
    server.stop()
    for step in (1, 2, 3):
        both.begin(step)
        both.settle()
        until(lambda: uploads.trouble is not None)
        both.check()
    assert report.findings == ["CheckpointUploadFailing"]
    server.start()
    saved = both.save(4)
    assert saved.name == name_of(4)
    assert max(remote.whole()) == 4
    assert not report.fails

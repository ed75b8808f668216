"""`rljob runs`: which directories are runs, and what is said of each. No link is followed, no pipe waited for."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_cli.main import app
from rljob_cli.run.rundir import LOCK, RunDirectory, locked
from rljob_cli.volume.bounds import DEPTH
from rljob_cli.volume.extent import Budget
from rljob_cli.volume.listing import Listing, listing
from rljob_trainer.reporting.events import EventLog
from rljob_trainer.reporting.records import RunRecord
from support.cli.run_directories import NOW, aged, budget, run_directory


def listed(directory: Path, depth: int = DEPTH, within: Budget | None = None) -> Listing:
    return listing(directory, depth, within or budget(), NOW)


def names(found: Listing) -> list[str]:
    return [str(run.path.relative_to(found.directory)) for run in found.runs]


def test_runs_come_by_size_with_what_their_files_say(tmp_path: Path):
    run_directory(tmp_path / "ml" / "small", num_bytes=10)
    run_directory(tmp_path / "ml" / "large", num_bytes=5000, outcome="failed")
    (tmp_path / "data" / "rows").mkdir(parents=True)
    found = listed(tmp_path)
    assert names(found) == ["ml/large", "ml/small"]
    run = found.runs[0]
    assert run.progress is not None
    assert (run.progress.namespace, run.progress.job) == ("ml", "large")
    assert (run.progress.step, run.progress.steps, run.outcome) == (20, 20, "failed")
    assert (run.origin, run.attempt, run.in_use) == ("uid-1", 2, "")
    assert run.extent.num_bytes == sum(each.stat().st_size for each in run.path.rglob("*") if each.is_file())
    assert NOW - run.extent.changed == 40 * 86_400
    assert not found.gaps


def test_a_driver_that_beats_uses_its_directory(tmp_path: Path):
    run_directory(tmp_path / "a", beat_age_s=60, outcome=None)
    (run,) = listed(tmp_path).runs
    assert (run.in_use, run.outcome) == ("a driver, 60s ago", "running")


def test_a_driver_without_a_beat_uses_nothing(tmp_path: Path):
    run_directory(tmp_path / "a", beat_age_s=901, outcome=None)
    (run,) = listed(tmp_path).runs
    assert (run.in_use, run.outcome) == ("", "unknown")


def test_a_supervisor_uses_its_directory_and_keeps_its_lock(tmp_path: Path):
    run = RunDirectory(run_directory(tmp_path / "a"))
    with locked(run):
        assert listed(tmp_path).runs[0].in_use == "rljob run"
    assert listed(tmp_path).runs[0].in_use == ""


def test_the_last_start_counts(tmp_path: Path):
    run = run_directory(tmp_path / "a")
    log = EventLog(run / "events.jsonl")
    log.record(RunRecord(time=5.0, job="a", model="m", task="t", steps=40, attempt=2, step=10, manifest={}))
    log.close()
    (found,) = listed(tmp_path).runs
    assert found.progress is not None
    assert (found.progress.step, found.progress.steps, found.progress.outcome) == (10, 40, None)


@pytest.mark.parametrize(
    "content", [b"", b"{}\n", b'{"kind":"run"\n', b'{"kind":"end","time":1}\n', b"\xff\n", b"[" * 9999]
)
def test_other_files_of_that_name_make_no_run(tmp_path: Path, content: bytes):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "events.jsonl").write_bytes(content)
    (tmp_path / "a" / "driver.json").write_bytes(content)
    assert names(listed(tmp_path)) == []


def test_a_run_with_damaged_events_is_one_whose_progress_is_unknown(tmp_path: Path):
    run = run_directory(tmp_path / "a")
    (run / "events.jsonl").write_text("damaged\n")
    (found,) = listed(tmp_path).runs
    assert (found.progress, found.outcome) == (None, "unknown")


def test_links_are_not_followed(tmp_path: Path):
    run_directory(tmp_path / "elsewhere" / "a", num_bytes=5000)
    volume = tmp_path / "volume"
    run = run_directory(volume / "b", num_bytes=1)
    (volume / "a").symlink_to(tmp_path / "elsewhere" / "a")
    (run / "data").symlink_to(tmp_path / "elsewhere")
    found = listed(volume)
    assert names(found) == ["b"]
    assert found.num_bytes < 5000


@pytest.mark.parametrize("name", ["driver.json", "events.jsonl"])
def test_a_link_to_a_file_of_a_run_makes_no_run(tmp_path: Path, name: str):
    run = run_directory(tmp_path / "outside" / "a")
    (tmp_path / "volume" / "b").mkdir(parents=True)
    (tmp_path / "volume" / "b" / name).symlink_to(run / name)
    assert names(listed(tmp_path / "volume")) == []


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["driver.json", "events.jsonl", LOCK])
def test_pipes_are_not_waited_for(tmp_path: Path, name: str):
    run = run_directory(tmp_path / "a")
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    assert names(listed(tmp_path)) == ["a"]


def test_a_file_with_two_names_counts_once(tmp_path: Path):
    run = run_directory(tmp_path / "a", num_bytes=5000, steps=(10,))
    (run / "copy").hardlink_to(run / "checkpoints" / "iter_0000010" / "weights")
    assert 5000 < listed(tmp_path).num_bytes < 10_000


def test_directories_with_a_dot_and_what_is_inside_a_run_are_no_runs(tmp_path: Path):
    run_directory(tmp_path / ".cache")
    run_directory(run_directory(tmp_path / "a") / "inner")
    assert names(listed(tmp_path)) == ["a"]


def test_the_directory_itself_may_be_a_run(tmp_path: Path):
    assert names(listed(run_directory(tmp_path / "a"))) == ["."]


def test_what_lies_too_deep_is_said(tmp_path: Path):
    run_directory(tmp_path / "one" / "two" / "a")
    assert names(listed(tmp_path, depth=3)) == ["one/two/a"]
    found = listed(tmp_path, depth=2)
    assert names(found) == []
    assert found.gaps == (f"{tmp_path}: directories 2 levels down, 1 of them; --depth looks deeper",)


def test_the_walk_ends_at_its_limit_of_entries_and_says_so(tmp_path: Path):
    for name in "abc":
        run_directory(tmp_path / name)
    found = listed(tmp_path, within=Budget(10, 60.0))
    assert names(found)
    assert f"{tmp_path / 'c'}: the limit of entries or seconds was reached" in found.gaps


def test_the_walk_ends_at_its_limit_of_time(tmp_path: Path):
    run_directory(tmp_path / "a")
    seconds = iter(range(1000))
    found = listed(tmp_path, within=Budget(1000, 3.0, clock=lambda: float(next(seconds))))
    assert len(found.gaps) == 1


def test_the_verb_shows_a_table_and_json(tmp_path: Path):
    run_directory(tmp_path / "ml" / "sums", num_bytes=3 * 2**20)
    table = CliRunner().invoke(app, ["runs", str(tmp_path)])
    assert table.exit_code == Exit.OK
    head, row, total = table.stdout.splitlines()
    assert head.split() == ["RUN", "JOB", "STEPS", "OUTCOME", "SIZE", "OWNER", "CHANGED", "IN", "USE"]
    assert row.split()[:6] == ["ml/sums", "ml/sums", "20/20", "finished", "6.0", "MiB"]
    assert total == "1 run, 6.0 MiB"
    for option in ("--json", "-ojson"):
        shown = json.loads(CliRunner().invoke(app, ["runs", "list", str(tmp_path), option]).stdout)
        assert [(run["path"], run["step"], run["inUse"]) for run in shown["runs"]] == [
            (str(tmp_path / "ml/sums"), 20, None)
        ]


def test_a_directory_without_runs_is_said(tmp_path: Path):
    assert CliRunner().invoke(app, ["runs", str(tmp_path)]).stdout == "0 runs, 0 B\n"


def test_a_directory_that_is_not_there_is_a_wrong_command_line(tmp_path: Path):
    assert CliRunner().invoke(app, ["runs", str(tmp_path / "absent")]).exit_code == Exit.USAGE


def test_a_name_cannot_steer_the_terminal(tmp_path: Path):
    aged(run_directory(tmp_path / "a\x1b[31m"), 0)
    assert "\x1b" not in CliRunner().invoke(app, ["runs", str(tmp_path)]).stdout

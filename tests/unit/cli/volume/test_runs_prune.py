"""`rljob runs prune`: deletes old runs that are not in use and no other thing, wholly or so that a retry can end it."""

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_cli.main import app
from rljob_cli.run.rundir import RunDirectory, locked
from rljob_cli.volume import pruning
from rljob_cli.volume.bounds import DEPTH
from rljob_cli.volume.extent import Budget
from rljob_cli.volume.listing import listing
from rljob_cli.volume.pruning import KeptError, Pruning, Rule
from support.cli.command import environment
from support.cli.run_directories import DAY_S, NOW, aged, budget, checkpoint, run_directory, tree

OLD = Rule(older_than_s=30 * DAY_S, keeps_last=False)
LAST = Rule(older_than_s=30 * DAY_S, keeps_last=True)


def planned(directory: Path, rule: Rule = OLD, within: Budget | None = None) -> Pruning:
    return pruning.pruning(listing(directory, DEPTH, within or budget(), NOW), rule, budget, NOW)


def pruned(directory: Path, rule: Rule = OLD) -> tuple[list[Path], list[str]]:
    return pruning.carry_out(planned(directory, rule), budget, lambda: NOW)


def reasons(plan: Pruning) -> list[str]:
    assert not plan.doomed
    return [each.reason for each in plan.kept]


def prune(*arguments: str | Path) -> "tuple[int, str]":
    result = CliRunner().invoke(app, ["runs", "prune", *map(str, arguments)])
    return result.exit_code, result.output


def test_old_runs_are_deleted_and_all_else_stays(tmp_path: Path):
    old = run_directory(tmp_path / "ml" / "old")
    run_directory(tmp_path / "ml" / "new", age_s=29 * DAY_S)
    (tmp_path / "ml" / "data").mkdir()
    (tmp_path / "ml" / "data" / "rows.jsonl").write_text("{}")
    os.utime(tmp_path / "ml" / "data" / "rows.jsonl", (0, 0))
    before = tree(tmp_path)
    gone = {f"ml/old/{name}" for name in tree(old)} | {"ml/old"}
    assert pruned(tmp_path) == ([old], [])
    assert tree(tmp_path) == before - gone


def test_a_single_young_file_keeps_a_run(tmp_path: Path):
    run = run_directory(tmp_path / "a")
    os.utime(run / "logs" / "file", (NOW - DAY_S, NOW - DAY_S))
    assert reasons(planned(tmp_path)) == ["was changed 24h ago"]


def test_a_change_in_the_future_keeps_a_run(tmp_path: Path):
    run_directory(tmp_path / "a", age_s=-DAY_S, beat_age_s=DAY_S)
    assert reasons(planned(tmp_path, Rule(0, keeps_last=False))) == ["was changed 0s ago"]


def test_a_driver_at_work_keeps_a_run(tmp_path: Path):
    run_directory(tmp_path / "a", beat_age_s=60)
    assert reasons(planned(tmp_path, Rule(0, keeps_last=False))) == ["is in use by a driver, 60s ago"]


def test_a_supervisor_keeps_a_run(tmp_path: Path):
    run = RunDirectory(run_directory(tmp_path / "a"))
    with locked(run):
        aged(run.path, 40 * DAY_S)
        assert reasons(planned(tmp_path)) == ["is in use by rljob run"]


def test_a_supervisor_that_comes_after_the_question_keeps_a_run(tmp_path: Path):
    run = RunDirectory(run_directory(tmp_path / "a"))
    plan = planned(tmp_path)
    with locked(run):
        aged(run.path, 40 * DAY_S)
        deleted, failures = pruning.carry_out(plan, budget, lambda: NOW)
    assert (deleted, failures) == ([], [f"{run.path}: is in use by rljob run"])
    assert (run.path / "driver.json").is_file()


def test_a_run_that_is_resumed_after_the_question_stays(tmp_path: Path):
    run = run_directory(tmp_path / "a")
    plan = planned(tmp_path)
    aged(run, 40 * DAY_S, beat_age_s=1)
    assert pruning.carry_out(plan, budget, lambda: NOW) == ([], [f"{run}: is in use by a driver, 1s ago"])
    assert (run / "driver.json").is_file()


@pytest.mark.parametrize("rule", [OLD, LAST])
def test_another_directory_by_the_same_name_stays(tmp_path: Path, rule: Rule):
    run = run_directory(tmp_path / "a")
    plan = planned(tmp_path, rule)
    run.rename(tmp_path / "moved")
    run_directory(tmp_path / "a")
    assert pruning.carry_out(plan, budget, lambda: NOW) == ([], [f"{run}: is another directory now"])
    assert (run / "rollouts").is_dir()


def test_a_run_that_has_gone_meanwhile_is_said(tmp_path: Path):
    run = run_directory(tmp_path / "a")
    plan = planned(tmp_path)
    shutil.rmtree(run)
    deleted, failures = pruning.carry_out(plan, budget, lambda: NOW)
    assert deleted == []
    assert "No such file or directory" in failures[0]


def test_a_run_around_another_one_stays(tmp_path: Path):
    run_directory(run_directory(tmp_path / "a") / "inner")
    aged(tmp_path / "a", 40 * DAY_S)
    assert reasons(planned(tmp_path)) == ["has another run inside"]


def test_a_run_that_was_not_seen_whole_stays(tmp_path: Path):
    run_directory(tmp_path / "a")
    plan = planned(tmp_path, within=Budget(5, 60.0))
    assert reasons(plan) == ["was not seen whole: the limit of entries or seconds was reached"]


def test_the_second_look_has_the_limits_of_the_first(tmp_path: Path):
    run = run_directory(tmp_path / "a")
    deleted, failures = pruning.carry_out(planned(tmp_path), lambda: Budget(5, 60.0), lambda: NOW)
    assert (deleted, failures) == (
        [],
        [f"{run}: was not seen whole: the limit of entries or seconds was reached"],
    )


def test_the_named_directory_itself_stays(tmp_path: Path):
    run = run_directory(tmp_path / "a")
    assert reasons(planned(run)) == ["is the directory itself: name the one above it"]


def test_what_links_lead_to_stays(tmp_path: Path):
    outside = run_directory(tmp_path / "outside" / "b")
    run = run_directory(tmp_path / "volume" / "a")
    (run / "data").symlink_to(tmp_path / "outside")
    (run / "checkpoints" / "link").symlink_to(outside)
    (tmp_path / "volume" / "b").symlink_to(outside)
    aged(run, 40 * DAY_S)
    before = tree(outside)
    assert pruned(tmp_path / "volume") == ([run], [])
    assert tree(outside) == before
    assert (tmp_path / "volume" / "b").is_symlink()


def test_a_link_that_takes_the_place_of_a_directory_on_the_way_is_not_followed(tmp_path: Path):
    run = run_directory(tmp_path / "volume" / "ml" / "a")
    plan = planned(tmp_path / "volume")
    run.parent.rename(tmp_path / "ml")
    (tmp_path / "volume" / "ml").symlink_to(tmp_path / "ml")
    deleted, failures = pruning.carry_out(plan, budget, lambda: NOW)
    assert deleted == []
    assert len(failures) == 1
    assert (tmp_path / "ml" / "a" / "driver.json").is_file()


def test_an_interrupted_deletion_leaves_no_run_and_the_next_one_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run_directory(tmp_path / "ml" / "a")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            pruned(tmp_path)
    found = listing(tmp_path, DEPTH, budget(), NOW)
    assert found.runs == ()
    assert len(found.leftovers) == 1
    assert pruned(tmp_path) == ([found.leftovers[0].path], [])
    assert tree(tmp_path) == {"ml"}


def test_what_may_not_be_deleted_is_said_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = run_directory(tmp_path / "a")

    def refused(name: str, onerror: Callable[..., None], dir_fd: int) -> None:
        for error in (FileNotFoundError(2, "gone"), PermissionError(13, "Permission denied")):
            onerror(os.unlink, name, (type(error), error, None))

    monkeypatch.setattr(shutil, "rmtree", refused)
    deleted, (failure,) = pruned(tmp_path)
    (left,) = tmp_path.iterdir()
    assert deleted == []
    assert failure == f"{run}: not all could be deleted: Permission denied; the rest is in {left}"


def test_the_last_checkpoint_and_the_records_stay(tmp_path: Path):
    run = run_directory(tmp_path / "a", steps=(10, 20, 100))
    for name in (
        "set-aside",
        "set-aside.2",
        "cores",
        "checkpoints/saving-iter_0000200",
        "checkpoints/damaged-iter_0000030",
    ):
        (run / name).mkdir()
        (run / name / "file").write_text("x")
    (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("100")
    aged(run, 40 * DAY_S)
    plan = planned(tmp_path, LAST)
    assert plan.num_bytes == sum(each.stat().st_size for path in plan.doomed[0].paths for each in path.rglob("*"))
    assert pruned(tmp_path, LAST) == ([run], [])
    assert {name.name for name in run.iterdir()} == {"driver.json", "events.jsonl", "logs", "checkpoints"}
    assert {name.name for name in (run / "checkpoints").iterdir()} == {
        "iter_0000100",
        "latest_checkpointed_iteration.txt",
    }


def test_nothing_is_left_to_delete_after_that(tmp_path: Path):
    run = run_directory(tmp_path / "a")
    pruned(tmp_path, LAST)
    aged(run, 40 * DAY_S)
    assert reasons(planned(tmp_path, LAST)) == ["has nothing but its last checkpoint"]


def lacks_a_file(newest: Path) -> None:
    (newest / "weights").unlink()


def has_no_manifest(newest: Path) -> None:
    (newest / "rljob.json").unlink()


def has_a_damaged_manifest(newest: Path) -> None:
    (newest / "rljob.json").write_text("[" * 99_999)


def has_the_manifest_of_another(newest: Path) -> None:
    (newest / "rljob.json").write_text(json.dumps({"step": 10, "files": {"weights": "0"}}))


@pytest.mark.parametrize("damage", [lacks_a_file, has_no_manifest, has_a_damaged_manifest, has_the_manifest_of_another])
def test_the_one_before_a_damaged_checkpoint_stays_beside_it(tmp_path: Path, damage: Callable[[Path], None]):
    run = run_directory(tmp_path / "a", steps=(5, 10, 20))
    damage(run / "checkpoints" / "iter_0000020")
    aged(run, 40 * DAY_S)
    pruned(tmp_path, LAST)
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"iter_0000010", "iter_0000020"}


def test_checkpoints_behind_a_link_stay(tmp_path: Path):
    run = run_directory(tmp_path / "volume" / "a", steps=())
    checkpoint(tmp_path / "outside", 10, 1)
    checkpoint(tmp_path / "outside", 20, 1)
    (run / "checkpoints").symlink_to(tmp_path / "outside" / "checkpoints")
    aged(run, 40 * DAY_S)
    assert pruned(tmp_path / "volume", LAST) == ([run], [])
    assert {path.name for path in (tmp_path / "outside" / "checkpoints").iterdir()} == {"iter_0000010", "iter_0000020"}


def test_a_run_without_checkpoints_keeps_its_records(tmp_path: Path):
    run = run_directory(tmp_path / "a", steps=())
    assert pruned(tmp_path, LAST) == ([run], [])
    assert {path.name for path in run.iterdir()} == {"driver.json", "events.jsonl", "logs"}


def test_removing_what_leads_out_is_refused(tmp_path: Path):
    (tmp_path / "volume").mkdir()
    (tmp_path / "outside" / "a").mkdir(parents=True)
    (tmp_path / "volume" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        pruning.remove(tmp_path / "volume" / "link" / "a", tmp_path / "volume")
    assert (tmp_path / "outside" / "a").is_dir()


def test_removing_another_directory_than_the_one_that_was_seen_is_refused(tmp_path: Path):
    (tmp_path / "a").mkdir()
    with pytest.raises(KeptError, match="is another directory now"):
        pruning.remove(tmp_path / "a", tmp_path, (0, 0))
    assert (tmp_path / "a").is_dir()


def test_the_verb_only_shows_what_it_would_delete(tmp_path: Path):
    run_directory(tmp_path / "a", num_bytes=2**20, age_s=1)
    code, output = prune(tmp_path, "--older-than", "30d")
    assert code == Exit.OK
    assert "to delete: 1 run, 2.0 MiB\nnothing was deleted; --yes deletes it\n" in output
    assert (tmp_path / "a").is_dir()


def test_the_verb_deletes_with_yes(tmp_path: Path):
    run_directory(tmp_path / "a")
    run_directory(tmp_path / "b")
    os.utime(tmp_path / "b" / "driver.json")
    code, output = prune(tmp_path, "--older-than", "30d", "--yes")
    assert code == Exit.OK
    assert "kept: 1 run, is in use by a driver\n" in output
    assert output.endswith("deleted: 1 of 1\n")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_json_deletes_only_with_yes_and_says_what_was_deleted(tmp_path: Path):
    run_directory(tmp_path / "a")
    for option, deleted in (((), []), (("--yes",), [str(tmp_path / "a")])):
        _, output = prune(tmp_path, "--older-than", "30d", "-o", "json", *option)
        assert [each["run"] for each in json.loads(output)["toDelete"]] == [str(tmp_path / "a")]
        assert json.loads(output)["deleted"] == deleted


@pytest.mark.parametrize(("answer", "is_deleted"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_a_terminal_is_asked(tmp_path: Path, answer: str, is_deleted: bool):
    run_directory(tmp_path / "a")
    terminal, there = pty.openpty()
    os.write(terminal, answer.encode())
    command = [sys.executable, "-m", "rljob_cli.main", "runs", "prune", str(tmp_path), "--older-than", "30d"]
    done = subprocess.run(command, env=environment(), stdin=there, capture_output=True, text=True, check=False)
    assert "Delete it? [y/N]:" in done.stdout
    assert (tmp_path / "a").exists() is not is_deleted


@pytest.mark.parametrize("wrong", ["30", "d", "-1d", "1y", "1.5d", ""])
def test_a_time_needs_a_unit(tmp_path: Path, wrong: str):
    run_directory(tmp_path / "a")
    code, output = prune(tmp_path, "--yes", f"--older-than={wrong}")
    assert code == Exit.USAGE
    assert "30d" in output
    assert (tmp_path / "a").is_dir()


def test_without_a_time_nothing_is_pruned(tmp_path: Path):
    run_directory(tmp_path / "a")
    code, _ = prune(tmp_path, "--yes")
    assert code == Exit.USAGE
    assert (tmp_path / "a").is_dir()

"""What can be said of a run's files without the run."""

import os
from pathlib import Path

import pytest

from rljob_trainer.rundir.inspection import CheckpointFacts, JournalFacts, NothingFoundError, RolloutFacts, inspect
from support.trainer.saved_run import checkpoint, damage, saved_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return saved_run(tmp_path / "run", steps=5, interval=2)


def contents_of(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_run_s_directory_leads_to_all_that_is_in_it_and_nothing_is_changed(run):
    (run / "journal.jsonl").open("a").write('{"event":"iss')
    before = contents_of(run)
    found = inspect(run)
    assert [type(facts) for facts in found] == [CheckpointFacts, CheckpointFacts, JournalFacts, RolloutFacts]
    assert [facts.problems for facts in found] == [()] * 4
    assert contents_of(run) == before


def test_a_checkpoint_says_what_it_is_and_that_it_is_as_it_was_written(run):
    (facts,) = inspect(checkpoint(run, 4))
    assert (facts.step, facts.layout, facts.precision) == (4, "tensor 1 x pipeline 1 x data 2", "fp32")
    assert (facts.model, facts.data, facts.prompts) == ("model", "abc", (0, 32))
    assert [(file.name, file.size, file.state) for file in facts.files] == [
        ("__0_0.distcp", 7, "verified"),
        ("common.pt", 6, "verified"),
    ]


def test_a_damaged_checkpoint_names_the_files(run):
    damage(run, 4)
    (checkpoint(run, 4) / "common.pt").unlink()
    (checkpoint(run, 4) / "notes.txt").write_text("mine")
    (facts,) = inspect(checkpoint(run, 4))
    assert {file.name: file.state for file in facts.files} == {
        "__0_0.distcp": "changed",
        "common.pt": "missing",
        "notes.txt": "not listed",
    }
    assert "missing files ['common.pt'], changed files ['__0_0.distcp']" in facts.problems[0]


def test_a_checkpoint_without_its_manifest_is_damaged_and_its_files_are_shown(run):
    (checkpoint(run, 4) / "rljob.json").unlink()
    (facts,) = inspect(checkpoint(run, 4))
    assert (facts.step, facts.layout, len(facts.files)) == (4, None, 2)
    assert facts.problems[0].endswith("rljob.json is not there")


def test_a_file_that_the_disk_does_not_give_is_damage(run):
    (checkpoint(run, 4) / "common.pt").unlink()
    (checkpoint(run, 4) / "common.pt").symlink_to("/proc/self/mem")
    (facts,) = inspect(checkpoint(run, 4))
    assert (facts.path, facts.step) == (str(checkpoint(run, 4)), 4)
    assert facts.problems[0].startswith(f"{facts.path}: a file cannot be read: ")


def test_a_checkpoint_that_was_set_aside_can_be_looked_at_too(run):
    (checkpoint(run, 4) / "rljob.json").unlink()
    aside = checkpoint(run, 4).rename(run / "checkpoints" / "damaged-iter_0000004")
    copied = checkpoint(run, 2).rename(run / "copy")
    assert inspect(aside)[0].step == 4
    assert (inspect(copied)[0].step, inspect(copied)[0].problems) == (2, ())


def test_a_journal_counts_what_was_issued_consumed_and_committed(run):
    (facts,) = inspect(run / "journal.jsonl")
    assert (facts.steps, facts.issued, facts.consumed, facts.committed) == (5, 10, 10, 8)
    assert facts.commits == ((2, "iter_0000002"), (4, "iter_0000004"))
    assert (facts.outstanding, facts.torn, facts.problems) == ((), 0, ())


def test_prompts_on_their_way_and_a_torn_line_are_reported(run):
    with (run / "journal.jsonl").open("a") as journal:
        journal.write('{"event":"issued","step":5,"prompts":["0:10","0:11"]}\n{"event"')
    (facts,) = inspect(run / "journal.jsonl")
    assert (facts.outstanding, facts.torn, facts.problems) == (("0:10", "0:11"), 8, ())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"event":"issued","step":5,"prompts":["0:3"]}', "issued prompt 0:3"),
        ('{"event":"consumed","step":5,"prompts":["0:3"]}', "consumed before"),
        ('{"event":"consumed","step":7,"prompts":[]}', "consumed step 7 where 5 was next"),
        ('{"event":"committed","step":9,"checkpoint":"iter_0000009"}', "commit of step 9 after 5 steps"),
        ("garbage", "not a journal record"),
    ],
)
def test_a_journal_that_contradicts_itself_says_where(run, line, said):
    with (run / "journal.jsonl").open("a") as journal:
        journal.write(f"{line}\n")
    (facts,) = inspect(run / "journal.jsonl")
    assert "journal.jsonl:13: " in facts.problems[0]
    assert said in facts.problems[0]


def test_rollouts_count_their_samples_and_show_one(run):
    (facts,) = inspect(run / "rollouts")
    assert [(step.step, step.rounds, step.samples, step.reward, step.tokens) for step in facts.steps][-1] == (
        4, (2,), 4, 0.75, 12
    )  # fmt: skip
    assert facts.sample is not None
    assert (facts.sample.uid, facts.sample.prompt, facts.sample.response) == ("0:8", "Q: 8 + 1 =", "so 2")


def test_a_cut_off_file_of_rollouts_is_damaged_and_the_others_are_not(run):
    path = run / "rollouts" / "step-0000003.jsonl.zst"
    os.truncate(path, path.stat().st_size // 2)
    (facts,) = inspect(run / "rollouts")
    assert [step.step for step in facts.steps if step.problems] == [3]
    (only,) = inspect(run / "rollouts" / "step-0000002.jsonl.zst")
    assert only.problems == ()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("ran", r"looked for a checkpoint \(iter_\*/\), .*ran does not exist; nearest: \S+/run$"),
        ("run/checkpoints/iter_0000006", r"iter_0000006 does not exist; nearest: \S+/iter_000000\d$"),
        ("empty", r"empty is empty$"),
        ("run/checkpoints/iter_0000002/common.pt", r"common.pt is a file$"),
    ],
)
def test_a_wrong_path_says_what_was_looked_for_and_what_is_there(run, wrong, said):
    (run.parent / "empty").mkdir()
    with pytest.raises(NothingFoundError, match=said):
        inspect(run.parent / wrong)

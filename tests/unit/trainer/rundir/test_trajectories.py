"""Kept samples as turns: found from what people name, read one group at a time, told apart by author and weights."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pyarrow
import pytest

from rljob_trainer.rundir import rollout_files
from rljob_trainer.rundir.rollout_files import Dump, DumpError
from rljob_trainer.rundir.trajectories import Author, NothingKeptError, Trajectory, kept, pieces, row, trajectories
from rljob_trainer.samples import Answer, Branch, Group, Prompt, Sample, ScoredGroup, Segment
from support.trainer.saved_run import saved_run

PROMPT = Prompt("0:3", "1 + 1 =", "Q: 1 + 1 =", (4, 5), "2", {})
PLAIN = Sample((7, 8, 9), (-0.1, -0.2, -0.3), "so 2", 3, "stop", "engine-0")
SESSION = Sample(
    tokens_T=(10, 11, 20, 12, 30, 31),
    logprobs_T=(-0.1, -0.2, 0.0, -0.3, -0.4, -0.5),
    text="all of it",
    version=5,
    finish_reason="length",
    engine="engine-1",
    segments=(Segment(2, "call", True), Segment(1, "result", False), Segment(1, "two", True), Segment(2, "else", True)),
    carried=((4, 3), (5, 3)),
    branches=(Branch((1, 2), "first prompt", 4), Branch((1, 2, 3), "second prompt", 2)),
    reward=0.5,
)
"""two branches; new weights came behind the third token"""


TIMED = replace(
    SESSION,
    answers=(
        Answer(0, 2, "stop", "engine-1", began=100.0, seconds=1.5, calls=("look", "add")),
        Answer(3, 1, "abort", "engine-1", began=103.0, seconds=2.0),
        Answer(4, 2, "length", "engine-1", began=103.0, seconds=2.0),
    ),
)
"""its last answer is of two weights"""


def step(directory: Path, *groups: ScoredGroup) -> Dump:
    dump = Dump(directory).rewind(0, {})
    dump.write(3, [groups], {})
    return dump


def scored(*samples: Sample) -> ScoredGroup:
    return ScoredGroup(Group(PROMPT, samples), tuple(float(number) for number in range(len(samples))))


def stored(dump: Dump) -> bytes:
    with pyarrow.input_stream(str(dump.path(3)), compression="zstd") as stream:
        return stream.read()


def put(dump: Dump, content: bytes) -> None:
    with pyarrow.output_stream(str(dump.path(3)), compression="zstd") as stream:
        stream.write(content)


def test_samples_come_back_in_order_with_their_rewards_and_scores(tmp_path: Path) -> None:
    judged = replace(scored(PLAIN), parts_G={"right": (1.0,), "short": (0.5,)})
    read = [*trajectories(step(tmp_path, scored(PLAIN, SESSION), judged), 3)]
    assert [(each.number, each.sample, each.reward) for each in read] == [
        (0, PLAIN, 0.0),
        (1, SESSION, 1.0),
        (2, PLAIN, 0.0),
    ]
    assert read[2].scores == {"right": 1.0, "short": 0.5}
    assert read[0].prompt == PROMPT


def test_samples_that_nothing_judges_have_no_reward(tmp_path: Path) -> None:
    (read,) = trajectories(step(tmp_path, replace(scored(PLAIN), rewards_G=())), 3)
    assert read.reward is None


def test_the_row_of_a_session_counts_turns_branches_and_weights() -> None:
    facts = row(Trajectory(7, PROMPT, SESSION, 0.5))
    assert (facts.turns, facts.branches, facts.tokens, facts.trained_tokens) == (3, 2, 6, 5)
    assert (facts.versions, facts.cut_off, facts.dropped) == ((4, 5), True, False)


def test_the_row_of_a_session_has_its_calls_and_its_time() -> None:
    facts = row(Trajectory(7, PROMPT, TIMED, 0.5))
    assert (facts.turns, facts.calls) == (2, 2), "what other weights have continued is one answer"
    assert (facts.seconds, facts.model_seconds) == (5.0, 3.5)
    untimed = row(Trajectory(7, PROMPT, SESSION, 0.5))
    assert (untimed.calls, untimed.seconds, untimed.model_seconds) == (0, None, None)


def test_answers_stand_at_the_pieces_that_they_made(tmp_path: Path) -> None:
    (read,) = trajectories(step(tmp_path, scored(TIMED)), 3)
    assert read.sample.answers == TIMED.answers
    first, second, third = TIMED.answers
    assert [each.answers for each in pieces(read)] == [(), (first,), (), (second,), (), (third,)]


def test_a_response_without_an_environment_is_one_turn() -> None:
    facts = row(Trajectory(0, PROMPT, PLAIN, 1.0))
    assert (facts.turns, facts.branches, facts.tokens, facts.trained_tokens, facts.versions) == (1, 1, 3, 3, (3,))


def test_the_pieces_of_a_session_have_author_mask_log_probabilities_and_weights() -> None:
    found = [*pieces(Trajectory(0, PROMPT, SESSION, 0.5))]
    assert [(each.author, each.branch, each.text, each.tokens_T) for each in found] == [
        (Author.PROMPT, 0, "first prompt", (1, 2)),
        (Author.MODEL, 0, "call", (10, 11)),
        (Author.ENVIRONMENT, 0, "result", (20,)),
        (Author.MODEL, 0, "two", (12,)),
        (Author.PROMPT, 1, "second prompt", (1, 2, 3)),
        (Author.MODEL, 1, "else", (30, 31)),
    ]
    assert [each.trained for each in found] == [False, True, False, True, False, True]
    assert [each.logprobs_T for each in found] == [(), (-0.1, -0.2), (), (-0.3,), (), (-0.4, -0.5)]
    assert [each.versions for each in found] == [(), ((4, 2),), (), ((5, 1),), (), ((5, 2),)]


def test_weights_that_change_within_an_answer_are_both_named() -> None:
    carried = replace(PLAIN, carried=((2, 1), (3, 2)))
    assert [*pieces(Trajectory(0, PROMPT, carried, 1.0))][-1].versions == ((2, 1), (3, 2))


def test_nothing_of_a_dropped_sample_is_trained_on() -> None:
    dropped = Trajectory(0, PROMPT, replace(SESSION, dropped=True), 0.5)
    assert not any(each.trained for each in pieces(dropped))
    assert row(dropped).trained_tokens == 0


def test_one_group_is_read_at_a_time(tmp_path: Path) -> None:
    dump = step(tmp_path, scored(PLAIN), scored(SESSION), scored(PLAIN))
    header, first, *_ = stored(dump).splitlines(keepends=True)
    put(dump, header + first + b"{not JSON\n" * 3)
    (read,) = islice(trajectories(dump, 3), 1)
    assert read.sample == PLAIN
    with pytest.raises(DumpError, match="line 3: damaged or cut off"):
        list(trajectories(dump, 3))


@pytest.mark.parametrize("damage", [lambda text: text.replace(b'"so 2"', b'"so 3"'), lambda text: text[:-20]])
def test_what_only_the_end_of_a_file_shows_is_an_error_behind_the_last_sample(tmp_path: Path, damage) -> None:
    dump = step(tmp_path, scored(PLAIN))
    put(dump, damage(stored(dump)))
    read = trajectories(dump, 3)
    next(read)
    with pytest.raises(DumpError, match="damaged or cut off"):
        list(read)


def test_a_file_that_lacks_its_digest_is_damaged(tmp_path: Path) -> None:
    dump = step(tmp_path, scored(PLAIN), scored(SESSION))
    put(dump, b"".join(stored(dump).splitlines(keepends=True)[:-1]))
    with pytest.raises(DumpError, match="xxh3_128"):
        list(trajectories(dump, 3))


@pytest.mark.parametrize("content", [b"", b"\n", b"[]\n", b'{"format": "other"}\n{}\n'])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    dump = step(tmp_path, scored(PLAIN))
    put(dump, content)
    with pytest.raises(DumpError, match="step 3"):
        list(trajectories(dump, 3))


@pytest.mark.parametrize("field", ["prompt", "samples", "rewards_G", "parts_G"])
def test_a_group_without_a_field_is_refused_by_its_line(tmp_path: Path, field: str) -> None:
    dump = step(tmp_path, scored(PLAIN))
    put(dump, stored(dump).replace(f'"{field}"'.encode(), b'"other"'))
    with pytest.raises(DumpError, match="line 2: not a group of samples: KeyError"):
        list(trajectories(dump, 3))


def test_a_line_that_is_too_long_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = step(tmp_path, scored(PLAIN))
    monkeypatch.setattr(rollout_files, "MOST_OF_A_GROUP", 200)
    with pytest.raises(DumpError, match="a line has more than 200 bytes"):
        list(trajectories(dump, 3))


def test_a_file_that_is_not_compressed_is_refused(tmp_path: Path) -> None:
    dump = step(tmp_path, scored(PLAIN))
    dump.path(3).write_bytes(b"no zstd")
    with pytest.raises(DumpError, match="expected JSON lines compressed with zstd"):
        list(trajectories(dump, 3))


def test_a_step_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"step 9 is not there; .* has steps 3 to 3"):
        list(trajectories(step(tmp_path, scored(PLAIN)), 9))


def test_a_run_is_found_by_directory_name_rollouts_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = saved_run(tmp_path / "runs" / "sums", steps=3, interval=2)
    monkeypatch.chdir(tmp_path)
    for named in (run, run / "rollouts", Path("sums"), Path("runs/sums")):
        dump, steps = kept(named)
        assert (dump.directory.resolve(), steps) == (run / "rollouts", (0, 1, 2)), named
    dump, steps = kept(run / "rollouts" / "step-0000001.jsonl.zst")
    assert (dump.directory, steps) == (run / "rollouts", (1,))


def test_a_run_that_has_kept_nothing_names_the_field_that_keeps_samples(tmp_path: Path) -> None:
    with pytest.raises(NothingKeptError, match=r"has kept no samples; spec\.debug\.dumpRollouts: true keeps"):
        kept(tmp_path)


def test_a_path_that_is_not_there_is_answered_with_the_nearest(tmp_path: Path) -> None:
    saved_run(tmp_path / "sums", steps=1, interval=1)
    with pytest.raises(NothingKeptError, match=f"nearest: {tmp_path / 'sums'}"):
        kept(tmp_path / "sum")
    with pytest.raises(NothingKeptError, match="is not a file of rollouts"):
        kept(tmp_path / "sums" / "events.jsonl")


def test_a_line_of_any_depth_is_named(tmp_path: Path) -> None:
    dump = step(tmp_path, scored(PLAIN))
    header, *_ = stored(dump).splitlines(keepends=True)
    put(dump, header + b"[" * 200_000 + b"\n{}\n")
    with pytest.raises(DumpError, match="line 2: damaged or cut off: not JSON"):
        list(trajectories(dump, 3))

"""Rollouts come back from the disk as they were, to the bit, or with an error that says where and why not."""

import json
import math
import struct
from dataclasses import fields, replace

import pyarrow
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as some

from rljob_trainer.data.prompt_scheduler import Lead, PromptScheduler
from rljob_trainer.data.prompts import PromptStream
from rljob_trainer.data.read_ahead import Held
from rljob_trainer.rollouts.recorded import Dumping, Replay
from rljob_trainer.rundir.journal import Journal
from rljob_trainer.rundir.rollout_files import Dump, DumpError
from rljob_trainer.samples import Answer, Branch, Group, Prompt, Sample, ScoredGroup, Segment

MADE = {"spec.rollout.samplesPerPrompt": 2, "spec.rollout.sampling": {"temperature": 1.0}}
PROMPTS = tuple(Prompt(f"0:{row}", f"{row} + 1 =", f"Q: {row} + 1 =", (row, 7), str(row + 1), {}) for row in range(8))


def sample(logprob: float = -0.1, text: str = "2") -> Sample:
    return Sample((7, 8), (logprob, -1e-300), text, 3, "stop", "engine-1")


def scored(prompt: Prompt, *samples: Sample) -> ScoredGroup:
    given = samples or (sample(), sample(-0.3))
    return ScoredGroup(Group(prompt, given), tuple(0.1 * number for number in range(len(given))))


def dumped(directory, step: int = 3) -> Dump:
    dump = Dump(directory).rewind(0, MADE)
    dump.write(step, [[scored(prompt) for prompt in PROMPTS[:4]]], MADE)
    return dump


def content(dump: Dump, step: int = 3) -> bytes:
    with pyarrow.input_stream(str(dump.path(step)), compression="zstd") as stream:
        return stream.read()


def put(dump: Dump, text: bytes, step: int = 3) -> None:
    with pyarrow.output_stream(str(dump.path(step)), compression="zstd") as stream:
        stream.write(text)


def bits(number: float) -> bytes:
    return struct.pack("<d", number)


@given(
    some.lists(some.floats(allow_nan=False), min_size=1, max_size=5),
    some.text(some.characters(codec=None), max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_what_is_read_is_what_was_written_to_the_bit(tmp_path_factory, numbers, text):
    dump = Dump(tmp_path_factory.mktemp("dump"))
    written = Sample(tuple(range(len(numbers))), tuple(numbers), text, 2**40, "length", "engine-0")
    dump.write(0, [[ScoredGroup(Group(PROMPTS[0], (written,)), (numbers[0],))]], MADE)

    (read,) = dump.read(0, MADE).groups(0, PROMPTS[:1])

    assert [*map(bits, read.group.samples_G[0].logprobs_T)] == [*map(bits, numbers)]
    assert bits(read.rewards_G[0]) == bits(numbers[0])
    assert replace(read.group.samples_G[0], logprobs_T=()) == replace(written, logprobs_T=())
    assert read.group.prompt is PROMPTS[0]


def test_what_several_rewards_say_is_kept(tmp_path):
    dump = Dump(tmp_path)
    judged = replace(scored(PROMPTS[0]), parts_G={"right": (1.0, 0.0), "short": (0.1, 0.2)}, failures=1)
    dump.write(0, [[judged]], MADE)
    assert dump.read(0, MADE).groups(0, PROMPTS[:1]) == (judged,)


def test_who_wrote_which_tokens_is_kept(tmp_path):
    dump = Dump(tmp_path)
    segments = (Segment(1, "<<1+1>>", True), Segment(1, "2", False))
    mixed = replace(sample(), segments=segments, dropped=True)
    dump.write(0, [[scored(PROMPTS[0], mixed)]], MADE)
    (read,) = dump.read(0, MADE).groups(0, PROMPTS[:1])[0].group.samples_G
    assert read == mixed
    assert read.own_T == (True, False)


def test_every_field_of_a_sample_is_kept_but_its_experts(tmp_path):
    (line,) = [json.loads(line) for line in content(dumped(tmp_path)).splitlines()[1:2]]
    assert set(line["samples"][0]) == {field.name for field in fields(Sample)} - {
        "experts",
        "branches",
        "reward",
        "answers",
    }


def test_branches_and_the_reward_of_an_agent_are_kept(tmp_path):
    dump = Dump(tmp_path)
    branches = (Branch((1, 2), "Q", 1), Branch((1, 7, 3), "Q, again", 1))
    answers = (Answer(0, 1, "stop", "engine-0", 1.7e9, 0.25, ("look",)), Answer(1, 1, "length", "engine-0", 1.8e9, 0.1))
    made = replace(sample(), branches=branches, reward=0.1, segments=(Segment(2, "78", True),), answers=answers)
    dump.write(0, [[scored(PROMPTS[0], made, replace(made, reward=None))]], MADE)
    (read,) = dump.read(0, MADE).groups(0, PROMPTS[:1])
    assert read.group.samples_G == (made, replace(made, reward=None))
    assert [each.answers for each in read.group.samples_G] == [answers, answers]


def test_samples_of_agents_without_answers_are_read_as_they_were_written_before(tmp_path):
    dump = Dump(tmp_path)
    made = replace(sample(), branches=(Branch((1, 2), "Q", 2),))
    dump.write(3, [[scored(PROMPTS[0], made)]], MADE)
    body = content(dump).replace(b',"answers":[]', b"").splitlines(keepends=True)[:-1]
    put(dump, b"".join(body) + b'{"xxh3_128":"%s"}\n' % xxhash.xxh3_128_hexdigest(b"".join(body)).encode())
    assert dump.read(3, MADE).groups(0, PROMPTS[:1])[0].group.samples_G == (made,)


def test_numbers_that_are_not_numbers_survive(tmp_path):
    dump = Dump(tmp_path)
    dump.write(0, [[scored(PROMPTS[0], sample(-math.inf), sample(math.nan))]], MADE)
    one, two = dump.read(0, MADE).groups(0, PROMPTS[:1])[0].group.samples_G
    assert one.logprobs_T[0] == -math.inf
    assert math.isnan(two.logprobs_T[0])


def flipped(text: bytes) -> bytes:
    return text.replace(b'"text":"2"', b'"text":"3"', 1)


def without_end(text: bytes) -> bytes:
    return b"".join(text.splitlines(keepends=True)[:-1])


def without_a_group(text: bytes) -> bytes:
    header, _, *rest = text.splitlines(keepends=True)
    return b"".join([header, *rest])


def newer(text: bytes) -> bytes:
    return text.replace(b'"version":2', b'"version":9', 1)


def of_another_program(text: bytes) -> bytes:
    return b'{"question":"1 + 1 ="}\n'


def of_another_step(text: bytes) -> bytes:
    return text.replace(b'"step":3', b'"step":4', 1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flipped, "damaged or cut off: expected 4 groups and a last line with the xxh3_128 of all before it"),
        (without_end, "damaged or cut off: expected 4 groups .* found no such line"),
        (without_a_group, "damaged or cut off"),
        (lambda text: text[: len(text) // 2], "damaged or cut off"),
        (newer, "line 1: expected version 2, found 9"),
        (of_another_program, "line 1: expected format 'rljob-rollouts', found None"),
        (of_another_step, "line 1: expected step 3, found 4"),
        (lambda text: b"", "line 1: expected a header"),
        (lambda text: b"[]\n", r"line 1: expected a header .* found b'\[\]'"),
    ],
)
def test_a_file_that_is_not_as_it_was_written_is_named_with_what_was_expected(tmp_path, damage, message):
    dump = dumped(tmp_path)
    put(dump, damage(content(dump)))
    with pytest.raises(DumpError, match=rf"step-0000003\.jsonl\.zst: step 3: {message}"):
        dump.read(3, MADE).groups(0, PROMPTS[:4])


@pytest.mark.parametrize("length", [0, 1, 20, 200])
def test_a_file_cut_off_on_the_disk_is_named(tmp_path, length):
    dump = dumped(tmp_path)
    path = dump.path(3)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DumpError, match=r"step-0000003\.jsonl\.zst: step 3: .*expected"):
        dump.read(3, MADE).groups(0, PROMPTS[:4])


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (PROMPTS[:3], "expected 3 groups, found 4"),
        (PROMPTS[1:5], 'line 2: expected prompt 0:1 with uid "0:1", found "0:0"'),
        (
            tuple(replace(prompt, tokens_T=(*prompt.tokens_T, 1)) for prompt in PROMPTS[:4]),
            r"line 2: expected prompt 0:0 with tokens_T \[0, 7, 1\], found \[0, 7\]",
        ),
    ],
)
def test_answers_to_other_prompts_are_refused(tmp_path, prompts, message):
    with pytest.raises(DumpError, match=message):
        dumped(tmp_path).read(3, MADE).groups(0, prompts)


def test_samples_of_a_time_when_they_had_other_fields_are_refused(tmp_path):
    dump = dumped(tmp_path)
    body = without_end(content(dump)).replace(b',"engine":"engine-1"', b"")
    put(dump, body + json.dumps({"xxh3_128": xxhash.xxh3_128_hexdigest(body)}).encode() + b"\n")
    with pytest.raises(DumpError, match=r"step 3, line 2: expected samples with .*, engine, .*, found tokens_T,"):
        dump.read(3, MADE).groups(0, PROMPTS[:4])


def test_samples_made_otherwise_are_refused_with_both_values(tmp_path):
    with pytest.raises(DumpError, match=r"step 3: made with spec.rollout.samplesPerPrompt 2, and this run has 8"):
        dumped(tmp_path).read(3, MADE | {"spec.rollout.samplesPerPrompt": 8})


def test_a_step_that_is_not_there_is_reported_with_those_that_are(tmp_path):
    dump = dumped(tmp_path)
    dump.require(range(3, 4))
    with pytest.raises(DumpError, match=r"step-0000004.*step 4 is not there; .* has steps 3 to 3"):
        dump.require(range(3, 5))
    with pytest.raises(DumpError, match=r"step 0 is not there; .* has no rollouts at all"):
        Dump(tmp_path / "nowhere").require(range(2))


def test_a_write_that_is_killed_leaves_no_file(tmp_path, monkeypatch):
    dump = Dump(tmp_path)
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        dump.write(0, [[scored(PROMPTS[0])]], MADE)
    assert dump.steps() == ()
    assert Dump(tmp_path).rewind(0, MADE).steps() == ()
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_makes_the_steps_after_its_checkpoint_again(tmp_path):
    dump = Dump(tmp_path)
    for step in range(5):
        dump.write(step, [[scored(PROMPTS[0])]], MADE)
    assert dump.rewind(3, MADE).steps() == (0, 1, 2)
    with pytest.raises(DumpError, match="made with"):
        dump.rewind(3, MADE | {"spec.reward": {"kind": "Math"}})


def test_a_resumed_run_compares_its_configuration_with_the_newest_step_it_keeps(tmp_path):
    dump, other = Dump(tmp_path), MADE | {"spec.reward": {"kind": "Math"}}
    for step, made in enumerate([MADE, MADE, other, other]):
        dump.write(step, [[scored(PROMPTS[0])]], made)
    with pytest.raises(DumpError, match="step-0000002"):
        dump.rewind(3, MADE)
    assert dump.rewind(2, MADE).steps() == (0, 1)


class Live:
    """Rollouts and rewards of a run with engines."""

    def __init__(self, stream: PromptStream, journal: Journal) -> None:
        self.stream, self.journal = stream, journal

    def collect_round(self, step, num_prompts):
        prompts = self.stream.draw(num_prompts)
        self.journal.issued(step, [prompt.uid for prompt in prompts])
        return tuple(scored(prompt).group for prompt in prompts)

    def score(self, groups):
        return tuple(ScoredGroup(group, (0.25, 0.1)) for group in groups)

    def consumed(self, step):
        self.journal.consumed(step)


def steps(rollouts, first: int, last: int) -> list:
    found = []
    for step in range(first, last):
        found.append(rollouts.score(rollouts.collect(step)))
        rollouts.consumed(step)
    return found


def stream() -> PromptStream:
    return PromptStream(Held(PROMPTS), seed=5, shuffle=True)


def replay_of(dump: Dump, prompts: PromptStream, journal: Journal) -> Replay:
    return Replay(dump, MADE, PromptScheduler(prompts, journal, Lead(steps=10), first_round=3), prompts_per_step=3)


def test_a_replay_gives_the_same_groups_and_the_same_journal(tmp_path):
    live = Live(stream(), Journal(tmp_path / "live.jsonl"))
    dump = Dump(tmp_path / "rollouts").rewind(0, MADE)
    made = steps(Dumping(live, live, dump, MADE, prompts_per_step=3), 0, 5)

    replay = replay_of(dump, stream(), Journal(tmp_path / "replay.jsonl"))

    assert steps(replay, 0, 5) == made
    assert replay.scheduler.stream.position == live.stream.position
    assert (tmp_path / "replay.jsonl").read_bytes() == (tmp_path / "live.jsonl").read_bytes()


def test_a_replay_goes_on_in_the_middle(tmp_path):
    live = Live(stream(), Journal(tmp_path / "live.jsonl"))
    dump = Dump(tmp_path / "rollouts").rewind(0, MADE)
    made = steps(Dumping(live, live, dump, MADE, prompts_per_step=3), 0, 4)
    resumed = stream()
    resumed.seek(resumed.position_after(6))

    assert steps(replay_of(dump, resumed, Journal(tmp_path / "r.jsonl")), 2, 4) == made[2:]


def by_rounds(rollouts, step: int, sizes: list[int]) -> list:
    """Ask for a step as dynamic sampling does."""
    found = [rollouts.score(rollouts.collect_round(step, size)) for size in sizes]
    rollouts.consumed(step)
    return found


def test_rounds_of_dynamic_sampling_come_back_one_by_one(tmp_path):
    live = Live(stream(), Journal(tmp_path / "live.jsonl"))
    dump = Dump(tmp_path / "rollouts").rewind(0, MADE)
    dumping = Dumping(live, live, dump, MADE, prompts_per_step=3)
    made = [by_rounds(dumping, 0, [3, 2]), by_rounds(dumping, 1, [3])]

    replay = replay_of(dump, stream(), Journal(tmp_path / "replay.jsonl"))

    assert [by_rounds(replay, 0, [3, 2]), by_rounds(replay, 1, [3])] == made
    assert (tmp_path / "replay.jsonl").read_bytes() == (tmp_path / "live.jsonl").read_bytes()
    other = replay_of(dump, stream(), Journal(tmp_path / "other.jsonl"))
    with pytest.raises(DumpError, match="step 0: expected 1 groups, found 2"):
        by_rounds(other, 0, [3, 1])
    third = replay_of(dump, stream(), Journal(tmp_path / "third.jsonl"))
    with pytest.raises(DumpError, match="step 0: expected round 3, found 2 rounds"):
        by_rounds(third, 0, [3, 2, 1])


def test_a_step_is_on_the_disk_before_anything_is_trained_on_it(tmp_path):
    live = Live(stream(), Journal(tmp_path / "live.jsonl"))
    dump = Dump(tmp_path / "rollouts").rewind(0, MADE)
    dumping = Dumping(live, live, dump, MADE, prompts_per_step=3)
    dumping.score(dumping.collect(0))
    assert dump.steps() == (0,)


class Lossy(Live):
    """Rollouts that lack samples of some prompts, or all."""

    def collect_round(self, step, num_prompts):
        groups = super().collect_round(step, num_prompts)
        return (replace(groups[0], samples_G=()), replace(groups[1], samples_G=groups[1].samples_G[:1]), *groups[2:])

    def score(self, groups):
        return tuple(ScoredGroup(group, (0.25, 0.1)[: len(group.samples_G)]) for group in groups)


def test_a_replay_lacks_the_samples_that_were_lost_and_no_prompt(tmp_path):
    live = Lossy(stream(), Journal(tmp_path / "live.jsonl"))
    dump = Dump(tmp_path / "rollouts").rewind(0, MADE)
    made = steps(Dumping(live, live, dump, MADE, prompts_per_step=3), 0, 3)
    assert [len(scored.group.samples_G) for scored in made[0]] == [0, 1, 2]
    replay = replay_of(dump, stream(), Journal(tmp_path / "replay.jsonl"))
    assert steps(replay, 0, 3) == made
    assert (tmp_path / "replay.jsonl").read_bytes() == (tmp_path / "live.jsonl").read_bytes()

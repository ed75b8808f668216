"""Work is balanced between ranks that wait for each other; nothing is lost, and no micro-batch is larger for it."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.sizing.flops import Work
from rljob_api.sizing.known_models import ON_THE_HUB
from rljob_api.sizing.model_shape import shape
from rljob_trainer.batches.packing import MicroBatch, Packing, TrainingSequence, pack
from rljob_trainer.batches.shares import Meeting, Share, Sizes, shared_out, span

WORK = Work.of(shape(ON_THE_HUB["Qwen/Qwen3-30B-A3B"]))
QUADRATIC = Work(token=1, response=0, pair=2)


@st.composite
def rollouts(draw: st.DrawFn, longest: int = 32_768, most: int = 200) -> Sizes:
    """Return sequences of log-normal lengths, as rollouts have them, cut off at the longest, in groups of a prompt."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    number, group = draw(st.integers(1, most)), draw(st.sampled_from([1, 2, 8]))
    median, spread = draw(st.sampled_from([64, 1024, 8192])), draw(st.floats(0.1, 2.0))
    prompts = random.integers(1, 600, -(-number // group))
    responses = np.minimum(longest, 1 + random.lognormal(np.log(median), spread, number)).astype(int).tolist()
    prompt = [int(prompts[index // group]) for index in range(number)]
    tokens = [before + after for before, after in zip(prompt, responses, strict=True)]
    shared = [0 if index % group == 0 else prompt[index] for index in range(number)]
    work = [WORK.of_sequence(all_, after) for all_, after in zip(tokens, responses, strict=True)]
    return Sizes(tokens, shared, work, [WORK.token * each for each in shared])


meetings = st.builds(
    Meeting,
    ranks=st.integers(1, 16),
    max_tokens=st.sampled_from([4096, 16_384, 34_000]),
    in_step=st.booleans(),
    multiple=st.integers(1, 4),
)


def by_tokens(sizes: Sizes, meeting: Meeting) -> list[Share]:
    return shared_out(replace(sizes, work=(), repeated=()), meeting)


@settings(deadline=None)
@given(rollouts(), meetings)
def test_ranks_never_wait_longer_than_with_equally_many_tokens(sizes: Sizes, meeting: Meeting) -> None:
    even, balanced = by_tokens(sizes, meeting), shared_out(sizes, meeting)
    assert span(sizes, balanced, meeting.in_step) <= span(sizes, even, meeting.in_step)


@settings(deadline=None)
@given(rollouts(), meetings)
def test_every_sequence_is_in_one_micro_batch_and_none_has_more_tokens_than_the_limit(
    sizes: Sizes, meeting: Meeting
) -> None:
    shares = shared_out(sizes, meeting)
    assert sorted(number for share in shares for numbers in share for number in numbers) == list(
        range(len(sizes.tokens))
    )
    for numbers in itertools.chain.from_iterable(shares):
        assert sizes.tokens_of(numbers) <= meeting.max_tokens or len(numbers) == 1


@settings(deadline=None)
@given(rollouts(), meetings)
def test_ranks_that_meet_have_equally_many_micro_batches_and_no_more_than_with_even_tokens(
    sizes: Sizes, meeting: Meeting
) -> None:
    counts = [len(share) for share in shared_out(sizes, meeting)]
    assert len(counts) == meeting.ranks and all(count % meeting.multiple == 0 < count for count in counts)
    if meeting.in_step:
        assert len(set(counts)) == 1
        assert max(counts) <= max(map(len, by_tokens(sizes, meeting)))


def alone(tokens: list[int]) -> Sizes:
    """Return sequences of so many tokens, each with a prompt of its own."""
    nothing = [0] * len(tokens)
    return Sizes(tokens, nothing, [QUADRATIC.of_sequence(each, 1) for each in tokens], nothing)


@pytest.mark.parametrize("in_step", [True, False])
def test_a_long_sequence_counts_as_many_short_ones(in_step: bool) -> None:
    """One of 60 tokens attends to as many as nine of 20; equally many tokens would set it beside three of them."""
    tokens = [60] + [20] * 9
    sizes, meeting = alone(tokens), Meeting(2, 200, in_step, 1)
    (long, *others), (short,) = by_tokens(sizes, meeting)[0], by_tokens(sizes, meeting)[1]
    assert (others, sizes.tokens_of(long), sizes.tokens_of(short)) == ([], 120, 120)
    shares = shared_out(sizes, meeting)
    assert sorted([len(numbers) for share in shares for numbers in share]) == [1, 9]
    nine = 9 * sizes.work[1]
    assert (span(sizes, shares, in_step), span(sizes, [[long], [short]], in_step)) == (nine, sizes.work_of(long))
    assert 0.9 * nine < sizes.work[0] < nine < sizes.work_of(long)


def test_micro_batches_that_meet_take_alike() -> None:
    """Two ranks and two micro-batches of each: both long ones meet, and the short ones behind them."""
    tokens = [100, 10, 10, 100, 10, 10]
    sizes = alone(tokens)
    shares = shared_out(sizes, Meeting(2, 100, True, 1))
    assert [[sizes.tokens_of(numbers) for numbers in share] for share in shares] == [[100, 20], [100, 20]]


def test_a_prompt_that_is_computed_once_is_work_once() -> None:
    sizes = Sizes([5, 6, 7], [0, 3, 3], [50, 60, 70], [0, 30, 30])
    assert [sizes.work_of(numbers) for numbers in ([0, 1, 2], [0, 2], [1, 2], [2], [])] == [120, 120, 100, 70, 50]


def test_the_same_sequences_are_shared_out_alike() -> None:
    """A run that resumes on another machine packs as the first one did."""
    tokens = [7, 3, 9, 2, 8, 5, 5, 4, 6, 1]
    found = shared_out(alone(tokens), Meeting(2, 12, True, 1))
    assert found == [[[2], [0], [8, 3]], [[4], [5, 7], [6, 1, 9]]]


def test_packing_balances_what_it_is_told() -> None:
    sequences = [
        TrainingSequence((index,) + (9,) * length, 1, 1.0, (-1.0,) * length, 1.0, index)
        for index, length in enumerate([59, *[19] * 9])
    ]

    def numbers(packing: Packing) -> list[list[int]]:
        return [batch.indices_S.tolist() for share in pack(sequences, packing) for batch in share]

    assert sorted(map(len, numbers(Packing(2, 200, work=QUADRATIC)))) == [1, 9]
    assert sorted(map(len, numbers(Packing(2, 200)))) == [4, 6]


def test_what_is_packed_by_work_is_what_is_packed_by_tokens() -> None:
    random = np.random.default_rng(3)
    sequences = [
        TrainingSequence((index // 4,) * 3 + (9,) * length, 3, 1.0, (-1.0,) * length, 0.5, index)
        for index, length in enumerate(random.integers(1, 60, 64).tolist())
    ]
    packed = [pack(sequences, Packing(4, 100, True, work=work)) for work in (None, QUADRATIC)]
    first, second = (sorted(weighed(batch) for share in each for batch in share) for each in packed)
    assert first != second
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second)) == list(range(64))


def weighed(batch: MicroBatch) -> list[int]:
    """Return the numbers of the sequences that have a weight."""
    return [
        int(number) for place, number in enumerate(batch.indices_S) if batch.weights_R[batch.sequences_R == place].any()
    ]

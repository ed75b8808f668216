"""Packing loses nothing, respects the budget and shares the work out evenly."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_trainer.batches.packing import MicroBatch, Packing, TrainingSequence, ValueTargets, pack


def sequence(prompt: list[int], response: list[int]) -> TrainingSequence:
    return TrainingSequence(
        tokens=(*prompt, *response),
        prompt_length=len(prompt),
        advantage=float(len(prompt)),
        logprobs=tuple(-float(token) for token in response),
        weight=0.25,
    )


tokens = st.lists(st.integers(0, 9), min_size=1, max_size=12)
prompts = st.sampled_from([[1], [1, 2], [3, 4, 5]]) | tokens
batches = st.lists(st.builds(sequence, prompts, tokens), min_size=1, max_size=20)
ranks = st.integers(1, 4)
budgets = st.integers(1, 40)


def unpacked(batch: MicroBatch) -> list[TrainingSequence]:
    """Read the sequences back, filler included."""
    bounds = batch.cu_seqlens_S1.tolist()
    found = []
    for start, end in itertools.pairwise(bounds):
        rows = np.flatnonzero((batch.positions_R >= start) & (batch.positions_R < end))
        assert (np.diff(batch.positions_R[rows]) == 1).all() and batch.positions_R[rows[-1]] == end - 2
        assert (batch.targets_R[rows] == batch.tokens_T[batch.positions_R[rows] + 1]).all()
        found.append(
            TrainingSequence(
                tokens=tuple(batch.tokens_T[start:end].tolist()),
                prompt_length=int(batch.positions_R[rows[0]]) + 1 - start,
                advantage=float(batch.advantages_R[rows[0]]),
                logprobs=tuple(batch.logprobs_R[rows].tolist()),
                weight=float(batch.weights_R[rows[0]]),
            )
        )
    return found


@given(batches, ranks, budgets)
def test_every_sequence_is_trained_on_exactly_once(
    sequences: list[TrainingSequence], dp_size: int, budget: int
) -> None:
    found = [each for rank in pack(sequences, Packing(dp_size, budget)) for batch in rank for each in unpacked(batch)]
    key = repr
    assert sorted((each for each in found if each.weight), key=key) == sorted(sequences, key=key)


@given(batches, ranks, budgets)
def test_no_micro_batch_exceeds_the_budget_but_for_a_single_long_sequence(
    sequences: list[TrainingSequence], dp_size: int, budget: int
) -> None:
    packed = pack(sequences, Packing(dp_size, budget))
    assert all(len(batch.tokens_T) <= budget or len(batch.cu_seqlens_S1) == 2 for rank in packed for batch in rank)


@given(batches, ranks, budgets)
def test_every_rank_takes_part(sequences: list[TrainingSequence], dp_size: int, budget: int) -> None:
    packed = pack(sequences, Packing(dp_size, budget))
    assert len(packed) == dp_size and all(packed)


@given(batches, ranks, budgets)
def test_ranks_differ_by_no_more_than_the_longest_piece(
    sequences: list[TrainingSequence], dp_size: int, budget: int
) -> None:
    loads = [sum(len(batch.tokens_T) for batch in rank) for rank in pack(sequences, Packing(dp_size, budget))]
    longest = max(len(each.tokens) for each in sequences)
    assert max(loads) - min(loads) <= max(longest, sum(loads) // (4 * dp_size))


def naive_layout(sequences: list[TrainingSequence], ranks: int, budget: int) -> list[list[list[int]]]:
    """Return the numbers of the sequences of each micro-batch of each rank, by the words of `packing.py`."""
    lengths = [len(each.tokens) for each in sequences]
    prompts = [each.tokens[: each.prompt_length] for each in sequences]
    limit = budget if ranks == 1 else min(budget, sum(lengths) // (4 * ranks))
    pieces: list[list[int]] = []
    for number in range(len(sequences)):
        joins = number and prompts[number] == prompts[number - 1] and tokens_of(pieces[-1] + [number], lengths) <= limit
        pieces = [*pieces[:-1], [*pieces[-1], number]] if joins else [*pieces, [number]]
    shares: list[list[list[int]]] = [[] for _ in range(ranks)]
    for piece in sorted(pieces, key=lambda piece: tokens_of(piece, lengths), reverse=True):
        loads = [sum(tokens_of(each, lengths) for each in share) for share in shares]
        shares[loads.index(min(loads))].append(piece)
    shortest = lengths.index(min(lengths))
    return [first_fit(share or [[shortest]], lengths, budget) for share in shares]


def tokens_of(numbers: list[int], lengths: list[int]) -> int:
    return sum(lengths[number] for number in numbers)


def first_fit(pieces: list[list[int]], lengths: list[int], budget: int) -> list[list[int]]:
    bins: list[list[int]] = []
    for piece in pieces:
        fits = [found for found in bins if tokens_of(found + piece, lengths) <= budget]
        if not fits:
            bins.append([])
        (fits or bins[-1:])[0].extend(piece)
    return bins


@given(batches, ranks, budgets)
def test_sequences_lie_where_the_words_say(sequences: list[TrainingSequence], dp_size: int, budget: int) -> None:
    numbered = [replace(sequence, index=index) for index, sequence in enumerate(sequences)]
    found = [[batch.indices_S.tolist() for batch in rank] for rank in pack(numbered, Packing(dp_size, budget))]
    assert found == naive_layout(sequences, dp_size, budget)


@given(batches, ranks, budgets)
def test_ranks_in_step_get_equally_many_micro_batches_of_the_same_samples(
    sequences: list[TrainingSequence], dp_size: int, budget: int
) -> None:
    numbered = [replace(each, index=index, weight=1.0) for index, each in enumerate(sequences)]
    free, in_step = pack(numbered, Packing(dp_size, budget)), pack(numbered, Packing(dp_size, budget, in_step=True))

    assert len({len(share) for share in in_step}) == 1
    assert len(in_step[0]) == max(map(len, free))
    for share, alike in zip(in_step, free, strict=True):
        assert weighted(share) == weighted(alike)
        assert all(len(batch.tokens_T) <= budget or batch.num_sequences == 1 for batch in share)


def weighted(share: tuple[MicroBatch, ...]) -> list[int]:
    """Return the numbers of the sequences that have a weight, in order of appearance."""
    return [
        int(batch.indices_S[number])
        for batch in share
        for number in range(batch.num_sequences)
        if batch.weights_R[batch.sequences_R == number].any()
    ]


def test_a_rank_in_step_divides_its_samples_before_it_repeats_one() -> None:
    sequences = [
        replace(sequence([row], [row] * length), index=row) for row, length in ((1, 1), (2, 1), (3, 9), (4, 9))
    ]
    found = pack(sequences, Packing(2, 10, in_step=True))
    assert [[batch.indices_S.tolist() for batch in share] for share in found] == [[[3], [1]], [[4], [2]]]


@given(batches, ranks, budgets, st.integers(2, 4), st.booleans())
def test_ranks_get_a_multiple_of_micro_batches_of_the_same_samples(
    sequences: list[TrainingSequence], dp_size: int, budget: int, multiple: int, in_step: bool
) -> None:
    numbered = [replace(each, index=index, weight=1.0) for index, each in enumerate(sequences)]
    free = pack(numbered, Packing(dp_size, budget, in_step=in_step))
    found = pack(numbered, Packing(dp_size, budget, in_step=in_step, multiple=multiple))

    for share, alike in zip(found, free, strict=True):
        assert len(alike) <= len(share) < len(alike) + multiple
        assert len(share) % multiple == 0
        assert weighted(share) == weighted(alike)


def test_nothing_to_train_on_is_no_micro_batch_of_any_multiple() -> None:
    assert pack([], Packing(2, 10, in_step=True, multiple=4)) == ((), ())


def test_arrays_have_the_types_that_the_learner_takes() -> None:
    targets = ValueTargets(old_values=np.zeros(2), returns=np.ones(2))
    ((batch,),) = pack([replace(sequence([1], [2, 3]), value_targets=targets)], Packing(1, 100))
    integers = (batch.tokens_T, batch.positions_R, batch.targets_R, batch.indices_S, batch.sequences_R)
    assert [each.dtype for each in integers] == [np.int64] * 5
    assert batch.cu_seqlens_S1.dtype == np.int32
    assert batch.value_targets is not None
    fitted = (batch.value_targets.old_values, batch.value_targets.returns)
    floats = (batch.advantages_R, batch.weights_R, batch.logprobs_R, *fitted)
    assert [each.dtype for each in floats] == [np.float32] * 5


def test_value_targets_and_weights_lie_beside_the_tokens_that_they_belong_to() -> None:
    sequences = [
        replace(
            sequence([row], [row] * length),
            weight=row / 4,
            value_targets=ValueTargets(np.full(length, row + 0.5), np.full(length, row + 0.25)),
        )
        for row, length in ((1, 2), (2, 1), (3, 3))
    ]
    ((batch,),) = pack(sequences, Packing(1, 100))
    assert batch.value_targets is not None
    assert (batch.value_targets.old_values - batch.targets_R).tolist() == [0.5] * 6
    assert (batch.value_targets.returns - batch.targets_R).tolist() == [0.25] * 6
    assert (4 * batch.weights_R).tolist() == batch.targets_R.tolist()


def test_the_layout_follows_from_the_lengths_alone() -> None:
    """Written down, so that a resumed run, or another machine, packs the same way."""
    lengths = (5, 3, 7, 3, 2, 6)
    sequences = [sequence([row], [9] * (length - 1)) for row, length in enumerate(lengths)]
    packed = pack(sequences, Packing(2, 9))
    found = [[[each.tokens[0] for each in unpacked(batch)] for batch in rank] for rank in packed]
    assert found == [[[2], [1, 3]], [[5, 4], [0]]]


def test_samples_of_one_prompt_stay_together() -> None:
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    sequences = [sequence(prompt, [sample]) for prompt in prompts for sample in range(4)]
    (batches_of_rank,) = pack(sequences, Packing(1, 16))
    assert [len({each.tokens[:3] for each in unpacked(batch)}) for batch in batches_of_rank] == [1, 1, 1]


def test_samples_of_one_prompt_that_fill_the_budget_stay_together() -> None:
    other, first, second = sequence([9], [8, 7]), sequence([1], [2, 3]), sequence([1], [4, 5])
    (batches_of_rank,) = pack([other, first, second], Packing(1, 6))
    assert [[each.tokens for each in unpacked(batch)] for batch in batches_of_rank] == [
        [(1, 2, 3), (1, 4, 5)],
        [(9, 8, 7)],
    ]


def test_a_rank_without_sequences_gets_one_of_weight_zero() -> None:
    first, second = pack([sequence([1], [2])], Packing(2, 16))
    assert [each.weight for each in unpacked(first[0]) + unpacked(second[0])] == [0.25, 0.0]


def test_without_sequences_there_is_nothing_to_do() -> None:
    assert pack([], Packing(2, 16)) == ((), ())


PROMPT = (
    r"^a sequence of {} tokens with a prompt of {} and a mask of {} cannot be trained on: it needs a prompt, and a "
    r"mask as long as its response$"
)
TARGETS = (
    r"^a sequence with {} response tokens to train on and {} log-probabilities cannot be trained on: it needs a "
    r"log-probability for each, and at least one$"
)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (TrainingSequence((1,), 0, 0.0, (-1.0,), 1.0), PROMPT.format(1, 0, 1)),
        (TrainingSequence((1,), 1, 0.0, (), 1.0), TARGETS.format(0, 0)),
        (TrainingSequence((1, 2), 1, 0.0, (-1.0, -1.0), 1.0), TARGETS.format(1, 2)),
        (TrainingSequence((1, 2), 1, 0.0, (), 1.0, trained=(False,)), TARGETS.format(0, 0)),
        (TrainingSequence((1, 2), 1, 0.0, (-1.0,), 1.0, trained=(True, False)), PROMPT.format(2, 1, 2)),
    ],
    ids=["no prompt", "no response", "too many log-probabilities", "nothing of the model's", "a mask too long"],
)
def test_a_sequence_that_cannot_be_trained_on_is_refused(bad: TrainingSequence, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pack([sequence([1], [2]), bad], Packing(1, 16))


@given(batches, ranks, budgets)
def test_every_response_token_knows_its_sequence_and_the_callers_number(
    sequences: list[TrainingSequence], dp_size: int, budget: int
) -> None:
    numbered = [replace(sequence, index=index) for index, sequence in enumerate(sequences)]
    micro_batches = [batch for rank in pack(numbered, Packing(dp_size, budget)) for batch in rank]
    found = {
        int(batch.indices_S[row]): tuple(batch.targets_R[batch.sequences_R == row].tolist())
        for batch in micro_batches
        for row in range(batch.num_sequences)
    }
    assert found == {each.index: each.tokens[each.prompt_length :] for each in numbered}


def test_tokens_of_one_sequence_may_have_advantages_of_their_own() -> None:
    each = replace(sequence([1], [2, 3]), advantage=np.array([0.5, -1.0]))
    ((batch,),) = pack([each, sequence([1, 2], [4])], Packing(1, 100))
    rows = np.flatnonzero(np.isin(batch.targets_R, (2, 3)))
    assert batch.advantages_R[rows].tolist() == [0.5, -1.0]
    assert batch.advantages_R[batch.targets_R == 4].tolist() == [2.0]


def test_tokens_of_the_environment_are_context_and_no_targets() -> None:
    mixed = TrainingSequence(
        tokens=(1, 2, 10, 11, 12, 13, 14),
        prompt_length=2,
        advantage=np.array([0.5, -1.0, 2.0]),
        logprobs=(-0.1, -0.2, -0.3),
        weight=0.25,
        trained=(True, False, False, True, True),
    )
    ((batch,),) = pack([mixed, sequence([1, 2], [5])], Packing(1, 100))
    assert batch.tokens_T.tolist() == [1, 2, 10, 11, 12, 13, 14, 1, 2, 5]
    assert batch.targets_R.tolist() == [10, 13, 14, 5]
    assert batch.positions_R.tolist() == [1, 4, 5, 8]
    assert batch.sequences_R.tolist() == [0, 0, 0, 1]
    assert batch.advantages_R.tolist() == [0.5, -1.0, 2.0, 2.0]
    np.testing.assert_allclose(batch.logprobs_R, [-0.1, -0.2, -0.3, -5.0])


@given(batches, ranks, budgets)
def test_a_mask_of_all_tokens_changes_nothing(sequences: list[TrainingSequence], dp_size: int, budget: int) -> None:
    spelt_out = [replace(each, trained=(True,) * len(each.logprobs)) for each in sequences]
    for plain, same in zip(
        pack(sequences, Packing(dp_size, budget)), pack(spelt_out, Packing(dp_size, budget)), strict=True
    ):
        assert [batch.positions_R.tolist() for batch in plain] == [batch.positions_R.tolist() for batch in same]

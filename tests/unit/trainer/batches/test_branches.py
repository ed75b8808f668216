"""A sample of several branches is several sequences to the learner, and one sample to everything else."""

from contextlib import nullcontext

import numpy as np

from rljob_api.sections import NormalizeBy
from rljob_trainer.algorithms.grpo import GroupRelative
from rljob_trainer.batches.batches import Batches
from rljob_trainer.batches.loss_weights import by_sample
from rljob_trainer.batches.packing import Packing
from rljob_trainer.batches.penalties import no_penalties
from rljob_trainer.batches.token_values import Measurement
from rljob_trainer.samples import Branch, Group, Prompt, Sample, ScoredGroup, Segment

PROMPT = Prompt("0:0", "q", "q", (1, 2, 3), "", {})
PLAIN = Sample((5, 6), (-0.5, -0.6), "", 0, "stop", "engine-0")
AGENTS = Sample(
    tokens_T=(10, 11, 12, 20),
    logprobs_T=(-1.0, 0.0, -1.2, -2.0),
    text="",
    version=0,
    finish_reason="stop",
    engine="engine-0",
    segments=(Segment(1, "a", True), Segment(1, "b", False), Segment(1, "c", True), Segment(1, "d", True)),
    branches=(Branch((7, 8), "p", 3), Branch((7, 8, 10, 9), "q", 1)),
    reward=1.0,
)
GROUP = ScoredGroup(Group(PROMPT, (AGENTS, PLAIN)), (1.0, 0.0))


class Free:
    """GPUs that nothing else needs."""

    def training(self):
        return nullcontext()

    saving = training


class PerToken:
    """An advantage that gives each trained token of a group its place."""

    def __call__(self, outcomes):
        return [[np.arange(1.0, length + 1) for length in outcome.lengths_G] for outcome in outcomes]


def step(advantage):
    made = Batches(advantage, no_penalties, by_sample, False, 4, Packing(1, 1000))
    (batch,) = made((GROUP,))
    (micro_batch,) = batch.micro_batches_by_rank[0]
    return batch, micro_batch


def rows(micro_batch, values_R):
    """Return the tokens of each sequence with the values of those that are trained on."""
    return {
        tuple(micro_batch.tokens_T[begin:end].tolist()): values_R[micro_batch.sequences_R == number].tolist()
        for number, (begin, end) in enumerate(
            zip(micro_batch.cu_seqlens_S1[:-1], micro_batch.cu_seqlens_S1[1:], strict=True)
        )
    }


def test_each_branch_is_a_sequence_and_the_sample_weighs_as_one():
    batch, micro_batch = step(GroupRelative(NormalizeBy.NONE))
    assert batch.samples == 2
    assert rows(micro_batch, micro_batch.targets_R) == {
        (7, 8, 10, 11, 12): [10, 12],
        (7, 8, 10, 9, 20): [20],
        (1, 2, 3, 5, 6): [5, 6],
    }
    weights = rows(micro_batch, micro_batch.weights_R)
    of_agent = [*weights[7, 8, 10, 11, 12], *weights[7, 8, 10, 9, 20]]
    np.testing.assert_allclose([sum(of_agent), sum(weights[1, 2, 3, 5, 6])], 0.5, rtol=1e-6)
    np.testing.assert_allclose(of_agent, 1 / 6, rtol=1e-6)
    assert rows(micro_batch, micro_batch.advantages_R)[7, 8, 10, 9, 20] == [0.5]
    assert np.allclose(rows(micro_batch, micro_batch.logprobs_R)[7, 8, 10, 11, 12], [-1.0, -1.2])


def test_what_each_token_has_stays_with_it():
    _, micro_batch = step(PerToken())
    advantages = rows(micro_batch, micro_batch.advantages_R)
    assert (advantages[7, 8, 10, 11, 12], advantages[7, 8, 10, 9, 20]) == ([1.0, 2.0], [3.0])


def test_what_the_learner_measures_comes_back_to_the_sample():
    def measure(shares):
        return [[micro_batch.targets_R.astype(np.float32) for micro_batch in share] for share in shares]

    ((agents, plain),) = Measurement(measure, Free(), Packing(2, 8))((GROUP,))
    assert (agents.tolist(), plain.tolist()) == ([10.0, 12.0, 20.0], [5.0, 6.0])

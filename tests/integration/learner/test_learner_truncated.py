"""Truncated samples that are masked: the real learner takes the steps of the formula, written out by hand."""

from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest

from rljob_api.sections import NormalizeBy
from rljob_trainer.algorithms.grpo import GroupRelative
from rljob_trainer.batches.batches import Batches
from rljob_trainer.batches.loss_weights import Aggregation, by_constant, by_sample, by_token
from rljob_trainer.batches.packing import Packing, TrainingSequence
from rljob_trainer.batches.penalties import no_penalties
from rljob_trainer.learners.config import LossSettings
from rljob_trainer.rewards.truncated import masked
from rljob_trainer.samples import Group, Prompt, Sample, ScoredGroup
from support.trainer.learner_data import VOCABULARY_SIZE, learner_config
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import train_batches
from support.trainer.naive_learner import NaiveLearner

LONGEST = 9
CUT_OFF = ((0, 1, 0, 0), (1, 1, 1, 1), (0, 0, 0, 0), (0, 0, 1, 1))
"""which samples of each prompt are truncated: of the second all"""
REWARDS = ((1.0, 0.0, 0.5, 0.0), (1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (1.0, 0.0, 0.0, 1.0))
RATES = (5e-4, 1e-3)


def rollout() -> list[ScoredGroup]:
    random = np.random.default_rng(5)
    groups = []
    for row, (cut_off, rewards) in enumerate(zip(CUT_OFF, REWARDS, strict=True)):
        prompt = tuple(random.integers(0, VOCABULARY_SIZE, 3 + row).tolist())
        samples = []
        for cut in cut_off:
            length = LONGEST if cut else int(random.integers(1, LONGEST))
            tokens = tuple(random.integers(0, VOCABULARY_SIZE, length).tolist())
            samples.append(Sample(tokens, (-6.0,) * length, "", 0, "length" if cut else "stop", "engine-0"))
        groups.append(ScoredGroup(Group(Prompt(f"0:{row}", "", "", prompt, "", {}), tuple(samples)), rewards))
    return groups


def by_hand(groups: list[ScoredGroup], loss_by: str) -> list[TrainingSequence]:
    """Return one optimizer step of these groups: advantages from all rewards, a mean over whole samples alone."""
    whole = [sample for each in groups for sample in each.group.samples_G if sample.finish_reason == "stop"]
    tokens = sum(len(sample.tokens_T) for sample in whole)
    made = []
    for each in groups:
        for sample, reward in zip(each.group.samples_G, each.rewards_G, strict=True):
            if sample.finish_reason == "length":
                continue
            length = len(sample.tokens_T)
            weight = {
                "Token": 1 / tokens,
                "Sample": 1 / (len(whole) * length),
                "Constant": 1 / (len(whole) * LONGEST),
            }[loss_by]
            advantage = (reward - fmean(each.rewards_G)) / (stdev(each.rewards_G) + 1e-6)
            prompt = each.group.prompt.tokens_T
            sequence = TrainingSequence((*prompt, *sample.tokens_T), len(prompt), advantage, sample.logprobs_T, weight)
            made.append(sequence)
    return made


@pytest.mark.parametrize("data", [1, 2])
@pytest.mark.parametrize(
    ("loss_by", "weights"),
    [("Token", by_token), ("Sample", by_sample), ("Constant", partial(by_constant, LONGEST))],
    ids=["token", "sample", "constant"],
)
def test_two_optimizer_steps_are_those_of_the_formula(
    tiny_llama_dir: Path, loss_by: str, weights: Aggregation, data: int
) -> None:
    groups, loss = rollout(), LossSettings()
    config = learner_config(tiny_llama_dir, loss=loss)
    batches = Batches(
        advantage=GroupRelative(NormalizeBy.GROUP),
        penalties=no_penalties,
        weights=weights,
        keep_zero_advantage=False,
        global_batch_size=8,
        packing=Packing(data, 64),
    )(tuple(map(masked, groups)))
    parts = [groups[:2], groups[2:]]
    naive = NaiveLearner(tiny_llama_dir, loss, config.optimizer, RATES)
    wanted = [naive.step(by_hand(part, loss_by), False) for part in parts]
    steps = run_ranks(train_batches, data, config, batches)[0]
    assert [step.loss for step in steps] == pytest.approx([step.loss for step in wanted], rel=1e-5, abs=1e-6)
    assert [step.grad_norm for step in steps] == pytest.approx([step.grad_norm for step in wanted], rel=1e-5)
    counted = [[s for s in by_hand(part, loss_by) if s.advantage] for part in parts]
    assert [step.response_tokens for step in steps] == [sum(len(s.logprobs) for s in part) for part in counted]

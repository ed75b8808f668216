"""A step packed by work has the numbers of the same step packed by tokens, on real ranks that share out experts."""

from pathlib import Path

import pytest

from rljob_api.sizing.flops import Work
from rljob_trainer.batches.batches import StepBatch
from rljob_trainer.batches.packing import Packing, pack
from support.trainer.learner_data import learner_config, sequences
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import train_batches
from support.trainer.tiny_models import tiny

WORK = Work(token=1, response=1, pair=3)
STEPS = [sequences(24, seed) for seed in range(2)]


def batches(work: Work | None, *, in_step: bool) -> list[StepBatch]:
    return [StepBatch(pack(step, Packing(2, 48, in_step, work=work)), len(step), 0) for step in STEPS]


def layout(step: StepBatch) -> list[list[list[int]]]:
    return [[batch.cu_seqlens_S1.tolist() for batch in share] for share in step.micro_batches_by_rank]


@pytest.mark.parametrize("expert", [1, 2], ids=["meet at the end", "meet in each micro-batch"])
def test_packing_by_work_changes_no_number_of_a_step(tmp_path: Path, expert: int) -> None:
    config = learner_config(tiny("Qwen3MoeForCausalLM", tmp_path, tied=False), expert=expert)
    by_tokens, by_work = (batches(work, in_step=expert > 1) for work in (None, WORK))
    assert all(layout(even) != layout(balanced) for even, balanced in zip(by_tokens, by_work, strict=True))
    wanted, found = (run_ranks(train_batches, 2, config, each)[0] for each in (by_tokens, by_work))
    assert [step.loss for step in found] == pytest.approx([step.loss for step in wanted], rel=1e-5, abs=1e-7)
    assert [step.grad_norm for step in found] == pytest.approx([step.grad_norm for step in wanted], rel=1e-5)
    assert [step.response_tokens for step in found] == [step.response_tokens for step in wanted]

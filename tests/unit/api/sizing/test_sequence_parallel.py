"""Sequence parallelism: tensor ranks share out the activations that each of them has in full without it."""

from typing import Any

import pytest
import yaml

from rljob_api.reading.manifest import parse
from rljob_api.sections import RLJob
from rljob_api.sizing.known_models import ON_THE_HUB
from rljob_api.sizing.memory import Item, estimate
from rljob_api.sizing.model_shape import shape
from rljob_api.sizing.parallel_layout import parallel_layout
from rljob_api.sizing.topology import topology

DENSE, EXPERTS = (shape(ON_THE_HUB[name]) for name in ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-30B-A3B"))
TOKENS, SIZE = 8192, 2
"""of a micro-batch, and bytes of a number"""


def training(good: str, **fields: Any) -> RLJob:
    """The good job, of 8 GPUs, with other fields of its training."""
    content = yaml.safe_load(good)
    content["spec"]["training"] |= {"maxTokensPerGpu": TOKENS, **fields}
    return parse(content)


def items(job: RLJob, model: Any = DENSE) -> dict[str, Item]:
    return {item.what: item for item in estimate(model, job.spec, topology(job.spec)).learner}


@pytest.mark.parametrize("tensor", [2, 4])
def test_norms_and_inputs_of_layers_are_shared_out_and_one_input_of_a_matrix_is_whole(good: str, tensor: int) -> None:
    each, shared = (training(good, tensorParallel=tensor, sequenceParallel=shares) for shares in (False, True))
    saved = DENSE.layers * (4 * DENSE.hidden - 4 * DENSE.hidden // tensor) - DENSE.hidden

    of_each, of_shared = items(each), items(shared)
    assert of_each["activations"].bytes - of_shared["activations"].bytes == TOKENS * SIZE * saved
    for what in of_each.keys() - {"activations"}:
        assert of_shared[what] == of_each[what]


def test_what_is_kept_of_a_layer_that_is_computed_again_is_shared_out(good: str) -> None:
    fields = {"tensorParallel": 2, "recompute": "Full"}
    each, shared = (training(good, sequenceParallel=shares, **fields) for shares in (False, True))
    saved = DENSE.layers * DENSE.hidden // 2 + 4 * DENSE.hidden // 2 - DENSE.hidden

    found = [items(job)["activations"].bytes for job in (each, shared)]
    assert found[0] - found[1] == TOKENS * SIZE * saved


def test_formulas_show_what_is_shared_out(good: str) -> None:
    def formula(model: Any = DENSE, **fields: Any) -> str:
        return items(training(good, tensorParallel=2, **fields), model)["activations"].formula

    whole, ends = "maxTokensPerGpu x L x (4H + (2(Q + 2K) + Q + 3F) / TP) x 2", "no recomputation"
    assert formula() == f"{whole}, {ends}"
    shared = "maxTokensPerGpu x ((L x (4H + 2(Q + 2K) + Q + {})) / TP + H) x 2"
    assert formula(sequenceParallel=True) == f"{shared.format('3F')}, {ends}"
    assert formula(EXPERTS, sequenceParallel=True) == f"{shared.format('A(3F + 2H)')}, {ends}"
    again = "maxTokensPerGpu x ((L x H + 4H + 2(Q + 2K) + Q + 3F) / TP + H) x 2, each layer computed again"
    assert formula(sequenceParallel=True, recompute="Full") == again
    assert formula(recompute="Full") == (
        "maxTokensPerGpu x (L x H + (4H + (2(Q + 2K) + Q + 3F) / TP)) x 2, each layer computed again"
    )


def test_tokens_of_a_rank_have_as_many_shares_as_tensor_ranks_only_with_sequence_parallelism(good: str) -> None:
    assert parallel_layout(training(good, tensorParallel=4).spec.training).token_shares == 1
    shared = training(good, tensorParallel=4, sequenceParallel=True).spec.training
    assert parallel_layout(shared).token_shares == 4


@pytest.mark.parametrize(("shares", "divided"), [(False, True), (True, False)])
def test_saved_activations_may_be_divided_once(good: str, shares: bool, divided: bool) -> None:
    content = yaml.safe_load(good)
    content["spec"]["training"] |= {"tensorParallel": 2, "sequenceParallel": shares, "recompute": "Full"}
    content["spec"]["extraArgs"] = {"megatron": {"distribute_saved_activations": divided}}
    assert parse(content).spec.training.sequence_parallel is shares

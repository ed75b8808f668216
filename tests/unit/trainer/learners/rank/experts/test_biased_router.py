"""Routers that score by sigmoid and choose with a bias, against Hugging Face's and written out."""

import json
from pathlib import Path

import pytest
import torch
from transformers import Glm4MoeConfig
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeMoE

from rljob_api.sections import Experts
from rljob_trainer.learners.rank.experts.experts import BiasedRouter, adjust_biases, biases, held, within_groups
from rljob_trainer.learners.rank.experts.routing import BALANCE, TOKENS, Tally, log_sigmoid, log_softmax
from rljob_trainer.learners.rank.weights import export

Z = torch.Generator().manual_seed(0)


@pytest.mark.parametrize(("groups", "most"), [(4, 2), (4, 1), (2, 1), (8, 3)])
def test_experts_outside_the_best_groups_are_out_of_the_question(groups: int, most: int) -> None:
    config = Glm4MoeConfig(
        hidden_size=8, n_routed_experts=16, n_group=groups, topk_group=most, num_experts_per_tok=3,
        moe_intermediate_size=8,
    )  # fmt: skip
    theirs = Glm4MoeMoE(config)
    theirs.gate.e_score_correction_bias.copy_(0.2 * torch.randn(16, generator=Z))
    logits = torch.randn(50, 16, generator=Z)
    scores = logits.sigmoid() + theirs.gate.e_score_correction_bias
    ours = within_groups(scores, groups, most).topk(3).indices
    assert torch.equal(ours.sort().values, theirs.route_tokens_to_experts(logits)[0].sort().values)
    assert not torch.equal(ours, scores.topk(3).indices)


def test_all_groups_are_no_limit() -> None:
    scores = torch.randn(5, 8, generator=Z)
    assert within_groups(scores, 4, 4) is scores


def test_probabilities_are_parts_of_the_sum_of_the_scores() -> None:
    logits = torch.randn(7, 5, generator=Z, dtype=torch.float64)
    scores = logits.sigmoid()
    torch.testing.assert_close(log_sigmoid(logits), (scores / scores.sum(-1, keepdim=True)).log())
    torch.testing.assert_close(log_softmax(logits), logits.softmax(-1).log())


def test_layers_without_experts_are_in_no_metric() -> None:
    tally = Tally.of(3, 2, 1, torch.device("cpu"))
    tally.sums_L[1:, :2] = torch.tensor([[3.0, 1.0], [2.0, 2.0]])
    tally.sums_L[1:, 2 + TOKENS] = 4.0
    tally.sums_L[1:, 2 + BALANCE] = torch.tensor([1.5, 1.0])
    found = tally.metrics(tally.sums_L, Experts(balance_loss=1.0))
    assert (found.expert_load, found.balance_loss) == (1.5, 1.25)


def test_a_bias_moves_against_the_load_of_its_own_layer() -> None:
    class Layer(BiasedRouter):
        def __init__(self, number: int) -> None:
            torch.nn.Module.__init__(self)
            self.layer_number = number
            self.register_buffer("expert_bias", torch.tensor([1.0, 2.0, 3.0]))

    stage = torch.nn.ModuleList([Layer(2), torch.nn.Linear(1, 1), Layer(4)])
    loads = torch.tensor([[9.0, 0, 0], [2, 2, 2], [9, 0, 0], [1, 5, 3]], dtype=torch.float64)
    adjust_biases(stage, loads, 0.25)
    assert stage[0].expert_bias.tolist() == [1.0, 2.0, 3.0], "it is balanced"
    assert stage[2].expert_bias.tolist() == [1.25, 1.75, 3.0], "the third expert has the mean"
    assert stage[2].expert_bias.dtype == torch.float32


def test_only_biases_of_routers_are_saved_like_weights() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = torch.nn.Module()
            self.router.register_buffer("expert_bias", torch.ones(2))
            self.router.register_buffer("tokens", torch.ones(2))
            self.router.weight = torch.nn.Parameter(torch.ones(2, 2))
            self.other = torch.nn.Module()
            self.other.register_buffer("expert_bias", torch.ones(2))

    model = torch.nn.ModuleDict({"layer": Layer()})
    assert [name for name, _ in biases(model)] == ["layer.router.expert_bias"]
    assert dict(held(model)).keys() == {"layer.router.expert_bias", "layer.router.weight"}, "and compared"


def test_a_bias_does_not_decide_on_the_type_of_an_export(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"torch_dtype": "float32"}')
    weights = {"model.norm.weight": torch.ones(2, dtype=torch.bfloat16), "gate.e_score_correction_bias": torch.ones(2)}
    export.write(tmp_path / "written", weights.items(), tmp_path)
    assert json.loads((tmp_path / "written" / "config.json").read_text()) == {"dtype": "bfloat16"}

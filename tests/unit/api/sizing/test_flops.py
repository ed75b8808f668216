"""FLOPs of training and the peaks of GPUs."""

import pytest

from rljob_api.sizing.flops import Work, pairs_of, peak_flops, training_flops
from rljob_api.sizing.known_models import ON_THE_HUB
from rljob_api.sizing.model_shape import shape

MODEL = shape(ON_THE_HUB["Qwen/Qwen3-0.6B"])
EMBEDDING, NORMS = 1024 * 151936, 28 * (2 * 1024 + 2 * 128) + 1024


def test_a_token_without_attention_takes_six_flops_for_each_weight_of_a_product() -> None:
    assert training_flops(MODEL, 10, 10, 0) == 10 * 6 * (MODEL.parameters - NORMS)
    assert training_flops(MODEL, 10, 4, 0) == 10 * 6 * (MODEL.parameters - NORMS) - 6 * 6 * EMBEDDING


def test_a_token_takes_the_experts_that_it_is_sent_to_and_the_router() -> None:
    model = shape(ON_THE_HUB["Qwen/Qwen3-30B-A3B"])
    attention, expert, router = 2 * 2048 * (4096 + 512), 3 * 2048 * 768, 2048 * 128
    assert training_flops(model, 1, 0, 0) == 6 * 48 * (attention + 8 * expert + router)


def test_a_pair_of_tokens_takes_two_products_of_all_heads_in_each_layer_three_times() -> None:
    assert training_flops(MODEL, 0, 0, 5) == 5 * 3 * 2 * 2 * 28 * 16 * 128


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("NVIDIA H100 80GB HBM3", 790e12), ("NVIDIA H100 PCIe", None), ("NVIDIA A100-SXM4-80GB", 312e12), ("", None)],
)
def test_a_peak_is_known_by_the_beginning_of_the_name(name: str, wanted: float | None) -> None:
    assert peak_flops(name) == wanted


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-30B-A3B", "google/gemma-3-270m", "deepseek-ai/DeepSeek-V3"]
)
@pytest.mark.parametrize(("tokens", "responses"), [(1, 1), (700, 500), (40_000, 32_768)])
def test_the_work_of_a_sequence_is_that_of_its_training(name: str, tokens: int, responses: int) -> None:
    model = shape(ON_THE_HUB[name])
    pairs, local = pairs_of([tokens]), pairs_of([tokens], model.local_window)
    assert Work.of(model).of_sequence(tokens, responses) == training_flops(model, tokens, responses, pairs, local)

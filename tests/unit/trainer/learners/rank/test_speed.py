"""The time that a micro-batch would take at the peak of the learner's GPUs."""

import numpy as np
import pytest
import torch
from transformers import Qwen3Config

from rljob_api.sizing.flops import training_flops
from rljob_api.sizing.known_models import ON_THE_HUB
from rljob_api.sizing.model_shape import shape
from rljob_trainer.batches.packing import Packing, TrainingSequence, pack
from rljob_trainer.learners.rank.attention.layout import token_layout
from rljob_trainer.learners.rank.speed import Speed

MODEL = shape(ON_THE_HUB["Qwen/Qwen3-0.6B"])
SEQUENCES = [TrainingSequence(tokens, 2, 1.0, (-1.0,) * 2, 1.0) for tokens in ((1, 2, 3, 4), (1, 2, 5, 5))]


def test_computed_tokens_count_once_and_attention_for_every_sequence() -> None:
    ((batch,),) = pack(SEQUENCES, Packing(1, 100))
    layout = token_layout(batch)
    assert np.array_equal(layout.lengths_S, [4, 4])
    flops = training_flops(MODEL, tokens=6, responses=4, pairs=2 * (1 + 2 + 3 + 4))
    assert Speed(MODEL, 2e12).seconds_at_peak(layout) == pytest.approx(flops / 2e12)


def test_layers_with_a_window_count_what_they_see() -> None:
    ((batch,),) = pack(SEQUENCES, Packing(1, 100))
    model = shape({**ON_THE_HUB["google/gemma-3-270m"], "sliding_window": 2})
    flops = training_flops(model, tokens=6, responses=4, pairs=2 * 10, local_pairs=2 * (1 + 2 + 2 + 2))
    assert Speed(model, 2e12).seconds_at_peak(token_layout(batch)) == pytest.approx(flops / 2e12)


def test_all_gpus_of_a_learner_together_have_the_peak_of_their_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA H200")
    config = Qwen3Config(**ON_THE_HUB["Qwen/Qwen3-0.6B"])
    assert Speed.of(config, torch.device("cuda", 0), 4) == Speed(MODEL, 4 * 790e12)
    assert Speed.of(config, torch.device("cpu"), 4).flops_per_second is None


def test_without_a_known_peak_there_is_no_time() -> None:
    ((batch,),) = pack(SEQUENCES, Packing(1, 100))
    assert Speed(MODEL, None).seconds_at_peak(token_layout(batch)) == 0.0

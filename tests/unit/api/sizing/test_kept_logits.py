"""What the output layer takes of a GPU's memory."""

import pytest

from rljob_api.reading.manifest import load
from rljob_api.sizing.known_models import ON_THE_HUB
from rljob_api.sizing.memory import KEPT_FORMULA, Item, logits
from rljob_api.sizing.model_shape import shape
from rljob_api.sizing.topology import topology

MODEL = shape(ON_THE_HUB["Qwen/Qwen3-0.6B"])
GIB = 2**30


@pytest.mark.parametrize(("tokens", "kept"), [(1000, 1000 * 2 * 151_936), (100_000, 5 * GIB)])
def test_one_gpu_without_tensor_parallelism_keeps_its_logits(good: str, tokens: int, kept: int) -> None:
    spec = load(good.replace("steps: 200", f"steps: 200\n    maxTokensPerGpu: {tokens}")).spec
    assert logits(MODEL, spec, topology(spec)) == Item("logits", kept, KEPT_FORMULA.format(size=2), exact=False)

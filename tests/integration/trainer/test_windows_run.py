"""A whole run of a model whose windows are shorter than its samples: real Ray, Megatron-core, SGLang and router."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from rljob_api.exits import Exit
from support.trainer.tiny_models import tiny
from support.trainer.whole_run import WholeRun

pytestmark = pytest.mark.timeout(900)

STEPS = 6


@pytest.fixture
def run(tmp_path: Path) -> Iterator[WholeRun]:
    """A run of Gemma 3, on two tensor ranks."""
    model = tiny("Gemma3ForCausalLM", tmp_path / "model", sliding_window=4)
    layout = {"steps": STEPS, "gpusPerNode": 2, "tensorParallel": 2}
    made = WholeRun(model, tmp_path, training=layout, checkpoint={"hfExport": True})
    yield made
    made.stop()


@pytest.mark.long
def test_engines_sample_by_the_windows_that_the_learner_trains_with(run: WholeRun) -> None:
    run.start()
    assert run.end() == Exit.OK, run.output
    steps = run.records("step")
    assert len(steps) == STEPS
    assert max(step["logprob_mismatch"] for step in steps) < 1e-5
    assert all(step["grad_norm"] > 0 for step in steps)
    _, loaded = AutoModelForCausalLM.from_pretrained(run.run_directory / "hf", output_loading_info=True)
    assert {what: names for what, names in loaded.items() if names} == {}

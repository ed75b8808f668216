"""A mixture of experts through the whole loop: real Ray, Megatron-core, SGLang and router.

It is killed, and resumed in another parallel layout.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.exits import Exit
from support.trainer.tiny_models import tiny
from support.trainer.whole_run import PROMPTS_PER_STEP, WholeRun, expected_journal, merged, uids

pytestmark = pytest.mark.timeout(1200)

STEPS, INTERVAL = 30, 2
DEADLINE_S = 900.0


@pytest.fixture
def run(tmp_path: Path) -> Iterator[WholeRun]:
    model = tiny("Qwen3MoeForCausalLM", tmp_path / "model", tied=False)
    started = WholeRun(
        model,
        tmp_path,
        placement="Disaggregated",
        rollout={"engines": 2},
        training={"steps": STEPS, "gpusPerNode": 4, "tensorParallel": 2, "expertParallel": 2},
        checkpoint={"interval": INTERVAL},
    )
    yield started
    started.stop()


def lay_out(run: WholeRun, **training: Any) -> None:
    """Change the manifest's parallel sizes."""
    content = yaml.safe_load(run.manifest.read_text())
    content["spec"] = merged(content["spec"], {"training": training})
    run.manifest.write_text(yaml.safe_dump(content))


def test_a_mixture_of_experts_learns_and_goes_on_in_another_layout(run: WholeRun) -> None:
    run.start()
    run.until(lambda: run.steps() >= 2 * INTERVAL + 1, DEADLINE_S)
    run.kill_everything()

    lay_out(run, gpusPerNode=2, tensorParallel=1, expertParallel=2)
    run.start()
    assert run.end(DEADLINE_S) == Exit.OK, run.output

    steps = run.records("step")
    assert [record["step"] for record in steps] == list(range(1, STEPS + 1))
    assert run.journal == expected_journal(STEPS, PROMPTS_PER_STEP, INTERVAL, uids())
    assert max(record["logprob_mismatch"] for record in steps) < 1e-4, "engines and learner route alike"
    assert steps[-1]["reward_mean"] > steps[0]["reward_mean"] + 0.2, "it learns"
    assert run.left_behind() == []

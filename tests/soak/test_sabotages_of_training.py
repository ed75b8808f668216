"""Sabotages of weights, learner and rewards: each is caught by the check that is meant to catch it, in its step.

`docs/sabotages.md` lists them. Everything is real: `rljob run`, Ray, Megatron-core, SGLang, the router, and a tiny
model that is sure of what it says and ends its turns, so that a healthy run is above no limit.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from rljob_api.exits import Exit
from support.trainer.sabotaged_run import (
    CONTRADICTED,
    ENGINE_PERPLEXITY,
    KL,
    LARGEST,
    LEARNER_PERPLEXITY,
    MEAN,
    REPEATED,
    TRUNCATED,
    Prepare,
    breached,
    findings,
    finish,
    named,
    overcome,
)
from support.trainer.sabotages import DOWN, EMBEDDING, NORMS, SPOILS, WAYS, install

pytestmark = pytest.mark.timeout(900)


def test_a_healthy_run_gets_no_finding(prepare: Prepare, sure_model: Path) -> None:
    run = finish(prepare(sure_model, training={"steps": 3}, watch={"window": 3}))
    assert breached(run) == set()
    assert findings(run) == []
    assert run.records("engine") == []
    (record,) = run.records("first_step")
    assert len(record["checks"]) == 10, "everything is measured"
    assert "judging" in run.log("reward.log"), "what a reward prints does no harm, and is kept"


# weights on their way to the engines


def test_an_engine_that_does_not_hold_the_weights_is_out_of_service_at_once(prepare: Prepare, sure_model: Path) -> None:
    run = prepare(sure_model, training={"steps": 5})
    install(run.directory, "spoiled weights")
    (run.directory / SPOILS).write_text(" ".join(WAYS))
    finish(run)

    said = re.findall(r"ERROR .* engine=engine-0 action=quarantine version=(\d) reason=(.*)", run.log())
    assert [int(version) for version, _ in said] == [1, 2, 3, 4], "each in the step in which it was done"
    swapped, zeroed, flipped, swallowed = (reason for _, reason in said)
    assert re.search(rf": 2 of \d+ tensors differ from the learner's: {', '.join(NORMS)}$", swapped)
    assert re.search(rf": 1 of \d+ tensors differ from the learner's: {DOWN}$", zeroed)
    assert re.search(rf": 1 of \d+ tensors differ from the learner's: {EMBEDDING}$", flipped)
    assert re.search(r": (\d+) of \1 tensors differ from the learner's: ", swallowed)
    incidents = {record["time"]: record for record in run.records("engine")}.values()
    assert [record["cause"] for record in incidents] == ["PublishFailed"] * 4
    assert all(record["return_seconds"] for record in incidents), "with the right weights it is back"
    assert max(record["logprob_mismatch"] for record in run.records("step")) < 1e-3, "nothing of it was trained on"
    assert "EngineQuarantined" in overcome(run)


# the learner, and what it is trained on: reported with the first step

COLD = {"rollout": {"sampling": {"temperature": 0.7}}}
MANY = {"rollout": {"promptsPerStep": 16}}
GENERATE = {"rollout": {"generate": "tiny_generate:generate", "contextLength": 128}}
TWO_TURNS = """\
async def generate(conversation):
    first = await conversation.model(max_tokens=4)
    conversation.reply({"role": "user", "content": "Go on."})
    second = await conversation.model()
    return first.text + second.text
"""
MISMATCH = {(1, "Mismatch")}
AT_THE_FIRST_STEP: dict[str, tuple[dict[str, Any], set[str], set[tuple[int, str]]]] = {
    "another reference": ({}, {KL}, set()),
    "nothing loaded": ({}, {LEARNER_PERPLEXITY, ENGINE_PERPLEXITY}, set()),
    "shifted mask": ({}, {MEAN, LARGEST, LEARNER_PERPLEXITY}, MISMATCH),
    "shifted turns": (GENERATE, {MEAN, LARGEST, LEARNER_PERPLEXITY}, MISMATCH),
    "shifted log-probabilities": ({}, {MEAN, LARGEST, LEARNER_PERPLEXITY}, MISMATCH),
    "forgotten temperature": (COLD, {MEAN, LARGEST}, MISMATCH),
    "flipped advantages": ({}, {CONTRADICTED}, set()),
    "advantages of others": (MANY, {CONTRADICTED}, set()),
    "answers of others": ({}, {MEAN, LARGEST, LEARNER_PERPLEXITY}, MISMATCH),
}
"""by what is broken: the manifest, the numbers of the first step above their limits, and what is found while it runs"""
NAMED = {KL: "FirstStepKl", LEARNER_PERPLEXITY: "FirstStepUnlikely", CONTRADICTED: "AdvantagesContradict"}
"""what `rljob doctor` says of numbers of the first step"""


@pytest.mark.parametrize("name", AT_THE_FIRST_STEP)
def test_a_learner_that_is_wrong_shows_at_the_first_step(prepare: Prepare, sure_model: Path, name: str) -> None:
    sections, checks, found = AT_THE_FIRST_STEP[name]
    run = prepare(sure_model, **sections)
    (run.directory / "tiny_generate.py").write_text(TWO_TURNS)
    install(run.directory, name)

    finish(run)

    assert breached(run) == checks
    assert set(findings(run)) == found
    assert {code for check, code in NAMED.items() if check in checks} <= set(overcome(run))


def test_a_gradient_that_is_not_finite_ends_the_run_in_its_step(prepare: Prepare, sure_model: Path) -> None:
    run = prepare(sure_model, training={"steps": 4, "optimizer": {"maxSkippedSteps": 0}})
    install(run.directory, "gradient not finite")
    finish(run, Exit.DIVERGED)
    assert run.steps() == 1, "it was the second step"
    assert "1 optimizer steps had a gradient that is not finite" in run.records("end")[-1]["message"]
    assert named(run)[0] == "NonFiniteStep"


def test_a_gradient_that_explodes_is_found_in_its_step(prepare: Prepare, sure_model: Path) -> None:
    # The usual rate lets the tiny model collapse about then, which is found, too.
    gently = {"steps": 6, "optimizer": {"learningRate": 1.0e-5}}
    run = prepare(sure_model, training=gently, watch={"window": 3, "rewardDrop": 1000})
    install(run.directory, "gradient exploded")
    finish(run)
    assert findings(run) == [(5, "GradientSpike")]
    assert "LossDiverging" in overcome(run)


def test_an_objective_of_the_wrong_sign_is_refused_before_the_first_step(prepare: Prepare, sure_model: Path) -> None:
    run = prepare(sure_model)
    install(run.directory, "flipped objective")
    finish(run, Exit.BAD_INPUT)
    assert run.steps() == 0
    said = "has a loss that grows with the log-probability of a token with advantage 1"
    assert said in run.records("end")[-1]["message"]
    assert named(run)[0] == "AlgorithmRefused"


# responses and rewards


def test_responses_that_do_not_end_are_reported_with_the_first_step(prepare: Prepare, sure_model: Path) -> None:
    run = finish(prepare(sure_model, rollout={"sampling": {"stopTokenIds": []}}))
    assert breached(run) == {TRUNCATED}
    assert findings(run) == [(1, "Truncation")]
    assert "StopTokensMissing" in overcome(run)


def test_responses_that_go_in_circles_are_reported_with_the_first_step(prepare: Prepare, sure_model: Path) -> None:
    run = prepare(sure_model, rollout={"sampling": {"stopTokenIds": []}})
    install(run.directory, "one token for ever")
    finish(run)
    assert breached(run) >= {REPEATED, MEAN}
    assert {(1, "Repetition"), (1, "Mismatch")} <= set(findings(run))


def test_a_reward_that_judges_all_alike_is_reported_with_the_first_step(prepare: Prepare, sure_model: Path) -> None:
    run = finish(prepare(sure_model, "def digits(question, response, label, metadata):\n    return 1.0\n"))
    assert findings(run) == [(1, "NoSignal")]
    assert "NoSignal" in overcome(run)


FAILING = """\
import math
import os
import time

CALLS = __file__ + ".calls"


def digits(question, response, label, metadata):
    with open(CALLS, "a") as calls:
        calls.write(".")
    match os.path.getsize(CALLS):
        case 40:
            time.sleep(600)
        case 45:
            os._exit(3)
        case 50:
            raise ValueError("no idea")
        case 70:
            return math.nan
        case 75:
            return "much"
    return len(response)
"""
HUNG = re.compile(r"tiny_reward:digits took longer than 2 s \(timeoutSeconds\) on prompt 0:\d+")


def test_a_failing_reward_is_counted_in_its_step_with_its_reason(prepare: Prepare, sure_model: Path) -> None:
    reward = {"failureScore": 0.0, "timeoutSeconds": 2}
    run = finish(prepare(sure_model, FAILING, training={"steps": 3}, reward=reward))
    assert [record["reward_failures"] for record in run.records("step")] == [0, 3, 2]
    said = re.findall(r"WARNING .* action=score_failure part=reward prompt=0:\d+ score=0 reason=(.*)", run.log())
    hung, crashed, raised, nan, text = said
    assert HUNG.search(hung)
    assert crashed.startswith("the process of tiny_reward:digits ended with code 3 on prompt 0:")
    assert re.fullmatch(r"tiny_reward:digits failed on prompt 0:\d+: ValueError: no idea", raised)
    wanted = r"a finite number is wanted \(a function of all responses at once has judges: Group\)"
    assert re.fullmatch(rf"tiny_reward:digits returned nan for prompt 0:\d+; {wanted}", nan)
    assert re.fullmatch(rf"tiny_reward:digits returned 'much' for prompt 0:\d+; {wanted}", text)


def test_a_reward_that_hangs_ends_the_run_in_its_step(prepare: Prepare, sure_model: Path) -> None:
    run = finish(prepare(sure_model, FAILING, training={"steps": 3}, reward={"timeoutSeconds": 2}), Exit.BAD_INPUT)
    assert run.steps() == 1
    assert HUNG.search(run.records("end")[-1]["message"])
    assert named(run)[0] == "RewardTimeout"
    assert re.search(r'tiny_reward\.py", line \d+ in digits', run.log()), "where it hangs is shown"


def test_a_reward_of_too_few_numbers_ends_the_run_in_its_step(prepare: Prepare, sure_model: Path) -> None:
    reward = "def digits(question, responses, label, metadata):\n    return [1.0 for _ in responses[1:]]\n"
    run = finish(prepare(sure_model, reward, reward={"judges": "Group"}), Exit.BAD_INPUT)
    assert run.steps() == 0
    said = r"tiny_reward:digits returned a list of 7 for prompt 0:\d+, which has 8 responses"
    assert re.search(said, run.records("end")[-1]["message"])
    assert named(run)[0] == "RewardFunctionFailed"

"""Responses become numbers: each kind of reward, what is judged, and what is refused."""

import asyncio
import math
import sys
import threading
import types

import pytest

from rljob_api.sections import Data, ReasoningGym, Reward, RewardKind, Source
from rljob_trainer.data.sources import questions
from rljob_trainer.rewards.choose import Rewards, rewards
from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rewards.function import Response
from rljob_trainer.rewards.math_answer import math_answer
from rljob_trainer.samples import Group, Prompt, Sample


def prompt(label: str = "83", uid: str = "0:7", **metadata) -> Prompt:
    return Prompt(uid, "47 + 36", "47 + 36 =", (1,), label, metadata)


def group(*texts: str, of: Prompt | None = None) -> Group:
    return Group(of or prompt(), tuple(Sample((1,), (0.0,), text, 0, "stop", "engine-0") for text in texts))


def scores(spec: Reward, *groups: Group) -> list[tuple[float, ...]]:
    return [scored.rewards_G for scored in rewards(spec).score(groups)]


def task_prompt(task: str, **config) -> Prompt:
    source = Source(reasoning_gym=ReasoningGym(task=task, size=1, config=config))
    row = questions(Data(train=source)).train[0]
    return Prompt("0:7", row.question, "", (), row.label, row.metadata)


EXACT = Reward(kind=RewardKind.EXACT_MATCH)
MATH = Reward(kind=RewardKind.MATH)
TASK = Reward(kind=RewardKind.TASK)


@pytest.fixture
def judges(monkeypatch):
    """An importable module called `judges`, to put functions into."""
    module = types.ModuleType("judges")
    monkeypatch.setitem(sys.modules, "judges", module)
    return module


def python(name: str) -> Reward:
    return Reward(kind=RewardKind.PYTHON, function=name)


def test_each_sample_gets_the_reward_of_its_own_response():
    first, second = group("83", "84", " 83\n"), group("5", "6", of=prompt("6"))
    scored = rewards(EXACT).score([first, second])
    assert [one.group for one in scored] == [first, second]
    assert [one.rewards_G for one in scored] == [(1.0, 0.0, 1.0), (0.0, 1.0)]


def test_no_groups_have_no_rewards():
    assert scores(EXACT) == []


@pytest.mark.parametrize("text", ["83", " 83.", "83\n47 + 36 = 84", "83 .\n"])
def test_only_the_first_line_is_judged_where_that_is_asked(text):
    assert scores(Reward(kind=RewardKind.EXACT_MATCH, first_line=True), group(text)) == [(1.0,)]


@pytest.mark.parametrize("text", ["83", "84", "\n83", "83.0"])
def test_the_whole_response_is_judged_otherwise(text):
    assert scores(EXACT, group(text)) == [(float(text.strip() == "83"),)]


def test_an_answer_on_a_later_line_does_not_count_as_the_first():
    assert scores(Reward(kind=RewardKind.EXACT_MATCH, first_line=True), group("\n83")) == [(0.0,)]


def test_a_threshold_makes_rewards_one_or_zero():
    made = Rewards(lambda responses: [0.49, 0.5, 0.98, 7.0], threshold=0.5)
    assert made.score([group("", "", "", "")])[0].rewards_G == (0.0, 1.0, 1.0, 1.0)


def test_without_a_threshold_rewards_are_used_as_they_are():
    assert Rewards(lambda responses: [-0.25, 3.5]).score([group("", "")])[0].rewards_G == (-0.25, 3.5)


def test_the_task_judges_its_own_question():
    asked = task_prompt("chain_sum")
    (scored,) = scores(TASK, group(asked.label, f" {asked.label}.0", "12345678", "", of=asked))
    assert scored[:2] == (1.0, 1.0)
    assert max(scored[2:]) < 0.1


def test_the_verifier_follows_the_settings_of_the_task():
    asked = task_prompt("decimal_arithmetic", min_num_decimal_places=2, max_num_decimal_places=2)
    near = str(float(asked.label) + 0.003)
    exact = task_prompt("decimal_arithmetic", min_num_decimal_places=6, max_num_decimal_places=6)
    far = str(float(exact.label) + 0.003)
    assert scores(TASK, group(near, of=asked)) == [(1.0,)]
    assert scores(TASK, group(far, of=exact))[0][0] < 1.0


def test_a_row_without_a_task_is_told_with_the_field_to_change():
    with pytest.raises(RewardError, match=r"prompt 0:7: reward\.kind task judges .*reasoningGym.* the row has level"):
        scores(TASK, group("83", of=prompt(level=3)))


@pytest.mark.parametrize(
    ("label", "text", "worth"),
    [
        ("83", "The answer is 83.", 1.0),
        ("83", "84", 0.0),
        ("1/2", r"So we get $\frac{2}{4}$", 1.0),
        (r"\frac{1}{2}", r"\boxed{0.5}", 1.0),
        (r"$\sqrt{8}$", r"$2\sqrt{2}$", 1.0),
        (r"2\sqrt{2}", r"$\sqrt{8}$", 1.0),
        (r"2\sqrt{2}", "2", 0.0),
        (r"\boxed{\pi}", r"It is $\pi$.", 1.0),
        ("The answer is $5$", "5", 1.0),
        ("83", "", 0.0),
        ("83", "no idea", 0.0),
    ],
)
def test_math_compares_values_not_texts(label, text, worth):
    assert scores(MATH, group(text, of=prompt(label))) == [(worth,)]


def test_a_label_that_is_no_mathematics_is_told():
    with pytest.raises(RewardError, match=r"prompt 0:7: math-verify finds no answer in the label ''"):
        scores(MATH, group("83", of=prompt("")))


def test_math_outside_of_the_main_thread_is_refused_rather_than_left_without_a_time_limit():
    caught: list[RewardError] = []

    def work() -> None:
        try:
            math_answer([Response(prompt(), "83")])
        except RewardError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_an_own_function_receives_question_response_label_and_metadata(judges):
    seen = []
    judges.judge = lambda *arguments: seen.append(arguments) or 0.5
    assert scores(python("judges:judge"), group("84", of=prompt(level=3))) == [(0.5,)]
    assert seen == [("47 + 36", "84", "83", {"level": 3})]


def test_an_own_async_function_judges_all_responses_at_the_same_time(judges):
    together = asyncio.Barrier(3)

    async def judge(question: str, response: str, label: str, metadata: object) -> float:
        async with asyncio.timeout(20):
            await together.wait()
        return float(response)

    judges.judge = judge
    assert scores(python("judges:judge"), group("3", "1"), group("2")) == [(3.0, 1.0), (2.0,)]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("judge", r"`module:function` is wanted"),
        ("judges:", r"`module:function` is wanted"),
        ("no_such_module:judge", r"cannot import no_such_module: ModuleNotFoundError"),
        ("judges:jugde", r"judges has no function jugde; it has judge"),
        ("judges:narrow", r"judges:narrow takes \(response, label\); a reward takes \(question, response, label, met"),
        ("judges:keyword", r"judges:keyword takes \(\*, question, response, label, metadata\)"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_when_it_is_loaded(judges, name, said):
    judges.judge = lambda question, response, label, metadata: 0.0
    judges.narrow = lambda response, label: 0.0
    judges.keyword = lambda *, question, response, label, metadata: 0.0
    with pytest.raises(RewardError, match=said):
        rewards(python(name))


async def returns_none(question, response, label, metadata):
    return None


async def divides(question, response, label, metadata):
    return 1 / 0


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda *_: math.nan, r"judges:judge returned nan for prompt 0:7; a finite number is wanted"),
        (lambda *_: math.inf, r"returned inf"),
        (lambda *_: None, r"returned None"),
        (lambda *_: "1.0", r"returned '1\.0'"),
        (returns_none, r"judges:judge returned None for prompt 0:7"),
        (lambda *_: 1 / 0, r"judges:judge failed on prompt 0:7: ZeroDivisionError: division by zero"),
        (divides, r"judges:judge failed on prompt 0:7: ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_not_a_number_ends_in_an_error_that_names_function_and_prompt(judges, function, said):
    judges.judge = function
    with pytest.raises(RewardError, match=said):
        scores(python("judges:judge"), group("84"))


@pytest.mark.parametrize("value", [True, 1, 1.0])
def test_any_kind_of_number_is_a_reward(judges, value):
    judges.judge = lambda *_: value
    assert scores(python("judges:judge"), group("84")) == [(1.0,)]

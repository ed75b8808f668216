"""Responses become numbers: each kind of reward, what is judged, several rewards, and what is refused."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from judging import group, prompt
from rljob_api.sections import Data, Part, ReasoningGym, Reward, RewardKind, Source
from rljob_trainer.data.sources import questions
from rljob_trainer.rewards.choose import PartReward, Rewards, Surroundings, rewards
from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rewards.f1 import token_f1
from rljob_trainer.rewards.function import Failure
from rljob_trainer.samples import Group, Prompt


def scores(spec: Reward, *groups: Group) -> list[tuple[float, ...]]:
    with ExitStack() as stack:
        around = Surroundings(Path("reward.log"), environ={})
        return [scored.rewards_G for scored in rewards(spec, around, stack).score(groups)]


def task_prompt(task: str, **config) -> Prompt:
    source = Source(reasoning_gym=ReasoningGym(task=task, size=1, config=config))
    row = questions(Data(train=source)).train[0]
    return Prompt("0:7", row.question, "", (), row.label, row.metadata)


EXACT = Reward(kind=RewardKind.EXACT_MATCH)
F1 = Reward(kind=RewardKind.F1)
TASK = Reward(kind=RewardKind.TASK)


def test_each_sample_gets_the_reward_of_its_own_response():
    first, second = group("83", "84", " 83\n"), group("5", "6", of=prompt("6"))
    scored = rewards(EXACT, Surroundings(Path("reward.log"), environ={}), ExitStack()).score([first, second])
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
    made = Rewards((PartReward(lambda responses: [0.49, 0.5, 0.98, 7.0], threshold=0.5),))
    assert made.score([group("", "", "", "")])[0].rewards_G == (0.0, 1.0, 1.0, 1.0)


def test_without_a_threshold_rewards_are_used_as_they_are():
    assert Rewards((PartReward(lambda responses: [-0.25, 3.5]),)).score([group("", "")])[0].rewards_G == (-0.25, 3.5)


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
    ("answer", "gold", "worth"),
    [
        ("The Normans", "normans", 1.0),
        ("in the 10th century", "10th and 11th centuries", 2 * (1 / 3) * (1 / 4) / (1 / 3 + 1 / 4)),
        ("a cat, a cat!", "cat", 2 * 0.5 * 1 / 1.5),
        ("cat cat", "cat cat dog", 2 * 1 * (2 / 3) / (1 + 2 / 3)),
        ("cat", "cat cat dog", 2 * 1 * (1 / 3) / (1 + 1 / 3)),
        ("the", "", 1.0),
        ("", "France", 0.0),
        ("France", "", 0.0),
        ("theory an-d", "theory and", 1.0),
        ("Paris", "London", 0.0),
    ],
)
def test_f1_counts_words_as_squad_does(answer, gold, worth):
    assert token_f1(answer, gold) == pytest.approx(worth, abs=1e-12)


def test_f1_judges_by_the_label():
    assert scores(F1, group("It is 83", "84")) == [(0.5, 0.0)]


def several(*parts: PartReward) -> Rewards:
    return Rewards(parts)


def test_several_rewards_add_up_by_their_weights_and_each_is_told():
    made = several(
        PartReward(lambda responses: [1.0, 0.0], name="answer"),
        PartReward(lambda responses: [0.4, 0.8], name="style", weight=0.5, threshold=0.5),
        PartReward(lambda responses: [3.0, 4.0], name="length", weight=-0.25),
    )
    (scored,) = made.score([group("", "")])
    assert scored.rewards_G == (1.0 + 0.0 - 0.75, 0.0 + 0.5 - 1.0)
    assert scored.parts_G == {"answer": (1.0, 0.0), "style": (0.0, 1.0), "length": (3.0, 4.0)}


def test_one_reward_has_no_parts():
    (scored,) = Rewards((PartReward(lambda responses: [1.0]),)).score([group("")])
    assert scored.parts_G == {}


def test_parts_of_the_manifest_are_judged_each_in_its_way():
    first, words = (
        Part(name="first", kind=RewardKind.EXACT_MATCH, first_line=True, weight=2.0),
        Part(name="words", kind=RewardKind.F1),
    )
    assert scores(Reward(parts=(first, words)), group("83.\n47 + 36")) == [(2.0 + 0.5,)]


def judging(*said: float | Failure, score: float | None) -> PartReward:
    return PartReward(lambda responses: said, failure_score=score)


def test_a_failure_ends_the_run_unless_the_manifest_has_a_score_for_it():
    with pytest.raises(RewardError, match="judge broke"):
        several(judging(1.0, Failure("judge broke"), score=None)).score([group("", "")])


def test_a_failure_with_a_score_is_counted_and_told_and_no_threshold_changes_it(caplog):
    made = PartReward(lambda responses: [1.0, Failure("judge broke")], threshold=0.5, failure_score=-1.0)
    (scored,) = several(made).score([group("", "")])
    assert (scored.rewards_G, scored.failures) == ((1.0, -1.0), 1)
    assert "part=reward prompt=0:7 score=-1 reason=judge broke" in caplog.text


def test_failures_belong_to_their_group():
    made = several(judging(1.0, Failure("a"), 0.0, 0.0, score=0.0))
    assert [scored.failures for scored in made.score([group("", ""), group("", "")])] == [1, 0]


def test_when_everything_fails_the_score_of_a_failure_does_not_hide_it():
    with pytest.raises(RewardError, match="not one of 2 responses could be judged; the last: second"):
        several(judging(Failure("first"), Failure("second"), score=0.0)).score([group("", "")])


def test_a_score_for_each_response_is_wanted():
    with pytest.raises(ValueError, match="shorter"):
        several(judging(1.0, score=None)).score([group("", "")])

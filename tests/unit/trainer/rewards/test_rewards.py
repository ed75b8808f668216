"""Responses become numbers: each kind of reward, what is judged, several rewards, and what is refused."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from rljob_api.sections import Data, Part, ReasoningGym, Remote, Reward, RewardKind, Source
from rljob_trainer.data.sources import questions
from rljob_trainer.reporting.losses import Losses
from rljob_trainer.rewards.factory import PartReward, RewardContext, Rewards, rewards
from rljob_trainer.rewards.function import Failure
from rljob_trainer.rewards.text_match import exact_match, token_f1
from rljob_trainer.samples import Group, Prompt
from support.trainer.judging import group, prompt


def scores(spec: Reward, *groups: Group) -> list[tuple[float, ...]]:
    with ExitStack() as stack:
        around = RewardContext(Path("reward.log"), environ={})
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
    scored = rewards(EXACT, RewardContext(Path("reward.log"), environ={}), ExitStack()).score([first, second])
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


def test_a_row_without_a_task_is_reported_with_the_field_to_change(caplog):
    assert scores(TASK, group("83", of=prompt(level=3))) == [()]
    assert "prompt 0:7: reward.kind Task judges questions from data.*.reasoningGym; the row has level" in caplog.text


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


def test_several_rewards_add_up_by_their_weights_and_each_is_reported():
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


def test_a_response_that_could_not_be_judged_is_left_out_unless_the_manifest_has_a_score_for_it(caplog):
    losses = Losses()
    made = Rewards((judging(1.0, Failure("judge broke"), 0.0, score=None),), losses)
    (scored,) = made.score([group("a", "b", "c")])
    assert [sample.text for sample in scored.group.samples_G] == ["a", "c"]
    assert (scored.rewards_G, scored.failures) == ((1.0, 0.0), 1)
    assert "part=reward prompt=0:7 score=left_out reason=judge broke" in caplog.text
    assert (losses.take(), str(losses.last)) == ({"Judge": 1}, "judge broke")


def test_a_response_that_one_of_several_judges_fails_on_is_left_out_of_all_parts():
    made = several(
        PartReward(lambda responses: [1.0, 0.0, 1.0], name="answer"),
        PartReward(lambda responses: [0.5, Failure("timeout"), 0.25], name="style"),
    )
    (scored,) = made.score([group("a", "b", "c")])
    assert scored.rewards_G == (1.5, 1.25)
    assert scored.parts_G == {"answer": (1.0, 1.0), "style": (0.5, 0.25)}


def test_without_failures_a_group_is_the_very_one_that_was_judged():
    asked = group("", "")
    assert several(judging(1.0, 0.0, score=None)).score([asked])[0].group is asked


def test_a_failure_with_a_score_is_counted_and_reported_and_no_threshold_changes_it(caplog):
    made = PartReward(lambda responses: [1.0, Failure("judge broke")], threshold=0.5, failure_score=-1.0)
    (scored,) = several(made).score([group("", "")])
    assert (scored.rewards_G, scored.failures) == ((1.0, -1.0), 1)
    assert "part=reward prompt=0:7 score=-1 reason=judge broke" in caplog.text


class Begins:
    """A judge that says what a response is worth in its text, and remembers what it was asked ahead and later."""

    def __init__(self, room: int = 9) -> None:
        self.room = room
        self.ahead: list[list[str]] = []
        self.later: list[list[str]] = []

    def begin(self, responses):
        if len(self.ahead) == self.room:
            return None
        self.ahead.append([each.text for each in responses])
        return iter([Failure(each.text) if each.text == "bad" else float(each.text) for each in responses])

    def __call__(self, responses):
        self.later.append([each.text for each in responses])
        return [float(each.text) for each in responses]


def test_what_was_begun_ahead_is_not_asked_again_and_the_rest_is_asked_at_once():
    judge = Begins(room=2)
    made = Rewards((PartReward(judge),))
    first, second, third, fourth = (group(*texts) for texts in (("1", "2"), ("3",), ("4",), ("5", "6")))
    for each in (third, first, second):
        made.begin(each)
    found = made.score([first, second, third, fourth])
    assert [each.rewards_G for each in found] == [(1.0, 2.0), (3.0,), (4.0,), (5.0, 6.0)]
    assert (judge.ahead, judge.later) == ([["4"], ["1", "2"]], [["3", "5", "6"]])


def test_a_group_that_was_begun_is_scored_once_so_that_the_same_question_asked_later_is_another():
    judge = Begins()
    made, asked = Rewards((PartReward(judge),)), group("1")
    made.begin(asked)
    made.score([asked])
    made.score([asked])
    assert (judge.ahead, judge.later) == ([["1"]], [["1"]])


def test_rules_of_a_reward_hold_for_what_was_begun_ahead():
    losses, asked = Losses(), group("0.75\nno", "bad", "0.25")
    made = Rewards((PartReward(Begins(), threshold=0.5, first_line=True),), losses)
    made.begin(asked)
    (scored,) = made.score([asked])
    assert (scored.rewards_G, scored.failures) == ((1.0, 0.0), 1)
    assert (losses.take(), str(losses.last)) == ({"Judge": 1}, "bad")


def test_parts_that_cannot_begin_ahead_are_judged_with_the_others():
    judge, asked = Begins(), group("83", "84")
    made = several(PartReward(judge, name="own"), PartReward(exact_match, name="exact", weight=10.0))
    made.begin(asked)
    (scored,) = made.score([asked])
    assert scored.rewards_G == (93.0, 84.0)
    assert judge.later == []


def test_a_group_without_samples_begins_nothing():
    judge, empty = Begins(), group()
    made = Rewards((PartReward(judge),))
    made.begin(empty)
    assert [each.rewards_G for each in made.score([empty])] == [()]
    assert (judge.ahead, judge.later) == ([], [])


def test_failures_belong_to_their_group():
    made = several(judging(1.0, Failure("a"), 0.0, 0.0, score=0.0))
    assert [scored.failures for scored in made.score([group("", ""), group("", "")])] == [1, 0]


def test_when_everything_fails_the_score_of_a_failure_does_not_hide_it():
    losses = Losses()
    (scored,) = Rewards((judging(Failure("first"), Failure("second"), score=0.0),), losses).score([group("", "")])
    assert (scored.group.samples_G, scored.rewards_G, scored.failures) == ((), (), 2)
    assert (losses.take(), str(losses.last)) == ({"Judge": 2}, "second")


def test_a_score_for_each_response_is_wanted():
    with pytest.raises(ValueError, match="shorter"):
        several(judging(1.0, score=None)).score([group("", "")])


NAN, INF = float("nan"), float("inf")


def judged(score: float, **settings) -> PartReward:
    return PartReward(lambda responses: [0.0, score], **settings)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([judged(NAN)], "nan, which is 1 x nan (reward)"),
        ([judged(INF)], "inf, which is 1 x inf (reward)"),
        ([judged(1e39)], "1e+39, which is 1 x 1e+39 (reward)"),
        ([judged(-1.1e30)], "-1.1e+30, which is 1 x -1.1e+30 (reward)"),
        ([judged(NAN, threshold=0.5)], "nan, which is 1 x nan (reward)"),
        ([judged(INF, threshold=0.5)], "inf, which is 1 x inf (reward)"),
        ([judged(1e306, weight=1000.0, function="a:b")], "inf, which is 1000 x 1e+306 (a:b)"),
        ([judged(NAN, weight=0.0, name="words")], "nan, which is 0 x nan (words)"),
        ([judged(1e308), judged(1e308)], "inf, which is 1 x 1e+308 (reward) + 1 x 1e+308 (reward)"),
        ([judged(1e308), judged(-1e308)] * 2 + [judged(2e30)], "2e+30, which is 1 x 1e+308 (reward)"),
    ],
)
def test_a_reward_that_is_not_finite_is_left_out_with_question_and_function_in_the_log(parts, says, caplog):
    losses = Losses()
    (scored,) = Rewards(tuple(parts), losses).score([group("a", "b")])
    assert [sample.text for sample in scored.group.samples_G] == ["a"]
    assert str(losses.last).startswith(f"prompt 0:7: the reward is {says}")
    assert str(losses.last).endswith("Question: '47 + 36'")
    assert str(losses.last) in caplog.text


def test_a_large_reward_is_used_as_it_is():
    assert Rewards((judged(-1e30), judged(1e30), judged(1e30))).score([group("", "")])[0].rewards_G == (0.0, 1e30)


def test_the_score_of_a_failure_is_checked_too():
    made = several(PartReward(lambda responses: [Failure("x"), 1.0], failure_score=-1e307, weight=1000))
    assert len(made.score([group("", "")])[0].rewards_G) == 1
    assert "the reward is -inf, which is 1000 x -1e+307 (reward)" in str(made.losses.last)


@pytest.mark.parametrize(
    ("part", "function"),
    [
        (Part(name="a", kind=RewardKind.F1), "F1"),
        (Part(name="a", kind=RewardKind.REMOTE, remote=Remote(url="http://judge")), "http://judge"),
    ],
)
def test_a_part_knows_what_judges_for_it(part, function):
    (made,) = rewards(Reward(parts=(part,)), RewardContext(Path("reward.log"), environ={}), ExitStack()).parts
    assert made.function == function


def test_a_verifier_that_returns_nan_is_no_reward(monkeypatch):
    asked = task_prompt("chain_sum")
    monkeypatch.setattr("rljob_trainer.rewards.task.verifier", lambda recipe: lambda answer, row: NAN)
    assert scores(TASK, group("1", "2", of=asked)) == [()]

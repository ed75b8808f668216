"""An agent's own reward is taken, and all other samples are judged."""

from dataclasses import replace

from rljob_trainer.rewards.factory import PartReward, Rewards
from rljob_trainer.rewards.function import Failure
from rljob_trainer.rewards.given import GivenRewards
from rljob_trainer.samples import Group, Prompt, Sample

PROMPT = Prompt("0:0", "q", "q", (1,), "", {})
SAMPLE = Sample((5,), (-0.5,), "", 0, "stop", "engine-0")


def length(responses):
    return [float(len(each.text)) if each.text else Failure("empty") for each in responses]


def test_only_samples_without_a_reward_are_judged():
    judged, given, bad = replace(SAMPLE, text="four"), replace(SAMPLE, reward=-1.0), SAMPLE
    groups = (Group(PROMPT, (judged, given)), Group(PROMPT, (bad, given)), Group(PROMPT, (given,)))
    scored = GivenRewards(Rewards((PartReward(length),))).score(groups)
    assert [each.rewards_G for each in scored] == [(-1.0, 4.0), (-1.0,), (-1.0,)]
    assert [each.group.samples_G for each in scored] == [(given, judged), (given,), (given,)]
    assert [each.failures for each in scored] == [0, 1, 0]


def test_a_job_without_a_reward_takes_those_of_its_agent():
    given = replace(SAMPLE, reward=0.25)
    (scored,) = GivenRewards(Rewards(())).score((Group(PROMPT, (given, given)),))
    assert scored.rewards_G == (0.25, 0.25)


def test_only_samples_without_a_reward_are_begun_ahead():
    class Begins:
        def begin(self, responses):
            return length(responses)

        def __call__(self, responses):
            raise AssertionError("they were begun")

    group = Group(PROMPT, (replace(SAMPLE, text="four"), replace(SAMPLE, reward=-1.0)))
    rewards = GivenRewards(Rewards((PartReward(Begins()),)))
    rewards.begin(group)
    assert [each.rewards_G for each in rewards.score((group,))] == [(-1.0, 4.0)]

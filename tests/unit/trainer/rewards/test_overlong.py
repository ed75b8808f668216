"""DAPO's soft penalty: nothing, then a straight line down to the limit."""

import pytest

from rljob_api.reading.manifest import load
from rljob_trainer.rewards.factory import PartReward, Rewards
from rljob_trainer.rewards.overlong import Shaped, length_penalty, shaping
from rljob_trainer.samples import Group, Prompt, Sample, Segment
from support.api.bad_manifests import table

RIGHT = Rewards((PartReward(lambda responses: [1.0] * len(responses)),))


def group(*lengths: int) -> Group:
    samples = tuple(Sample((1,) * length, (0.0,) * length, "", 0, "stop", "engine-0") for length in lengths)
    return Group(Prompt("0:0", "q", "q", (1,), "", {}), samples)


@pytest.mark.parametrize(
    ("length", "expected"), [(0, 0.0), (15, 0.0), (16, 0.0), (17, -0.25), (18, -0.5), (20, -1.0), (21, -1.0)]
)
def test_the_penalty_is_that_of_the_paper(length: int, expected: float) -> None:
    assert length_penalty(length, longest=20, buffer=4, penalty=1.0) == pytest.approx(expected)
    assert length_penalty(length, longest=20, buffer=4, penalty=0.5) == pytest.approx(expected / 2)


def test_training_rewards_have_it_as_the_manifest_says() -> None:
    text = table()["good"].replace("  reward:\n", "  algorithm: {overlong: {buffer: 1024, penalty: 2}}\n  reward:\n")
    (scored,) = Shaped(RIGHT, shaping(load(text).spec)).score([group(1024, 1536, 2048)])
    assert scored.rewards_G == (1.0, 0.0, -1.0)


def test_without_it_rewards_stay_as_they_are() -> None:
    (scored,) = Shaped(RIGHT, shaping(load(table()["good"]).spec)).score([group(1024, 2048)])
    assert scored.rewards_G == (1.0, 1.0)


def test_tokens_of_the_environment_make_no_response_longer() -> None:
    text = table()["good"].replace("  reward:\n", "  algorithm: {overlong: {buffer: 1024, penalty: 2}}\n  reward:\n")
    segments = (Segment(1024, "", True), Segment(1000, "", False))
    sample = Sample((1,) * 2024, (0.0,) * 2024, "", 0, "stop", "engine-0", segments)
    (scored,) = Shaped(RIGHT, shaping(load(text).spec)).score([Group(group().prompt, (sample,))])
    assert scored.rewards_G == (1.0,)

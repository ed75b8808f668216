"""What was lost is left out of its group, within a budget; everything else is as it was."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.sections import DynamicSampling
from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.reporting.losses import AwayError, Cause, Losses
from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rewards.factory import PartReward, Rewards
from rljob_trainer.rewards.function import Failure
from rljob_trainer.rollouts.dynamic_sampling import DynamicRollouts
from rljob_trainer.rollouts.lost_samples import WINDOW, Counted, LeavingOut, too_many
from rljob_trainer.samples import Group, Prompt, Sample

PROMPTS, SAMPLES = 4, 3


class Source:
    """Makes groups; those of the numbers in `lost`, counted over all steps, lack samples."""

    def __init__(self, lost: dict[int, int], losses: Losses) -> None:
        self.lost, self.losses, self.made, self.consumed_steps = lost, losses, 0, []

    def collect_round(self, step: int, num_prompts: int) -> tuple[Group, ...]:
        return tuple(self._group() for _ in range(num_prompts))

    def _group(self) -> Group:
        lacks = self.lost.get(self.made, 0)
        if lacks:
            self.losses.note(Cause.GENERATE, lacks, GenerateError(f"prompt 0:{self.made}: connection reset"))
        texts = [f"{self.made} {number}" for number in range(SAMPLES - lacks)]
        self.made += 1
        prompt = Prompt(f"0:{self.made - 1}", "q", "q", (1, 2), "l", {})
        return Group(prompt, tuple(Sample((5, 6), (-0.1, -0.2), text, 0, "stop", "engine-0") for text in texts))

    def consumed(self, step: int) -> None:
        self.consumed_steps.append(step)


def judge(responses):
    return [Failure("no number") if text in UNJUDGED else float(text[-1]) for text in (r.text for r in responses)]


UNJUDGED: set[str] = set()


@pytest.fixture
def leaving():
    UNJUDGED.clear()

    def make(lost: dict[int, int] | None = None, unjudged: tuple[str, ...] = (), share=0.1, smallest=2) -> LeavingOut:
        losses = Losses()
        UNJUDGED.update(unjudged)
        rewards = Rewards((PartReward(judge),), losses)
        return LeavingOut(Source(lost or {}, losses), rewards, PROMPTS, SAMPLES, share, losses, smallest)

    return make


def step(made: LeavingOut, number: int):
    return made.score(made.collect(number))


def sizes(scored) -> list[int]:
    return [len(each.group.samples_G) for each in scored]


def test_without_losses_groups_are_the_very_ones_that_were_made(leaving):
    made = leaving()
    groups = made.collect(0)
    scored = made.score(groups)
    assert all(each.group is group for each, group in zip(scored, groups, strict=True))
    assert [each.rewards_G for each in scored] == [(0.0, 1.0, 2.0)] * PROMPTS
    assert made.losses.take() == {}


def test_a_sample_that_was_not_made_or_not_judged_is_missing_in_its_group_alone(leaving):
    made = leaving(lost={1: 1}, unjudged=("2 0",))
    scored = step(made, 5)
    assert sizes(scored) == [3, 2, 2, 3]
    assert scored[2].rewards_G == (1.0, 2.0)
    assert scored[2].failures == 1
    assert made.losses.take() == {"Generate": 1, "Judge": 1}


def test_a_sample_that_is_left_alone_is_left_out_with_its_group(leaving):
    made = leaving(lost={1: 1}, unjudged=("1 0",))
    scored = step(made, 5)
    assert [each.group.prompt.uid for each in scored] == ["0:0", "0:2", "0:3"]
    assert made.losses.take() == {"Generate": 1, "Judge": 1, "Group": 1}


def test_an_algorithm_that_needs_whole_groups_gets_whole_groups(leaving):
    made = leaving(lost={1: 1}, smallest=SAMPLES)
    assert sizes(step(made, 5)) == [3, 3, 3]


def test_one_lost_sample_in_a_hundred_ends_nothing(leaving):
    made = leaving(lost=dict.fromkeys(range(0, 10_000, 33), 1))
    assert sum(sum(sizes(step(made, number))) for number in range(1, 500)) == 499 * 12 - 61


def test_too_many_end_the_attempt_with_the_last_reason(leaving):
    made = leaving(lost=dict.fromkeys(range(0, 1000, 2), 1))
    with pytest.raises(AwayError, match=r"lost, more than recovery\.lostSamples 0\.1 allows; .*connection reset"):
        for number in range(1, 20):
            step(made, number)


def test_a_whole_step_may_be_lost_once_the_run_has_begun(leaving):
    made = leaving(lost=dict.fromkeys(range(4), SAMPLES))
    assert step(made, 7) == ()
    assert sizes(step(made, 8)) == [3] * PROMPTS


@pytest.mark.parametrize(("by", "kind"), [("the function", GenerateError), ("the judge", RewardError)])
def test_nothing_of_the_first_step_is_bad_input(leaving, by, kind):
    lost = dict.fromkeys(range(4), SAMPLES) if by == "the function" else {}
    unjudged = tuple(f"{group} {sample}" for group in range(4) for sample in range(3)) if by == "the judge" else ()
    made = leaving(lost=lost, unjudged=unjudged)
    with pytest.raises(kind, match="not one of 12 samples of the first step can be trained on; the last: "):
        step(made, 0)


def test_prompts_of_lost_groups_are_consumed_with_their_step(leaving):
    made = leaving(lost={0: 3})
    step(made, 5)
    made.consumed(5)
    assert made.source.consumed_steps == [5]


def test_dynamic_sampling_asks_further_prompts_for_groups_that_are_missing(leaving):
    made = leaving(lost={0: 3, 2: 2})
    dynamic = DynamicRollouts(made, made, PROMPTS, DynamicSampling(max_rounds=4, over_sample=1.0))
    scored = dynamic.score(dynamic.collect(5))
    assert [each.group.prompt.uid for each in scored] == ["0:1", "0:3", "0:4", "0:5"]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=40), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_a_budget_is_of_the_last_steps_alone_and_grows_with_it(lost, share):
    steps = tuple(Counted(number, 12, each) for number, each in enumerate(lost))[-WINDOW:]
    found = too_many(steps, share, 12)
    assert found == (sum(each.lost for each in steps) > share * 12 * WINDOW)
    assert found or not too_many(tuple(replace(each, lost=0) for each in steps), share, 12)

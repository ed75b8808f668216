"""Accuracy on the held-out questions and on further sets of questions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from rljob_api.sections import EvaluationSet, Sampling
from rljob_trainer.metrics import Accuracy
from rljob_trainer.processes.background import Background
from rljob_trainer.rollouts.evaluation import HeldOut, with_sets
from rljob_trainer.samples import Group, Prompt, Sample, ScoredGroup

SAMPLING = Sampling(temperature=0.5, max_new_tokens=4)


@dataclass
class Engines:
    """Answer every prompt with its own text, and note what they were asked."""

    asked: list[tuple[str, int, bool, float]] = field(default_factory=list)
    """(uid, samples, greedy, temperature) of each prompt"""

    async def groups(
        self, prompts: Sequence[Prompt], sampling: Sampling, num_samples: int, greedy: bool
    ) -> tuple[Group, ...]:
        self.asked += [(prompt.uid, num_samples, greedy, sampling.temperature) for prompt in prompts]
        return tuple(Group(prompt, (sample(prompt.question),) * num_samples) for prompt in prompts)


class Digits:
    """A reward that is the number that the response is; one judgement of each group fails."""

    def score(self, groups: Sequence[Group]) -> tuple[ScoredGroup, ...]:
        return tuple(
            ScoredGroup(group, tuple(float(each.text) for each in group.samples_G), failures=1) for group in groups
        )


def sample(text: str) -> Sample:
    return Sample((1,), (-0.5,), text, version=0, finish_reason="stop", engine="engine-0")


def prompts(name: str, *texts: str) -> tuple[Prompt, ...]:
    return tuple(Prompt(f"{name}:{number}", text, text, (1,), "", {}) for number, text in enumerate(texts))


@pytest.fixture
def engines() -> Engines:
    return Engines()


@pytest.fixture
def held_out(engines: Engines) -> Iterator[HeldOut]:
    """Two questions with two samples each, and greedy ones."""
    parts: Any = {"sampler": engines, "rewards": Digits()}
    with Background() as background:
        yield HeldOut(
            prompts=prompts("heldOut", "1", "0"),
            sampling=SAMPLING,
            samples_per_prompt=2,
            greedy=True,
            background=background,
            **parts,
        )


def measured(held_out: HeldOut) -> Accuracy:
    sets = (
        EvaluationSet(name="easy", jsonl="easy.jsonl"),
        EvaluationSet(name="hard", jsonl="hard.jsonl", samples_per_prompt=4),
    )
    asked = {"easy": prompts("easy", "1"), "hard": prompts("hard", "0", "0", "0.75")}
    return with_sets(held_out, sets, asked).measure()


def test_each_set_has_an_accuracy_of_its_own_beside_that_of_the_held_out_questions(held_out: HeldOut):
    accuracy = measured(held_out)

    assert (accuracy.sampled, accuracy.greedy, accuracy.questions) == (0.5, 0.5, 2)
    assert accuracy.sets == {
        "easy": Accuracy(sampled=1.0, greedy=1.0, questions=1, failures=2),
        "hard": Accuracy(sampled=0.25, greedy=0.25, questions=3, failures=6),
    }


def test_the_failures_of_all_sets_are_counted(held_out: HeldOut):
    assert measured(held_out).failures == 2 * (2 + 1 + 3)


def test_a_set_is_asked_as_the_held_out_questions_are_but_for_its_number_of_samples(
    held_out: HeldOut, engines: Engines
):
    measured(held_out)

    temperature = SAMPLING.temperature
    assert {asked for asked in engines.asked if asked[0] in ("heldOut:0", "easy:0", "hard:2")} == {
        ("heldOut:0", 2, False, temperature),
        ("heldOut:0", 1, True, temperature),
        ("easy:0", 2, False, temperature),
        ("easy:0", 1, True, temperature),
        ("hard:2", 4, False, temperature),
        ("hard:2", 1, True, temperature),
    }


def test_without_further_sets_there_is_the_accuracy_on_the_held_out_questions_alone(held_out: HeldOut):
    assert with_sets(held_out, (), {}).measure() == held_out.measure()

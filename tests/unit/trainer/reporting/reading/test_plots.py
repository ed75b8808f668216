"""SVG plots: well-formed, complete, escaped, bounded."""

from math import nan
from xml.etree import ElementTree

import pytest

from rljob_trainer.reporting.reading.plots import (
    MOST_BARS,
    MOST_POINTS,
    Bar,
    Mark,
    Series,
    line_figure,
    share_bar,
    stacked_figure,
)

SVG = "{http://www.w3.org/2000/svg}"


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def titles(svg: str) -> list[str]:
    return [title.text or "" for title in parsed(svg).iter(f"{SVG}title")]


def ramp(steps: int) -> Series:
    return Series("reward", "primary", tuple((step, step / steps) for step in range(1, steps + 1)))


def test_a_line_rises_on_the_page_when_the_values_rise() -> None:
    line = parsed(line_figure("Reward", "", [ramp(3)]).svg).find(f"{SVG}polyline")
    assert line is not None
    points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert points[0][0] < points[1][0] < points[2][0]
    assert points[0][1] > points[1][1] > points[2][1]


def test_a_missing_value_is_a_gap_and_not_a_zero() -> None:
    series = Series("loss", "primary", ((1, 1.0), (2, 2.0), (3, None), (4, 1.0), (5, 2.0)))
    lines = parsed(line_figure("Loss", "", [series]).svg).findall(f"{SVG}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [2, 2]


def test_hovering_over_a_step_shows_all_its_values() -> None:
    greedy = Series("greedy", "secondary", ((1, 0.5), (2, 0.75)), "dashed")
    assert "step 2\nreward 1\ngreedy 0.75" in titles(line_figure("Reward", "", [ramp(2), greedy]).svg)


def test_a_series_without_values_is_neither_drawn_nor_in_the_legend() -> None:
    figure = line_figure("Reward", "", [ramp(2), Series("kl", "secondary", ((1, None), (2, None)))])
    assert figure.legend == (("reward", "primary", "line"),)


def test_a_figure_without_any_values_has_no_plot() -> None:
    assert line_figure("KL", "nats", [Series("kl", "primary", ((1, None),))]).svg == ""
    assert stacked_figure("Time", "s", [Bar(1, 1, {})], ["train"]).svg == ""


@pytest.mark.parametrize("points", [((1, 0.5),), ((1, 0.5), (2, 0.5)), ((1, 0.0),), ((7, -3.0), (9, 1e9))])
def test_few_or_equal_values_can_be_drawn(points: tuple[tuple[int, float | None], ...]) -> None:
    svg = line_figure("Reward", "", [Series("reward", "primary", points)]).svg
    assert str(nan) not in svg
    assert parsed(svg).attrib["viewBox"].startswith("0 0 ")


def test_names_and_marks_are_escaped() -> None:
    figure = line_figure("<Reward>", "", [Series("<b>", "primary", ((1, 0.0), (2, 1.0)))], [Mark(2, "<i>failed</i>")])
    assert "<i>failed</i>" in titles(figure.svg)
    assert "<b>" not in figure.svg


def test_a_long_run_is_drawn_with_a_bounded_number_of_points() -> None:
    svg = line_figure("Reward", "", [ramp(10_000)]).svg
    assert len(titles(svg)) <= MOST_POINTS
    assert len(svg) < 200_000


def test_bars_are_stacked_to_the_whole_step() -> None:
    svg = stacked_figure("Time", "s", [Bar(1, 1, {"rollout": 3.0, "train": 1.0})], ["rollout", "train"]).svg
    heights = [float(rect.attrib["height"]) for rect in parsed(svg).iter(f"{SVG}rect")]
    assert heights[0] == pytest.approx(3 * heights[1], rel=0.01)
    assert titles(svg) == ["step 1: 4 s\nrollout 3 s\ntrain 1 s"]


def test_the_bars_of_a_long_run_are_means_of_several_steps() -> None:
    bars = [Bar(step, step, {"train": 2.0}) for step in range(1, 1001)]
    found = titles(stacked_figure("Time", "s", bars, ["train"]).svg)
    assert len(found) <= MOST_BARS
    assert found[0] == "steps 1–7, mean: 2 s\ntrain 2 s"


def test_a_share_bar_is_split_in_proportion() -> None:
    widths = [
        float(rect.attrib["width"]) for rect in parsed(share_bar("share", {"a": 3.0, "b": 1.0})).iter(f"{SVG}rect")
    ]
    assert widths == [750.0, 250.0]

"""Charts made of characters."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_cli.terminal.chart import chart

POINTS = st.lists(
    st.tuples(st.integers(0, 10_000), st.integers(-9000, 9000).map(lambda eighths: eighths / 8)),
    min_size=1,
    unique_by=lambda p: p[0],
)


@given(POINTS, st.integers(30, 150), st.integers(5, 20), st.booleans())
def test_a_chart_is_as_large_as_asked(points: list, width: int, height: int, ascii_only: bool) -> None:
    lines = chart(sorted(points), width, height, ascii_only)
    assert len(lines) == height + 2
    assert max(map(len, lines)) <= width
    assert ascii_only <= "".join(lines).isascii()


def test_a_line_joins_the_points_between_round_numbers() -> None:
    assert chart([(1, 0.0), (5, 1.0), (9, 0.5)], 30, 5) == [
        "1.0 ┤          ⡠⠔⠉⠒⠤⢄⡀",
        "    │       ⢀⠤⠊      ⠈⠉⠒⠤⢄⡀",
        "0.5 ┤     ⡠⠒⠁             ⠈⠉⠒⠤",
        "    │  ⢀⠔⠊",
        "0.0 ┤⡠⠒⠁",
        "    └─────────────────────────",
        "     1           5           9",
    ]


def test_one_point_is_drawn_on_an_axis_from_zero() -> None:
    assert chart([(3, 0.5)], 20, 5, ascii_only=True)[0] == "0.5 |*"


def test_nothing_is_drawn_of_nothing() -> None:
    assert chart([], 30, 5) == []

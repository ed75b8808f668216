"""Which engines come and go."""

import pytest

from rljob_trainer.engines.scaling import Member, joining, leaving


def members(*nodes: str | None, serves: bool = True) -> list[Member]:
    return [Member(f"engine-{index}", node, serves) for index, node in enumerate(nodes)]


@pytest.mark.parametrize(
    ("taken", "number", "expected"),
    [
        ((), 2, ("engine-0", "engine-1")),
        (("engine-0", "engine-2"), 2, ("engine-1", "engine-3")),
        (("engine-0",), -1, ()),
    ],
)
def test_new_engines_take_the_first_free_names(taken, number, expected):
    assert joining(taken, number) == expected


@pytest.mark.parametrize(
    ("nodes", "number", "per_node", "expected"),
    [
        pytest.param(("a", "b", "c"), 1, 1, ("engine-2",), id="the newest"),
        pytest.param(("a", "a", "a"), 1, 1, ("engine-2",), id="all on one machine"),
        pytest.param(("a", None, "b"), 1, 1, ("engine-1",), id="one that waits for room"),
        pytest.param(("a", "a", "b", "b"), 2, 2, ("engine-2", "engine-3"), id="a whole node"),
        pytest.param(("a", "b", "a", "b"), 2, 2, ("engine-1", "engine-3"), id="a whole node, whatever the names"),
        pytest.param(("a", "a", "b", "b", "c"), 2, 2, ("engine-2", "engine-3"), id="not the smaller last node"),
        pytest.param(("a", "b"), 0, 1, (), id="nobody"),
        pytest.param(("a", "b"), -1, 1, (), id="nobody when there are too few"),
    ],
)
def test_whole_nodes_go_the_newest_first(nodes, number, per_node, expected):
    assert leaving(members(*nodes), number, per_node) == expected


def test_a_node_that_serves_less_goes_first():
    dead = Member("engine-0", "a", serves=False)
    assert leaving([dead, *members("x", "b", "c")[1:]], 1, 1) == ("engine-0",)

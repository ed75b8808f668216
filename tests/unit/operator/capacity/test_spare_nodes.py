"""Whether a job fits on other nodes than those that failed it."""

from dataclasses import replace

import pytest

from rljob_operator.capacity.packing import Node
from rljob_operator.capacity.spare_nodes import has_room_without
from support.operator.operator_world import DEFAULTS, admitted, raw_job

CPU = {"requests": {"cpu": "8", "memory": "1Gi"}}
JOB = admitted(raw_job(), replace(DEFAULTS, head_resources=CPU, worker_resources=CPU))
"""a head and two workers with 8 CPUs each"""


def node(name: str, cpus: int = 16, **changes: object) -> Node:
    return replace(Node(name, {"cpu": cpus * 1000, "memory": 2**40 * 1000, "pods": 110_000}), **changes)


@pytest.mark.parametrize(
    ("nodes", "fits"),
    [
        (None, True),
        ((node("a"), node("b"), node("c")), True),
        ((node("a"), node("b")), False),
        ((node("a"), node("b", 23)), False),
        ((node("a"), node("b", 24)), True),
        ((node("a"), node("b"), node("c", is_schedulable=False)), False),
        ((node("a", labels={"kubernetes.io/hostname": "other"}), node("b")), True),
        ((node("z", labels={"kubernetes.io/hostname": "a"}), node("b")), False),
        ((node("a"), node("b"), node("c", used={"cpu": 16000})), True),
    ],
    ids=["unknown", "three", "two", "too few", "large", "cordoned", "label", "named by its label", "in use"],
)
def test_a_job_fits_on_the_others_as_if_they_were_empty(nodes, fits):
    assert has_room_without(JOB, nodes, ("a",)) is fits

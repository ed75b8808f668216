"""Decides which engines join and which leave when their number changes. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import count, islice


@dataclass(frozen=True, slots=True)
class Member:
    """An engine that may have to leave."""

    name: str
    node: str | None
    """address of its machine; None: it waits for room"""
    serves: bool


def joining(taken: Collection[str], number: int) -> tuple[str, ...]:
    """Return names for this number of new engines: the first that are free."""
    free = (name for index in count() if (name := f"engine-{index}") not in taken)
    return tuple(islice(free, max(0, number)))


def leaving(members: Sequence[Member], number: int, per_node: int) -> tuple[str, ...]:
    """Return the names of `number` engines that go, of `members` in the order in which they came.

    Whole nodes go, so that their machines can be given back: first those that wait for room, then nodes of `per_node`
    engines, with few that serve, the newest first. What no whole node can make up is taken from the newest engines.
    """
    nodes: dict[str, list[Member]] = {}
    for member in members:
        nodes.setdefault(member.node or f"waiting {member.name}", []).append(member)
    newest_first = list(reversed(nodes.values()))
    newest_first.sort(
        key=lambda node: (node[0].node is not None, len(node) != per_node, sum(member.serves for member in node))
    )
    gone: list[str] = []
    for node in newest_first:
        if len(gone) + len(node) <= number:
            gone.extend(member.name for member in node)
    rest = [member.name for member in reversed(members) if member.name not in gone]
    return tuple(gone + rest[: max(0, number - len(gone))])

"""How deep a manifest may be nested: everything that reads one recurses, in Python and in libraries. Pure.

Nothing here recurses. Values that share parts, as aliases of YAML do, cost no more than their parts.
"""

from collections.abc import Iterable
from typing import Any

DEEPEST = 64
"""levels of a manifest; none that means something has twenty"""
DEEPEST_OBJECT = 100
"""levels of an object that is handed on. Deeper ones are cut: what is left is still deeper than `DEEPEST`"""

Place = tuple[str | int, ...]


def too_deep(content: Any, deepest: int = DEEPEST) -> Place | None:
    """Return the place, `deepest` levels down, of a value that is nested deeper; None: there is none."""
    levels = [{id(content): content} if _is_nested(content) else {}]
    while levels[-1]:
        if len(levels) > deepest:
            return _place(levels)
        levels.append({id(each): each for value in levels[-1].values() for each in _parts(value) if _is_nested(each)})
    return None


def shallow(content: Any) -> Any:
    """Return the value itself, or if it is nested too deep a copy in which null stands for what is deeper."""
    if too_deep(content, DEEPEST_OBJECT) is None:
        return content
    copied: list[Any] = [content]
    open_ones: list[tuple[Any, Any, int]] = [(copied, 0, 1)]
    while open_ones:
        holder, key, depth = open_ones.pop()
        value = holder[key]
        if not _is_nested(value):
            continue
        mine: Any = None
        if depth <= DEEPEST_OBJECT:
            mine = dict(value) if isinstance(value, dict) else list(value)
            open_ones += [(mine, each, depth + 1) for each in (mine if isinstance(mine, dict) else range(len(mine)))]
        holder[key] = mine
    return copied[0]


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list | tuple)


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _place(levels: list[dict[int, Any]]) -> Place:
    """Return the way from the first level to the last."""
    place: list[str | int] = []
    wanted = next(iter(levels[-1].values()))
    for level in reversed(levels[:-1]):
        key, wanted = next(
            (key, value)
            for value in level.values()
            for key, part in (value.items() if isinstance(value, dict) else enumerate(value))
            if part is wanted
        )
        place.append(key)
    return tuple(reversed(place))

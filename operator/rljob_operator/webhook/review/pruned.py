"""Fields that the API server has dropped because the CRD does not know them. Pure.

Such fields never reach a webhook. `kubectl apply` keeps the author's text in an annotation, which still has them.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_api.reading import field_lookup
from rljob_operator.identity import Manifest

APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def pruned(raw: Manifest) -> Iterator[str]:
    """Yield a warning for each field that the author wrote and the object lacks."""
    text = (raw["metadata"].get("annotations") or {}).get(APPLIED)
    try:
        applied = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return
    spec = applied.get("spec") if isinstance(applied, Mapping) else None
    if isinstance(spec, Mapping):
        yield from _dropped(spec, raw.get("spec", {}), ("spec",))


def _dropped(applied: Mapping[str, Any], there: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    for name, value in applied.items():
        known = path in SECTIONS
        if name not in there and known and name not in field_lookup.siblings(path):
            meant = field_lookup.meant(path, name)
            nearest = f"; nearest valid: {meant}" if meant else ""
            yield f"{'.'.join((*path, name))}: is unknown and was dropped{nearest}"
        elif isinstance(value, Mapping) and isinstance(there.get(name), Mapping):
            yield from _dropped(value, there[name], (*path, name))


SECTIONS = frozenset(entry.path for entry in field_lookup.entries().values() if entry.section is not None)

"""Merges a patch into a pod template, as Kubernetes' strategic merge patch does. Pure.

    {"spec": {"containers": [{"name": "ray-worker", "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}]}}

changes one variable of one container. Mappings merge; null removes a field; lists whose entries have a merge key merge
by it; other lists are replaced. `$patch: delete` in an entry removes the entry with its key; `$patch: replace` in a
mapping replaces the whole mapping.
"""

from collections.abc import Mapping, Sequence
from typing import Any

MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
"""by name of the list: what names its entries, as in the API of core/v1"""
DIRECTIVE = "$patch"


def merged(there: Any, patch: Any, name: str = "") -> Any:
    """Return a value with a patch merged into it; neither is changed. `name` is the field that holds them."""
    match there, patch:
        case Mapping(), Mapping() if patch.get(DIRECTIVE) != "replace":
            return _mapping(there, patch)
        case _, list() if name in MERGE_KEYS and _has_mappings(patch):
            return _list(there if _has_mappings(there) else [], patch, MERGE_KEYS[name])
        case _, Mapping():
            return _mapping({}, patch)
        case _:
            return patch


def _has_mappings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value)


def _mapping(there: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    changed = {
        key: merged(there.get(key), value, key)
        for key, value in patch.items()
        if key != DIRECTIVE and value is not None
    }
    kept = {key: value for key, value in there.items() if key not in patch}
    # The order of the fields does not matter to Kubernetes; this one is stable.
    return {**kept, **changed}


def _list(there: Sequence[Any], patch: Sequence[Any], key: str) -> list[Any]:
    """Return the entries that are there, changed in their places, and then the new ones."""
    known = [entry.get(key) for entry in there]
    patches = {entry.get(key): entry for entry in patch}
    left = {name for name, entry in patches.items() if entry.get(DIRECTIVE) == "delete"}
    kept = [
        merged(entry, patches[name]) if name in patches else entry
        for name, entry in zip(known, there, strict=True)
        if name not in left
    ]
    new = [merged(None, entry) for name, entry in patches.items() if name not in known and name not in left]
    return [*kept, *new]

"""Types of Kubernetes in a manifest: what belongs in a toleration, a volume, a pod's spec.

The fields come from `pod_fields.json`, which `crds/generate_pod_fields.py` writes from Kubernetes' client. A field of
the manifest is marked with its type (`sections.OfPod`). Python judges all of it. The API server judges the scalars in
the entries of lists: schemas of whole pods would cost it time at every write of a status.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeGuard

from rljob_api.errors import ABSENT, Problem
from rljob_api.rules.cel import Cel
from rljob_api.rules.intended_value import intended
from rljob_api.rules.names import closest
from rljob_api.rules.quantity import EXAMPLES, LONGEST_QUANTITY, is_quantity, meant
from rljob_api.sections import MOST_EXACT

WORDS = {
    "boolean": "true or false",
    "integer": "whole number",
    "integer or string": "whole number or text",
    "string": "text",
}
VALUES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("Container", "imagePullPolicy"): ("Always", "IfNotPresent", "Never"),
    ("LabelSelectorRequirement", "operator"): ("In", "NotIn", "Exists", "DoesNotExist"),
    ("NodeSelectorRequirement", "operator"): ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"),
    ("PodSpec", "dnsPolicy"): ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
    ("PodSpec", "preemptionPolicy"): ("PreemptLowerPriority", "Never"),
    ("Toleration", "effect"): ("NoSchedule", "PreferNoSchedule", "NoExecute"),
    ("Toleration", "operator"): ("Exists", "Equal"),
    ("TopologySpreadConstraint", "whenUnsatisfiable"): ("DoNotSchedule", "ScheduleAnyway"),
    ("VolumeMount", "mountPropagation"): ("None", "HostToContainer", "Bidirectional"),
    ("VolumeMount", "recursiveReadOnly"): ("Disabled", "IfPossible", "Enabled"),
}
"""by type and field: the only values, beside the empty text, which counts as absent"""
MOST_LISTED = 8
"""fields of a type that are listed instead of a nearest one"""
VOLUME_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


DESCRIPTIONS: Mapping[str, Mapping[str, str]] = {
    "Toleration": {
        "key": "key of the taint; absent with operator Exists: every taint",
        "operator": "Equal (the default) compares the value; Exists takes any",
        "value": "value of the taint",
        "effect": "effect of the taint; absent: every effect",
        "tolerationSeconds": "how long a pod stays after a taint NoExecute [s]; absent: always",
    },
    "Volume": {"name": "name by which volumeMounts refer to it"},
    "VolumeMount": {
        "bindMountOptions": "options of the bind mount, as in a container",
        "mountPath": "absolute path in the container",
        "mountPropagation": "whether mounts in it reach the node and back; absent: None",
        "name": "name of one of the volumes",
        "readOnly": "mount it without write access",
        "recursiveReadOnly": "whether mounts in it are read-only, too",
        "subPath": "path in the volume to mount; absent: its root",
        "subPathExpr": "the same with $(VARIABLE) replaced",
    },
}
"""of the types whose scalars the API server judges, too"""


@dataclass(frozen=True, slots=True)
class Claim:
    """What must hold in every object of a type, for Python and for the API server."""

    field: str
    holds: Callable[[Mapping[str, Any]], bool]
    cel: str
    """the same, where `self` is the object"""
    says: str
    """continues the sentence that begins with the field"""
    shows: bool = True
    """show the field's value, which is a text wherever the claim does not hold"""

    @property
    def printed(self) -> Cel:
        """Return it for the API server."""
        says = f'"{{self.{self.field}}}" {self.says}' if self.shows else self.says
        return Cel(f".{self.field}", self.cel, says)


def text(given: Mapping[str, Any], field: str) -> Any:
    """Return a field's value, the empty text if it is absent."""
    return "" if given.get(field) is None else given[field]


CLAIMS: Mapping[str, tuple[Claim, ...]] = {
    "Toleration": (
        Claim(
            "operator",
            lambda given: text(given, "key") != "" or text(given, "operator") == "Exists",
            "self.?key.orValue('') != '' || self.?operator.orValue('') == 'Exists'",
            "must be Exists without a key: it tolerates every taint; or name a key",
            shows=False,
        ),
        Claim(
            "value",
            lambda given: text(given, "operator") != "Exists" or text(given, "value") == "",
            "self.?operator.orValue('') != 'Exists' || self.?value.orValue('') == ''",
            "must be absent when operator is Exists",
        ),
        Claim(
            "effect",
            lambda given: given.get("tolerationSeconds") is None or text(given, "effect") == "NoExecute",
            "!has(self.tolerationSeconds) || self.?effect.orValue('') == 'NoExecute'",
            "must be NoExecute when there are tolerationSeconds",
            shows=False,
        ),
    ),
    "Volume": (
        Claim(
            "name",
            lambda given: VOLUME_NAME.fullmatch(str(given.get("name"))) is not None,
            f"self.name.matches('^{VOLUME_NAME.pattern}$')",
            "is not a DNS label of at most 63 characters: a-z, 0-9 and -, first and last no -",
        ),
    ),
    "VolumeMount": (
        Claim(
            "mountPath",
            lambda given: str(text(given, "mountPath")).startswith("/"),
            "self.mountPath.startsWith('/')",
            "is not an absolute path",
        ),
        Claim(
            "subPathExpr",
            lambda given: text(given, "subPathExpr") == "" or text(given, "subPath") == "",
            "self.?subPathExpr.orValue('') == '' || self.?subPath.orValue('') == ''",
            "must be absent when there is a subPath",
        ),
    ),
}


@cache
def _known() -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads((files("rljob_api.rules") / "pod_fields.json").read_text())
    return found


def fields(kind: str) -> Mapping[str, str]:
    """Return the fields of a type, with their types: `[Type]` is a list, `{Type}` a mapping of texts to it."""
    found: Mapping[str, str] = _known()["types"][kind]
    return found


def required(kind: str) -> Sequence[str]:
    found: Sequence[str] = _known()["required"].get(kind, ())
    return found


def wrong_types(path: str, value: object, kind: str, is_patch: bool = False) -> Iterator[Problem]:
    """Yield the problems of a value of this type at `path`. A patch may lack fields that are required otherwise."""
    if value is None:
        return
    if kind.startswith("["):
        yield from _entries(path, value, kind[1:-1], is_patch)
    elif kind.startswith("{"):
        if not isinstance(value, Mapping):
            yield Problem(path, value, "has the wrong type; expected: mapping")
            return
        for key, each in value.items():
            yield from wrong_types(f"{path}.{key}", each, kind[1:-1], is_patch)
    elif kind in _known()["types"]:
        yield from _object(path, value, kind, is_patch)
    elif kind == "quantity":
        yield from _amount(path, value)
    elif kind == "integer" and _is_whole(value) and abs(value) > MOST_EXACT:
        yield Problem(path, value, "is not between -(2^53) and 2^53")
    elif not _is_scalar(value, kind):
        yield Problem(path, value, f"has the wrong type; expected: {WORDS[kind]}", intended(value, kind))


def _entries(path: str, value: object, kind: str, is_patch: bool) -> Iterator[Problem]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        yield Problem(path, value, "has the wrong type; expected: list")
        return
    for index, each in enumerate(value):
        if each is None:
            yield Problem(f"{path}[{index}]", each, "is not a value")
        yield from wrong_types(f"{path}[{index}]", each, kind, is_patch)


def _object(path: str, given: object, kind: str, is_patch: bool) -> Iterator[Problem]:
    if not isinstance(given, Mapping):
        yield Problem(path, given, "has the wrong type; expected: mapping")
        return
    known, is_right = fields(kind), True
    for name, value in given.items():
        where = f"{path}.{name}"
        if is_patch and name.startswith("$"):
            continue  # a directive of the merge
        if name not in known:
            is_right = False
            near = closest(name, known)
            listed = f"; known here: {', '.join(known)}" if near is None and len(known) <= MOST_LISTED else ""
            yield Problem(where, ABSENT, f"unknown field{listed}", near)
            continue
        for problem in wrong_types(where, value, known[name], is_patch):
            is_right = False
            yield problem
        options = VALUES.get((kind, name))
        if options and isinstance(value, str) and value not in ("", *options):
            is_right = False
            yield Problem(where, value, f"is none of {', '.join(options)}", closest(value, options, 0.3))
    if is_patch:
        return
    if missing := [name for name in required(kind) if given.get(name) is None]:
        is_right = False
        yield from (Problem(f"{path}.{name}", ABSENT, "is missing") for name in missing)
    if is_right:
        for claim in CLAIMS.get(kind, ()):
            if not claim.holds(given):
                yield Problem(f"{path}.{claim.field}", given[claim.field] if claim.shows else ABSENT, claim.says)


def _amount(path: str, amount: object) -> Iterator[Problem]:
    if len(str(amount)) > LONGEST_QUANTITY:
        yield Problem(path, amount, f"has more than {LONGEST_QUANTITY} characters")
    elif not is_quantity(amount):
        near = meant(amount)
        such_as = "" if near else f", such as {EXAMPLES}"
        yield Problem(path, amount, f"is not a Kubernetes quantity{such_as}", near)


def _is_scalar(value: object, kind: str) -> bool:
    match kind:
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return _is_whole(value)
        case "integer or string":
            return _is_whole(value) or isinstance(value, str)
        case "string":
            return isinstance(value, str)
        case _:
            return True


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)

"""Writes `rljob_api/rules/pod_fields.json`: the fields of a pod's spec with their types, from Kubernetes' own client.

Run `make generate` after changing the pin of `kubernetes`. The API reads only the file: the client takes most of a
second to import, and `rljob validate` does not need it. A test fails when the file and the client differ.
"""

import importlib.metadata
import json
import re
import sys
import typing
from datetime import datetime
from typing import Annotated, Any

from kubernetes import client
from pydantic import BaseModel

VERSION = re.compile(r"V\d(alpha\d|beta\d)?(?=[A-Z])")
SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string", datetime: "string"}
QUANTITIES = {"divisor", "limits", "overhead", "requests", "sizeLimit"}
"""fields that the client calls texts, and that take numbers as well"""


def pod_fields() -> dict[str, Any]:
    """Return everything that goes into the file."""
    types: dict[str, dict[str, str]] = {}
    required: dict[str, list[str]] = {}
    waiting: list[Any] = [client.V1PodSpec]
    while waiting:
        model = waiting.pop()
        name = VERSION.sub("", model.__name__)
        if name in types:
            continue
        fields = {model.attribute_map[field.alias or key]: field for key, field in model.model_fields.items()}
        types[name] = {key: kind(field.annotation, key, waiting) for key, field in sorted(fields.items())}
        if needed := sorted(key for key, field in fields.items() if field.is_required()):
            required[name] = needed
    return {
        "generated": "by crds/generate_pod_fields.py; do not edit",
        "version": importlib.metadata.version("kubernetes"),
        "types": dict(sorted(types.items())),
        "required": dict(sorted(required.items())),
    }


def kind(given: Any, field: str, found: list[Any]) -> str:
    """Return a type: a scalar, the name of a type, `[type]` for a list, `{type}` for a mapping of texts to it.

    Append the models among them to `found`.
    """
    inner = [each for each in typing.get_args(given) if each is not type(None)]
    origin = typing.get_origin(given)
    if origin is list:
        return f"[{kind(inner[0], field, found)}]"
    if origin is dict:
        return f"{{{kind(inner[1], field, found)}}}"
    if origin is Annotated or len(inner) == 1:  # a strict scalar, or a field that may be absent
        return kind(inner[0], field, found)
    if inner:
        return "integer or string"
    if given is str and field in QUANTITIES:
        return "quantity"
    if isinstance(given, type) and issubclass(given, BaseModel):
        found.append(given)
        return VERSION.sub("", given.__name__)
    return SCALARS.get(given, "any")


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(pod_fields(), indent=1)}\n")

"""The table of bad manifests: `tests/unit/api/bad_manifests.yaml`, and the page of the docs that is made from it.

`make generate`
"""

import copy
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

TABLE = Path(__file__).parents[2] / "unit" / "api" / "bad_manifests.yaml"
HEADER = """\
---
search:
  exclude: true
---
<!-- Generated from tests/unit/api/bad_manifests.yaml by tests/support/api/bad_manifests.py; do not edit. -->
# Validation errors

Each entry is the manifest below with one edit, and the output of `rljob validate`. Every entry is a test, also with
`kubectl apply` and a real API server, CRD and webhook. `rljob validate` reports all problems of a manifest at once. It
rejects a setting that would have no effect.
"""


class Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.2 would read as a number: `"2e-5"`."""


EXPONENT = re.compile(r"^[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
Dumper.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("0123456789"))


@dataclass(frozen=True)
class Case:
    """One bad manifest."""

    name: str
    edit: Mapping[str, Any]
    says: tuple[str, ...]
    text: str


@cache
def table() -> Mapping[str, Any]:
    """Return the content of the file, read once: all tests share it."""
    with TABLE.open() as file:
        content: dict[str, Any] = yaml.load(file, yaml.CSafeLoader)
    return content


@cache
def cases() -> tuple[Case, ...]:
    content = table()
    return tuple(case(content["good"], entry) for group in content["groups"] for entry in group["cases"])


def case(good: str, entry: Mapping[str, Any]) -> Case:
    return Case(entry["name"], entry, tuple(entry["says"]), edited(good, entry))


def edited(good: str, entry: Mapping[str, Any]) -> str:
    """Return the text of the good manifest after an edit."""
    if "text" in entry:
        return str(entry["text"])
    if "replace" in entry:
        old, new = entry["replace"]
        assert old in good, old
        return good.replace(old, new, 1)
    content = copy.deepcopy(parsed(good))
    for path in entry.get("remove", ()):
        section, name = parent(content, path)
        del section[name]
    for path, value in entry.get("set", {}).items():
        section, name = parent(content, path)
        section[name] = value
    return yaml.dump(content, Dumper=Dumper, sort_keys=False)


@cache
def parsed(good: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(good)
    return content


def parent(content: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    *sections, name = path.split(".")
    for section in sections:
        content = content.setdefault(section, {})
    return content, name


def page() -> str:
    content = table()
    parts = [HEADER, f"```yaml\n{content['good']}```\n"]
    for group in content["groups"]:
        parts.append(f"## {group['title']}\n")
        parts.extend(shown(entry) for entry in group["cases"])
    return "\n".join(parts)


def shown(entry: Mapping[str, Any]) -> str:
    title, answer = entry["name"][0].upper() + entry["name"][1:], "\n".join(entry["says"])
    return f"### {title}\n\n```yaml\n{excerpt(entry)}\n```\n\n```text\n{answer}\n```\n"


def excerpt(entry: Mapping[str, Any]) -> str:
    if "text" in entry:
        return str(entry["text"]).strip()
    if "replace" in entry:
        return str(entry["replace"][1]).expandtabs(8)
    removed = [f"# without {path}" for path in entry.get("remove", ())]
    return "\n".join([*removed, *(f"{path}: {inline(value)}" for path, value in entry.get("set", {}).items())])


def inline(value: object) -> str:
    text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, width=1000)
    return text.removesuffix("...\n").strip()


if __name__ == "__main__":
    sys.stdout.write(page())

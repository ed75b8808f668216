"""Manifests that are made to take long, and the largest that are taken; each is as large as an API server keeps."""

import copy
import itertools
import random
import string
from typing import Any

import yaml

from support.api.bad_manifests import table

GOOD = yaml.safe_load(table()["good"])
WORDS = ["".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=4)][::3]


def anagrams(count: int, word: str) -> list[str]:
    mixed = random.Random(1)
    return list({"".join(mixed.sample(word, len(word))): None for _ in range(2 * count)})[:count]


def ones(names: list[str]) -> dict[str, int]:
    return dict.fromkeys(names, 1)


SECRET = {"name": "a", "key": "b"}
CONTAINER = anagrams(900, "terminationgraceperiodseconds")
COSTLY = {
    "unknown fields": {f"unknownField{index}": index for index in range(40_000)},
    "unknown fields that resemble known ones": {"training": ones(anagrams(4_000, "stepsperrolloutmaxtokenspergpu"))},
    "unknown arguments": {"extraArgs": {"sglang": ones(WORDS[:1000]), "megatron": ones(WORDS[:1000])}},
    "unknown fields of containers": {
        "pods": {
            "head": {"template": {"spec": {"containers": [{"name": f"c{i}", **ones(CONTAINER)} for i in range(40)]}}}
        }
    },
    "a long name": {"extraArgs": {"sglang": {"context-length-" * 60_000: 1}}},
    "a long name of a field": {"trainin" + "g" * 1_000_000: 1},
    "a long option": {"placement": "Colocated" * 100_000},
    "a long amount": {"runtime": {"headResources": {"limits": {"cpu": "1" * 1_000_000 + "x"}}}},
    "a long amount with spaces": {"runtime": {"headResources": {"limits": {"cpu": "1" * 500_000 + " " * 500_000}}}},
    "a long number": {"training": {**GOOD["spec"]["training"], "steps": "1" * 1_000_000 + "x"}},
    "a long list for a number": {"training": {**GOOD["spec"]["training"], "steps": [1] * 300_000}},
    "many small variables": {"runtime": {"env": {f"N{index}": "" for index in range(80_000)}}},
    "many variables": {"runtime": {"env": {f"NAME_{index}": "x" * 30 for index in range(26_000)}}},
    "many variables from Secrets": {
        "runtime": {"env": {f"N{index}": {"valueFrom": {"secretKeyRef": SECRET}} for index in range(13_000)}}
    },
    "many columns": {"data": {**GOOD["spec"]["data"], "columns": {f"column{index}": "a" for index in range(50_000)}}},
    "settings of a task": {
        "data": {"train": {"reasoningGym": {"task": "chain_sum", "size": 9, "config": ones(WORDS[:1000])}}}
    },
}
"""what replaces parts of a good manifest; each is refused"""
LONGEST_SECRET = {"name": "a" * 253, "key": "b" * 253}
LARGEST = {
    "variables": {"runtime": {"env": {f"NAME_{index:04}": "x" * 1_270 for index in range(1_000)}}},
    "variables that resemble secrets": {
        "runtime": {"env": {f"NAME_{index:04}": "sk-? a://" * 141 for index in range(1_000)}}
    },
    "long variables": {"runtime": {"env": {f"NAME_{index}": "x" * 100_000 for index in range(13)}}},
    "variables from Secrets": {
        "runtime": {
            "env": {f"NAME_{index:04}": {"valueFrom": {"secretKeyRef": LONGEST_SECRET}} for index in range(1_000)}
        }
    },
}
"""the same; each is taken"""


def costly(edits: dict[str, Any]) -> dict[str, Any]:
    return {**copy.deepcopy(GOOD), "spec": {**GOOD["spec"], **edits}}

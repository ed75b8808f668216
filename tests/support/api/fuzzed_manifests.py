"""Manifests that nobody would write: examples with anything anywhere, the same in every run.

`random_manifests` moves values around the bounds of rules; this breaks shapes: wrong types, nulls, deep nests, long and
strange texts, and labels and annotations, which no rule of the spec sees.
"""

import copy
import random
from collections.abc import Iterator
from typing import Any

import yaml

from support.api.random_manifests import EXAMPLES, SCHEMAS, SECTIONS, Manifest, Random, put

DEEP = 60
"""nested lists and objects; an API server takes many more"""
STRANGE: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**31,
    2**63,
    -(2**63),
    1e308,
    5e-324,
    0.1,
    "",
    " ",
    "\t\n",
    "x" * 5000,
    "{",
    "{question",
    "%s%n",
    "../../etc/passwd",
    "ünï-©ode-💥",
    "\u202e\ufeff",
    "a:b",
    "1e3",
    "null",
    [],
    [None],
    [[]],
    [{"name": "a"}, {"name": "a"}],
    {},
    {"": ""},
    {"a": {"b": [{"c": None}]}},
    {"kubectl.kubernetes.io/last-applied-configuration": "{"},
)
FREE = (
    "spec.extraArgs.sglang",
    "spec.extraArgs.megatron",
    "spec.pods.head.template.spec",
    "spec.pods.trainer.template",
    "spec.pods.trainer.affinity",
    "spec.runtime.workerResources",
    "spec.runtime.headResources.requests",
    "spec.scheduling.nodeSelector",
    "spec.model.config",
)
"""mappings that an API server does not see into"""
KEYS = ("containers", "name", "limits", "nvidia.com/gpu", "lr", "mem-fraction-static", "tolerations", "x")
ABOVE = (
    "metadata.labels",
    "metadata.annotations",
    "spec.scheduling.tolerations",
    "spec.runtime.volumes",
    "spec.runtime.volumeMounts",
)


def fuzzed(number: int, seed: int = 20261124) -> Iterator[Manifest]:
    """Yield manifests, each an example with one to six strange things in it."""
    draw = random.Random(seed)
    examples = [yaml.safe_load(path.read_text()) for path in EXAMPLES]
    for _ in range(number):
        content: Manifest = copy.deepcopy(draw.choice(examples))
        for _ in range(draw.randint(1, 6)):
            break_something(content, draw)
        yield content


def break_something(content: Manifest, draw: Random) -> None:
    """Put something strange somewhere."""
    kind = draw.random()
    if kind < 0.4:
        put(content, draw.choice(FIELDS), strange(draw))
    elif kind < 0.55:
        put(content, draw.choice(SECTIONS[1:]), strange(draw))
    elif kind < 0.75:
        put(content, draw.choice(FREE), {draw.choice(KEYS): strange(draw) for _ in range(draw.randint(0, 3))})
    elif kind < 0.9:
        put(content, draw.choice(ABOVE), draw.choice((strange(draw), {draw.choice(KEYS): strange(draw)})))
    else:
        put(content, f"{draw.choice(SECTIONS)}.{draw.choice(KEYS)}", strange(draw))


def strange(draw: Random) -> Any:
    """Return a strange value, sometimes a nest of one."""
    value = copy.deepcopy(draw.choice(STRANGE))
    if draw.random() < 0.1:
        for _ in range(draw.randint(1, DEEP)):
            value = [value] if draw.random() < 0.5 else {draw.choice(KEYS): value}
    return value


FIELDS = sorted(SCHEMAS)

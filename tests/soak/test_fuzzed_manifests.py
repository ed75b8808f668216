"""10,000 manifests that nobody would write, and 10,000 good ones with edits: the webhook and Python.

RLJOB_FUZZ and RLJOB_SEED change their number and the draw.
"""

import os
from collections.abc import Callable, Iterator

import pytest

from support.api.fuzzed_manifests import Manifest, fuzzed
from support.api.random_manifests import manifests
from support.operator.webhook_verdicts import complaint

Draw = Callable[[int, int], Iterator[Manifest]]
NUMBER = int(os.environ.get("RLJOB_FUZZ", "10000"))
SEED = int(os.environ.get("RLJOB_SEED", "0"))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("drawn", [fuzzed, manifests], ids=["fuzzed", "mutated"])
def test_the_webhook_answers_every_manifest_as_python_does(drawn: Draw) -> None:
    assert [said for raw in drawn(NUMBER, SEED) if (said := complaint(raw))] == []

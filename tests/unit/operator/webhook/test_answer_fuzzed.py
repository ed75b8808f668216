"""Manifests that nobody would write: the webhook answers each of them, as Python does, and takes what can be built.

`tests/soak/test_fuzzed_manifests.py` does the same with many more.
"""

from support.api.fuzzed_manifests import Manifest, fuzzed
from support.operator.webhook_verdicts import complaint
from support.tables import each_of

NUMBER = 300


@each_of(fuzzed(NUMBER))
def test_a_strange_manifest_is_answered_and_only_taken_if_it_can_be_built(raw: Manifest):
    assert complaint(raw) is None

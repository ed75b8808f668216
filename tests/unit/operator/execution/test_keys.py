"""The operator's own key: made once, kept, and refused where it cannot be one."""

import asyncio
import base64
from typing import Any, cast

import pytest

from rljob_operator.cluster.cluster import Cluster, ClusterError, ConflictError
from rljob_operator.execution.keys import Keys
from rljob_operator.identity import Manifest


class Secrets:
    """The Secrets of a namespace."""

    def __init__(self, **entries: str) -> None:
        self.secret: Manifest | None = _secret(entries) if entries else None
        self.faster: Manifest | None = None
        """what another operator makes at the same time"""

    async def read(self, kind: str, namespace: str, name: str) -> Manifest | None:
        assert (kind, namespace, name) == ("Secret", "rljob", "rl-operator-key")
        return self.secret

    async def create(self, wanted: Manifest) -> Manifest:
        if self.faster is not None:
            self.secret = self.faster
            raise ConflictError("it is there already", 409)
        self.secret = _secret(wanted["stringData"])
        return self.secret


def _secret(entries: dict[str, str]) -> Manifest:
    data = {name: base64.b64encode(each.encode()).decode() for name, each in entries.items()}
    return {"metadata": {"namespace": "rljob", "name": "rl-operator-key"}, "data": data}


def loaded(secrets: Secrets) -> Keys:
    keys = Keys()
    asyncio.run(keys.load(cast(Cluster, secrets), "rljob", "rl-operator-key"))
    return keys


def test_the_key_is_made_once():
    secrets = Secrets()
    assert loaded(secrets).current == loaded(secrets).current
    assert loaded(Secrets()).current != loaded(secrets).current


def test_of_two_operators_that_make_a_key_at_once_both_use_the_first():
    secrets = Secrets()
    secrets.faster = _secret({"key": "f" * 32})
    assert loaded(secrets).current == Keys.of(b"f" * 32).current


def test_older_keys_are_other_entries():
    keys, job = loaded(Secrets(key="n" * 32, before="o" * 32)), cast(Any, type("J", (), {}))
    job.namespace, job.name, job.uid = "ml", "sums", "u"
    older = Keys.of(b"o" * 32)
    assert keys.current == Keys.of(b"n" * 32).current
    assert keys.token(job, older.current) == older.token(job, older.current) != keys.token(job, keys.current)


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"other": "o" * 32}, "has no entry 'key'"),
        ({"key": "s" * 31}, "'key' has 31 bytes; a key has at least 32"),
        ({"key": "n" * 32, "before": ""}, "'before' has 0 bytes"),
    ],
)
def test_a_secret_that_holds_no_key_is_an_error_that_names_it(entries: dict[str, str], text: str):
    with pytest.raises(ClusterError, match=f"Secret rljob/rl-operator-key.*{text}"):
        loaded(Secrets(**entries))

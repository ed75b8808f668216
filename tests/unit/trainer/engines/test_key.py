"""The key of a run: how it is made, and the plugin by which an engine demands it."""

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.utils.auth import app_has_admin_force_endpoints

from rljob_api.credentials import names_secret
from rljob_trainer.engines.key import KEY_VARIABLE, new_key, with_key
from support.trainer.engine_plugins import imported


@pytest.fixture
def plugin() -> Iterator[Any]:
    with imported("rljob_sglang_key") as plugin:
        yield plugin


def test_each_run_has_a_key_of_its_own() -> None:
    made = {new_key() for _ in range(100)}
    assert {len(key) for key in made} == {64}
    assert len(made) == 100
    assert names_secret(KEY_VARIABLE), "functions of users do not get it"
    assert (with_key("a key"), with_key("")) == ({"Authorization": "Bearer a key"}, {})


@pytest.mark.parametrize("key", ["a key", "", None])
def test_an_engine_with_a_key_keeps_it_from_what_it_starts(
    plugin: Any, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    hooks: list[str] = []
    monkeypatch.setattr(plugin.HookRegistry, "register", lambda target, *_: hooks.append(target))
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    if key is not None:
        monkeypatch.setenv(KEY_VARIABLE, key)
    plugin.register()
    assert hooks == ([plugin.ASKS] if key else [])
    assert KEY_VARIABLE not in os.environ
    asked = f"{app_has_admin_force_endpoints.__module__}.{app_has_admin_force_endpoints.__name__}"
    assert asked == plugin.ASKS


def test_sglang_is_told_to_check_requests_and_by_what(plugin: Any) -> None:
    told: list[dict[str, str]] = []
    arguments = SimpleNamespace(override=lambda source, **fields: told.append({"by": source, **fields}))
    assert plugin.demanding("a key")(SimpleNamespace(server_args=arguments)) is True
    assert told == [{"by": "rljob", "api_key": "a key"}]

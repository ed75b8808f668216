"""The webhook's path: chosen once, shared by all replicas, kept over renewals, and told to the API server alone."""

import asyncio
import base64
import copy
import json
from typing import Any

import pytest

from rljob_operator.cluster.cluster import ConflictError
from rljob_operator.webhook.secret_path import PATH, PathKeeper


class Objects:
    """A Secret and a webhook configuration, with the API server's rule that an old version is not written."""

    def __init__(self) -> None:
        self.secret: dict[str, Any] = {"metadata": {"resourceVersion": "1"}}
        self.hooks: list[dict[str, Any]] = [{"clientConfig": {"service": {"name": "webhook"}}}]
        self.writes: list[str] = []
        self.all_read: asyncio.Barrier | None = None

    async def request(self, method: str, where: str, query: Any = (), body: Any = None, content_type: str = "") -> Any:
        kind = "secret" if "/secrets/" in where else "configuration"
        if method == "GET":
            found = copy.deepcopy(self.secret if kind == "secret" else {"webhooks": self.hooks})
            if self.all_read is not None and kind == "secret":
                await self.all_read.wait()
            return found
        self.writes.append(kind)
        if kind == "configuration":
            for change in body:
                _, _, index, *place = change["path"].split("/")
                here = self.hooks[int(index)]
                for part in place[:-1]:
                    here = here[part]
                here[place[-1]] = change["value"]
            return {}
        version = self.secret["metadata"]["resourceVersion"]
        if body["metadata"]["resourceVersion"] != version:
            raise ConflictError("it has changed", 409)
        self.secret = {**body, "metadata": {"resourceVersion": str(int(version) + 1)}}
        return self.secret

    @property
    def told(self) -> str:
        path: str = self.hooks[0]["clientConfig"]["service"].get("path", "")
        return path


def replica(objects: Any) -> tuple[PathKeeper, list[str]]:
    used: list[str] = []
    return PathKeeper(objects, ("ns", "path"), "hooks", used.append), used


def test_replicas_that_start_at_once_answer_at_one_path_that_the_api_server_is_told():
    async def race() -> None:
        objects.all_read = asyncio.Barrier(3)
        first = await asyncio.gather(*[keeper.look() for keeper, _ in replicas], return_exceptions=True)
        assert sum(isinstance(each, ConflictError) for each in first) == 2
        objects.all_read = None
        await asyncio.gather(*[keeper.look() for keeper, _ in replicas])

    objects = Objects()
    replicas = [replica(objects) for _ in range(3)]
    asyncio.run(race())
    assert {path for _, used in replicas for path in used} == {objects.told}
    assert PATH.fullmatch(objects.told)


def test_looking_again_changes_nothing():
    objects = Objects()
    keeper, used = replica(objects)
    asyncio.run(keeper.look())
    asyncio.run(keeper.look())
    assert (objects.writes, set(used)) == (["secret", "configuration"], {objects.told})


def test_a_path_that_somebody_removed_is_told_again():
    objects = Objects()
    keeper, used = replica(objects)
    asyncio.run(keeper.look())
    del objects.hooks[0]["clientConfig"]["service"]["path"]
    asyncio.run(keeper.look())
    assert objects.told == used[0]


@pytest.mark.parametrize(
    "kept", ["", "/", "/short", "no path", "/" + "x" * 43 + "\n", "/GXri7aOjuvDKp49rXyp3EH5UVlgOP658kpjJAzKk8Oc"]
)
def test_what_is_no_secret_path_is_replaced(kept: str):
    objects = Objects()
    objects.secret["data"] = {"path": base64.b64encode(kept.encode()).decode()}
    keeper, used = replica(objects)
    asyncio.run(keeper.look())
    assert PATH.fullmatch(used[0])


def test_what_is_no_text_is_replaced():
    objects = Objects()
    objects.secret["data"] = {"path": "/w=="}
    keeper, used = replica(objects)
    asyncio.run(keeper.look())
    assert PATH.fullmatch(used[0])


def test_the_url_of_a_webhook_outside_the_cluster_gets_the_path():
    objects = Objects()
    objects.hooks = [{"clientConfig": {"url": "https://127.0.0.1:8443/validate"}}]
    keeper, used = replica(objects)
    asyncio.run(keeper.look())
    assert objects.hooks[0]["clientConfig"]["url"] == f"https://127.0.0.1:8443{used[0]}"


def test_the_path_stands_in_no_log(caplog: pytest.LogCaptureFixture):
    caplog.set_level("DEBUG")
    objects = Objects()
    keeper, used = replica(objects)
    asyncio.run(keeper.look())
    assert caplog.records
    assert used[0].strip("/") not in json.dumps([each.getMessage() for each in caplog.records])

"""The webhook's certificate: made once, shared by all replicas, renewed in time, and trusted before it is needed."""

import asyncio
import base64
import copy
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rljob_operator.cluster.cluster import ConflictError
from rljob_operator.webhook import certificate
from rljob_operator.webhook.certificate import AUTHORITY_DAYS, SERVER_DAYS, Pair
from rljob_operator.webhook.certificate_renewal import Keeper, Kept, renewed
from rljob_operator.webhook.metrics import Metrics
from rljob_operator.webhook.mounted_certificate import Mounted
from rljob_operator.webhook.review.answer import Answer
from rljob_operator.webhook.server import Server

HOSTS = ("rl-webhook.rljob.svc", "127.0.0.1")
PATH = "/" + "p" * 43
NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def kept() -> Kept:
    return renewed(None, HOSTS, NOW)


def test_a_certificate_is_for_its_hosts_and_signed_by_its_authority(kept):
    assert certificate.names_of(kept.server.certificate) == tuple(sorted(HOSTS))
    assert certificate.is_signed_by(kept.server.certificate, kept.authority.certificate)
    assert not certificate.is_signed_by(kept.server.certificate, certificate.authority(NOW).certificate)


@pytest.mark.parametrize(("share", "is_new"), [(0.5, False), (0.7, True), (1.5, True)])
def test_a_certificate_is_renewed_by_the_same_authority_after_most_of_its_life(kept, share, is_new):
    found = renewed(kept, HOSTS, NOW + timedelta(days=SERVER_DAYS * share))
    assert (found != kept) == is_new
    assert found.bundle == kept.bundle


def test_an_authority_is_renewed_and_the_one_before_stays_trusted(kept):
    found = renewed(kept, HOSTS, NOW + timedelta(days=AUTHORITY_DAYS * 0.7))
    assert found.bundle == found.authority.certificate + kept.authority.certificate
    assert certificate.is_signed_by(found.server.certificate, found.authority.certificate)


def test_another_host_needs_another_certificate(kept):
    assert renewed(kept, (*HOSTS, "other.svc"), NOW).server != kept.server


def test_what_is_no_certificate_is_replaced(kept):
    broken = Kept(Pair("no", "no"), kept.authority)
    assert certificate.is_signed_by(renewed(broken, HOSTS, NOW).server.certificate, kept.authority.certificate)


class Objects:
    """A Secret and a webhook configuration, with the API server's rule that an old version is not written."""

    def __init__(self) -> None:
        self.secret: dict[str, Any] = {"metadata": {"resourceVersion": "1"}}
        self.hooks: list[dict[str, Any]] = [{"clientConfig": {"service": {}}}]
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
                self.hooks[int(change["path"].split("/")[2])]["clientConfig"]["caBundle"] = change["value"]
            return {}
        version = self.secret["metadata"]["resourceVersion"]
        if body["metadata"]["resourceVersion"] != version:
            raise ConflictError("it has changed", 409)
        self.secret = {**body, "metadata": {"resourceVersion": str(int(version) + 1)}}
        return self.secret


class Replica:
    def __init__(self, objects: Objects, now: datetime = NOW) -> None:
        self.used: list[Pair] = []
        self.now = now
        self.keeper = Keeper(objects, ("ns", "tls"), "hooks", HOSTS, self.used.append, lambda: self.now)


def test_replicas_that_start_at_once_serve_one_certificate():
    async def race() -> None:
        objects.all_read = asyncio.Barrier(3)
        first = await asyncio.gather(*[each.keeper.look() for each in replicas], return_exceptions=True)
        assert sum(isinstance(each, ConflictError) for each in first) == 2
        objects.all_read = None
        await asyncio.gather(*[each.keeper.look() for each in replicas])

    objects = Objects()
    replicas = [Replica(objects) for _ in range(3)]
    asyncio.run(race())
    assert {each.used[-1] for each in replicas} == {replicas[0].used[-1]}
    assert objects.writes.count("configuration") >= 1
    bundle = base64.b64decode(objects.hooks[0]["clientConfig"]["caBundle"]).decode()
    assert certificate.is_signed_by(replicas[0].used[-1].certificate, bundle)


def test_looking_again_changes_nothing_until_it_is_due():
    objects = Objects()
    replica = Replica(objects)
    asyncio.run(replica.keeper.look())
    writes = list(objects.writes)
    asyncio.run(replica.keeper.look())
    assert (objects.writes, len(replica.used)) == (writes, 1)
    replica.now += timedelta(days=SERVER_DAYS * 0.7)
    asyncio.run(replica.keeper.look())
    assert (objects.writes, len(replica.used)) == ([*writes, "secret"], 2)


def test_a_bundle_that_somebody_removed_comes_back():
    objects = Objects()
    replica = Replica(objects)
    asyncio.run(replica.keeper.look())
    objects.hooks[0]["clientConfig"]["caBundle"] = ""
    asyncio.run(replica.keeper.look())
    assert objects.hooks[0]["clientConfig"]["caBundle"]


def test_a_certificate_is_replaced_while_the_server_runs(kept):
    """Each new connection gets the newest certificate; nothing is restarted."""

    async def served(authority: str, url: str) -> int:
        trusts = ssl.create_default_context(cadata=authority)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusts)) as session:
            body = {"request": {"uid": "u"}}
            async with session.post(url, json=body) as reply:
                return len((await reply.json())["response"])

    async def scenario() -> None:
        server = Server(lambda request: Answer(), Metrics())
        port, pages = await server.start("127.0.0.1", 0, 0)
        url = f"https://127.0.0.1:{port}{PATH}"
        server.use_path(PATH)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{pages}/healthz") as reply:
                assert reply.status == 503
            server.use(kept.server)
            async with session.get(f"http://127.0.0.1:{pages}/healthz") as reply:
                assert reply.status == 200
        assert await served(kept.authority.certificate, url) == 2
        other = renewed(None, HOSTS, NOW)
        server.use(other.server)
        assert await served(other.authority.certificate, url) == 2
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await served(kept.authority.certificate, url)
        await server.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b"[]", 400), (b'{"request": {"uid": "u"}}', 500)])
def test_what_cannot_be_judged_is_left_to_the_failure_policy(kept, body: bytes, status: int):
    def judge(request: Any) -> Answer:
        raise KeyError("object")

    async def scenario() -> None:
        server = Server(judge, Metrics())
        server.use(kept.server)
        server.use_path(PATH)
        port, _ = await server.start("127.0.0.1", 0, 0)
        trusts = ssl.create_default_context(cadata=kept.authority.certificate)
        connector = aiohttp.TCPConnector(ssl=trusts)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(f"https://127.0.0.1:{port}{PATH}", data=body) as reply,
        ):
            assert reply.status == status
        await server.close()

    asyncio.run(scenario())


def test_files_that_somebody_else_renews_are_served_when_they_change(kept, tmp_path: Path):
    used: list[Pair] = []
    mounted = Mounted(tmp_path, used.append)
    mounted.look()
    assert used == []
    for name, text in (("tls.crt", kept.server.certificate), ("tls.key", kept.server.key)):
        (tmp_path / name).write_text(text)
    mounted.look()
    mounted.look()
    assert used == [kept.server]

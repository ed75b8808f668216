"""How engines and router are put together, and engines that come back before there is a publisher."""

import asyncio
from unittest.mock import MagicMock, Mock

from rljob_trainer.assembly import fleet
from rljob_trainer.assembly.fleet import CatchUp
from rljob_trainer.engines.command import EngineCommand


def test_an_engine_that_returns_before_the_first_publication_waits_for_it():
    assert asyncio.run(CatchUp()(["engine-0"])) is None


def test_an_engine_that_returns_later_gets_the_publisher_s_weights():
    class Publisher:
        async def catch_up(self, engines):
            return f"published to {engines}"

    assert asyncio.run(CatchUp(Publisher())(["engine-0"])) == "published to ['engine-0']"


def test_engines_and_router_demand_the_same_key_and_those_of_another_run_another(monkeypatch):
    router, pool, hosts = Mock(), Mock(), Mock()
    monkeypatch.setattr(fleet, "Router", router)
    monkeypatch.setattr(fleet, "EnginePool", pool)
    monkeypatch.setattr(fleet, "_hosts", hosts)
    monkeypatch.setattr(fleet, "_command", lambda *_: EngineCommand({}, {}))
    monkeypatch.setattr(fleet.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    for name in ("router_settings", "pool_settings", "_session", "_both"):
        monkeypatch.setattr(fleet, name, Mock())
    for _ in range(2):
        foundation = MagicMock()
        foundation.topology.engines = ()
        fleet.start_fleet(foundation, Mock(), Mock())
    keys = [call.args[1].key for call in hosts.call_args_list]
    assert [call.kwargs["client"]("engine-0", "http://a").key for call in pool.call_args_list] == keys
    assert [call.args[4] for call in router.call_args_list] == keys
    assert all(keys)
    assert len({*keys}) == 2

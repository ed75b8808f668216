"""How a broadcast's members meet, with a learner and engines that only remember."""

import asyncio
from typing import Any

from rljob_trainer.engines.client import GroupAddress
from rljob_trainer.learners.group import RankHost
from rljob_trainer.sync.transport import Broadcast

WHERE = ("10.0.0.9", 23456)


class FakeLearner:
    def __init__(self) -> None:
        self.met: list[tuple[str, int]] = []

    async def rendezvous(self) -> tuple[str, int]:
        return WHERE

    async def connect(self, address: str, port: int, *_: Any) -> None:
        self.met.append((address, port))

    async def send(self, bucket_bytes: int) -> list[dict[str, str]]:
        return [{}]

    async def disconnect(self) -> None:
        return


class FakeEngine:
    def __init__(self, name: str) -> None:
        self.name = name
        self.url = f"http://{name}"
        self.joined: list[GroupAddress] = []

    async def join_group(self, address: GroupAddress, deadline_s: float) -> None:
        self.joined.append(address)

    async def leave_group(self, group_name: str, deadline_s: float) -> None:
        return


def test_everybody_meets_where_rank_0_is() -> None:
    learner, engines = FakeLearner(), [FakeEngine("a"), FakeEngine("b")]
    broadcast = Broadcast(learner, [], "gloo", ranks_per_engine=2, bucket_bytes=100)
    asyncio.run(broadcast.transfer(engines, 5.0))  # type: ignore[arg-type]  # all that is asked of them here
    addresses = [engine.joined[0] for engine in engines]
    assert [(each.master_address, each.master_port) for each in addresses] == [WHERE, WHERE]
    assert [(each.rank_offset, each.world_size) for each in addresses] == [(1, 5), (3, 5)]
    assert learner.met == [WHERE]


def test_the_members_meet_again_when_there_are_fewer() -> None:
    learner, engines = FakeLearner(), [FakeEngine("a"), FakeEngine("b")]
    broadcast = Broadcast(learner, [], "gloo", ranks_per_engine=1, bucket_bytes=100)

    async def transfers() -> None:
        for members in (engines, engines, engines[:1]):
            await broadcast.transfer(members, 5.0)  # type: ignore[arg-type]  # all that is asked of them here

    asyncio.run(transfers())
    assert [address.world_size for address in engines[0].joined] == [3, 2]
    assert len(engines[1].joined) == 1


def test_no_connection_takes_the_port_before_rank_0_serves_there() -> None:
    _, port = RankHost().address()
    assert 20000 <= port < 32768, "Linux gives connections ports from 32768 on"

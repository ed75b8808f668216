"""How weights reach engines, with a learner and engines that only remember: who is left behind, and who gets it all."""

import asyncio
import socket
from pathlib import Path
from typing import Any, cast

import pytest

from rljob_trainer.engines.client import EngineError, EngineUnreachableError, GroupAddress
from rljob_trainer.engines.weight_delta import DeltaError
from rljob_trainer.engines.weight_offer import Delta as OfferedDelta
from rljob_trainer.engines.weight_offer import WeightFiles
from rljob_trainer.learners.rank_host import RankHost
from rljob_trainer.sync.layout import TensorSpec
from rljob_trainer.sync.transport import Broadcast, Delta, Disk, Ipc, Transfer, TransferError
from support.trainer import virtual_time

WHERE = ("10.0.0.9", 23456)
DIGESTS = [{"w": "1"}]
SPECS = [
    TensorSpec("embed", (10, 2), "bfloat16"),
    TensorSpec("q", (4, 5), "bfloat16"),
    TensorSpec("norm", (3,), "float32"),
]
OFFERED = WeightFiles(Path("/far"), "d1", 1000, OfferedDelta("d0", "x", 30), "o1")
COPY = Path("/dev/shm/copy")
HANGS = "hangs"
Trouble = Exception | str | None


async def do(trouble: Trouble) -> None:
    if trouble == HANGS:
        await asyncio.Event().wait()
    if isinstance(trouble, Exception):
        raise trouble


class FakeLearner:
    def __init__(self, *troubles: Trouble) -> None:
        self.met: list[tuple[object, ...]] = []
        self.sent: list[int] = []
        self.left = 0
        self.written_to: list[Path] = []
        self.is_writing = False
        self._troubles = list(troubles)

    async def rendezvous(self) -> tuple[str, int]:
        return WHERE

    async def connect(self, *meeting: object) -> None:
        self.met.append(meeting)

    async def send(self, bucket_bytes: int) -> list[dict[str, str]]:
        self.sent.append(bucket_bytes)
        await do(self._troubles.pop(0) if self._troubles else None)
        return DIGESTS

    async def disconnect(self) -> None:
        self.left += 1

    async def write(self, directory: Path) -> None:
        await do(self._troubles.pop(0) if self._troubles else None)
        self.written_to.append(directory)

    async def written(self) -> list[dict[str, str]]:
        return DIGESTS

    async def offer(self, directory: Path) -> WeightFiles:
        await do(self._troubles.pop(0) if self._troubles else None)
        return OFFERED

    async def write_whole(self, files: WeightFiles) -> None:
        assert not self.is_writing, "one after the other"
        self.is_writing = True
        await asyncio.sleep(1.0)
        await do(self._troubles.pop(0) if self._troubles else None)
        self.written_to.append(files.whole_path)
        self.is_writing = False

    async def share(self, index: int, bucket_bytes: int) -> list[str]:
        self.sent.append(bucket_bytes)
        await do(self._troubles.pop(0) if self._troubles else None)
        return [f"{index} of rank {rank}" for rank in range(3)]

    async def shared(self) -> list[dict[str, str]]:
        return DIGESTS


class FakeEngine:
    """Fails as the troubles say: the first time that it receives, the second time, ..."""

    def __init__(self, name: str, *troubles: Trouble, silent: bool = False, joins: Trouble = None) -> None:
        self.name = name
        self.url = f"http://{name}"
        self.joined: list[tuple[GroupAddress, float]] = []
        self.received: list[tuple[object, ...]] = []
        self.left: list[tuple[str, float]] = []
        self.probed: list[float] = []
        self._troubles = list(troubles)
        self._silent = silent
        self._joins = joins

    async def join_group(self, address: GroupAddress, deadline_s: float) -> None:
        self.joined.append((address, deadline_s))
        await do(self._joins)

    async def leave_group(self, group_name: str, deadline_s: float) -> None:
        self.left.append((group_name, deadline_s))
        raise EngineError("no such group")

    async def receive(self, *bucket: object) -> None:
        self.received.append(bucket)
        await do(self._troubles.pop(0) if self._troubles else None)

    async def probe(self, deadline_s: float) -> None:
        self.probed.append(deadline_s)
        if self._silent:
            raise EngineUnreachableError(f"engine {self.name}: no answer")

    async def take(self, *bucket: object) -> None:
        self.received.append(bucket)
        await do(self._troubles.pop(0) if self._troubles else None)

    async def read_weights(self, directory: str, deadline_s: float) -> None:
        self.received.append((directory, deadline_s))
        await do(self._troubles.pop(0) if self._troubles else None)


def broadcast(learner: FakeLearner, ranks_per_engine: int = 1, bucket_bytes: int = 100) -> Broadcast:
    return Broadcast(cast(Any, learner), SPECS, "gloo", ranks_per_engine, bucket_bytes)


def transfer(transport: Broadcast | Delta | Disk | Ipc, *engines: FakeEngine) -> Transfer:
    return virtual_time.run(transport.transfer(cast(Any, engines), 5.0))


def test_everybody_meets_where_rank_0_is() -> None:
    learner, engines = FakeLearner(), [FakeEngine("a"), FakeEngine("b")]
    assert transfer(broadcast(learner, ranks_per_engine=2), *engines) == Transfer(DIGESTS, {})
    ((address, port, world_size, name, backend, timeout_s),) = learner.met
    assert (address, port, world_size, backend, timeout_s) == (*WHERE, 5, "gloo", 5.0)
    assert [engine.joined for engine in engines] == [
        [(GroupAddress(*WHERE, rank_offset, 5, cast(str, name), "gloo"), 5.0)] for rank_offset in (1, 3)
    ]


def test_the_members_meet_again_when_there_are_fewer() -> None:
    learner, engines = FakeLearner(), [FakeEngine("a"), FakeEngine("b")]
    transport = broadcast(learner)
    for members in (engines, engines, engines[:1]):
        transfer(transport, *members)
    first, second = (cast(str, meeting[3]) for meeting in learner.met)
    assert first != second
    assert [address.world_size for address, _ in engines[0].joined] == [3, 2]
    assert len(engines[1].joined) == 1
    assert (learner.left, engines[0].left) == (1, [(first, 5.0)])


def test_engines_leave_a_group_whose_learner_is_gone_and_nobody_asks_the_learner() -> None:
    learner, engine = FakeLearner(), FakeEngine("a")
    transport = broadcast(learner)
    virtual_time.run(transport.forget(cast(Any, [engine])))
    assert engine.left == [], "there was no group yet"
    transfer(transport, engine)
    virtual_time.run(transport.forget(cast(Any, [engine])))
    assert (learner.left, engine.left) == (0, [(learner.met[0][3], 5.0)])


def test_every_engine_is_notified_of_what_comes_bucket_by_bucket() -> None:
    learner, engine = FakeLearner(), FakeEngine("a")
    transfer(broadcast(learner, bucket_bytes=52), engine)
    group = cast(str, learner.met[0][3])
    assert engine.received == [
        (["embed"], ["bfloat16"], [(10, 2)], group, False, 5.0),
        (["q", "norm"], ["bfloat16", "float32"], [(4, 5), (3,)], group, True, 5.0),
    ]
    assert learner.sent == [52]


UNREACHABLE = EngineUnreachableError("engine b: connection refused")
REFUSED = EngineError("engine b: 500 out of memory")
LOST = TransferError("gloo: connection closed by peer")


@pytest.mark.parametrize(
    ("learner_trouble", "trouble", "reason"),
    [
        (HANGS, UNREACHABLE, str(UNREACHABLE)),
        (LOST, UNREACHABLE, str(UNREACHABLE)),
        (HANGS, REFUSED, str(REFUSED)),
        (None, REFUSED, str(REFUSED)),
    ],
    ids=["is not there", "is not there, and the group breaks", "refuses", "refuses at the end"],
)
def test_an_engine_that_fails_is_left_behind_and_the_others_get_all(
    learner_trouble: Trouble, trouble: Trouble, reason: str
) -> None:
    learner, good, bad = FakeLearner(learner_trouble), FakeEngine("a"), FakeEngine("b", trouble)
    assert transfer(broadcast(learner), good, bad) == Transfer(DIGESTS, {"b": reason})
    assert [address.world_size for address, _ in good.joined] == [3, 2]
    assert len(bad.joined) == 1
    assert (len(learner.sent), learner.left) == (2, 1)


def test_an_engine_that_does_not_join_is_left_behind() -> None:
    learner, bad = FakeLearner(), FakeEngine("b", joins=UNREACHABLE)
    assert transfer(broadcast(learner), FakeEngine("a"), bad).failed == {"b": str(UNREACHABLE)}
    assert learner.sent == [100]


def test_an_engine_that_neither_receives_nor_answers_is_at_fault_when_the_learner_fails() -> None:
    learner = FakeLearner(LOST)
    good, hung = FakeEngine("a", REFUSED), FakeEngine("b", HANGS, silent=True)
    assert transfer(broadcast(learner), good, hung) == Transfer(DIGESTS, {"b": "engine b: no answer"})
    assert (good.probed, hung.probed) == ([5.0], [5.0])


def test_a_failure_that_no_engine_explains_is_tried_again_once() -> None:
    learner, engine = FakeLearner(LOST), FakeEngine("a", REFUSED)
    assert transfer(broadcast(learner), engine) == Transfer(DIGESTS, {})
    assert len(engine.joined) == 2


def test_a_failure_that_no_engine_explains_twice_is_the_learners() -> None:
    learner, engine = FakeLearner(LOST, LOST, LOST), FakeEngine("a")
    with pytest.raises(TransferError, match=r"^broadcast to 1 engines: .*learner='gloo: connection closed by peer'"):
        transfer(broadcast(learner), engine)
    assert len(learner.sent) == 2


def test_a_transfer_may_reach_nobody() -> None:
    assert transfer(broadcast(FakeLearner(HANGS)), FakeEngine("b", UNREACHABLE)) == Transfer(
        (), {"b": str(UNREACHABLE)}
    )
    assert transfer(broadcast(FakeLearner())) == Transfer((), {})


@pytest.mark.parametrize("learner_fails", [True, False])
def test_a_defect_is_raised_and_not_blamed_on_an_engine(learner_fails: bool) -> None:
    defect = KeyError("names")
    learner = FakeLearner(defect if learner_fails else HANGS)
    with pytest.raises(KeyError):
        transfer(broadcast(learner), FakeEngine("a", None if learner_fails else defect))


def test_nothing_goes_on_in_the_background_after_a_failure() -> None:
    async def act() -> set["asyncio.Task[Any]"]:
        transport = broadcast(FakeLearner(HANGS, LOST, LOST))
        with pytest.raises(TransferError):
            await transport.transfer(cast(Any, [FakeEngine("a"), FakeEngine("b", UNREACHABLE)]), 5.0)
        return asyncio.all_tasks() - {cast(Any, asyncio.current_task())}

    assert virtual_time.run(act()) == set()


def test_files_are_written_before_engines_read_them() -> None:
    learner, good, bad = FakeLearner(), FakeEngine("a"), FakeEngine("b", REFUSED)
    found = transfer(Disk(cast(Any, learner), Path("/dev/shm/w")), good, bad)
    assert found == Transfer(DIGESTS, {"b": str(REFUSED)})
    assert (learner.written_to, good.received) == ([Path("/dev/shm/w")], [("/dev/shm/w", 5.0)])


def test_files_that_are_not_written_in_time_are_an_error() -> None:
    engine = FakeEngine("a")
    with pytest.raises(TimeoutError):
        transfer(Disk(cast(Any, FakeLearner(HANGS)), Path("/dev/shm/w")), engine)
    assert engine.received == []


def test_rank_0_serves_the_port_before_anybody_is_told_of_it() -> None:
    host, port = RankHost().address()
    with socket.create_connection((host, port), timeout=10):
        pass


BESIDE = {"a": (0,), "b": (2, 1)}


def ipc(learner: FakeLearner) -> Ipc:
    return Ipc(cast(Any, learner), SPECS, 52, BESIDE)


def test_an_engine_takes_every_bucket_from_the_ranks_on_its_own_slots() -> None:
    learner, engines = FakeLearner(), [FakeEngine("a"), FakeEngine("b")]
    assert transfer(ipc(learner), *engines) == Transfer(DIGESTS, {})
    assert engines[0].received == [(["0 of rank 0"], False, 5.0), (["1 of rank 0"], True, 5.0)]
    assert engines[1].received == [
        (["0 of rank 2", "0 of rank 1"], False, 5.0),
        (["1 of rank 2", "1 of rank 1"], True, 5.0),
    ]
    assert learner.sent == [52, 52]


@pytest.mark.parametrize("trouble", [UNREACHABLE, REFUSED])
def test_an_engine_that_takes_no_bucket_gets_no_further_one_and_the_others_get_all(trouble: Exception) -> None:
    good, bad = FakeEngine("a"), FakeEngine("b", trouble)
    assert transfer(ipc(FakeLearner()), good, bad) == Transfer(DIGESTS, {"b": str(trouble)})
    assert (len(good.received), len(bad.received)) == (2, 1)


@pytest.mark.parametrize("troubles", [(LOST,), (None, LOST)], ids=["at first", "later"])
def test_a_learner_that_cannot_share_is_no_engines_fault(troubles: tuple[Trouble, ...]) -> None:
    with pytest.raises(TransferError, match="connection closed by peer"):
        transfer(ipc(FakeLearner(*troubles)), FakeEngine("a"))


def test_sharing_that_hangs_ends_with_its_deadline() -> None:
    with pytest.raises(TimeoutError):
        transfer(ipc(FakeLearner(HANGS)), FakeEngine("a"))


class FakeReceiver:
    """A machine's copy; fails as the troubles say, one for each question."""

    def __init__(self, *troubles: Trouble) -> None:
        self.asked: list[tuple[object, ...]] = []
        self._troubles = list(troubles)

    async def apply_delta(self, *question: object) -> int:
        self.asked.append(("delta", *question))
        await do(self._troubles.pop(0) if self._troubles else None)
        return 30

    async def copy_whole(self, *question: object) -> int:
        self.asked.append(("whole", *question))
        await do(self._troubles.pop(0) if self._troubles else None)
        return 1000


NO_BASE = DeltaError("the machine holds no weights")
ASKED = [(what, OFFERED, COPY, 5.0) for what in ("delta", "whole")]


def delta(learner: FakeLearner, **receivers: FakeReceiver) -> Delta:
    return Delta(cast(Any, learner), Path("/far"), COPY, receivers)


def test_an_engine_reads_the_copy_of_its_machine_when_that_has_the_changes() -> None:
    learner, engine, receiver = FakeLearner(), FakeEngine("a"), FakeReceiver()
    assert transfer(delta(learner, a=receiver, another=FakeReceiver()), engine) == Transfer(DIGESTS, {})
    assert (receiver.asked, engine.received) == (ASKED[:1], [(str(COPY), 5.0)])
    assert learner.written_to == []


def test_only_a_machine_that_lacks_the_base_gets_the_whole_weights(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    learner, engines = FakeLearner(), [FakeEngine("a"), FakeEngine("b")]
    receivers = {"a": FakeReceiver(), "b": FakeReceiver(NO_BASE)}
    assert transfer(delta(learner, **receivers), *engines) == Transfer(DIGESTS, {})
    assert [receivers[name].asked for name in "ab"] == [ASKED[:1], ASKED]
    assert [engine.received for engine in engines] == [[(str(COPY), 5.0)]] * 2
    assert learner.written_to == [OFFERED.whole_path]
    assert caplog.messages == [
        "engine=b action=copy_whole reason=the machine holds no weights",
        "action=offer seconds=0.000 whole_bytes=1000 delta_bytes=30 received_bytes={'a': 30, 'b': 1000}",
    ]


def test_the_learner_is_asked_for_the_whole_weights_by_one_machine_after_the_other() -> None:
    receivers = {"a": FakeReceiver(NO_BASE), "b": FakeReceiver(NO_BASE)}
    found = transfer(delta(FakeLearner(), **receivers), FakeEngine("a"), FakeEngine("b"))
    assert found == Transfer(DIGESTS, {})


@pytest.mark.parametrize(
    ("troubles", "asked"),
    [((UNREACHABLE,), 1), ((NO_BASE, REFUSED), 2)],
    ids=["its machine is lost", "the whole weights do not arrive either"],
)
def test_an_engine_whose_machine_has_no_good_copy_reads_nothing_and_is_left_behind(
    troubles: tuple[Trouble, ...], asked: int
) -> None:
    good, bad, receiver = FakeEngine("a"), FakeEngine("b"), FakeReceiver(*troubles)
    found = transfer(delta(FakeLearner(), a=FakeReceiver(), b=receiver), good, bad)
    assert found == Transfer(DIGESTS, {"b": str(troubles[-1])})
    assert (receiver.asked, bad.received) == (ASKED[:asked], [])
    assert good.received == [(str(COPY), 5.0)]


def test_an_engine_that_does_not_read_the_copy_is_left_behind() -> None:
    receivers = {"a": FakeReceiver(), "b": FakeReceiver()}
    found = transfer(delta(FakeLearner(), **receivers), FakeEngine("a"), FakeEngine("b", REFUSED))
    assert found.failed == {"b": str(REFUSED)}


@pytest.mark.parametrize("troubles", [(LOST,), (None, LOST)], ids=["the changes", "the whole weights"])
def test_a_learner_that_cannot_write_is_no_engines_fault(troubles: tuple[Trouble, ...]) -> None:
    engine = FakeEngine("a")
    with pytest.raises(TransferError, match="connection closed by peer"):
        transfer(delta(FakeLearner(*troubles), a=FakeReceiver(NO_BASE)), engine)
    assert engine.received == []


@pytest.mark.parametrize("troubles", [(HANGS,), (None, HANGS)], ids=["the changes", "the whole weights"])
def test_an_offer_that_is_not_written_in_time_is_an_error(troubles: tuple[Trouble, ...]) -> None:
    with pytest.raises(TimeoutError):
        transfer(delta(FakeLearner(*troubles), a=FakeReceiver(NO_BASE)), FakeEngine("a"))

"""A publication's questions to the learner, and its troubles in the publisher's terms."""

import asyncio
import sys
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from rljob_trainer.engines.weight_offer import WeightFiles
from rljob_trainer.learners.errors import LearnerError, LearnerLostError, LearnerStalledError
from rljob_trainer.sync.layout import Sharding
from rljob_trainer.sync.learner_link import LearnerLink
from rljob_trainer.sync.rank.files import CheckpointFiles
from rljob_trainer.sync.rank_makers import checkpoint_files, publishing_rank
from rljob_trainer.sync.transport import TransferError


class FakeGroup:
    """Two ranks; rank 0 sends."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[object, ...]] = []
        self._error = error

    def address(self) -> tuple[str, int]:
        self._call("address")
        return ("10.0.0.9", 23456)

    def call(self, method: Callable[..., object], *arguments: object) -> list[object]:
        self._call(method.__name__, *arguments)
        return [[{"w": "1"}], None]

    def interrupt(self, method: Callable[..., object]) -> None:
        self._call("interrupt", method.__name__)

    def _call(self, *call: object) -> None:
        self.calls.append(call)
        if self._error:
            raise self._error


FILES = WeightFiles(Path("/far"), "d1", 1000, None, "o1")
Question = Callable[[LearnerLink], Awaitable[Any]]
QUESTIONS: dict[str, tuple[Question, tuple[object, ...], object]] = {
    "rendezvous": (lambda link: link.rendezvous(), ("address",), ("10.0.0.9", 23456)),
    "connect": (
        lambda link: link.connect("10.0.0.9", 23456, 3, "rljob-1", "gloo", 9.0),
        ("connect", "10.0.0.9", 23456, 3, "rljob-1", "gloo", 9.0),
        None,
    ),
    "send": (lambda link: link.send(100), ("send", 100), [{"w": "1"}]),
    "write": (lambda link: link.write(Path("/dev/shm/w")), ("write", Path("/dev/shm/w")), None),
    "written": (lambda link: link.written(), ("written",), [{"w": "1"}]),
    "offer": (lambda link: link.offer(Path("/far")), ("offer", Path("/far")), [{"w": "1"}]),
    "write_whole": (lambda link: link.write_whole(FILES), ("write_whole", FILES), None),
    "disconnect": (lambda link: link.disconnect(), ("interrupt", "disconnect"), None),
}


@pytest.mark.parametrize(("question", "call", "answer"), QUESTIONS.values(), ids=QUESTIONS)
def test_every_rank_is_asked_and_rank_0_answers(question: Question, call: tuple[object, ...], answer: object) -> None:
    group = FakeGroup()
    assert asyncio.run(cast(Any, question)(LearnerLink(cast(Any, group)))) == answer
    assert group.calls == [call]


@pytest.mark.parametrize(("question", "call", "answer"), QUESTIONS.values(), ids=QUESTIONS)
@pytest.mark.parametrize("kind", [LearnerError, LearnerLostError, LearnerStalledError])
def test_trouble_of_the_learner_is_trouble_of_the_transfer(
    question: Question, call: object, answer: object, kind: type[Exception]
) -> None:
    with pytest.raises(TransferError, match=r"^rank 1 is gone$"):
        asyncio.run(cast(Any, question)(LearnerLink(cast(Any, FakeGroup(kind("rank 1 is gone"))))))


class NoisyModule:
    """Warns like Megatron when something is imported from it."""

    @property
    def PublishingRank(self) -> Any:
        warnings.warn("Apex is not installed", UserWarning, stacklevel=2)
        return dict


def test_a_rank_is_made_without_the_warnings_of_its_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rljob_trainer.sync.rank.rank", cast(Any, NoisyModule()))
    assert publishing_rank(rank=1, world_size=2) == {"rank": 1, "world_size": 2}
    with pytest.warns(UserWarning, match="later ones are shown"):
        warnings.warn("later ones are shown", UserWarning, stacklevel=1)


def test_files_stand_for_a_learner_that_does_not_train(tiny_llama_dir: Path) -> None:
    made = checkpoint_files(
        checkpoint_dir=tiny_llama_dir,
        precision="fp32",
        device="cpu",
        num_threads=1,
        sharding=Sharding(1, 2, tied_embeddings=True),
        rank=0,
        world_size=1,
        master_address="",
        master_port=0,
    )
    assert isinstance(made, CheckpointFiles)

"""The machine of an engine as a receiver of weights: what goes wrong there is the engine's trouble. No Ray runs."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from ray.exceptions import RayActorError, RayTaskError

from rljob_trainer.engines.client import EngineError, EngineUnreachableError
from rljob_trainer.engines.server import EngineServer, RayHost
from rljob_trainer.engines.weight_copy import HELD, WeightFiles, digest
from rljob_trainer.engines.weight_delta import DeltaError
from support.trainer import virtual_time

FILES = WeightFiles(Path("/far"), "d1", 1000, None, "o1")
COPY = Path("/dev/shm/copy")
Ask = Callable[[RayHost], Awaitable[int]]
QUESTIONS: dict[str, Ask] = {
    "apply_delta": lambda host: host.apply_delta(FILES, COPY, 5.0),
    "copy_whole": lambda host: host.copy_whole(FILES, COPY, 5.0),
}


class FakeActor:
    """Answers every question with a number, or with an error; or hangs."""

    def __init__(self, answer: int | Exception | None) -> None:
        self.asked: list[tuple[object, ...]] = []
        self._answer = answer

    def __getattr__(self, method: str) -> Any:
        actor = self

        class Method:
            async def remote(self, *arguments: object) -> int:
                actor.asked.append((method, *arguments))
                if actor._answer is None:
                    await asyncio.Event().wait()
                if isinstance(actor._answer, Exception):
                    raise actor._answer
                return cast(int, actor._answer)

        return Method()


def host(actor: FakeActor | None) -> RayHost:
    made = RayHost("engine-0", Path("engine-0.log"), None, cast(Any, None))
    made._actor = actor
    return made


@pytest.mark.parametrize("method", QUESTIONS)
def test_the_actor_beside_the_engine_receives_the_weights(method: str) -> None:
    actor = FakeActor(30)
    assert virtual_time.run(cast(Any, QUESTIONS[method](host(actor)))) == 30
    assert actor.asked == [(method, FILES, COPY)]


@pytest.mark.parametrize("method", QUESTIONS)
@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (RayTaskError("receive", "", DeltaError("no base")), DeltaError, "no base"),
        (RayTaskError("receive", "", OSError("no room")), EngineError, "no room"),
        (RayActorError(), EngineUnreachableError, "its actor is lost: "),
        (None, EngineUnreachableError, "not done within 5 s"),
    ],
    ids=["no base", "no room", "lost", "hangs"],
)
def test_trouble_of_the_machine_names_engine_and_reason(
    method: str, answer: Exception | None, kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=f"^engine engine-0: {method}: {says}") as raised:
        virtual_time.run(cast(Any, QUESTIONS[method](host(FakeActor(answer)))))
    assert type(raised.value) is kind


@pytest.mark.parametrize("method", QUESTIONS)
def test_no_actor_is_made_to_receive_weights(method: str) -> None:
    with pytest.raises(EngineUnreachableError, match=f"^engine engine-0: {method}: its actor is lost$"):
        virtual_time.run(cast(Any, QUESTIONS[method](host(None))))


def test_the_actor_keeps_the_copy(tmp_path: Path) -> None:
    server = EngineServer("engine-0", tmp_path / "log", "127.0.0.1")
    content = b"weights"
    files = WeightFiles(tmp_path, digest(content), len(content), None, "o1")
    files.whole_path.write_bytes(content)
    assert server.copy_whole(files, tmp_path / "copy") == len(content)
    assert (tmp_path / "copy" / HELD).read_text() == f"{files.digest} o1"
    assert server.apply_delta(files, tmp_path / "copy") == 0

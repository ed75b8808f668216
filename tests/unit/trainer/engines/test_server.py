"""The machine of an engine as a receiver of weights: what goes wrong there is the engine's trouble. No Ray runs."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from ray.exceptions import RayActorError, RayTaskError

from rljob_trainer.engines.actor import server
from rljob_trainer.engines.actor.server import EngineServer
from rljob_trainer.engines.actor.weight_copy import HELD
from rljob_trainer.engines.client import EngineError, EngineUnreachableError
from rljob_trainer.engines.command import EngineCommand
from rljob_trainer.engines.key import KEY_VARIABLE
from rljob_trainer.engines.ray_host import RayHost
from rljob_trainer.engines.served import EngineStartError
from rljob_trainer.engines.weight_delta import DeltaError
from rljob_trainer.engines.weight_offer import WeightFiles, digest
from support.http_in_thread import served_in_thread
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


COMMAND = EngineCommand({}, {})


def host(actor: FakeActor | None) -> RayHost:
    made = RayHost("engine-0", COMMAND, Path("engine-0.log"), None, cast(Any, None))
    made._actor = actor
    return made


def test_the_actor_starts_the_engine_with_its_command_and_a_deadline() -> None:
    actor = FakeActor(30)
    virtual_time.run(host(actor).start(90.0))
    assert actor.asked[-1] == ("start", COMMAND, 90.0)


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
    actor = EngineServer("engine-0", tmp_path / "log", "127.0.0.1")
    content = b"weights"
    files = WeightFiles(tmp_path, digest(content), len(content), None, "o1")
    files.whole_path.write_bytes(content)
    assert actor.copy_whole(files, tmp_path / "copy") == len(content)
    assert (tmp_path / "copy" / HELD).read_text() == f"{files.digest} o1"
    assert actor.apply_delta(files, tmp_path / "copy") == 0


class Watched:
    """A server process that only remembers how it was started."""

    pid, exit = 1, None

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start nothing."""
        self.argv, self.environment, self.stopped = argv, environment, False
        Watched.last = self

    last: "Watched"

    def wait(self, timeout_s: float) -> None:
        """Return at once: it runs."""

    def stop(self) -> None:
        """Remember it."""
        self.stopped = True


def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str, demands: str) -> Watched:
    """Start an engine that demands a key, with the command for `key`."""

    async def info(request: web.Request) -> web.Response:
        return web.json_response({}, status=401 if request.headers.get("Authorization", "") != demands else 200)

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    application = web.Application()
    application.add_routes([web.get("/model_info", info), web.get("/health", health)])
    monkeypatch.setattr(server, "KeptProcess", Watched)
    with served_in_thread(application) as url:
        monkeypatch.setattr(server, "free_ports", lambda _: (int(url.rpartition(":")[2]), 1))
        EngineServer("engine-0", tmp_path / "log", "127.0.0.1").start(EngineCommand({}, {}, key=key), 10)
    return Watched.last


def test_a_server_gets_its_key_by_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    process = started(monkeypatch, tmp_path, "a key", demands="Bearer a key")
    assert process.environment[KEY_VARIABLE] == "a key"
    assert "a key" not in " ".join(process.argv)


def test_a_server_that_serves_anybody_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match=r"it serves requests without the key of the run$"):
        started(monkeypatch, tmp_path, "a key", demands="")
    assert Watched.last.stopped


def test_a_server_without_a_key_gets_none_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "of another server")
    assert started(monkeypatch, tmp_path, "", demands="").environment[KEY_VARIABLE] == ""

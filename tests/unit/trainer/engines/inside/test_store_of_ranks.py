"""The plugin by which the ranks of an engine meet at the engine's address, with torch's own stores."""

import importlib
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psutil
import pytest
from torch.distributed import rendezvous

from support.trainer.engine_plugins import imported

HOST, WAIT = "127.0.0.1", timedelta(seconds=30)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Have torch open stores as engines do."""
    with imported("rljob_sglang_store") as plugin:
        path, _, name = plugin.OPENED.rpartition(".")
        module = importlib.import_module(path)
        torchs_own = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *each: plugin.on_its_address(torchs_own, *each))
        yield plugin


@pytest.fixture
def port() -> int:
    with socket.create_server((HOST, 0)) as free:
        found: int = free.getsockname()[1]
        return found


def store(host: str, port: int, rank: int = 0) -> Any:
    return next(rendezvous(f"tcp://{host}:{port}", rank, 1, timeout=WAIT))[0]


def doors(port: int) -> list[str]:
    found = psutil.Process().net_connections("tcp")
    return [each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN and each.laddr.port == port]


@pytest.mark.usefixtures("plugin")
def test_the_store_of_ranks_listens_on_its_address_alone(port: int) -> None:
    first = store(HOST, port)
    assert doors(port) == [HOST]
    store(HOST, port, rank=1).set("a", "b")
    assert first.get("a") == b"b"


@pytest.mark.usefixtures("plugin")
def test_a_second_group_of_a_process_meets_at_the_same_store(port: int) -> None:
    first, second = store(HOST, port), store(HOST, port)
    first.set("a", "b")
    assert second.get("a") == b"b"
    assert doors(port) == [HOST]


def test_torch_listens_everywhere_by_itself(port: int) -> None:
    opened = store(HOST, port)
    assert opened is not None
    assert doors(port) == ["::"], "else the plugin can go"

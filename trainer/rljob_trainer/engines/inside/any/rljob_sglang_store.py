"""SGLang plugin: the store where an engine's ranks meet listens on the engine's address, and on no other.

SGLang finds it by the entry point in `rljob_sglang_store-1.dist-info`. torch 2.11 opens the port of `--nccl-port` on
all interfaces, and has no setting for it but the descriptor of a socket that listens already.
"""

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from torch.distributed import TCPStore

OPENED = "torch.distributed.rendezvous._create_c10d_store"
WAITING = 2048
"""connections that are not accepted yet, as torch has it"""


def register() -> None:
    """Called by SGLang in each of its processes before they start to work."""
    HookRegistry.register(OPENED, on_its_address, HookType.AROUND)


def on_its_address(
    original: Callable[..., Any], host: str, port: int, rank: int, world: int, timeout: timedelta, libuv: bool = True
) -> Any:
    """Stand in for `_create_c10d_store`; rank 0 serves the store."""
    if rank != 0:
        return original(host, port, rank, world, timeout, libuv)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        door = socket.create_server((host, port), family=family, backlog=WAITING)
    except OSError:  # this process serves it already, and torch shares it
        return original(host, port, rank, world, timeout, libuv)
    return TCPStore(
        host_name=host,
        port=port,
        world_size=world,
        is_master=True,
        timeout=timeout,
        multi_tenant=True,
        use_libuv=libuv,
        master_listen_fd=door.detach(),
    )

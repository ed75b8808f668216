"""Where processes of a group meet: a store that rank 0 serves.

Rank 0's process opens it before any other rank gets its address, on a port that the kernel chooses. A port that is only
found free can be taken by another program before it is used; then rank 0 fails, and all others wait for it in vain.
"""

import socket
from datetime import timedelta

import torch.distributed as dist

WAITING = 2048
"""connections that are not accepted yet, as torch has it"""
_opened: dict[int, dist.TCPStore] = {}
"""the unused store of this process, by its port"""


def open_store(host: str) -> int:
    """Serve a store on `host`, and return its port; one that was opened before and never used is closed."""
    # torch would listen on all interfaces.
    door = socket.create_server((host, 0), backlog=WAITING)
    port, descriptor = door.getsockname()[1], door.detach()
    store = dist.TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
    _opened.clear()
    _opened[store.port] = store
    return int(store.port)


def meet(address: str, port: int, rank: int, world_size: int, timeout: timedelta) -> dist.Store:
    """Return the store at an address; rank 0 serves it, if this process has not opened it before.

    Raises torch's DistStoreError or RuntimeError when rank 0 cannot be reached in time.
    """
    store: dist.Store | None = _opened.pop(port, None) if rank == 0 else None
    if store is None:
        store, _, _ = next(dist.rendezvous(f"tcp://{address}:{port}", rank, world_size, timeout=timeout))
    store.set_timeout(timeout)
    return store

"""Joins the learner to a process group with SGLang engines, outside torch's default group.

Both sides must make it in the same way (SGLang: `init_custom_process_group`): rendezvous over TCP, keys prefixed by the
group's name. Written here so that the learner need not import SGLang. Unlike SGLang's, ours has a deadline.
"""

from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from rljob_trainer.learners.rank.rendezvous.store import meet
from rljob_trainer.sync.rank_calls import Backend


def join_group(
    address: str, port: int, world_size: int, rank: int, name: str, backend: Backend, timeout_s: float
) -> dist.ProcessGroup:
    """Return the group once all members are there; rank 0 serves the rendezvous on `port`.

    Raises torch's DistStoreError or RuntimeError when they are not within `timeout_s` [s]; operations on the group have
    the same deadline.
    """
    timeout = timedelta(seconds=timeout_s)
    store = meet(address, port, rank, world_size, timeout)
    group, _ = c10d._new_process_group_helper(
        world_size,
        rank,
        [],
        dist.Backend(backend),
        dist.PrefixStore(name, store),
        group_name=c10d.GroupName(name) if hasattr(c10d, "GroupName") else name,
        timeout=timeout,
        backend_options=None,
    )
    c10d._world.pg_group_ranks[group] = {i: i for i in range(world_size)}
    return group


def abandon_group(group: dist.ProcessGroup) -> None:
    """Leave a group, also one with a broken or hanging operation: its connections are closed, so no member waits on."""
    group.abort()
    dist.destroy_process_group(group)

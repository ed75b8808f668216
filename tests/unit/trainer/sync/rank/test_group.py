"""A group of torch's own, beside its default one, and left for good."""

import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from rljob_trainer.learners.rank.rendezvous.store import meet, open_store
from rljob_trainer.processes.ports import free_ports
from rljob_trainer.sync.layout import Sharding
from rljob_trainer.sync.rank.group import abandon_group, join_group
from rljob_trainer.sync.rank.sender import SendError, WeightSender, specs_of


def test_a_group_is_left_and_joined_again_under_the_same_name() -> None:
    for _ in range(2):
        port, _ = free_ports("127.0.0.1")
        group = join_group("127.0.0.1", port, 1, 0, "rljob-test", "gloo", 30.0)
        assert (group.size(), group.rank()) == (1, 0)
        assert dist.get_global_rank(group, 0) == 0
        abandon_group(group)
    assert not dist.is_initialized(), "the default group is somebody else's"


def test_a_member_that_does_not_come_is_waited_for_no_longer_than_the_deadline() -> None:
    port, _ = free_ports("127.0.0.1")
    with pytest.raises((dist.DistStoreError, RuntimeError)):
        join_group("127.0.0.1", port, 2, 0, "rljob-test", "gloo", 0.05)


def test_a_sender_without_engines_sends_to_itself() -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3)}
    weights = WeightSender(specs_of(tensors.items()), Sharding(1, 1, tied_embeddings=True), lambda pieces: "digest")
    port, _ = free_ports("127.0.0.1")
    weights.connect("127.0.0.1", port, 1, "rljob-test", "gloo", 30.0)
    assert weights.send(tensors.items(), 1 << 20) == ({"a": "digest"},)
    weights.disconnect()
    with pytest.raises(SendError, match="not connected"):
        weights.send(tensors.items(), 1 << 20)


def test_a_store_that_was_opened_first_is_met_at_its_port() -> None:
    port = open_store("127.0.0.1")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    group = join_group("127.0.0.1", port, 1, 0, "rljob-test", "gloo", 30.0)
    abandon_group(group)


def test_a_member_meets_the_store_of_rank_0() -> None:
    port = open_store("127.0.0.1")
    with ThreadPoolExecutor(2) as pool:
        joins = [pool.submit(meet, "127.0.0.1", port, rank, 2, timedelta(seconds=30)) for rank in (1, 0)]
        member, first = (join.result() for join in joins)
    first.set("seen", "by all")
    assert member.get("seen") == b"by all"


def test_a_store_that_nobody_came_to_is_closed_by_the_next() -> None:
    forgotten = open_store("127.0.0.1")
    assert open_store("127.0.0.1") != forgotten
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", forgotten))

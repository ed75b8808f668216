"""Where ranks and engines meet: a store on the address that they are given, and on no other."""

import os
from datetime import timedelta

import psutil
import torch.distributed as dist

from rljob_trainer.learners.rank.rendezvous.store import meet, open_store


def doors(port: int) -> list[str]:
    found = psutil.Process(os.getpid()).net_connections("tcp")
    return [each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN and each.laddr.port == port]


def test_a_store_listens_on_its_address_alone():
    port = open_store("127.0.0.1")
    assert doors(port) == ["127.0.0.1"]


def test_ranks_meet_at_the_store():
    port = open_store("127.0.0.1")
    first = meet("127.0.0.1", port, 0, 2, timedelta(seconds=30))
    dist.TCPStore("127.0.0.1", port, is_master=False).set("a", "b")
    assert first.get("a") == b"b"


def test_a_store_that_nobody_used_is_closed_when_the_next_is_opened():
    unused, used = open_store("127.0.0.1"), open_store("127.0.0.1")
    assert (doors(unused), doors(used)) == ([], ["127.0.0.1"])

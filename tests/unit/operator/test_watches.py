"""What the operator does with the events of its watches, and what kopf does not do with them."""

import asyncio
from types import SimpleNamespace
from typing import cast

from operator_world import raw_job
from rljob_operator.cache import Cache
from rljob_operator.handlers import watching
from rljob_operator.process import Operator
from rljob_operator.pulse import Pulse
from rljob_operator.workqueue import WorkQueue


def operator() -> Operator:
    parts = SimpleNamespace(cache=Cache(), queue=WorkQueue(lambda: 0.0), pulse=Pulse(lambda: 0.0))
    return cast(Operator, parts)


def test_a_change_is_looked_at_and_its_echo_is_not():
    parts = operator()
    Operator.seen(parts, raw_job(), is_gone=False)
    assert asyncio.run(parts.queue.get()) == "ml/sums"
    parts.queue.done("ml/sums", None)
    Operator.seen(parts, raw_job(), is_gone=False)
    assert parts.queue.waiting_s() == ()


def test_what_is_gone_is_looked_at():
    parts = operator()
    Operator.seen(parts, raw_job(), is_gone=True)
    assert len(parts.queue.waiting_s()) == 1


def test_kopf_copies_no_object():
    settings = watching()
    body = {"spec": {"large": ["x"]}}
    assert settings.persistence.diffbase_storage.build(body=body) == {}
    assert settings.persistence.diffbase_storage.fetch(body=body) is None
    assert settings.persistence.progress_storage.clear(essence=body) is body

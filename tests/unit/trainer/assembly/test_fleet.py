"""Engines that come back before there is a publisher."""

import asyncio

from rljob_trainer.assembly.fleet import CatchUp


def test_an_engine_that_returns_before_the_first_publication_waits_for_it():
    assert asyncio.run(CatchUp()(["engine-0"])) is None


def test_an_engine_that_returns_later_gets_the_publisher_s_weights():
    class Publisher:
        async def catch_up(self, engines):
            return f"published to {engines}"

    assert asyncio.run(CatchUp(Publisher())(["engine-0"])) == "published to ['engine-0']"

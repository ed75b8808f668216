"""A gateway in this process: `python -m rljob_trainer.gateway.process HOST PORT SETTINGS`, with settings as JSON.

The keys of driver and router come by environment: arguments could be read by each user of the machine.
"""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import setproctitle
from aiohttp import web

from rljob_api.exits import Exit
from rljob_trainer.conversations.generator import Engines
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.engines.carrying import Carrying, GatedStreams
from rljob_trainer.engines.client import RouterClient, open_session
from rljob_trainer.engines.gate import Gate
from rljob_trainer.engines.key import KEY_VARIABLE
from rljob_trainer.gateway.chat import Gateway
from rljob_trainer.gateway.parsing import Parsers, UnknownParserError
from rljob_trainer.gateway.record import ADMIN_VARIABLE, Settings
from rljob_trainer.gateway.server import application


def main(arguments: Sequence[str]) -> None:
    """Serve until the process is killed."""
    host, port, settings = arguments
    setproctitle.setproctitle("rljob::gateway")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    admin_key, router_key = os.environ.pop(ADMIN_VARIABLE), os.environ.pop(KEY_VARIABLE, "")
    try:
        asyncio.run(serve(host, int(port), Settings(**json.loads(settings)), admin_key, router_key))
    except UnknownParserError as error:
        sys.stdout.write(f"{error}\n")
        sys.exit(int(Exit.BAD_INPUT))


async def serve(host: str, port: int, settings: Settings, admin_key: str, router_key: str) -> None:
    """Load the tokenizer and the parsers, and serve for ever."""
    parsers = Parsers(settings.tool_parser, settings.reasoning_parser)
    parsers.check()
    session, gate, tokenizer = open_session(), Gate(), load_tokenizer(Path(settings.model))

    @cache
    def engines(url: str) -> Engines:
        gated = GatedStreams(RouterClient(session, url, router_key), gate)
        made = Engines(gated, settings.deadline_s, settings.patience_s, alive=lambda: None)
        if settings.carries:
            made.carrying = Carrying(gated, partial(tokenizer.decode, skip_special_tokens=True), made.failed)
        return made

    gateway = Gateway(settings, tokenizer, engines, parsers, gate=gate)
    runner = web.AppRunner(application(gateway, admin_key))
    await runner.setup()
    await web.TCPSite(runner, host, port, backlog=1024).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])

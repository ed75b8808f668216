"""A gateway in this process: `python -m rljob_trainer.gateway.process SOCKET DIRECTORY SETTINGS`.

SOCKET is a file descriptor of the driver's: clients that come while there is no gateway wait in its queue. DIRECTORY
has the sessions of the gateway before. SETTINGS are JSON. Requests are held until the driver says otherwise. The keys
of driver and router come by environment: arguments could be read by each user of the machine.
"""

import asyncio
import json
import logging
import os
import socket
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
from rljob_trainer.gateway.record import ADMIN_VARIABLE, BACKLOG, Settings
from rljob_trainer.gateway.server import application
from rljob_trainer.gateway.session_files import SessionFiles


def main(arguments: Sequence[str]) -> None:
    """Serve until the process is killed."""
    listening, directory, settings = arguments
    setproctitle.setproctitle("rljob::gateway")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    admin_key, router_key = os.environ.pop(ADMIN_VARIABLE), os.environ.pop(KEY_VARIABLE, "")
    try:
        asyncio.run(serve(int(listening), Path(directory), Settings(**json.loads(settings)), admin_key, router_key))
    except UnknownParserError as error:
        sys.stdout.write(f"{error}\n")
        sys.exit(int(Exit.BAD_INPUT))


async def serve(listening: int, directory: Path, settings: Settings, admin_key: str, router_key: str) -> None:
    """Load the tokenizer, the parsers and the sessions, and serve for ever."""
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

    await gate.close()
    gateway = Gateway(settings, tokenizer, engines, parsers, SessionFiles(directory), gate=gate)
    gateway.restore()
    runner = web.AppRunner(application(gateway, admin_key))
    await runner.setup()
    await web.SockSite(runner, socket.socket(fileno=listening), backlog=BACKLOG).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])

"""A gateway whose model follows a script, with one open session."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from openai import OpenAI
from transformers import PreTrainedTokenizerBase

from rljob_trainer.conversations.generator import Engines
from rljob_trainer.engines.carrying import GatedStreams
from rljob_trainer.engines.gate import Gate
from rljob_trainer.gateway.chat import Gateway, Session
from rljob_trainer.gateway.parsing import Parsers
from rljob_trainer.gateway.record import Opening, Settings
from rljob_trainer.gateway.server import application
from rljob_trainer.gateway.session_files import MOST_BYTES, SessionFiles
from rljob_trainer.gateway.tree import Turn
from support.http_in_thread import served_in_thread
from support.trainer.scripted_model import ScriptedRouter

SETTINGS = Settings("", 1024, 256, 8, 60.0, 10.0, 10.0)
"""a context of 1024 tokens, of which the model writes 256 in 8 answers"""
OPENING = Opening("http://router", 0.7, 0.9, 20, ("\n\n",))


@dataclass
class ScriptedGateway:
    gateway: Gateway
    session: Session
    router: ScriptedRouter
    url: str
    files: SessionFiles

    @property
    def base_url(self) -> str:
        return f"{self.url}/sessions/{self.session.name}/v1"

    def client(self, key: str | None = None) -> OpenAI:
        """Return OpenAI's own client."""
        return OpenAI(base_url=self.base_url, api_key=key or self.session.key, max_retries=0)

    def ask(self, messages: Sequence[Any], **more: Any) -> Any:
        """Return the answer to messages, as OpenAI's client reads it."""
        with self.client() as client:
            return client.chat.completions.create(model="any", messages=messages, **more)  # type: ignore[arg-type]

    @property
    def turns(self) -> Sequence[Turn]:
        return self.session.tree.turns


@contextmanager
def scripted_gateway(
    tokenizer: PreTrainedTokenizerBase,
    script: Any,
    settings: Settings = SETTINGS,
    parsers: Parsers | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    gate: Gate | None = None,
    most_bytes: int = MOST_BYTES,
) -> Iterator[ScriptedGateway]:
    """Serve a script to one session."""
    router = ScriptedRouter(tokenizer, script)
    gate = gate or Gate()
    engines = Engines(GatedStreams(router, gate), 1.0, settings.patience_s, alive=lambda: None)
    with TemporaryDirectory() as directory:
        files = SessionFiles(Path(directory), most_bytes)
        gateway = Gateway(settings, tokenizer, lambda url: engines, parsers or Parsers(), files, clock, gate=gate)
        with served_in_thread(application(gateway, "admin")) as url:
            yield ScriptedGateway(gateway, gateway.open(OPENING), router, url, files)

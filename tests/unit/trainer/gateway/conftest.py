"""What tests of the gateway share: one over a model that says what a script makes it say, served to real clients."""

import pytest
from transformers import PreTrainedTokenizerBase

from rljob_trainer.conversations.generator import Engines
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.gateway.chat import Gateway
from rljob_trainer.gateway.parsing import Parsers
from rljob_trainer.gateway.server import application
from support.http_in_thread import served_in_thread
from support.trainer.scripted_gateway import OPENING, SETTINGS, ScriptedGateway
from support.trainer.scripted_model import ScriptedRouter
from support.trainer.tiny_models import tiny_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    return load_tokenizer(tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def serve(tokenizer):
    """Return a function that serves a script to one session."""
    contexts = []

    def served(script, settings=SETTINGS, parsers=None, clock=lambda: 0.0):
        router = ScriptedRouter(tokenizer, script)
        engines = Engines(router, 1.0, settings.patience_s, alive=lambda: None)
        gateway = Gateway(settings, tokenizer, lambda url: engines, parsers or Parsers(), clock)
        context = served_in_thread(application(gateway, "admin"))
        url = context.__enter__()
        contexts.append(context)
        return ScriptedGateway(gateway, gateway.open(OPENING), router, url)

    yield served
    for context in contexts:
        context.__exit__(None, None, None)

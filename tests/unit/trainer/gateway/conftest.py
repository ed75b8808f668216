"""What tests of the gateway share: one over a model that says what a script makes it say, served to real clients."""

from contextlib import ExitStack

import pytest
from transformers import PreTrainedTokenizerBase

from rljob_trainer.data.tokenizer import load_tokenizer
from support.trainer.scripted_gateway import scripted_gateway
from support.trainer.tiny_models import tiny_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    return load_tokenizer(tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def serve(tokenizer):
    """Return a function that serves a script to one session."""
    with ExitStack() as stack:
        yield lambda *script, **more: stack.enter_context(scripted_gateway(tokenizer, *script, **more))

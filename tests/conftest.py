"""Fixtures shared by all levels of tests."""

from pathlib import Path

import pytest
from tiny_models import tiny_llama, tiny_qwen3


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama checkpoint with tied embeddings. Read only: all tests share it."""
    return tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def tiny_qwen3_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Qwen3 checkpoint with tied embeddings. Read only: all tests share it."""
    return tiny_qwen3(tmp_path_factory.mktemp("tiny-qwen3"))

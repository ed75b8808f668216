"""The tokenizer and the configuration of a checkpoint, as the engines have them: transformers' AutoTokenizer.

transformers imports torch, and both take seconds: they are imported when something is loaded.
"""

from __future__ import annotations

import threading
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_trainer.data.errors import DataError
from rljob_trainer.rundir.retries import patiently

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


def import_in_background() -> threading.Thread:
    """Begin with the imports that loading needs. Join the thread before you load anything.

    transformers puts another module in its own place while it is imported, so that an import of it in a second thread
    does not wait, and fails.
    """
    importing = threading.Thread(
        target=import_module, args=("transformers.models.auto.tokenization_auto",), name="import", daemon=True
    )
    importing.start()
    return importing


def load_config(directory: Path) -> PreTrainedConfig:
    """Load the configuration of the checkpoint directory; nothing is fetched."""
    from transformers import AutoConfig

    return patiently(lambda: AutoConfig.from_pretrained(directory, local_files_only=True))


def load_tokenizer(directory: Path, field: str = "model.checkpoint") -> PreTrainedTokenizerBase:
    """Load the tokenizer of the checkpoint directory of a field; nothing is fetched. Raises DataError."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError) as error:
        raise DataError(f"{field} {directory}: its tokenizer cannot be loaded: {error}") from error

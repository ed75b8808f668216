"""The tokenizer of a checkpoint, as the engines have it: transformers' AutoTokenizer.

(transformers imports torch where torch is installed; nothing here uses it.)
"""

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rljob_trainer.data.errors import DataError


def load_tokenizer(directory: Path, field: str = "model.checkpoint") -> PreTrainedTokenizerBase:
    """Load the tokenizer of the checkpoint directory of a field; nothing is fetched. Raises DataError."""
    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError) as error:
        raise DataError(f"{field} {directory}: its tokenizer cannot be loaded: {error}") from error

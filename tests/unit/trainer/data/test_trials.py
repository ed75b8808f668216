"""A tokenizer that takes too much for a single text is an error of that text; the driver never tokenises it itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_api.sections import Data, Source
from rljob_trainer.conversations.conversation import Conversation, Limits
from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.conversations.turns import Turns
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.render import Renderer
from rljob_trainer.data.rows import row
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.samples import Prompt
from support.trainer.tiny_models import tiny_tokenizer

DATA = Data(train=Source(jsonl="unread.jsonl"))
GROWS = [
    {"type": "Replace", "pattern": {"String": letter}, "content": 100 * then} for letter, then in ("zy", "yx", "xw")
]
"""a million times as long, for texts with a z"""


def tokenizer(directory: Path, **changes: Any) -> Any:
    path = tiny_tokenizer(directory) / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return load_tokenizer(directory)


@pytest.fixture
def grows(tmp_path: Path) -> Any:
    return tokenizer(tmp_path, normalizer={"type": "Sequence", "normalizers": GROWS})


def conversation(made: Any) -> Conversation:
    prompt = Prompt("1", "1 + 1", "1 + 1", (1,), "2", {})
    return Conversation(prompt, False, None, made, Turns(made, True), Limits(10_000, 100))  # type: ignore[arg-type]


def test_the_row_that_makes_a_tokenizer_grow_is_named_and_the_others_are_taken(grows: Any) -> None:
    renderer = Renderer(DATA, grows)

    def prompt(question: str) -> Prompt:
        return renderer.prompt("7", row({"question": question, "answer": "2"}, "q.jsonl:1", DATA))

    assert prompt("1 + 1").tokens_T
    with pytest.raises(DataError, match=r"q\.jsonl:1: the tokenizer cannot encode it: it "):
        prompt("z" * 400)
    assert prompt("1 + 1").tokens_T


def test_what_an_environment_says_is_tried_apart_too(grows: Any) -> None:
    talk = conversation(grows)
    talk.give("1 + 1")
    with pytest.raises(GenerateError, match="the model's tokenizer cannot encode 400 characters: it "):
        talk.give("z" * 400)
    with pytest.raises(GenerateError, match=r"the model's tokenizer cannot encode \d+ characters: it "):
        Turns(grows, True).after_answer([{"role": "user", "content": "z" * 400}], 5)


def test_tokens_whose_text_grows_are_tried_apart_too(tmp_path: Path) -> None:
    decoders = [{"type": "Fuse"}, *GROWS]
    made = tokenizer(tmp_path, decoder={"type": "Sequence", "decoders": decoders})
    with pytest.raises(GenerateError, match="the model's tokenizer cannot decode 40 tokens: it "):
        conversation(made).give("z" * 40)


def test_what_is_tried_is_what_the_driver_uses(tmp_path: Path) -> None:
    doubled = {"type": "Replace", "pattern": {"String": "z"}, "content": "zz"}
    made = tokenizer(tmp_path, normalizer=doubled)
    assert made.encode("z", add_special_tokens=False) == made.encode("zz", add_special_tokens=False)[:1] * 2

"""A model's files that are made to stop whoever reads them: each is a problem that names the file, and nothing ends."""

import json
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from rljob_api.errors import ManifestError
from rljob_api.sections import Data, Source
from rljob_trainer.preflight import rows
from support.trainer.preflight_place import Place, template
from support.trainer.tiny_models import CHAT_TEMPLATE

FIXED = {
    "strategy": {"Fixed": 300_000_000}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
    "pad_type_id": 0, "pad_token": "a",
}  # fmt: skip
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
ONE_ROW = "{% if '2 + 7' in messages[0].content %}{{ 'x' * (messages | length * 10**10) }}{% endif %}"


def written(name: str, content: str) -> Callable[[Place], Any]:
    return lambda place: (place.root / "model" / name).write_text(content)


HOSTILE: dict[str, tuple[Callable[[Place], Any], str]] = {
    "a template that takes all memory": (
        template("{{ '%0900000000d' % 1 }}"),
        '"chat template" cannot be used: it takes',
    ),
    "a template without an end": (template(LOOPS), '"chat template" cannot be used: it takes more than'),
    "a template for one row": (
        template(ONE_ROW + CHAT_TEMPLATE),
        "the chat template cannot be used for these turns: it takes",
    ),
    "a padding": (
        lambda place: place.edit("tokenizer.json", lambda file: file.update(padding=FIXED)),
        "the tokenizer cannot encode it: it ends its process",
    ),
    "a nested tokenizer": (written("tokenizer.json", "[" * 100_000), '"tokenizer.json" cannot be read'),
    "nested settings": (written("tokenizer_config.json", '{"a": ' + "[" * 100_000), "cannot be read: maximum"),
    "settings of another type": (written("tokenizer_config.json", "[1]"), "is not a JSON object"),
    "a template that is not text": (
        lambda place: (place.root / "model" / "chat_template.jinja").write_bytes(b"\xff\xfe"),
        '"chat_template.jinja" cannot be read',
    ),
    "a nested index": (written("model.safetensors.index.json", "[" * 100_000), "has no readable weight_map"),
    "layers": (
        lambda place: place.edit("config.json", lambda config: config.update(num_hidden_layers=2_000_000)),
        "num_hidden_layers 2000000",
    ),
    "a list for a size": (
        lambda place: place.edit("config.json", lambda config: config.update(hidden_size=[1])),
        "hidden_size [1]",
    ),
    "text for a rope": (
        lambda place: place.edit("config.json", lambda config: config.update(rope_scaling="x")),
        "cannot be understood",
    ),
    "tokens of other types": (
        lambda place: place.edit(
            "tokenizer_config.json", lambda file: file.update(added_tokens_decoder={"x": 1}, chat_template=[1])
        ),
        "no chat template",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_a_problem_that_names_it(place: Place, name: str) -> None:
    sabotage, said = HOSTILE[name]
    place.rows({"question": "2 + 7 =", "answer": "9"})
    sabotage(place)
    assert said in _said(place)


def _said(place: Place) -> str:

    try:
        return "\n".join(map(str, place.look().problems))
    except ManifestError as error:
        return str(error)


def test_numbers_of_tokens_that_are_none_are_passed_over(place: Place) -> None:
    listed = {"9" * 5_000: {"content": "</s>"}, "-1": {"content": "</s>"}, "3": "</s>", "4": {"content": ["</s>"]}}
    changed = {"added_tokens_decoder": listed, "eos_token": "</s>"}
    place.edit("tokenizer_config.json", lambda file: file.update(changed))
    (place.root / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": [[1], "x", None, {}]}))
    place.look()


def test_of_a_file_of_faulty_rows_no_more_are_kept_than_a_message_needs(monkeypatch):
    monkeypatch.setattr(rows, "MOST_FAULTS", 1000)
    endless = ((f"q.jsonl:{number}", {f"key{each}": number for each in range(3)}) for number in count(1))
    found = rows.read_rows("spec.data.train.jsonl", endless, Data(train=Source(jsonl="q.jsonl")))
    assert (len(found.faults), found.good) == (1000, ())

"""Pictures and tools in rows, which no model gets: the author of the manifest is told."""

import json
from typing import Any

import pytest

from rljob_trainer.preflight.unused import LONGEST
from support.trainer.preflight_place import Place

TOOL = {"type": "function", "function": {"name": "search", "parameters": {}}}
MEDIA = "images, videos and audio are not used: models are trained on text alone"
TOOLS = "tools of a row are not used: the model does not see them"

WARNED: dict[str, tuple[dict[str, Any], str]] = {
    "a column of pictures": ({"images": [{"bytes": None, "path": "a.png"}]}, f"has `images`; {MEDIA}"),
    "the path of a picture": ({"image_path": "a.png"}, f"has `image_path`; {MEDIA}"),
    "a column of videos": ({"videos": ["a.mp4"]}, f"has `videos`; {MEDIA}"),
    "a sound": ({"audio": {"array": [0.5]}}, f"has `audio`; {MEDIA}"),
    "a placeholder": ({"question": "<image>What is x?"}, f"has <image>; {MEDIA}"),
    "a numbered placeholder": ({"question": "In <image_2> is what?"}, f"has <image_2>; {MEDIA}"),
    "a model's own placeholder": ({"question": "<|image_pad|>What?"}, f"has <|image_pad|>; {MEDIA}"),
    "tools of OpenAI": ({"tools": [TOOL]}, f"has `tools`; {TOOLS}"),
    "tools as JSON": ({"tools": '[{"name": "search"}]'}, f"has `tools`; {TOOLS}"),
    "tools of slime": ({"metadata": {"tools": [TOOL]}}, f"has `metadata.tools`; {TOOLS}"),
    "tools of verl": ({"extra_info": {"tools_kwargs": {"search": {}}}}, f"has `extra_info.tools_kwargs`; {TOOLS}"),
    "functions": ({"functions": [TOOL["function"]]}, f"has `functions`; {TOOLS}"),
}
SILENT: dict[str, dict[str, Any]] = {
    "a text that is too long to be looked into": {"tools": json.dumps(["x" * LONGEST])},
    "no pictures": {"images": [], "image": None},
    "no tools": {"tools": [], "metadata": {"tools": None}, "extra_info": {"tools_kwargs": {"search": None}}},
    "HTML": {"question": "What does <video></video> do?"},
    "a comparison": {"question": "Is 1 < 2?"},
    "text about tools": {"tools": "hammer", "functions": "[unclosed"},
}


@pytest.mark.parametrize("name", WARNED)
def test_what_no_model_gets_is_warned_of(place: Place, name: str) -> None:
    row, said = WARNED[name]
    place.rows({"question": "6 + 6 =", "answer": "12", **row}, {"question": "7 + 7 =", "answer": "14", **row})
    found = place.look()
    texts = [str(warning) for warning in found.warnings if "not used" in str(warning)]
    assert (len(texts), found.problems) == (1, ())
    assert texts[0].startswith(f"spec.data.train.jsonl: lines 13, 14: {said}")


@pytest.mark.parametrize("name", SILENT)
def test_of_what_is_empty_or_something_else_nothing_is_said(place: Place, name: str) -> None:
    place.rows({"question": "6 + 6 =", "answer": "12", **SILENT[name]})
    assert place.look().warnings == ()


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "image_url", "image_url": {"url": "a"}}, "parts of type image_url are not used"),
        ({"type": "text", "text": "6 + 6 ="}, "of several parts, not text: join them into one text"),
    ],
)
def test_parts_of_a_message_are_refused_with_their_kind(place: Place, part: dict[str, Any], said: str) -> None:
    place.rows({"question": [{"role": "user", "content": [part]}], "answer": "12"})
    (problem,) = place.look().problems
    assert "line 13: message 0 of `question` has a `content` of several parts, not text" in str(problem)
    assert said in str(problem)

"""What cannot become a run is refused before anything starts, with what is wrong."""

import json
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from rljob_api.exits import Exit
from rljob_doctor.diagnosis import diagnose
from rljob_doctor.scan import scan
from support.trainer.sabotaged_run import (
    Prepare,
    finish,
    rewrite,
)
from support.trainer.tiny_models import CHAT_TEMPLATE, tiny_llama

pytestmark = pytest.mark.timeout(900)


def as_it_is(model: Path) -> None:
    """What is wrong is in the manifest or in the data."""


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def template(text: str | None) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        edit(model / "tokenizer_config.json", lambda config: config.update(chat_template=text))

    return change


def lose_a_shard(model: Path) -> None:
    """Divide the checkpoint into two files, and lose one."""
    first, second = (f"model-0000{part}-of-00002.safetensors" for part in (1, 2))
    tensors = load_file(model / "model.safetensors")
    places = {name: (first, second)[number % 2] for number, name in enumerate(sorted(tensors))}
    save_file({name: tensors[name] for name, file in places.items() if file == first}, model / first)
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (model / "model.safetensors").unlink()


def cut_a_tensor(model: Path) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    rewrite(model, lambda tensors: tensors.update({name: tensors[name][:16].copy()}))


def another_tokenizer(model: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        content["added_tokens"].append(content["added_tokens"][0] | {"id": 600, "content": "<|x|>"})

    edit(model / "tokenizer.json", change)


Row = dict[str, str]
REFUSED: dict[str, tuple[Callable[[Path], object], dict[str, Any], list[Row], str]] = {
    "no chat template": (template(None), {}, [], "spec.data.chatTemplate: true has nothing to work with"),
    "a template that opens no turn": (
        template(CHAT_TEMPLATE.replace("{% if add_generation_prompt %}", "{% if false %}")),
        {},
        [],
        "spec.data.chatTemplate: true cannot be: the chat template ignores add_generation_prompt",
    ),
    "a template applied twice": (
        as_it_is,
        {},
        [{"question": "<|im_start|>user\n1 + 1 =<|im_end|>\n", "answer": "2"}],
        "line 49: holds <|im_start|>, which the model's chat template writes itself: it would be applied twice",
    ),
    "a stop token that never comes": (
        as_it_is,
        {"rollout": {"sampling": {"stopTokenIds": [2, 70_000]}}},
        [],
        "spec.rollout.sampling.stopTokenIds[1]: 70000 is outside the vocabulary; its last token is 511",
    ),
    "a tokenizer of another model": (
        another_tokenizer,
        {},
        [],
        '"tokenizer.json" has the token 512, and config.json makes room for 512 (vocab_size): they are of two models',
    ),
    "a key that the rows have not": (
        as_it_is,
        {"data": {"inputKey": "query"}},
        [],
        "no key `query` (data.inputKey); the row has `question`, `answer`",
    ),
    "a row beyond the context": (
        as_it_is,
        {},
        [{"question": "7 + " * 40, "answer": "0"}],
        "tokens): more than the 54 tokens that the context leaves beside maxNewTokens 8",
    ),
    "a row without its label": (
        as_it_is,
        {"reward": {"kind": "ExactMatch", "function": None}},
        [{"question": "9 + 9 =", "answer": ""}],
        "line 49: no label (spec.data.labelKey is empty there): spec.reward.kind ExactMatch rewards nothing",
    ),
    "a missing shard": (
        lose_a_shard,
        {},
        [],
        '"model-00002-of-00002.safetensors" is listed in model.safetensors.index.json and is not there',
    ),
    "a tensor of another shape": (
        cut_a_tensor,
        {},
        [],
        '"model.layers.1.self_attn.k_proj.weight" has the shape [16, 64], and config.json makes it [32, 64]',
    ),
    "no room on the disk": (
        as_it_is,
        {"checkpoint": {"keep": 100_000_000}},
        [],
        "spec.checkpoint.keep: 100000000 and one in the making are 100000001 x ",
    ),
}


NAMED = {
    "no chat template": "ChatTemplateMissing",
    "a template that opens no turn": "ChatTemplateError",
    "a template applied twice": "ChatTemplateTwice",
    "a stop token that never comes": "RljobBadManifest",
    "a tokenizer of another model": "TokenizerBroken",
    "a key that the rows have not": "DataKeyMissing",
    "a row beyond the context": "PromptTooLong",
    "a row without its label": "DataKeyMissing",
    "a missing shard": "CheckpointShardsMissing",
    "a tensor of another shape": "CheckpointLayout",
    "no room on the disk": "DiskFull",
}
"""what `rljob doctor` says of the output of each"""


def named(output: str) -> str:
    """Return the code of the failure that `rljob doctor` puts first."""
    return diagnose([scan("output", output.encode())]).findings[0].failure.code


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_become_a_run_is_refused_before_anything_starts(
    prepare: Prepare, tmp_path: Path, name: str
) -> None:
    change, sections, rows, message = REFUSED[name]
    model = tiny_llama(tmp_path / "model")
    change(model)
    run = prepare(model, **sections)
    with (tmp_path / "questions.jsonl").open("a") as questions:
        questions.writelines(json.dumps(row) + "\n" for row in rows)

    finish(run, Exit.BAD_INPUT)

    assert message in run.output
    assert named(run.output) == NAMED[name]
    assert list((run.run_directory / "logs").iterdir()) == []


def test_a_port_in_use_is_refused_before_anything_starts(prepare: Prepare, sure_model: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        run = finish(prepare(sure_model, runtime={"metricsPort": port}), Exit.BAD_INPUT)
    assert f"spec.runtime.metricsPort: {port} is in use by another program here" in run.output
    assert named(run.output) == "PortInUse"

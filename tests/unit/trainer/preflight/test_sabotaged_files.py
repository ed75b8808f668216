"""What is wrong with files is found before anything starts: each sabotage by its check, and by no other."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from rljob_api.errors import Problem
from rljob_doctor.diagnosis import diagnose
from rljob_doctor.scan import scan
from rljob_trainer.preflight import Findings
from support.trainer.preflight_place import FIRST, INDEX, ROWS, SECOND, Place, set_spec, template
from support.trainer.tiny_models import CHAT_TEMPLATE


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def with_bos(place: Place) -> None:
    """Let the tokenizer add a begin-of-text token, and a question begin with one."""
    place.edit("tokenizer_config.json", lambda config: config.update(bos_token="<|endoftext|>"))
    single = [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}}
    processor = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special}
    place.edit("tokenizer.json", lambda content: content.update(post_processor=processor))
    place.rows({"question": "<|endoftext|>3 + 3 =", "answer": "6"})
    place.spec["data"]["chatTemplate"] = False


def exchange(tokenizer: dict[str, Any]) -> None:
    """Exchange the numbers of two tokens."""
    vocabulary = tokenizer["model"]["vocab"]
    first, second = (next(text for text, token in vocabulary.items() if token == wanted) for wanted in (300, 301))
    vocabulary[first], vocabulary[second] = 301, 300


def without_the_end(place: Place) -> None:
    """Let every file say that a response ends with another token than the one that the template ends turns with."""
    place.edit("config.json", lambda config: config.update(eos_token_id=0))
    place.edit("generation_config.json", lambda config: config.update(eos_token_id=0))
    place.edit("tokenizer_config.json", lambda config: config.update(eos_token="<|endoftext|>"))


NO_OPENING = CHAT_TEMPLATE.replace("{% if add_generation_prompt %}", "{% if false %}")
WRAPPED = "<|im_start|>user\n1 + 1 =<|im_end|>\n"

SABOTAGES: dict[str, tuple[Callable[[Place], object], str]] = {
    "a missing shard": (
        lambda place: (place.model / SECOND).unlink(),
        f'spec.model.checkpoint: "{SECOND}" is listed in {INDEX} and is not there',
    ),
    "a shard cut off in its tensors": (
        lambda place: cut(place.model / SECOND, 20_000),
        f'spec.model.checkpoint: "{SECOND}" has 20000 bytes, and',
    ),
    "a shard cut off in its header": (
        lambda place: cut(place.model / FIRST, 100),
        f'"{FIRST}" is cut off or no safetensors file: its 100 bytes hold no whole header',
    ),
    "a shard with a damaged header": (
        lambda place: (place.model / FIRST).write_bytes(b"\x04\0\0\0\0\0\0\0nope"),
        f'"{FIRST}" has a damaged header',
    ),
    "a shard that git did not fetch": (
        lambda place: (place.model / FIRST).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n"),
        f'"{FIRST}" is a git-lfs pointer',
    ),
    "an index that is no index": (
        lambda place: (place.model / INDEX).write_text("[]"),
        f'"{INDEX}" has no readable weight_map',
    ),
    "a tensor that only the index has": (
        lambda place: place.shard(SECOND, lambda tensors: tensors.pop("model.norm.weight")),
        f'"{SECOND}" has not what {INDEX} says is in it: model.norm.weight is absent',
    ),
    "a layer that neither has": (
        lambda place: place.edit("config.json", lambda config: config.update(num_hidden_layers=3)),
        '"config.json" describes 3 layers, and the files lack model.layers.2.input_layernorm.weight,',
    ),
    "sizes of another model": (
        lambda place: place.edit("config.json", lambda config: config.update(intermediate_size=96)),
        '"model.layers.0.mlp.gate_proj.weight" has the shape [128, 64], and config.json makes it [96, 64]',
    ),
    "a quantised checkpoint": (
        lambda place: place.edit(
            "config.json",
            lambda config: config.update(
                quantization_config={"quant_method": "compressed-tensors", "ignore": ["lm_head"]}
            ),
        ),
        '"config.json" has a quantization_config (compressed-tensors): the learner trains weights that are not',
    ),
    "a checkpoint in FP8": (
        lambda place: place.edit(
            "config.json", lambda config: config.update(quantization_config={"quant_method": "fp8"})
        ),
        "(fp8): the learner trains weights that are not quantised; nearest valid: a bf16 version of it",
    ),
    "untied without an output layer": (
        lambda place: (
            place.shard(FIRST, lambda tensors: tensors.pop("lm_head.weight", None)),
            place.shard(SECOND, lambda tensors: tensors.pop("lm_head.weight", None)),
            place.edit(INDEX, lambda index: index["weight_map"].pop("lm_head.weight")),
        ),
        '"lm_head.weight" is not there, and config.json says tie_word_embeddings false',
    ),
    "tied with an output layer": (
        lambda place: place.edit("config.json", lambda config: config.update(tie_word_embeddings=True)),
        '"lm_head.weight" is there, and config.json says tie_word_embeddings true: it is not read',
    ),
    "a file that the index does not know": (
        lambda place: save_file({}, place.model / "consolidated.safetensors"),
        f'"consolidated.safetensors" is not in {INDEX}, so it would not be read',
    ),
    "no weights": (
        lambda place: [path.unlink() for path in place.model.glob("model*")],
        '"*.safetensors" is not there: the checkpoint has no weights',
    ),
    "no checkpoint": (
        lambda place: shutil.rmtree(place.model),
        "is not on this machine",
    ),
    "no tokenizer": (
        lambda place: (place.model / "tokenizer.json").unlink(),
        '"tokenizer.json" is not there: the checkpoint has no tokenizer',
    ),
    "a tokenizer cut off": (
        lambda place: cut(place.model / "tokenizer.json", 1000),
        '"tokenizer.json" cannot be read',
    ),
    "a tokenizer of a larger model": (
        lambda place: place.edit(
            "tokenizer.json",
            lambda content: content["added_tokens"].append(
                content["added_tokens"][0] | {"id": 600, "content": "<|x|>"}
            ),
        ),
        '"tokenizer.json" has the token 512, and config.json makes room for 512 (vocab_size)',
    ),
    "no chat template": (
        lambda place: place.edit("tokenizer_config.json", lambda config: config.pop("chat_template")),
        "spec.data.chatTemplate: true has nothing to work with",
    ),
    "a template without a generation prompt": (
        template(NO_OPENING),
        "spec.data.chatTemplate: true cannot be: the chat template ignores add_generation_prompt",
    ),
    "questions that have been through the template": (
        lambda place: place.rows({"question": WRAPPED, "answer": "2"}),
        "spec.data.train.jsonl: line 13: holds <|im_start|>, which the model's chat template writes itself",
    ),
    "questions that have been through another family's template": (
        lambda place: place.rows(
            *[{"question": f"[INST] {n} + 90 = [/INST]", "answer": str(n + 90)} for n in range(99)]
        ),
        "lines 13, 14, 15 and 96 more: holds [INST], which another family's chat template writes",
    ),
    "a template of another family": (
        template(CHAT_TEMPLATE.replace("<|im_start|>", "<|start_header_id|>")),
        'chat template" writes <|start_header_id|>, and the tokenizer has no such tokens: it may be of another model',
    ),
    "a prompt template with the chat template's markers": (
        set_spec(data={"promptTemplate": "<|im_start|>user\n{question}"}),
        "spec.data.promptTemplate: ",
    ),
    "a prefill that opens the turn again": (
        set_spec(data={"assistantPrefill": "<|im_start|>assistant\n"}),
        "spec.data.assistantPrefill: ",
    ),
    "two begin-of-text tokens": (
        with_bos,
        "spec.data.train.jsonl: line 13: begins with <|endoftext|>, and the tokenizer adds one",
    ),
    "a turn that never ends": (
        without_the_end,
        "spec.rollout.sampling.stopTokenIds: [] lacks 2: the chat template ends a turn with <|im_end|>",
    ),
    "a stop token that no tokenizer has": (
        set_spec(rollout={"sampling": {"maxNewTokens": 8, "stopTokenIds": [2, 70_000]}}),
        "spec.rollout.sampling.stopTokenIds[1]: 70000 is outside the vocabulary; its last token is 511",
    ),
    "a key that the rows have not": (
        lambda place: (
            place.spec["data"].update(inputKey="query"),
            (place.root / "held_out.jsonl").write_text('{"query": "2 + 2 =", "answer": "4"}\n'),
        ),
        "spec.data.train.jsonl: lines 1, 2, 3 and 9 more: no key `query` (data.inputKey); the row has `question`,",
    ),
    "a row without its key": (
        lambda place: place.rows({"answer": "2"}),
        "spec.data.train.jsonl: line 13: no key `question` (data.inputKey); the row has `answer`",
    ),
    "a row of another type": (
        lambda place: place.rows({"question": 7, "answer": "2"}),
        "line 13: `question` is of type int, not a string",
    ),
    "a row that is not JSON": (
        lambda place: place.questions.write_text(place.questions.read_text() + "{'question'\n"),
        "line 13: not JSON",
    ),
    "an empty label": (
        lambda place: place.rows({"question": "9 + 9 =", "answer": " "}),
        "line 13: no label (spec.data.labelKey is empty there)",
    ),
    "an empty label for an exact reward": (
        lambda place: (
            place.rows({"question": "9 + 9 =", "answer": ""}),
            place.spec.update(reward={"kind": "ExactMatch", "function": None}),
        ),
        "line 13: no label (spec.data.labelKey is empty there): spec.reward.kind ExactMatch rewards nothing",
    ),
    "a question twice": (
        lambda place: place.rows(ROWS[4]),
        "line 13 as 5: a question again: it weighs more than others",
    ),
    "a question with two answers": (
        lambda place: place.rows(ROWS[4] | {"answer": "8"}),
        "line 13 as 5: a question again with another label: one of them is wrong",
    ),
    "an empty source": (lambda place: place.questions.write_text("\n"), "spec.data.train.jsonl: holds no row"),
    "no questions": (lambda place: place.questions.unlink(), "spec.data.train.jsonl: "),
    "a prompt without room for its response": (
        lambda place: place.rows({"question": "7 + " * 40, "answer": "0"}),
        "tokens): more than the 54 tokens that the context leaves beside maxNewTokens 8",
    ),
    "rollouts that are not there": (
        set_spec(debug={"replay": "nowhere/rollouts"}),
        'spec.debug.replay: "nowhere/rollouts" is not on this machine',
    ),
    "a directory without rollouts": (
        lambda place: place.spec.update(debug={"replay": str(place.root)}),
        "holds no rollouts; a run with spec.debug.dumpRollouts writes them",
    ),
    "fewer rollouts than steps": (
        lambda place: (
            (place.root / "step-0000000.jsonl.zst").touch(),
            place.spec.update(debug={"replay": str(place.root)}),
        ),
        "spec.training.steps: 6 is more than the 1 steps that spec.debug.replay holds; nearest valid: 1",
    ),
}


OF_A_TEACHER: dict[str, tuple[Callable[[Place], object], str]] = {
    "no teacher": (
        lambda place: shutil.rmtree(place.root / "teacher"),
        "is not on this machine",
    ),
    "a teacher without weights": (
        lambda place: (place.root / "teacher" / "model.safetensors").unlink(),
        'spec.algorithm.teacher.checkpoint: "*.safetensors" is not there',
    ),
    "a teacher without a configuration": (
        lambda place: (place.root / "teacher" / "config.json").unlink(),
        "has no config.json",
    ),
    "a teacher with two tokens exchanged": (
        lambda place: place.edit_teacher("tokenizer.json", exchange),
        "has not the student's tokenizer: 2 of 512 tokens differ, first 300: ",
    ),
    "a teacher with a token more": (
        lambda place: place.edit_teacher(
            "tokenizer.json",
            lambda content: content["added_tokens"].append(
                content["added_tokens"][0] | {"id": 512, "content": "<|think|>"}
            ),
        ),
        "has not the student's tokenizer: it has 1 tokens that the student's has not",
    ),
}

WARNED = {
    "a template of another family",
    "tied with an output layer",
    "a file that the index does not know",
    "a turn that never ends",
    "an empty label",
    "a question twice",
    "a question with two answers",
}
"""what does not stop a run"""

SHARDS, KEYS, TEMPLATE = "CheckpointShardsMissing", "CheckpointKeysMissing", "ChatTemplateTwice"
CODES = {
    "a missing shard": SHARDS,
    "a shard cut off in its tensors": SHARDS,
    "a shard cut off in its header": SHARDS,
    "a shard with a damaged header": SHARDS,
    "a shard that git did not fetch": SHARDS,
    "an index that is no index": SHARDS,
    "a tensor that only the index has": KEYS,
    "a layer that neither has": KEYS,
    "sizes of another model": "CheckpointLayout",
    "a quantised checkpoint": "EngineQuantUnsupported",
    "a checkpoint in FP8": "EngineQuantUnsupported",
    "untied without an output layer": KEYS,
    "no weights": SHARDS,
    "no checkpoint": "ModelNotFound",
    "no tokenizer": "TokenizerBroken",
    "a tokenizer cut off": "TokenizerBroken",
    "a tokenizer of a larger model": "TokenizerBroken",
    "no chat template": "ChatTemplateMissing",
    "a template without a generation prompt": "ChatTemplateError",
    "questions that have been through the template": TEMPLATE,
    "questions that have been through another family's template": TEMPLATE,
    "a prompt template with the chat template's markers": TEMPLATE,
    "a prefill that opens the turn again": TEMPLATE,
    "two begin-of-text tokens": TEMPLATE,
    "a stop token that no tokenizer has": "RljobBadManifest",
    "a key that the rows have not": "DataKeyMissing",
    "a row without its key": "DataKeyMissing",
    "a row of another type": "DataFormatWrong",
    "a row that is not JSON": "DataNotJson",
    "an empty label for an exact reward": "DataKeyMissing",
    "an empty source": "DataEmpty",
    "no questions": "PathNotFound",
    "a prompt without room for its response": "PromptTooLong",
    "rollouts that are not there": "PathNotFound",
    "a directory without rollouts": "ReplayFailed",
    "fewer rollouts than steps": "ReplayFailed",
    "no teacher": "ModelNotFound",
    "a teacher without weights": SHARDS,
    "a teacher without a configuration": "ModelNotFound",
    "a teacher with two tokens exchanged": "TokenizerBroken",
    "a teacher with a token more": "TokenizerBroken",
}
"""what `rljob doctor` and the status name of that which stops a run"""


def named(problem: Problem) -> str:
    """Return the code of the failure that `rljob doctor` puts first."""
    return diagnose([scan("output", f"{problem}\n".encode())]).findings[0].failure.code


def test_a_sound_place_has_no_findings(place: Place):
    assert place.look() == place.look(here=False)
    assert place.look().problems + place.look().warnings == ()
    assert place.look().unseen + place.look().elsewhere == ()


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_sabotage_is_caught_by_its_check_and_by_no_other(place: Place, name: str):
    sabotage, said = SABOTAGES[name]
    sabotage(place)

    found = place.look()

    (finding,) = found.problems + found.warnings
    assert said in str(finding)
    assert (finding in found.warnings) == (name in WARNED)
    assert name in WARNED or named(finding) == CODES[name]


def test_a_sound_teacher_has_no_findings(taught: Place):
    assert taught.look() == taught.look(here=False) == Findings()


@pytest.mark.parametrize("name", OF_A_TEACHER)
def test_a_sabotaged_teacher_is_caught_by_its_check_and_by_no_other(taught: Place, name: str):
    sabotage, said = OF_A_TEACHER[name]
    sabotage(taught)

    found = taught.look()

    (problem,) = found.problems
    assert problem.field == "spec.algorithm.teacher.checkpoint"
    assert said in str(problem)
    assert named(problem) == CODES[name]
    assert taught.look_without_a_learner() == Findings()


def test_a_few_questions_may_be_about_another_family_s_template(place: Place):
    place.rows({"question": "What does [INST] mean?", "answer": "an instruction"})
    assert place.look().problems == ()

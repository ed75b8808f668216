"""What is wrong with files and machine is found before anything starts: each sabotage by its check, and by no other."""

import json
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_api.manifest import parse
from rljob_api.shapes import shape
from rljob_cli.main import app
from rljob_trainer.preflight import Findings, look_at_files, look_at_machine
from rljob_trainer.preflight.machine import Machine, checkpoint_bytes, judge_machine
from rljob_trainer.preflight.model_files import model_files
from rljob_trainer.preflight.weights import tensors_of
from tiny_models import CHAT_TEMPLATE, tiny_llama, tiny_qwen3
from whole_run import REWARD, imitation, manifest

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
ROWS = [{"question": f"{n} + {n + 1} =", "answer": str(2 * n + 1)} for n in range(12)]


@dataclass
class Place:
    """A checkpoint in two files, questions, and what the manifest says besides."""

    root: Path
    spec: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def questions(self) -> Path:
        return self.root / "questions.jsonl"

    def look(self, *, here: bool = True):
        job = parse(manifest(self.model, self.root, **self.spec))
        return look_at_files(job, model_files(str(self.model)), here=here)

    def look_without_a_learner(self):
        return replace(self, spec=self.spec | {"debug": {"rolloutOnly": True}}).look()

    def edit(self, name: str, change: Callable[[dict[str, Any]], object]) -> None:
        self._edit(self.model / name, change)

    @staticmethod
    def _edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    def edit_teacher(self, name: str, change: Callable[[dict[str, Any]], object]) -> None:
        self._edit(self.root / "teacher" / name, change)

    def rows(self, *changed: dict[str, Any]) -> None:
        self.questions.write_text("".join(json.dumps(row) + "\n" for row in [*ROWS, *changed]))

    def shard(self, name: str, change: Callable[[dict[str, Any]], object]) -> None:
        tensors = load_file(self.model / name)
        change(tensors)
        save_file(tensors, self.model / name)


@pytest.fixture(scope="session")
def whole_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tiny_llama(tmp_path_factory.mktemp("preflight") / "model", tied=False)
    tensors = load_file(directory / "model.safetensors")
    names = sorted(tensors)
    files = {FIRST: names[: len(names) // 2], SECOND: names[len(names) // 2 :]}
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, directory / file)
    (directory / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, held in files.items() for name in held}}
    (directory / INDEX).write_text(json.dumps(index))
    return directory


@pytest.fixture
def place(whole_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    shutil.copytree(whole_model, tmp_path / "model")
    made = Place(tmp_path, {"data": {"heldOut": {"jsonl": str(tmp_path / "held_out.jsonl"), "limit": 2}}})
    made.rows()
    (tmp_path / "held_out.jsonl").write_text(json.dumps({"question": "2 + 2 =", "answer": "4"}) + "\n")
    (tmp_path / "tiny_reward.py").write_text(REWARD)
    monkeypatch.syspath_prepend(str(tmp_path))
    return made


@pytest.fixture
def taught(place: Place) -> Place:
    """The same with a teacher of another family."""
    teacher = tiny_qwen3(place.root / "teacher", seed=7, layers=3)
    place.spec["algorithm"] = {"name": "distillation", "teacher": {"checkpoint": str(teacher)}}
    return place


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def template(text: str) -> Callable[[Place], object]:
    return lambda place: place.edit("tokenizer_config.json", lambda config: config.update(chat_template=text))


def set_spec(**sections: Any) -> Callable[[Place], object]:
    return lambda place: place.spec.update({name: place.spec.get(name, {}) | value for name, value in sections.items()})


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
        f'"consolidated.safetensors" is not in {INDEX}: it is not read',
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
        "spec.rollout.sampling.stopTokenIds[1]: 70000 never comes: the tokenizer's last token is 511",
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
    "a row that is no JSON": (
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
            place.spec.update(reward={"kind": "exactMatch", "function": None}),
        ),
        "line 13: no label (spec.data.labelKey is empty there): spec.reward.kind exactMatch rewards nothing",
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
    "tied with an output layer",
    "a file that the index does not know",
    "a turn that never ends",
    "an empty label",
    "a question twice",
    "a question with two answers",
}
"""what does not stop a run"""


def test_a_sound_place_has_no_findings(place: Place):
    assert place.look() == place.look(here=False)
    assert place.look().problems + place.look().warnings == ()
    assert place.look().unseen + place.look().elsewhere == ()


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_sabotage_is_caught_by_its_check_and_by_no_other(place: Place, name: str):
    sabotage, told = SABOTAGES[name]
    sabotage(place)

    found = place.look()

    (finding,) = found.problems + found.warnings
    assert told in str(finding)
    assert (finding in found.warnings) == (name in WARNED)


def test_a_sound_teacher_has_no_findings(taught: Place):
    assert taught.look() == taught.look(here=False) == Findings()


@pytest.mark.parametrize("name", OF_A_TEACHER)
def test_a_sabotaged_teacher_is_caught_by_its_check_and_by_no_other(taught: Place, name: str):
    sabotage, told = OF_A_TEACHER[name]
    sabotage(taught)

    found = taught.look()

    (problem,) = found.problems
    assert problem.field == "spec.algorithm.teacher.checkpoint"
    assert told in str(problem)
    assert taught.look_without_a_learner() == Findings()


@dataclass
class Imitating(Place):
    """A place whose answers are to be learned."""

    def look(self, *, here: bool = True):
        job = parse(imitation(manifest(self.model, self.root)))
        return look_at_files(job, model_files(str(self.model)), here=here)


@pytest.fixture
def imitating(place: Place) -> Imitating:
    return Imitating(place.root)


TALK = [{"role": "user", "content": "9 + 9 ="}, {"role": "assistant", "content": "18"}]
"""a whole conversation"""

OF_RESPONSES: dict[str, tuple[Callable[[Place], object], str]] = {
    "a row without a response": (
        lambda place: place.rows({"question": "9 + 9 =", "answer": " "}),
        "line 13: no label (spec.data.labelKey is empty there): there is no response to learn",
    ),
    "a response that is too long": (
        lambda place: place.rows({"question": "9 + 9 =", "answer": "1 + " * 9}),
        "tokens): a response of more than the 8 tokens of spec.rollout.sampling.maxNewTokens; nearest valid: ",
    ),
    "a template that writes answers elsewhere": (
        template(CHAT_TEMPLATE.replace("assistant\n' }}{% endif", "assistant\nSure: ' }}{% endif")),
        "the chat template does not write an answer where it has opened the assistant's turn",
    ),
    "a conversation that has been through the template": (
        lambda place: place.rows({"question": [*TALK, {"role": "assistant", "content": "18<|im_end|>"}]}),
        "line 13: holds <|im_end|>, which the model's chat template writes itself",
    ),
    "a conversation that ends with a question": (
        lambda place: place.rows({"question": [*TALK[:2], TALK[0]]}),
        "line 13: no key `answer`",
    ),
    "a conversation whose template drops what was said earlier": (
        lambda place: (
            place.rows({"question": [TALK[0], {"role": "assistant", "content": "<think>9</think>18"}, *TALK]}),
            template(CHAT_TEMPLATE.replace("message['content'] +", "message['content'].split('</think>')[-1] +"))(
                place
            ),
        ),
        "line 13: the chat template does not write message 1 as the assistant would have said it",
    ),
}


def test_sound_responses_have_no_findings(imitating: Imitating):
    imitating.rows({"question": TALK})
    assert imitating.look() == Findings()


@pytest.mark.parametrize("name", OF_RESPONSES)
def test_a_response_that_cannot_be_learned_is_caught(imitating: Imitating, name: str):
    sabotage, told = OF_RESPONSES[name]
    sabotage(imitating)

    problems = imitating.look().problems
    assert [told in str(problem) for problem in problems] == [True] * len({problem.field for problem in problems}) != []


def test_a_key_that_was_probably_meant_is_named(place: Place):
    place.spec["data"]["labelKey"] = "answers"
    (train, held_out) = place.look().problems
    assert (train.nearest, held_out.nearest) == ("spec.data.labelKey: answer",) * 2


OF_SETS: dict[str, tuple[str, str]] = {
    "a file that is not there": ("", 'spec.data.evaluationSets[1].jsonl: "'),
    "a row without its label": (
        json.dumps({"question": "1 + 1 =", "answer": "2"}) + "\n" + json.dumps({"question": "3 + 1 ="}),
        "spec.data.evaluationSets[1].jsonl: line 2: no key `answer` (data.labelKey); the row has `question`",
    ),
    "a row that is no JSON": ("{'question'", "spec.data.evaluationSets[1].jsonl: line 1: not JSON"),
    "a prompt that does not fit": (
        json.dumps({"question": "1 + " * 400, "answer": "2"}),
        "spec.data.evaluationSets[1].jsonl: line 1",
    ),
}
"""what a file holds; nothing: it is not there"""


@pytest.mark.parametrize("name", OF_SETS)
def test_every_evaluation_set_is_looked_at(place: Place, name: str):
    content, told = OF_SETS[name]
    file = place.root / "hard.jsonl"
    file.write_text(content) if content else None
    few = {"name": "few", "jsonl": str(place.questions), "limit": 3}
    place.spec["data"]["evaluationSets"] = [few, {"name": "hard", "jsonl": str(file)}]

    (problem,) = place.look().problems
    assert str(problem).startswith(told)


def test_what_is_not_here_is_no_mistake_of_a_manifest_that_is_meant_for_another_machine(place: Place):
    shutil.rmtree(place.model)
    place.questions.unlink()
    found = place.look(here=False)
    assert (found.problems, found.elsewhere) == ((), (str(place.model), str(place.questions)))


@pytest.mark.parametrize(("limit", "refused"), [(12, True), (11, False)])
def test_held_out_questions_that_leave_none_to_train_on_are_refused(place: Place, limit: int, refused: bool):
    place.spec["data"]["heldOut"] = {"jsonl": str(place.questions), "limit": limit}
    told = [str(problem) for problem in place.look().problems]
    assert told == refused * [
        "spec.data.train.jsonl: no question is left to train on: all 12 are in spec.data.heldOut or "
        "spec.data.evaluationSets; nearest valid: a limit there that is below 12, or other questions"
    ]


def part(path: str) -> dict[str, str]:
    return {"name": path.partition(":")[2], "kind": "python", "function": path}


def reward(path: str, **sections: Any) -> Callable[[Place], object]:
    return set_spec(reward={"kind": "python", "function": path}, **sections)


def reward_file(text: str) -> Callable[[Place], object]:
    return lambda place: (place.root / "tiny_reward.py").write_text(text)


@pytest.mark.parametrize(
    ("sabotage", "told"),
    [
        (
            reward("tiny_rewards:digits"),
            'spec.reward.function: "tiny_rewards:digits" is not there: no module tiny_rewards in ',
        ),
        (reward("tiny_rewards:digits"), ", on PYTHONPATH, or installed; nearest valid: tiny_reward:digits"),
        (reward("tiny_reward:digit"), "/tiny_reward.py has no digit; nearest valid: tiny_reward:digits"),
        (reward("tiny_reward.sub:digits"), "no module tiny_reward.sub in "),
        (reward_file("def digits(:\n    pass\n"), "/tiny_reward.py, line 1: invalid syntax"),
        (reward_file("def other():\n    digits = 1\n"), "/tiny_reward.py has no digits"),
        (
            set_spec(reward={"kind": None, "function": None, "parts": [part("tiny_reward:digits"), part("x.y:z")]}),
            'spec.reward.parts[1].function: "x.y:z" is not there: no module x.y in ',
        ),
        (set_spec(rollout={"generate": "tiny_reward:make"}), 'spec.rollout.generate: "tiny_reward:make" is not there'),
        (
            set_spec(rollout={"tools": {"functions": ["calculator", "handbook:search"]}}, data={"systemPrompt": "x"}),
            'spec.rollout.tools.functions[1]: "handbook:search" is not there',
        ),
        (set_spec(algorithm={"name": "own:rule"}), 'spec.algorithm.name: "own:rule" is not there'),
    ],
)
def test_a_function_that_is_not_there_is_named_without_running_any(
    place: Place, sabotage: Callable[[Place], object], told: str
):
    sabotage(place)
    assert told in "\n".join(map(str, place.look().problems))


@pytest.mark.parametrize(
    "text",
    [
        "raise SystemExit('this must not be run')\n\ndef digits(): ...\n",
        "if True:\n    from operator import eq as digits\n",
        "from operator import *\n",
        "globals()['digits'] = len\n",
        "def __getattr__(name): ...\n",
        "class digits: ...\n",
    ],
)
def test_a_function_that_may_be_there_is_no_finding(place: Place, text: str):
    reward_file(text)(place)
    assert place.look() == Findings()


@pytest.mark.parametrize(
    "path", ["math:gcd", "os.path:basename", "json.decoder:JSONDecoder", "xml.sax.handler:feature_validation"]
)
def test_functions_of_installed_packages_are_found(place: Place, path: str):
    reward(path)(place)
    assert place.look() == Findings()


def test_functions_are_found_where_the_manifest_s_own_python_path_leads(place: Place):
    (place.root / "elsewhere").mkdir()
    (place.root / "elsewhere" / "judge.py").write_text(REWARD)
    reward("judge:digits")(place)
    assert place.look().problems
    set_spec(runtime={"env": {"PYTHONPATH": str(place.root / "elsewhere")}})(place)
    assert place.look() == Findings()


def test_a_module_that_is_not_here_is_no_mistake_of_a_manifest_that_is_meant_for_another_machine(place: Place):
    reward("own.judges:digits")(place)
    found = place.look(here=False)
    assert (found.problems, found.elsewhere) == ((), ("module own.judges",))


@pytest.mark.parametrize(("make", "tied"), [(tiny_llama, True), (tiny_llama, False), (tiny_qwen3, True)])
def test_the_tensors_of_a_model_follow_from_its_config(make, tied, tmp_path: Path):
    directory = make(tmp_path, tied=tied)
    model = shape(json.loads((directory / "config.json").read_text()))
    held = {name: tensor.shape for name, tensor in load_file(directory / "model.safetensors").items()}
    assert tensors_of(model) == held


def judged(place: Place, free: int, *, there: int = 0, taken: tuple[int, ...] = (), **spec: Any):
    job = parse(manifest(place.model, place.root, **spec))
    model = shape(json.loads((place.model / "config.json").read_text()))
    return judge_machine(job.spec, model, Machine(free, there, taken)), checkpoint_bytes(job.spec, model)


def test_a_disk_without_room_for_its_checkpoints_is_refused_with_as_many_as_fit(place: Place):
    _, one = judged(place, 0)
    assert judged(place, 6 * one, checkpoint={"keep": 5})[0].problems == ()
    ((problem,), one) = judged(place, 6 * one - 1, checkpoint={"keep": 5})[0].problems, one
    assert str(problem).startswith("spec.checkpoint.keep: 5 and one in the making are 6 x ")
    assert problem.nearest == "4"
    assert judged(place, one, there=5 * one, checkpoint={"keep": 5})[0].problems == ()
    assert judged(place, one)[0].problems[0].nearest == "a checkpoint.directory on another disk"
    assert judged(place, 0, debug={"rolloutOnly": True})[0].problems == ()


def test_a_checkpoint_in_bf16_has_master_weights_besides(place: Place):
    _, fp32 = judged(place, 0)
    _, bf16 = judged(place, 0, training={"precision": "bf16"})
    assert bf16 * 12 == fp32 * 14


def test_a_port_in_use_is_refused(place: Place):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        job = parse(manifest(place.model, place.root, runtime={"metricsPort": port}))
        (problem,) = look_at_machine(job, model_files(str(place.model)), place.root / "run").problems
        ours = look_at_machine(job, model_files(str(place.model)), place.root / "run", has_leftovers=True)
    assert str(problem).startswith(f"spec.runtime.metricsPort: {port} is in use by another program here")
    assert ours.problems == (), "a killed run's own processes are ended before it starts again"
    assert look_at_machine(job, None, place.root / "run").problems == ()


def test_a_run_does_not_train_on_the_rollouts_of_its_own_directory(place: Place):
    job = parse(manifest(place.model, place.root, debug={"replay": str(place.root / "run" / "rollouts")}))
    (problem,) = look_at_machine(job, None, place.root / "run").problems
    assert "is in this run's own directory" in str(problem)


@pytest.mark.parametrize("verb", ["validate", "plan", "run"])
def test_every_verb_refuses_before_anything_is_started(place: Place, verb: str):
    (place.model / SECOND).unlink()
    job = place.root / "job.yaml"
    job.write_text(json.dumps(manifest(place.model, place.root)))

    result = CliRunner().invoke(app, [verb, str(job)])

    assert result.exit_code == Exit.BAD_INPUT
    assert f"{SECOND}" in result.output
    assert not (place.root / "run" / "events.jsonl").exists()

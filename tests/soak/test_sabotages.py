"""Sabotages of running systems: each is caught by the check that is meant to catch it, named, and in its step.

`docs/sabotages.md` lists them. Everything is real: `rljob run`, Ray, Megatron-core, SGLang, the router, and a tiny
model that is sure of what it says and ends its turns, so that a healthy run is above no limit.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from rljob_api.exits import Exit
from sabotages import DOWN, EMBEDDING, NORMS, SPOILS, WAYS, install
from tiny_models import CHAT_TEMPLATE, VOCABULARY_SIZE, tiny_llama
from whole_run import PROMPTS_PER_STEP, QUESTIONS, WholeRun, expected_journal, merged, uids

pytestmark = pytest.mark.timeout(900)

Prepare = Callable[..., WholeRun]
SURE = 10.0
"""what the last norm is multiplied by: then perplexity is 2, as a trained model's, instead of 300"""
STOPS = list(range(0, VOCABULARY_SIZE, 4))
"""random weights say every token about as often: with these, most responses end before their limit"""
HEALTHY: dict[str, Any] = {
    "algorithm": {"kl": {"coefficient": 0.001}},
    "rollout": {"sampling": {"stopTokenIds": STOPS}},
    "training": {"steps": 1, "optimizer": {"learningRate": 1.0e-3}},
    "watch": {"window": 1},
    "weightSync": {"transport": "Broadcast"},
}
LETTERS = """\
def digits(question, response, label, metadata):
    print("judging", response)
    return sum(character.isalpha() for character in response) / max(1, len(response))
"""
KL = "KL to the reference"
MEAN = "engine against learner, mean |difference| [nats]"
LARGEST = "engine against learner, largest |difference| [nats]"
CONTRADICTED = "pairs of samples whose advantages contradict their rewards, share"
LEARNER_PERPLEXITY = "perplexity of the samples under the learner"
ENGINE_PERPLEXITY = "perplexity of the samples under the engines"
REPEATED = "repeated 4-grams, share"
TRUNCATED = "truncated responses, share"


@pytest.fixture(scope="session")
def sure_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama that is sure of what it says. Read only."""
    directory = tiny_llama(tmp_path_factory.mktemp("sure"), tied=False)
    norm = "model.norm.weight"
    rewrite(directory, lambda tensors: tensors.update({norm: tensors[norm] * SURE}))
    return directory


def rewrite(model: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the tensors of a checkpoint in one file."""
    file = model / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.fixture
def prepare(tmp_path: Path) -> Iterator[Prepare]:
    """Returns runs that have not begun, and ends what a failed test has left."""
    runs: list[WholeRun] = []

    def prepared(model: Path, judge: str = LETTERS, held_out: bool = False, **sections: Any) -> WholeRun:
        run = WholeRun(model, tmp_path, **merged(HEALTHY, sections))
        runs.append(run)
        content = yaml.safe_load(run.manifest.read_text())
        if not held_out:
            del content["spec"]["data"]["heldOut"], content["spec"]["evaluation"]
        run.manifest.write_text(yaml.safe_dump(content))
        (tmp_path / "tiny_reward.py").write_text(judge)
        return run

    yield prepared
    for run in runs:
        run.stop()


def finish(run: WholeRun, code: Exit = Exit.OK) -> WholeRun:
    run.start()
    assert run.end(420) == code, run.output
    assert run.left_behind() == []
    return run


def breached(run: WholeRun) -> set[str]:
    """Return the numbers of the first step that are above their limits; the log warns of just these."""
    (record,) = run.records("first_step")
    names = {check["name"] for check in record["checks"] if check["value"] is None or check["value"] > check["limit"]}
    assert set(re.findall(r"WARNING .* action=first_step check='([^']+)'", run.log())) == names
    return names


def findings(run: WholeRun) -> list[tuple[int, str]]:
    """Return what was found, each with its step; the log warns of just these."""
    found = [(record["step"], record["name"]) for record in run.records("finding")]
    assert re.findall(r"WARNING .* action=watch finding=(\w+)", run.log()) == [name for _, name in found]
    return found


def test_a_healthy_run_is_told_nothing(prepare: Prepare, sure_model: Path) -> None:
    run = finish(prepare(sure_model, training={"steps": 3}, watch={"window": 3}))
    assert breached(run) == set()
    assert findings(run) == []
    assert run.records("engine") == []
    (record,) = run.records("first_step")
    assert len(record["checks"]) == 8, "everything is measured"
    assert "judging" in run.log("reward.log"), "what a reward prints does no harm, and is kept"


# before anything is started


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
        "spec.rollout.sampling.stopTokenIds[1]: 70000 never comes: the tokenizer's last token is 511",
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
        {"reward": {"kind": "exactMatch", "function": None}},
        [{"question": "9 + 9 =", "answer": ""}],
        "line 49: no label (spec.data.labelKey is empty there): spec.reward.kind exactMatch rewards nothing",
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


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_become_a_run_is_refused_before_anything_starts(
    prepare: Prepare, tmp_path: Path, name: str
) -> None:
    change, sections, rows, told = REFUSED[name]
    model = tiny_llama(tmp_path / "model")
    change(model)
    run = prepare(model, **sections)
    with (tmp_path / "questions.jsonl").open("a") as questions:
        questions.writelines(json.dumps(row) + "\n" for row in rows)

    finish(run, Exit.BAD_INPUT)

    assert told in run.output
    assert list((run.run_directory / "logs").iterdir()) == []


def test_a_port_in_use_is_refused_before_anything_starts(prepare: Prepare, sure_model: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        run = finish(prepare(sure_model, runtime={"metricsPort": port}), Exit.BAD_INPUT)
    assert f"spec.runtime.metricsPort: {port} is in use by another program here" in run.output


# weights on their way to the engines


def test_an_engine_that_does_not_hold_the_weights_is_out_of_service_at_once(prepare: Prepare, sure_model: Path) -> None:
    run = prepare(sure_model, training={"steps": 5})
    install(run.directory, "spoiled weights")
    (run.directory / SPOILS).write_text(" ".join(WAYS))
    finish(run)

    told = re.findall(r"ERROR .* engine=engine-0 action=quarantine version=(\d) reason=(.*)", run.log())
    assert [int(version) for version, _ in told] == [1, 2, 3, 4], "each in the step in which it was done"
    swapped, zeroed, flipped, swallowed = (reason for _, reason in told)
    assert re.search(rf": 2 of \d+ tensors differ from the learner's: {', '.join(NORMS)}$", swapped)
    assert re.search(rf": 1 of \d+ tensors differ from the learner's: {DOWN}$", zeroed)
    assert re.search(rf": 1 of \d+ tensors differ from the learner's: {EMBEDDING}$", flipped)
    assert re.search(r": (\d+) of \1 tensors differ from the learner's: ", swallowed)
    incidents = {record["time"]: record for record in run.records("engine")}.values()
    assert [record["cause"] for record in incidents] == ["PublishFailed"] * 4
    assert all(record["return_seconds"] for record in incidents), "with the right weights it is back"
    assert max(record["logprob_mismatch"] for record in run.records("step")) < 1e-3, "nothing of it was trained on"


# the learner, and what it is trained on: told with the first step

COLD = {"rollout": {"sampling": {"temperature": 0.7}}}
MANY = {"rollout": {"promptsPerStep": 16}}
GENERATE = {"rollout": {"generate": "tiny_generate:generate", "contextLength": 128}}
TWO_TURNS = """\
async def generate(conversation):
    first = await conversation.model(max_tokens=4)
    conversation.reply({"role": "user", "content": "Go on."})
    second = await conversation.model()
    return first.text + second.text
"""
MISMATCH = {(1, "Mismatch")}
AT_THE_FIRST_STEP: dict[str, tuple[dict[str, Any], set[str], set[tuple[int, str]]]] = {
    "another reference": ({}, {KL}, set()),
    "nothing loaded": ({}, {LEARNER_PERPLEXITY, ENGINE_PERPLEXITY}, set()),
    "shifted mask": ({}, {MEAN, LARGEST, LEARNER_PERPLEXITY}, MISMATCH),
    "shifted turns": (GENERATE, {MEAN, LARGEST, LEARNER_PERPLEXITY}, MISMATCH),
    "shifted log-probabilities": ({}, {MEAN, LARGEST, LEARNER_PERPLEXITY}, MISMATCH),
    "forgotten temperature": (COLD, {MEAN, LARGEST}, MISMATCH),
    "flipped advantages": ({}, {CONTRADICTED}, set()),
    "advantages of others": (MANY, {CONTRADICTED}, set()),
    "answers of others": ({}, {MEAN, LARGEST, LEARNER_PERPLEXITY}, MISMATCH),
}
"""by what is broken: the manifest, the numbers of the first step above their limits, and what is found while it runs"""


@pytest.mark.parametrize("name", AT_THE_FIRST_STEP)
def test_a_learner_that_is_wrong_shows_at_the_first_step(prepare: Prepare, sure_model: Path, name: str) -> None:
    sections, checks, found = AT_THE_FIRST_STEP[name]
    run = prepare(sure_model, **sections)
    (run.directory / "tiny_generate.py").write_text(TWO_TURNS)
    install(run.directory, name)

    finish(run)

    assert breached(run) == checks
    assert set(findings(run)) == found


def test_a_gradient_that_is_not_finite_ends_the_run_in_its_step(prepare: Prepare, sure_model: Path) -> None:
    run = prepare(sure_model, training={"steps": 4, "optimizer": {"maxSkippedSteps": 0}})
    install(run.directory, "gradient not finite")
    finish(run, Exit.DIVERGED)
    assert run.steps() == 1, "it was the second step"
    assert "1 optimizer steps had a gradient that is not finite" in run.records("end")[-1]["message"]


def test_a_gradient_that_explodes_is_found_in_its_step(prepare: Prepare, sure_model: Path) -> None:
    # The usual rate lets the tiny model collapse about then, which is found, too.
    gently = {"steps": 6, "optimizer": {"learningRate": 1.0e-5}}
    run = prepare(sure_model, training=gently, watch={"window": 3, "rewardDrop": 1000})
    install(run.directory, "gradient exploded")
    finish(run)
    assert findings(run) == [(5, "GradientSpike")]


def test_an_objective_of_the_wrong_sign_is_refused_before_the_first_step(prepare: Prepare, sure_model: Path) -> None:
    run = prepare(sure_model)
    install(run.directory, "flipped objective")
    finish(run, Exit.BAD_INPUT)
    assert run.steps() == 0
    told = "has a loss that grows with the log-probability of a token with advantage 1"
    assert told in run.records("end")[-1]["message"]


# responses and rewards


def test_responses_that_do_not_end_are_told_with_the_first_step(prepare: Prepare, sure_model: Path) -> None:
    run = finish(prepare(sure_model, rollout={"sampling": {"stopTokenIds": []}}))
    assert breached(run) == {TRUNCATED}
    assert findings(run) == [(1, "Truncation")]


def test_responses_that_go_in_circles_are_told_with_the_first_step(prepare: Prepare, sure_model: Path) -> None:
    run = prepare(sure_model, rollout={"sampling": {"stopTokenIds": []}})
    install(run.directory, "one token for ever")
    finish(run)
    assert breached(run) >= {REPEATED, MEAN}
    assert {(1, "Repetition"), (1, "Mismatch")} <= set(findings(run))


def test_a_reward_that_judges_all_alike_is_told_with_the_first_step(prepare: Prepare, sure_model: Path) -> None:
    run = finish(prepare(sure_model, "def digits(question, response, label, metadata):\n    return 1.0\n"))
    assert findings(run) == [(1, "NoSignal")]


FAILING = """\
import math
import os
import time

CALLS = __file__ + ".calls"


def digits(question, response, label, metadata):
    with open(CALLS, "a") as calls:
        calls.write(".")
    match os.path.getsize(CALLS):
        case 40:
            time.sleep(600)
        case 45:
            os._exit(3)
        case 50:
            raise ValueError("no idea")
        case 70:
            return math.nan
        case 75:
            return "much"
    return len(response)
"""
HUNG = re.compile(r"tiny_reward:digits took longer than 2 s \(timeoutSeconds\) on prompt 0:\d+")


def test_a_failing_reward_is_counted_in_its_step_with_its_reason(prepare: Prepare, sure_model: Path) -> None:
    reward = {"failureScore": 0.0, "timeoutSeconds": 2}
    run = finish(prepare(sure_model, FAILING, training={"steps": 3}, reward=reward))
    assert [record["reward_failures"] for record in run.records("step")] == [0, 3, 2]
    told = re.findall(r"WARNING .* action=score_failure part=reward prompt=0:\d+ score=0 reason=(.*)", run.log())
    hung, crashed, raised, nan, text = told
    assert HUNG.search(hung)
    assert crashed.startswith("the process of tiny_reward:digits ended with code 3 on prompt 0:")
    assert re.fullmatch(r"tiny_reward:digits failed on prompt 0:\d+: ValueError: no idea", raised)
    wanted = r"a finite number is wanted \(a function of all responses at once has judges: group\)"
    assert re.fullmatch(rf"tiny_reward:digits returned nan for prompt 0:\d+; {wanted}", nan)
    assert re.fullmatch(rf"tiny_reward:digits returned 'much' for prompt 0:\d+; {wanted}", text)


def test_a_reward_that_hangs_ends_the_run_in_its_step(prepare: Prepare, sure_model: Path) -> None:
    run = finish(prepare(sure_model, FAILING, training={"steps": 3}, reward={"timeoutSeconds": 2}), Exit.BAD_INPUT)
    assert run.steps() == 1
    assert HUNG.search(run.records("end")[-1]["message"])
    assert re.search(r'tiny_reward\.py", line \d+ in digits', run.log()), "where it hangs is shown"


def test_a_reward_of_too_few_numbers_ends_the_run_in_its_step(prepare: Prepare, sure_model: Path) -> None:
    reward = "def digits(question, responses, label, metadata):\n    return [1.0 for _ in responses[1:]]\n"
    run = finish(prepare(sure_model, reward, reward={"judges": "group"}), Exit.BAD_INPUT)
    assert run.steps() == 0
    told = r"tiny_reward:digits returned a list of 7 for prompt 0:\d+, which has 8 responses"
    assert re.search(told, run.records("end")[-1]["message"])


# processes

EPOCHS = 200
"""of questions: more than will be asked"""


def part(run: WholeRun, name: str) -> psutil.Process:
    """Return the process of SGLang with a name that begins so."""
    (found,) = [process for process in run.processes() if process.name().startswith(f"sglang::{name}")]
    return found


def returned(run: WholeRun) -> list[dict[str, Any]]:
    """Return the failures of engines that are over."""
    return [record for record in run.records("engine") if record["return_seconds"] is not None]


def test_processes_that_die_or_hang_are_named_in_their_step_and_replaced(prepare: Prepare, sure_model: Path) -> None:
    run = prepare(
        sure_model,
        training={"steps": EPOCHS * QUESTIONS // PROMPTS_PER_STEP},
        recovery={"healthTimeoutSeconds": 3, "healthFailures": 2},
        checkpoint={"interval": 100},
    )
    run.start()
    run.until(lambda: run.steps() >= 2)

    verb = [sys.executable, "-m", "rljob_cli.main", "run", str(run.manifest)]
    second = subprocess.run(verb, cwd=run.directory, capture_output=True, text=True, timeout=120, check=False)
    assert second.returncode == Exit.IN_USE, second.stderr
    assert str(run.run_directory) in second.stderr + second.stdout

    step = run.steps()
    part(run, "router").kill()
    run.until(lambda: run.steps() >= step + 2)
    assert re.search(r"ERROR .* router action=restart reason=the server ended with -9", run.log())

    killed_in = run.steps()
    part(run, "sched").kill()
    run.until(lambda: len(returned(run)) == 1)
    killed = returned(run)[0]
    assert (killed["engine"], killed["cause"]) == ("engine-0", "ProcessExited")
    assert killed["detect_seconds"] < 2
    assert killed["step"] <= killed_in + 1

    run.until(lambda: run.steps() >= killed["step"] + 2)
    hung_in = run.steps()
    os.kill(part(run, "sched").pid, signal.SIGSTOP)
    run.until(lambda: len(returned(run)) == 2)
    hung = returned(run)[1]
    assert (hung["engine"], hung["cause"]) == ("engine-0", "Unresponsive")
    assert "no answer within 3 s" in hung["error"]
    assert hung["step"] <= hung_in + 1

    run.until(lambda: run.steps() >= hung["step"] + 2)
    run.interrupt()
    assert run.end() == Exit.PREEMPTED, run.output
    assert run.left_behind() == []
    asked = [uid for record in run.journal if record["event"] == "consumed" for uid in record["prompts"]]
    assert asked == uids(epochs=EPOCHS, rows=QUESTIONS)[: len(asked)], "nothing was lost and nothing came twice"


# what a run leaves behind, and goes on from

STEPS, INTERVAL = 4, 2
KEPT: dict[str, Any] = {"checkpoint": {"interval": INTERVAL, "keep": 10}, "debug": {"dumpRollouts": True}}
ROLLOUTS = Path("run") / "rollouts"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, sure_model: Path) -> Path:
    """The directory of a run of four steps with two checkpoints and all rollouts. Read only."""
    directory = tmp_path_factory.mktemp("finished")
    run = WholeRun(sure_model, directory, **merged(HEALTHY, merged(KEPT, {"training": {"steps": STEPS}})))
    try:
        return finish(run).directory
    finally:
        run.stop()


@pytest.fixture
def go_on(prepare: Prepare, finished: Path, tmp_path: Path, sure_model: Path) -> WholeRun:
    """The same run in a directory of its own, with two further steps to take."""
    shutil.copytree(finished / "run", tmp_path / "run")
    return prepare(sure_model, held_out=True, **merged(KEPT, {"training": {"steps": STEPS + 2}}))


def shards(run: WholeRun, step: int) -> list[Path]:
    return sorted((run.run_directory / "checkpoints" / f"iter_{step:07d}").glob("*.distcp"))


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_flipped_bit_and_a_torn_line_are_found_and_the_run_goes_on_before_them(go_on: WholeRun) -> None:
    (shard, *_) = shards(go_on, STEPS)
    flip_a_bit(shard)
    with (go_on.run_directory / "journal.jsonl").open("a") as journal:
        journal.write('{"event":"issued","step":4,"prom')

    finish(go_on)

    assert [record["step"] for record in go_on.records("run")] == [0, INTERVAL]
    (damage,) = [record for record in go_on.records("finding") if record["name"] == "DamagedCheckpoint"]
    assert f"changed files ['{shard.name}']; kept as damaged-iter_{STEPS:07d}" in damage["evidence"]
    assert go_on.journal == expected_journal(STEPS + 2, PROMPTS_PER_STEP, INTERVAL, uids())


def lose_shards(run: WholeRun) -> None:
    for step in (INTERVAL, STEPS):
        shards(run, step)[0].unlink()


def double_a_line(run: WholeRun) -> None:
    journal = run.run_directory / "journal.jsonl"
    first, second, *others = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([first, second, second, *others]))


def change_a_question(run: WholeRun) -> None:
    questions = run.directory / "questions.jsonl"
    questions.write_text(questions.read_text().replace("25 + 26", "25 + 62"))


CONTRADICTIONS: dict[str, tuple[Callable[[WholeRun], None], str]] = {
    "checkpoints without a shard": (lose_shards, "no checkpoint can be read: "),
    "a line of the journal twice": (double_a_line, "journal.jsonl:3: consumed step 0 where 1 was next"),
    "other questions": (change_a_question, "the training questions are not those it was trained on"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_run_does_not_go_on_from_what_contradicts_it(go_on: WholeRun, name: str) -> None:
    damage, told = CONTRADICTIONS[name]
    damage(go_on)
    finish(go_on, Exit.BAD_INPUT)
    assert told in go_on.output


def test_rollouts_of_another_model_are_not_trained_on(prepare: Prepare, finished: Path, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other", tied=False, seed=1)
    run = finish(prepare(other, held_out=True, debug={"replay": str(finished / ROLLOUTS)}), Exit.BAD_INPUT)
    assert "step-0000000.jsonl.zst: step 0: made with spec.model.checkpoint, by its fingerprint, " in run.output


def test_damaged_rollouts_are_not_trained_on(
    prepare: Prepare, finished: Path, sure_model: Path, tmp_path: Path
) -> None:
    dump = shutil.copytree(finished / ROLLOUTS, tmp_path / "rollouts")
    flip_a_bit(dump / "step-0000000.jsonl.zst")
    run = finish(prepare(sure_model, held_out=True, debug={"replay": str(dump)}), Exit.BAD_INPUT)
    told = r"step-0000000\.jsonl\.zst: step 0: (damaged or cut off|expected JSON lines compressed with zstd): "
    assert re.search(told, run.output)

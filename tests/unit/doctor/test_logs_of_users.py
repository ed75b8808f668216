"""Logs that were written without the signatures are diagnosed, in every form that collectors give them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rljob_doctor.diagnosis import diagnose
from rljob_doctor.entry import Level
from rljob_doctor.scan import scan

HERE = Path(__file__).parent
REQUEST = '(SGLangEngine pid=9) INFO: 10.0.0.2:1 - "POST /generate HTTP/1.1" 200 OK'


def logs(name: str) -> list[tuple[str, str]]:
    """Return what a log is to show, and its text, of each log of a file."""
    return [(head.split("|")[0].strip(), text) for head, text in with_heads(name)]


def with_heads(name: str) -> list[tuple[str, str]]:
    _, *parts = f"\n{(HERE / name).read_text()}".split("\n=== ")
    return [(head, text) for head, _, text in (part.partition("\n") for part in parts)]


FAILING, HEALTHY = logs("failing_logs.txt"), logs("healthy_logs.txt")


def codes(text: str) -> list[str]:
    return [each.failure.code for each in diagnose([scan("log", text.encode())]).findings]


def failures(text: str) -> list[str]:
    """Return what is found, without the hints, which only say that something is slow."""
    found = diagnose([scan("log", text.encode())]).findings
    return [each.failure.code for each in found if each.failure.level is not Level.HINT]


def each_line(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "\n".join(change(line) for line in text.splitlines())


FORMS: dict[str, Callable[[str], str]] = {
    "Ray, coloured": each_line(lambda line: f"\x1b[36m(MegatronTrainRayActor pid=3217, ip=10.1.0.4)\x1b[0m {line}"),
    "Windows": lambda text: text.replace("\n", "\r\n"),
    "container runtime": each_line(lambda line: f"2026-07-25T07:53:08.217487080+08:00 stderr F {line}"),
    "torch, rank": each_line(lambda line: f"[rank3]: {line}"),
    "pdsh": each_line(lambda line: f"10.0.0.7: [rank5]: {line}"),
    "mpirun": each_line(lambda line: f"rl-train-worker-3: {line}"),
    "Compose": each_line(lambda line: f"learner  | {line}"),
    "torchrun": each_line(lambda line: f"[default3]:{line}"),
    "JSON": each_line(lambda line: json.dumps({"ts": "2026-07-25T07:53:08Z", "level": "error", "msg": line})),
    "Docker, coloured": lambda text: json.dumps(
        {"log": "\n".join(f"\x1b[36m{line}\x1b[0m" for line in text.split("\n"))}
    ),
    "logging": each_line(lambda line: f"2026-07-25 07:53:08,123 ERROR train.py:12 -- {line}"),
    "interleaved": each_line(lambda line: f"{line}\n{REQUEST}"),
    "progress bar": lambda text: f"\rEpoch:  10%|#  | 1/10\r{text}".replace("\n", "\n\rRollout: 40%|#### | 2/5\r"),
    "box": each_line(lambda line: f"\x1b[31m│\x1b[0m {line:110} \x1b[31m│\x1b[0m"),
}


def test_logs_of_users_are_diagnosed():
    found = [(number, code, codes(text)[:1]) for number, (code, text) in enumerate(FAILING)]
    assert [each for each in found if each[2] != [each[1]]] == []


@pytest.mark.parametrize("name", ["logs_of_threads.txt", "logs_of_programs.txt"])
def test_error_lines_of_public_threads_and_programs_are_diagnosed(name: str):
    labelled = [(head.split("|")[0].strip(), head.split("|")[1].strip(), text) for head, text in with_heads(name)]
    found = [(expected, source, (failures(text) or ["Healthy"])[0]) for expected, source, text in labelled]
    assert [each for each in found if each[2] not in each[0].split("/")] == []


def test_quotes_that_a_collector_has_escaped_twice_are_read():
    record = json.dumps({"log": json.dumps({"msg": 'persistentvolumeclaim "runs" not found'})})
    assert codes(record) == ["VolumeUnbound"]


def test_a_log_of_a_healthy_run_has_no_failure():
    assert [(head, found) for head, text in HEALTHY if (found := failures(text))] == []


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_a_log_changes_no_diagnosis(form: str):
    changed = [(code, codes(FORMS[form](text))[:1]) for code, text in FAILING]
    wrong = [(code, found) for code, found in changed if found != [code]]
    assert len(wrong) <= len(FAILING) * 0.03, wrong


@pytest.mark.parametrize("form", FORMS)
def test_a_healthy_log_is_healthy_in_every_form(form: str):
    assert [(head, found) for head, text in HEALTHY if (found := failures(FORMS[form](text)))] == []


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (
            "spec.data.chatTemplate: true cannot be: the chat template ignores add_generation_prompt",
            "ChatTemplateError",
        ),
        (
            "line 49: holds <|im_start|>, which the model's chat template writes itself: it would be applied twice",
            "ChatTemplateTwice",
        ),
        ("stopTokenIds[1]: 70000 never comes: the tokenizer's last token is 511", "RljobBadManifest"),
        (
            '"tokenizer.json" has the token 512, and config.json makes room for 5 (vocab_size): they are of two models',
            "TokenizerBroken",
        ),
        (
            "line 49: more than the 54 tokens that the context leaves beside maxNewTokens 8; nearest valid: spec.x",
            "PromptTooLong",
        ),
        (
            "line 49: no label (spec.data.labelKey is empty there): spec.reward.kind ExactMatch rewards nothing",
            "DataKeyMissing",
        ),
        (
            '"model-00002-of-00002.safetensors" is listed in model.safetensors.index.json and is not there',
            "CheckpointShardsMissing",
        ),
        (
            '"model.layers.1.self_attn.k_proj.weight" has the shape [16, 64], and config.json makes it [32, 64]',
            "CheckpointLayout",
        ),
        ("spec.checkpoint.keep: 100000000 and one in the making are 100000001 x 2 MiB", "DiskFull"),
        ("spec.runtime.metricsPort: 9090 is in use by another program here", "PortInUse"),
    ],
)
def test_a_refusal_before_the_start_is_diagnosed(message: str, code: str):
    assert codes(f"error: job.yaml: {message}") == [code]

"""What rljob itself says of a failure: each message is a known failure, and what it quotes of the catalogue is none."""

import ast
from pathlib import Path

import pytest

from rljob_doctor.catalogue import catalogue
from rljob_doctor.diagnosis import diagnose
from rljob_doctor.entry import Failure
from rljob_doctor.scan import scan
from support.api.bad_manifests import Case, cases
from support.tables import each_of

OF_THE_TEXT = ("manifest: stands for more than", "manifest: contains itself")
"""attacks on the reader, which no user meets by mistake"""


@each_of([each for each in cases() if not each.says[0].startswith(OF_THE_TEXT)], lambda case: case.name)
def test_a_refused_manifest_is_a_known_failure(case: Case):
    found = diagnose([scan("output", "".join(f"{line}\n" for line in case.says).encode())]).findings
    assert found[0].failure.code == "RljobBadManifest"


def test_the_status_of_a_job_that_is_not_admitted_has_a_known_failure():
    line = "condition Admitted Invalid: spec.rollout.engines: 0 is less than 1; nearest valid: 1\n"
    assert diagnose([scan("status", line.encode())]).findings[0].failure.code == "RljobBadManifest"


@each_of(
    [
        "condition Admitted Valid: the manifest is valid",
        "  spec.containers{ray-head}: Pulling image",
        "spec.template.spec.containers[0].image: Required value",
        "the field spec.rollout.engines: 4 is read",
        "spec.rollout.engines=4",
    ]
)
def test_other_lines_with_fields_are_none(line: str):
    assert diagnose([scan("output", f"{line}\n".encode())]).findings == ()


def test_a_request_that_is_sent_again_is_no_failure_of_the_router():
    failed = "reason=router: POST /generate: 500 error sending request for url (http://10.0.0.3:26230/generate)"
    again = f"2026-11-27 00:14:07,822 INFO rljob_trainer.rollouts.sampler action=retry prompt=1:26 {failed}\n"
    assert diagnose([scan("driver", again.encode())]).findings == ()
    assert diagnose([scan("driver", f"{failed}\n".encode())]).findings[0].failure.code == "RouterNoWorkers"


OF_DATA = {
    "line 1: `a` (data.labelKey) is null, not a string or a number; no answer stands there": "DataFormatWrong",
    "line 1: `a` (data.labelKey) is a list, and rewards compare with one answer": "DataFormatWrong",
    "line 1: `a` (data.labelKey) names an object with keys b, c, not a string or a number": "DataFormatWrong",
    "line 3: has half a character (a surrogate such as \\ud83d without its other half)": "DataFormatWrong",
    "not JSON lines: it is a JSON array; JSON lines have one object a line": "DataNotJson",
    "row 2: has a text that is not UTF-8: invalid continuation byte": "DataNotJson",
    '"/d" is a directory; one file is wanted, and neither directories nor patterns': "PathNotFound",
    '"/d" is a link to gone, which is not there': "PathNotFound",
}


@each_of(OF_DATA)
def test_a_fault_of_the_data_is_a_known_failure(said: str):
    found = diagnose([scan("output", f"spec.data.train.jsonl: {said}\n".encode())]).findings
    assert found[0].failure.code == OF_DATA[said]


@pytest.mark.parametrize("field", ["spec.model.checkpoint", "spec.algorithm.teacher.checkpoint"])
@pytest.mark.parametrize("said", ["is a file; a directory is wanted", "is a link to gone, which is not there"])
def test_a_path_that_leads_to_no_model_is_a_known_failure(field: str, said: str):
    found = diagnose([scan("output", f'{field}: "/m" {said}\n'.encode())]).findings
    assert found[0].failure.code == "ModelNotFound"


@each_of(catalogue().values(), lambda failure: failure.code)
def test_an_event_that_names_a_failure_proves_no_other(failure: Failure):
    said = f"attempt 1: {failure.title}. {failure.remedy[0]}. Seen: driver.log: what happened"
    for line in (f"2m Warning {failure.code} rljob/tiny {said}", f"  Warning  {failure.code}  2m  rljob  {said}"):
        found = diagnose([scan("events", line.encode())]).findings
        assert {each.failure.code for each in found} <= {failure.code}


def test_the_line_that_an_event_quotes_is_evidence():
    said = "attempt 1: a Ray actor died unexpectedly. Read `kubectl describe pod` (OOMKilled?). Seen: log: container "
    line = f"2m Warning RayActorDied rljob/tiny {said}OOMKilled"
    assert [each.failure.code for each in diagnose([scan("events", line.encode())]).findings] == ["PodOutOfMemory"]


LOST_POD = (
    "2026-11-27 07:05:33 ERROR smg::routers::http::router: Failed to send typed request worker_url=http://10.0.0.7:24854"
    " error=error sending request for url (http://10.0.0.7:24854/generate)",
    "rljob_trainer.sync.transport.TransferError: learner rank 0: its process is gone: The actor died unexpectedly"
    " before finishing this task.",
    "action=broadcast_again engines=1 left_behind=[] reason=The actor died unexpectedly before finishing this task.",
    "LearnerLostError: learner rank 0: its process is gone: The actor died unexpectedly before finishing this task.",
)


@pytest.mark.parametrize("lines", [LOST_POD, LOST_POD[::-1], LOST_POD[1:]])
def test_requests_and_publications_that_fail_with_a_lost_pod_are_no_cause(lines: tuple[str, ...]):
    codes = [each.failure.code for each in diagnose([scan("driver", "\n".join(lines).encode())]).findings]
    assert set(codes) == {"RayActorDied", "LearnerLost"}


def test_an_engine_that_dies_while_its_cache_is_flushed_had_no_open_requests():
    flush = "engine-0: POST /flush_cache?timeout=60: ServerDisconnectedError: Server disconnected"
    lines = (f"ERROR rljob_trainer.engines.pool engine=engine-0 action=quarantine detail={flush}", LOST_POD[1])
    found = diagnose([scan("driver", "\n".join(lines).encode())]).findings
    assert {each.failure.code for each in found} == {"RayActorDied", "LearnerLost", "EngineQuarantined"}


def test_a_publication_that_takes_too_long_is_the_cause_of_the_actors_that_die_after_it():
    lines = (
        "TransferError: broadcast to 2 engines: after 600 s",
        "The actor is dead because its worker process has died",
    )
    found = diagnose([scan("driver", "\n".join(lines).encode())]).findings
    assert found[0].failure.code == "WeightSyncTimeout"


def test_a_lost_rank_hides_what_its_router_says():
    lines = (LOST_POD[0], "learner rank 0: its process is gone: it was killed")
    codes = [each.failure.code for each in diagnose([scan("driver", "\n".join(lines).encode())]).findings]
    assert codes == ["LearnerLost"]


ROOT = Path(__file__).parents[3]
SOURCES = (ROOT / "trainer" / "rljob_trainer", ROOT / "operator" / "rljob_operator")
PASSED_ON = {
    *("LearnerError", "EventsError"),
    *("BusyError", "CostlyTemplateError", "ForeignFileError", "TooLargeError", "TooManyError", "TooMuchError"),
    *("AnswerTooLongError", "SlowAnswerError", "StorageError", "TooSlowError"),
}
"""errors whose own class says nothing: what a rank raised, a record of events that cannot be read, and what the caller
handles or passes on with the words of its cause; StorageError has those of the operating system"""
END = "2026-11-20 10:00:00,123 ERROR rljob_trainer.driver action=end reason=Any"


def own_errors() -> list[tuple[str, str]]:
    """Return the path and the name of each class of errors of the trainer and the operator."""
    return [
        (path.relative_to(package.parent).as_posix(), node.name)
        for package in SOURCES
        for path in sorted(package.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and node.name.endswith("Error")
        and node.name not in PASSED_ON
        and node.name[0] != "_"
    ]


def log_of(frame: str, line: str) -> str:
    path, name = frame.split(" in ")
    place = f"/usr/lib/python3/site-packages/{path}"
    return f'Traceback (most recent call last):\n  File "{place}", line 12, in {name}\n    it_fails()\n{line}\n'


def first_code(path: str, error: str) -> str:
    module = path.removesuffix(".py").replace("/", ".")
    log = f"{END}\n{log_of(f'{path} in it', f'{module}.{error}')}"
    return diagnose([scan("driver", log.encode())]).findings[0].failure.code


@each_of(own_errors())
def test_each_class_of_errors_of_rljob_is_a_known_failure(path: str, name: str):
    assert first_code(path, f"{name}: own words") != "PythonException"


@each_of(
    [
        (
            "AlgorithmRefused",
            "algorithms/factory.py",
            "AlgorithmError: algorithm.name own: 3 groups of advantages for 4",
        ),
        ("AlgorithmRefused", "learners/objectives/trial.py", "ObjectiveError: returned 3; expected a Surrogate"),
        (
            "CheckpointLayout",
            "assembly/material.py",
            "CheckpointError: /c/7: written in Bf16, and the manifest asks for Fp8",
        ),
        (
            "CheckpointNotLoaded",
            "rundir/resume.py",
            "CheckpointError: spec.checkpoint.resumeStep 8: looked for global_step_8",
        ),
        (
            "OptionRefused",
            "assembly/material.py",
            "CheckpointError: /c/7: spec.debug.rolloutOnly starts no learner to load it",
        ),
        ("CheckpointDamaged", "rundir/checkpoints.py", "CheckpointError: /c/7: a file cannot be read: Input"),
        (
            "CheckpointLayout",
            "learners/rank/checkpoint/checkpoint.py",
            "CriticMismatchError: /c/7 was written with a critic",
        ),
        ("ModelNotFound", "data/hub.py", "HubError: model own/tiny: own/tiny has no file config.json at main"),
        (
            "CheckpointShardsMissing",
            "data/hub.py",
            "HubError: model own/tiny: /h/a is damaged: its hash is not the commit's",
        ),
        ("PromptTooLong", "data/lengths.py", "DataError: 3 of 8 prompts are longer than 512 tokens"),
        ("TokenizerBroken", "data/render.py", "DataError: train.jsonl:3: the tokenizer cannot encode it: own words"),
        ("DataFormatWrong", "data/rows.py", "DataError: train.jsonl:3: `messages` is empty"),
        ("GenerateFunctionFailed", "conversations/tool_pods.py", "PodLostError: pod tools-0: own words"),
        (
            "UserFunctionMissing",
            "processes/function_workers.py",
            "FunctionError: own: its import took longer than 60 s",
        ),
        ("RewardFunctionFailed", "processes/function_workers.py", "FunctionError: own: its process does not start: x"),
        ("RouterNoWorkers", "engines/router.py", "EngineError: router: start: no answer within 60 s; log: own"),
        ("WeightSyncTimeout", "engines/actor/weight_copy.py", "DeltaError: /w does not have 8 bytes"),
        (
            "TrainPartitionMismatch",
            "learners/rank/weights/bridges.py",
            "UnsupportedModelError: tensorParallel=3 does not divide 14 heads",
        ),
        (
            "LearnerModelUnsupported",
            "learners/rank/weights/bridges.py",
            "UnsupportedModelError: /m: model type own is not supported",
        ),
        ("ReadOnlyVolume", "processes/leftovers.py", "LeftoverError: /tmp/rljob belongs to another user"),
        ("PortInUse", "processes/ports.py", "NoFreePortError: find free ports on host: 9 tries between 1 and 2 failed"),
    ]
)
def test_an_error_of_the_trainer_is_named_by_its_class_and_words(code: str, path: str, error: str):
    assert first_code(f"rljob_trainer/{path}", error) == code


@each_of(
    [
        (
            "PromptTooLong",
            "data/lengths.py in check",
            "rljob_trainer.data.rows.DataError: 3 of 8 responses are longer than 512: train.jsonl:3",
        ),
        ("GenerateFunctionFailed", "conversations/conversation.py in ask", "ValueError: max_tokens 0 is less than 1"),
        ("LearnerLost", "learners/rank/rendezvous/links.py in _finish", "RuntimeError: no answer within 60 s"),
        (
            "ApiMismatch",
            "learners/rank/attention/flash.py in _merge",
            "RuntimeError: this torch does not return the logarithms of the sums; training.contextParallel needs those"
            " of the last: set it to 1, or use another version of torch",
        ),
        (
            "InductorCacheCorrupt",
            "processes/kernel_archive.py in _extract",
            "tarfile.TarError: 3/kernel.so is damaged",
        ),
    ]
)
def test_an_error_in_the_trainer_is_named_by_its_function(code: str, frame: str, line: str):
    log = log_of(f"rljob_trainer/{frame}", line)
    assert diagnose([scan("driver", log.encode())]).findings[0].failure.code == code


@each_of(
    [
        (
            "LossMaskLength",
            "batches/packing.py",
            "a sequence with 3 response tokens cannot be trained on: it needs a log-probability",
        ),
        ("GenerateFunctionFailed", "tools/calculator.py", "cannot calculate x"),
        ("RewardFunctionFailed", "rewards/math_answer.py", "math-verify finds no answer in the label x"),
        ("WeightSyncTimeout", "engines/weight_delta.py", "it ends 8 bytes early"),
    ]
)
def test_an_exception_of_python_in_the_trainer_is_named_by_its_place(code: str, path: str, error: str):
    assert first_code(f"rljob_trainer/{path}", f"ValueError: {error}") == code


@each_of(
    [
        (
            "spec.data.chatTemplate: true cannot be: the chat template ignores add_generation_prompt",
            "ChatTemplateError",
        ),
        (
            "line 49: holds <|im_start|>, which the model's chat template writes itself: it would be applied twice",
            "ChatTemplateTwice",
        ),
        ("stopTokenIds[1]: 70000 is outside the vocabulary; its last token is 511", "RljobBadManifest"),
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
    ]
)
def test_a_refusal_before_the_start_is_diagnosed(message: str, code: str):
    found = diagnose([scan("output", f"error: job.yaml: {message}".encode())]).findings
    assert [each.failure.code for each in found] == [code]

"""Variables of Ray's runtime environment become `runtime.env`."""

import pytest

from rljob_importing.draft import NoteKind
from rljob_importing.manifest_text import text
from rljob_importing.script import imported

SMALL = (
    "--hf-checkpoint m --prompt-data d.jsonl --rm-type math --num-rollout 10 --rollout-batch-size 4"
    " --n-samples-per-prompt 4 --rollout-max-response-len 64 --global-batch-size 16 --lr 1e-6 --lr-decay-style constant"
)


def submitted(options):
    return imported(f"A=1\nray job submit {options} -- python3 train.py {SMALL}\n", "run.sh", lambda path: None, {})


def env(options):
    return submitted(options).content["spec"].get("runtime", {}).get("env", {})


def notes(options, kind):
    return [str(note) for note in submitted(options).notes if note.kind is kind]


@pytest.mark.parametrize(
    "options",
    [
        """--runtime-env-json='{"env_vars": {"NCCL_DEBUG": "WARN", "N": 1}}'""",
        """--runtime-env-json '{"env_vars": {"NCCL_DEBUG": "WARN", "N": 1}, "working_dir": "."}'""",
        """--runtime-env-json="{\\"env_vars\\": {\\"NCCL_DEBUG\\": \\"WARN\\", \\"N\\": \\"$A\\"}}\"""",
    ],
)
def test_variables_are_carried_over_with_their_origin(options):
    assert env(options) == {"NCCL_DEBUG": "WARN", "N": "1"}
    assert "NCCL_DEBUG: WARN  # NCCL_DEBUG=WARN, line 2" in text(submitted(options), "run.sh")


def test_a_secret_is_named_and_never_written():
    options = """--runtime-env-json '{"env_vars": {"HF_TOKEN": "hf_abc"}}'"""

    assert env(options) == {}
    assert notes(options, NoteKind.LOST)[0].startswith("HF_TOKEN (hidden), line 2: a manifest holds no secret")
    assert "hf_abc" not in text(submitted(options), "run.sh")


def test_what_the_learner_sets_itself_is_not_needed_and_a_path_is_to_be_checked():
    options = """--runtime-env-json '{"env_vars": {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "PYTHONPATH": "/root/M"}}'"""

    assert env(options) == {"PYTHONPATH": "/root/M"}
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1, line 2: the learner sets it with training.sequenceParallel" in notes(
        options, NoteKind.NEEDLESS
    )
    assert "PYTHONPATH=/root/M, line 2" in "".join(notes(options, NoteKind.CHECK))


@pytest.mark.parametrize(
    "options",
    [
        '--runtime-env-json="${RUNTIME_ENV_JSON}"',
        """--runtime-env-json '{"env_vars": 3}'""",
        "--runtime-env env.yaml",
        """--runtime-env-json="{\\"env_vars\\": {\\"X\\": \\"${LINKS}\\"}}\"""",
    ],
)
def test_what_is_not_known_is_named(options):
    assert env(options) == {}
    assert "spec.runtime.env" in notes(options, NoteKind.UNKNOWN)[0]

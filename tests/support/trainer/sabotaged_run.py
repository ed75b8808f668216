"""Runs that are to be sabotaged, healthy otherwise, and what they say of themselves."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from rljob_api.exits import Exit
from rljob_cli.doctor.logs import named as logs_of
from rljob_cli.doctor.logs import scanned
from rljob_doctor.diagnosis import Diagnosis, diagnose
from support.trainer.tiny_models import VOCABULARY_SIZE
from support.trainer.whole_run import WholeRun

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


def rewrite(model: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the tensors of a checkpoint in one file."""
    file = model / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def finish(run: WholeRun, code: Exit = Exit.OK) -> WholeRun:
    run.start()
    assert run.end(420) == code, run.output
    assert run.left_behind() == []
    return run


def named(run: WholeRun) -> tuple[str, ...]:
    """Return the codes that `rljob doctor RUN_DIR` finds in a run that failed, the most probable first."""
    return tuple(finding.failure.code for finding in diagnosed(run).findings)


def overcome(run: WholeRun) -> tuple[str, ...]:
    """Return the codes that `rljob doctor RUN_DIR` finds in a run that finished."""
    return diagnosed(run).overcome


def diagnosed(run: WholeRun) -> Diagnosis:
    return diagnose([scanned(path, name) for path, name in logs_of([run.run_directory])])


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

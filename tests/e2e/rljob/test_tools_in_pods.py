"""A job trains in pods whose model calls tools; its code runs in pods of their own."""

import json
from pathlib import Path

import pytest

from local_cluster.kubectl import Kubectl
from local_cluster.project import Workspace
from support.operator.job_in_pods import JobInPods
from support.trainer.taught_model import taught_llama

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

SYSTEM = "Use the tool python."
CODE = "import socket; print(socket.gethostname())"
CALL = f"<tool_call>\n{json.dumps({'name': 'python', 'arguments': {'code': CODE}})}\n</tool_call>"
RESULTS = ("tiny-1a2b3-1-tools-0", "tiny-9f8e7-1-tools-1", "x-00000-2-tools-0")
STEPS = 3


def model(directory: Path) -> Path:
    """Write a model that asks for the name of the machine, and then answers 42."""
    conversations = [
        [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"{n} + {n + 1} ="},
            {"role": "assistant", "content": CALL},
            {"role": "tool", "content": result},
            {"role": "assistant", "content": "42"},
        ]
        for n in (0, 1, 5, 9, 20, 33, 46)
        for result in RESULTS
    ]
    return taught_llama(directory, conversations)


def test_code_of_a_model_runs_in_pods_of_its_own_while_the_job_trains(kubectl: Kubectl, place: Workspace) -> None:
    tools = {"functions": ["python"], "concurrency": 2, "memoryMib": 256}
    job = JobInPods(
        kubectl,
        place,
        write_model=model,
        data={"systemPrompt": SYSTEM},
        rollout={"contextLength": 512, "sampling": {"maxNewTokens": 160}, "tools": tools},
        training={"steps": STEPS, "optimizer": {"learningRate": 1.0e-6}},
    )
    job.until(lambda: job.phase == "Training")
    names = {pod["metadata"]["name"] for pod in job.pods() if "rljob.dev/tools" in pod["metadata"]["labels"]}
    assert {name.rpartition("-tools-")[2] for name in names} == {"0", "1"}
    job.succeed()
    assert job.step == STEPS
    (first,) = job.events("first_step")
    written = [part["text"] for sample in first["samples"] for part in sample["segments"] if not part["by_model"]]
    found = {name for name in names for text in written if name in text}
    assert found == names, written
    job.until(lambda: job.pods() == [])

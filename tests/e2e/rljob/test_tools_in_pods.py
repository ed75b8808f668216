"""A job trains in pods whose model calls tools; its code runs in pods of their own."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster.kubectl import Kubectl
from local_cluster.project import HELM_OPTIONS, RELEASE, Workspace, helm
from support.operator.job_in_pods import JobInPods
from support.trainer.taught_model import taught_llama

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

SYSTEM = "Use the tool python."
CODE = "import socket; print(socket.gethostname())"
CALL = f"<tool_call>\n{json.dumps({'name': 'python', 'arguments': {'code': CODE}})}\n</tool_call>"
RESULTS = ("tiny-1a2b3-1-tools-0", "tiny-9f8e7-1-tools-1", "x-00000-2-tools-0")
STEPS = 3
UPGRADE = ("upgrade", RELEASE, "charts/rljob", *HELM_OPTIONS, "--reuse-values")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that asks for the name of the machine, and then answers 42."""
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
    directory = tmp_path_factory.mktemp("taught")
    directory.chmod(0o755)  # pods read a copy of it as another user
    return taught_llama(directory, conversations)


@pytest.fixture
def sandboxes(agent_sandbox_on_node: None, kubectl: Kubectl) -> Iterator[None]:
    """The operator makes Sandboxes of agent-sandbox while a test runs."""
    helm(kubectl, *UPGRADE, "--set=agentSandbox.enabled=true")
    yield
    helm(kubectl, *UPGRADE, "--set=agentSandbox.enabled=false")


def trains(kubectl: Kubectl, place: Workspace, model: Path) -> None:
    """Train a job to its end; pods for tools have answered calls, and no pod is left."""
    tools = {"functions": ["python"], "concurrency": 2, "memoryMib": 256}
    job = JobInPods(
        kubectl,
        place,
        write_model=lambda directory: shutil.copytree(model, directory),
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
    # Which pods the few samples of this record have called depends on their order.
    assert found, written
    job.until(lambda: job.pods() == [])


def test_code_of_a_model_runs_in_pods_of_its_own_while_the_job_trains(
    kubectl: Kubectl, place: Workspace, model: Path
) -> None:
    trains(kubectl, place, model)


@pytest.mark.usefixtures("sandboxes")
def test_code_of_a_model_runs_in_sandboxes_of_agent_sandbox(kubectl: Kubectl, place: Workspace, model: Path) -> None:
    trains(kubectl, place, model)
    assert kubectl.get("sandboxes", "-n", place.namespace)["items"] == []

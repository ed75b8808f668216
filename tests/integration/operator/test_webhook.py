"""The webhook behind a real API server, with the chart's rights: what a user reads in the terminal."""

import asyncio
import base64
import json
import os
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from local_cluster.kubectl import Kubectl
from rljob_operator.cluster.cluster import Cluster
from rljob_operator.webhook import certificate
from rljob_operator.webhook.certificate import SERVER_DAYS, Pair
from rljob_operator.webhook.certificate_renewal import encoded, renewed
from rljob_operator.webhook.secret_path import PathKeeper
from support.operator.operator_world import raw_job
from support.operator.webhook_process import WebhookProcess
from support.waiting import eventually

Apply = Callable[..., subprocess.CompletedProcess[str]]
HOSTS = ("127.0.0.1",)
LONG_AGO = certificate.now() - timedelta(days=SERVER_DAYS + 1)
"""a certificate of that day has expired, its authority has not"""
TYPO = {"extraArgs": {"sglang": {"mem-fraction-statics": 0.5}}}
"""only the webhook refuses it"""


@pytest.fixture
def apply(kubectl: Kubectl, namespace: str) -> Apply:
    """Apply an RLJob with kubectl, and return what it prints."""

    def applied(*options: str, **sections: Any) -> subprocess.CompletedProcess[str]:
        raw = raw_job("sums", **sections)
        raw["metadata"] = {"name": "sums", "namespace": namespace}
        return subprocess.run(
            [str(kubectl.program), "apply", *options, "-f", "-"],
            input=json.dumps(raw),
            env={**os.environ, **kubectl.environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return applied


def test_an_unknown_argument_is_refused_in_the_terminal(webhook: WebhookProcess, apply: Apply) -> None:
    done = apply(**TYPO)
    assert done.returncode != 0
    assert 'admission webhook "rljobs.rljob.dev" denied the request: spec.extraArgs.sglang' in done.stderr
    assert "nearest valid: spec.extraArgs.sglang.mem-fraction-static" in done.stderr
    assert 'rljob_webhook_reviews_total{reason="BadManifest"} 1.0' in webhook.metrics()


def test_a_dry_run_prints_the_plan(webhook: WebhookProcess, apply: Apply) -> None:
    done = apply("--dry-run=server")
    assert "created (server dry run)" in done.stdout
    assert "Warning: plan: Disaggregated, 4 processes on 2 nodes (2 × 2)" in done.stderr
    assert "Warning: plan: a step has 4 prompts × 4 samples = 16 samples" in done.stderr


def test_a_job_is_taken_without_a_word(webhook: WebhookProcess, apply: Apply) -> None:
    done = apply()
    assert (done.returncode, done.stderr) == (0, "")


def test_a_field_that_the_api_server_drops_is_named(webhook: WebhookProcess, apply: Apply) -> None:
    done = apply("--validate=ignore", rollout={"n_samples_per_prompt": 4})
    assert done.returncode == 0
    assert "Warning: spec.rollout.n_samples_per_prompt: is unknown and was dropped; nearest valid:" in done.stderr


def test_a_job_that_its_quota_can_never_take_is_refused_with_the_nearest_setting(
    kubectl: Kubectl, namespace: str, webhook: WebhookProcess, apply: Apply
) -> None:
    kubectl("create", "quota", "few", "--hard=pods=2", "-n", namespace)
    refused = eventually(lambda: apply("--dry-run=server"), lambda done: done.returncode != 0, 60)
    assert (
        "the job can never start: needs 3 pods; ResourceQuota few allows 2 pods in all; "
        "spec.placement: Colocated would need 2 pods" in refused.stderr
    )
    assert apply("--dry-run=server", placement="Colocated").returncode == 0


def test_without_a_webhook_the_rules_of_the_crd_hold_and_jobs_are_taken(
    kubectl: Kubectl, namespace: str, webhook: WebhookProcess, apply: Apply
) -> None:
    assert apply().returncode == 0
    assert webhook.terminate() == 0
    assert "spec.training.tensorParallel" in apply(training={"tensorParallel": 3}).stderr
    assert apply(suspend=True).returncode == 0
    kubectl("delete", "rljob", "sums", "-n", namespace)


def test_with_the_policy_fail_no_job_is_taken_without_a_webhook(
    kubectl: Kubectl, namespace: str, tmp_path: Path, apply: Apply
) -> None:
    with closing(WebhookProcess(kubectl, namespace, tmp_path, "--set", "webhook.failurePolicy=Fail")) as process:
        process.until_ready()
        assert apply().returncode == 0
        process.terminate()
        done = apply(suspend=True)
        assert 'failed calling webhook "rljobs.rljob.dev"' in done.stderr


def test_a_bundle_and_a_certificate_that_somebody_removed_come_back(
    kubectl: Kubectl, namespace: str, webhook: WebhookProcess, apply: Apply
) -> None:
    before = webhook.bundle()
    empty = json.dumps([{"op": "remove", "path": "/data"}])
    kubectl("patch", "secret", f"{webhook.name}-certificate", "-n", namespace, "--type=json", "-p", empty)
    eventually(webhook.bundle, lambda bundle: bundle not in ("", before), 120)
    assert "denied the request" in apply(**TYPO).stderr


def test_the_api_server_takes_the_path_for_a_service(kubectl: Kubectl, namespace: str) -> None:
    """The chart names a Service, and the parts of a Service's path have to be names of DNS."""
    client = {"caBundle": "", "service": {"name": "absent", "namespace": namespace, "port": 443}}
    hook = {"name": "path.rljob.dev", "clientConfig": client, "sideEffects": "None", "failurePolicy": "Ignore"}
    hook |= {"admissionReviewVersions": ["v1"], "namespaceSelector": {"matchLabels": {"rljob.dev/none": "none"}}}
    api = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    kubectl.apply({**api, "metadata": {"name": namespace}, "webhooks": [hook]})
    kubectl.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "path", "namespace": namespace}})
    used: list[str] = []

    async def look() -> None:
        cluster = await Cluster.connect(str(kubectl.kubeconfig), "webhook")
        try:
            await PathKeeper(cluster, (namespace, "path"), namespace, used.append).look()
        finally:
            await cluster.close()

    try:
        asyncio.run(look())
        known = kubectl.get("validatingwebhookconfiguration", namespace)["webhooks"][0]["clientConfig"]["service"]
        assert known["path"] == used[0]
    finally:
        kubectl("delete", "validatingwebhookconfiguration", namespace)


def test_who_does_not_know_the_secret_path_gets_no_answer(webhook: WebhookProcess) -> None:
    trusted = ssl.create_default_context(cadata=base64.b64decode(webhook.bundle()).decode())
    review = json.dumps({"request": {"uid": "u", "operation": "CREATE", "namespace": "other", "object": None}})

    def status(path: str) -> int:
        asked = urllib.request.Request(f"https://127.0.0.1:{webhook.port}{path}", review.encode())
        try:
            with urllib.request.urlopen(asked, timeout=10, context=trusted) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert [status(path) for path in ("/", "/validate", webhook.path()[:-1], webhook.path())] == [404, 404, 404, 200]
    assert webhook.path().strip("/") not in webhook.log


@pytest.mark.parametrize(
    ("change", "is_allowed"),
    [
        ([{"op": "replace", "path": "/webhooks/0/rules/0/resources", "value": ["*"]}], False),
        ([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"}], False),
        ([{"op": "remove", "path": "/webhooks/0/namespaceSelector"}], False),
        ([{"op": "replace", "path": "/webhooks/0/clientConfig/url", "value": "https://elsewhere:1/x"}], False),
        ([{"op": "add", "path": "/metadata/labels/other", "value": "x"}], False),
        ([{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": ""}], True),
    ],
)
def test_the_webhook_may_change_bundle_and_path_of_its_configuration_and_nothing_else(
    kubectl: Kubectl, namespace: str, webhook: WebhookProcess, change: list[dict[str, Any]], is_allowed: bool
) -> None:
    as_webhook = f"--as=system:serviceaccount:{namespace}:{webhook.name}"

    def patched(wanted: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
        patch = ("patch", "validatingwebhookconfiguration", webhook.name, "--type=json", "-p", json.dumps(wanted))
        return subprocess.run(
            [str(kubectl.program), *patch, as_webhook, "--dry-run=server"],
            env={**os.environ, **kubectl.environment},
            capture_output=True,
            text=True,
            check=False,
        )

    label = [{"op": "add", "path": "/metadata/labels/other", "value": "x"}]
    eventually(lambda: patched(label).returncode, bool)  # an API server knows a policy a moment after it has stored it
    done = patched(change)
    assert (done.returncode == 0) == is_allowed, done.stderr
    assert is_allowed or "the webhook changes nothing but caBundle and path" in done.stderr


def test_a_certificate_that_expired_while_no_replica_ran_is_replaced(
    kubectl: Kubectl, namespace: str, tmp_path: Path, apply: Apply
) -> None:
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"{namespace}-webhook-certificate", "namespace": namespace},
            "data": encoded(renewed(None, HOSTS, LONG_AGO)),
        }
    )
    with closing(WebhookProcess(kubectl, namespace, tmp_path)) as process:
        process.until_ready()
        assert "denied the request" in eventually(lambda: apply(**TYPO).stderr, bool)
        assert "action=renew-certificate" in process.log


def test_while_the_certificate_of_somebody_else_is_expired_the_rules_of_the_crd_hold(
    kubectl: Kubectl, namespace: str, tmp_path: Path, apply: Apply
) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    expired = renewed(None, HOSTS, LONG_AGO)
    write(mounted, expired.server)
    with closing(WebhookProcess(kubectl, namespace, tmp_path, mounted=mounted)) as process:
        process.trust(expired.bundle)
        process.until_ready()
        assert "spec.training.tensorParallel" in apply(training={"tensorParallel": 3}).stderr
        assert apply("--dry-run=server", **TYPO).returncode == 0
        write(mounted, certificate.server(HOSTS, expired.authority, certificate.now()))
        assert "denied the request" in eventually(lambda: apply("--dry-run=server", **TYPO).stderr, has_denied, 60)


def has_denied(stderr: str) -> bool:
    return "denied the request" in stderr


def write(directory: Path, pair: Pair) -> None:
    (directory / "tls.crt").write_text(pair.certificate)
    (directory / "tls.key").write_text(pair.key)


def test_match_conditions_exempt_requests(kubectl: Kubectl, namespace: str, tmp_path: Path, apply: Apply) -> None:
    condition = {"name": "not-exempt", "expression": "object.spec.training.steps < 100"}
    with closing(
        WebhookProcess(kubectl, namespace, tmp_path, "--set-json", f"webhook.matchConditions={json.dumps([condition])}")
    ) as process:
        process.until_ready()
        assert apply("--dry-run=server", **TYPO).returncode != 0
        assert apply("--dry-run=server", training={"steps": 100}, **TYPO).returncode == 0

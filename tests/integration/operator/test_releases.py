"""Two releases of the chart that watch one namespace."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from local_cluster.kubectl import Kubectl
from support.operator.fake_head import FakeHeads, serving
from support.operator.operator_process import OperatorProcess, install_rights, kubeconfig_of
from support.waiting import eventually

OTHER = "second"
"""name of the other release's objects"""
ACTIONS = ("action=apply", "action=create", "action=delete", "action=event")


def reconciles(operator: OperatorProcess) -> float:
    lines = operator.get("/metrics")[1].splitlines()
    return float(next(line for line in lines if line.startswith("rljob_operator_reconcile_seconds_count")).split()[1])


def test_a_job_belongs_to_one_release_until_that_one_is_gone(
    kubectl: Kubectl, new_job: Callable, start: Callable, namespace: str, heads: FakeHeads, tmp_path: Path
) -> None:
    first, job = start("first"), new_job()
    status = job.until("Training")
    assert status["release"] == f"{namespace}/{namespace}-operator"

    install_rights(kubectl, namespace, "--set", f"namespaces={{{namespace}}},fullnameOverride={OTHER}")
    config = kubeconfig_of(kubectl, namespace, OTHER, tmp_path)
    with serving(heads) as url:

        def other(name: str) -> OperatorProcess:
            return OperatorProcess(config, namespace, url, tmp_path / f"{name}.log", more=(f"--lease={OTHER}",))

        with other("beside") as beside:
            eventually(lambda: beside.log, lambda log: "action=lead" in log)
            eventually(lambda: reconciles(beside), lambda count: count >= 1)
            kubectl("delete", "networkpolicy", "--all", "-n", namespace)
            eventually(lambda: kubectl.names("networkpolicy", "-n", namespace), lambda names: len(names) == 1)
            log = beside.log.replace(f"action=create kind=Secret name={OTHER}-key", "")
            assert [action for action in ACTIONS if action in log] == []
            assert beside.terminate() == 0

        assert first.terminate() == 0
        renewed = (datetime.now(UTC) - timedelta(minutes=16)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lease = json.dumps({"spec": {"renewTime": renewed}})
        kubectl("patch", "lease", f"{namespace}-operator", "-n", namespace, "--type=merge", "-p", lease)
        key = kubectl.get("secret", f"{namespace}-operator-key", "-n", namespace)["data"]["key"]
        with_key = json.dumps({"data": {"of-the-first": key}})
        kubectl("patch", "secret", f"{OTHER}-key", "-n", namespace, "-p", with_key)
        with other("after"):
            eventually(lambda: job.raw()["status"]["release"], lambda name: name == f"{namespace}/{OTHER}", 60)
            kubectl("delete", "networkpolicy", "--all", "-n", namespace)
            eventually(lambda: kubectl.names("networkpolicy", "-n", namespace), lambda names: len(names) == 1)
            assert job.until("Training")["attempt"] == 1
            assert len(heads.submissions) == 1
            assert "TakenOver" in job.events()

"""The operator's command line: what each option sets, and what is refused."""

import os
import socket
from pathlib import Path

import pytest

from rljob_api.status import ToolPodOwner
from rljob_operator import settings as command_line
from rljob_operator.queueing.ticket import Rules
from rljob_operator.settings import Settings, settings
from rljob_operator.world.world import Defaults, Storage

EVERYTHING = (
    *("--queue=On", "--queue-patience=60", "--fair-share", "--autoscaler=[]"),
    *(
        "--kubeconfig",
        "/config",
        "--namespace",
        "ml",
        "--namespace",
        "lab",
        "--lease-namespace",
        "rljob",
        "--lease",
        "mine",
        "--identity",
        "one",
        "--port",
        "9090",
    ),
    *(
        "--workers",
        "3",
        "--image",
        "trainer:1",
        "--scrapers",
        '{"team":"monitoring"}',
        "--storage",
        '{"hostPath":{"path":"/data"}}',
    ),
    *(
        "--storage-path",
        "/runs",
        "--head-resources",
        '{"requests":{"memory":"8Gi"}}',
        "--worker-resources",
        '{"limits":{"cpu":"4"}}',
    ),
    *("--egress", '[{"ports":[{"port":443}]}]'),
    *("--service-url", "http://proxy/{namespace}/{service}/{port}", "--log-level", "DEBUG"),
    *("--head-address", "Service"),
    *("--run-directory-ttl", "86400", "--sweep-seconds", "5", "--kueue", "--agent-sandbox"),
    *("--start-seconds", "7200", "--drain-seconds", "900", "--lost-pod-seconds", "45", "--avoided-nodes", "3"),
)


def test_every_option_has_its_effect():
    assert settings(EVERYTHING, {"KUBECONFIG": "/other"}) == Settings(
        kubeconfig="/config",
        namespaces=("ml", "lab"),
        lease_namespace="rljob",
        lease="mine",
        key_secret="mine-key",
        identity="one",
        port=9090,
        workers=3,
        service_url="http://proxy/{namespace}/{service}/{port}",
        heads_by_pod=False,
        sweep_s=5.0,
        log_level="DEBUG",
        defaults=Defaults(
            image="trainer:1",
            storage=Storage({"hostPath": {"path": "/data"}}, "/runs"),
            scrapers={"team": "monitoring"},
            operator_namespace="rljob",
            egress=({"ports": [{"port": 443}]},),
            head_resources={"requests": {"memory": "8Gi"}},
            worker_resources={"limits": {"cpu": "4"}},
            ttl_after_deletion_s=86400,
            longest_start_s=7200,
            longest_drain_s=900,
            lost_pod_s=45,
            avoided_nodes=3,
            has_kueue=True,
            tool_pod_owner=ToolPodOwner.SANDBOX,
            release="rljob/mine",
        ),
        queue=Rules(60.0, fair_share=True),
        coming=(),
    )


def test_without_options_it_runs_as_in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "namespace").write_text("rljob\n")
    monkeypatch.setattr(command_line, "IN_CLUSTER_NAMESPACE", tmp_path / "namespace")

    assert settings([], {}) == Settings(
        kubeconfig=None,
        namespaces=(),
        lease_namespace="rljob",
        lease="rljob-operator",
        key_secret="rljob-operator-key",
        identity=f"{socket.gethostname()}-{os.getpid()}",
        port=8080,
        workers=8,
        service_url="http://{service}.{namespace}.svc:{port}",
        heads_by_pod=True,
        sweep_s=60.0,
        log_level="INFO",
        defaults=Defaults(
            image=None,
            storage=None,
            scrapers=None,
            operator_namespace="rljob",
            egress=None,
            head_resources={},
            worker_resources={},
            release="rljob/rljob-operator",
        ),
        queue=Rules(600.0, fair_share=False),
        coming=None,
    )


def test_the_queue_can_be_switched_off():
    assert settings(["--queue=Off"], {}).queue is None


def test_outside_of_a_pod_the_lease_is_in_the_default_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command_line, "IN_CLUSTER_NAMESPACE", tmp_path / "absent")

    assert settings([], {}).lease_namespace == "default"


def test_the_environment_names_a_kubeconfig_and_storage_has_a_usual_path():
    given = settings(["--lease-namespace", "a", "--storage", '{"emptyDir": {}}'], {"KUBECONFIG": "/other"})

    assert (given.kubeconfig, given.defaults.storage) == ("/other", Storage({"emptyDir": {}}, "/rljob"))


def test_a_service_is_reached_by_its_url():
    given = settings(EVERYTHING, {})

    assert given.resolve("ml", "sums-driver", 8265) == "http://proxy/ml/sums-driver/8265"


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--scrapers", '["team"]', 'must be a JSON object of strings, for example {"team": "monitoring"}'),
        ("--scrapers", '{"team": 1}', 'must be a JSON object of strings, for example {"team": "monitoring"}'),
        ("--egress", "{}", 'must be a JSON list of rules, for example [{"ports": [{"port": 443}]}]'),
        ("--storage", "[]", 'must be a JSON object, for example {"hostPath": {"path": "/data"}}'),
        ("--head-resources", "3", 'must be a JSON object, for example {"requests": {"memory": "8Gi"}}'),
        ("--log-level", "LOUD", "invalid choice: 'LOUD'"),
    ],
)
def test_a_wrong_value_ends_the_process_with_an_example(option, text, message, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        settings([option, text], {})

    assert f"python -m rljob_operator: error: argument {option}: {message}" in capsys.readouterr().err

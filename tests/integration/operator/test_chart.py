"""The chart, rendered by the real helm, and applied as a dry run to a real API server."""

import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster.binaries import manifests
from local_cluster.kubectl import Kubectl
from rljob_api.status import ToolPodOwner
from rljob_operator.children.children import OPERATOR_LABELS
from rljob_operator.identity import CONTROL_PORT, DASHBOARD_PORT
from rljob_operator.settings import settings
from rljob_operator.webhook.settings import settings as webhook_settings
from rljob_operator.world.world import Storage
from support.operator.helm_release import rendered
from support.operator.operator_process import ROOT, helm

MONITORED = (
    "--set=monitoring.podMonitors.enabled=true,monitoring.rules.enabled=true,monitoring.dashboards.enabled=true",
    "--set=monitoring.rules.runbooks=https://docs/runbooks/",
)
EVERYTHING = (
    "--set=trainer.image=t:1,priorityClassName=system-cluster-critical,podLabels.a=b,podAnnotations.c=d",
    "--set=imagePullSecrets[0].name=registry,serviceAccount.annotations.e=f,nodeSelector.g=h",
    '--set-json=extraEnv=[{"name":"HTTPS_PROXY","value":"http://proxy:3128"}]',
    '--set-json=tolerations=[{"operator":"Exists"}]',
    '--set-json=affinity={"podAntiAffinity":{}}',
    '--set-json=trainer.storage={"persistentVolumeClaim":{"claimName":"runs"}}',
    "--set=topologySpreadConstraints[0].maxSkew=1,topologySpreadConstraints[0].topologyKey=zone",
    "--set=topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway",
    "--set=topologySpreadConstraints[0].labelSelector.matchLabels.a=b",
)
"""values that show each part of the templates"""


def test_a_packaged_chart_carries_the_crd_as_it_is_generated(tmp_path: Path):
    helm("package", "--destination", str(tmp_path))
    (package,) = tmp_path.glob("*.tgz")
    with tarfile.open(package) as archive:
        found = archive.extractfile("rljob/files/rljob.dev_rljobs.yaml")
        assert found is not None
        assert found.read() == (ROOT / "crds/rljob.dev_rljobs.yaml").read_bytes()


def test_operator_and_webhook_leave_a_dead_node_sooner_than_other_pods():
    values = ("--set=lostNodeSeconds=45", '--set-json=tolerations=[{"key":"gpu","operator":"Exists"}]')
    chart = rendered("--set=trainer.image=t:1", *values)
    for name in ("Deployment/rl-operator", "Deployment/rl-webhook"):
        found = chart[name]["spec"]["template"]["spec"]["tolerations"]
        assert {each["key"]: each.get("tolerationSeconds") for each in found} == {
            "gpu": None,
            "node.kubernetes.io/not-ready": 45,
            "node.kubernetes.io/unreachable": 45,
        }


def test_helm_finds_nothing_to_say_against_it():
    assert "0 chart(s) failed" in helm("lint", "--strict")


@pytest.mark.parametrize(
    ("values", "there"),
    [
        ((), True),
        (("--set=namespaces={a}",), False),
        (("--set=namespaces={a}", "--set=operatorPolicy.enabled=true"), True),
        (("--set=operatorPolicy.enabled=false",), False),
    ],
)
def test_the_operator_s_policy_is_installed_where_the_chart_may_install_for_the_whole_cluster(
    values: tuple[str, ...], there: bool
):
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    found = rendered(*values)
    assert [f"{kind}/rl-operator-own" in found for kind in kinds] == [there, there]


def test_the_operator_s_policy_names_the_account_that_the_chart_gives_it():
    policy = rendered("--set=serviceAccount.name=mine")["ValidatingAdmissionPolicy/rl-operator-own"]
    (condition,) = policy["spec"]["matchConditions"]
    assert condition["expression"] == "request.userInfo.username == 'system:serviceaccount:rljob:mine'"


def operator_pod(*values: str) -> dict:
    found: dict = rendered(*values)["Deployment/rl-operator"]["spec"]["template"]["spec"]
    return found


def test_a_digest_comes_before_the_tag():
    digest = f"sha256:{'a' * 64}"
    (container,) = operator_pod("--set", f"image.repository=r/o,image.tag=v1,image.digest={digest}")["containers"]
    assert container["image"] == f"r/o@{digest}"


@pytest.mark.parametrize(
    ("value", "name"),
    [("nameOverride=trainer", "rl-trainer"), ("fullnameOverride=training", "training")],
)
def test_the_objects_may_have_another_name_and_keep_the_labels_that_policies_select(value: str, name: str):
    found = rendered("--set", value)
    deployment = found[f"Deployment/{name}"]
    assert f"ServiceAccount/{name}" in found
    assert OPERATOR_LABELS.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_labels_of_all_objects_never_replace_the_chart_s_own():
    found = rendered("--set", r"commonLabels.team=rl,commonLabels.app\.kubernetes\.io/name=other")
    labels = [each["metadata"]["labels"] for each in found.values()]
    assert {each["team"] for each in labels} == {"rl"}
    assert {each["app.kubernetes.io/name"] for each in labels} == {
        "rljob-operator",
        "rljob-webhook",
        "rljob-operator-test",
    }


def test_arguments_volumes_and_contexts_reach_the_operator_s_pod():
    pod = operator_pod(
        "--set=workers=3,extraArgs[0]=--sweep-seconds=5,securityContext.readOnlyRootFilesystem=false",
        "--set=podSecurityContext.runAsUser=7,extraVolumes[0].name=ca,extraVolumes[0].secret.secretName=ca",
        "--set=extraVolumeMounts[0].name=ca,extraVolumeMounts[0].mountPath=/etc/ca",
    )
    (container,) = pod["containers"]
    given = settings(container["args"], {})
    assert (given.workers, given.sweep_s) == (3, 5.0)
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 7,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"]["readOnlyRootFilesystem"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["volumes"] == [{"name": "ca", "secret": {"secretName": "ca"}}]
    assert container["volumeMounts"] == [{"name": "ca", "mountPath": "/etc/ca"}]


def test_the_operator_understands_what_the_chart_passes_to_it():
    storage = '{"persistentVolumeClaim":{"claimName":"runs"}}'
    more = ["--set", "trainer.headResources.requests.cpu=2", "--set", "trainer.workerResources.limits.memory=8Gi"]
    more += ["--set", "trainer.runDirectoryTtlSeconds=604800"]
    found = rendered("--set", "trainer.image=t:1,namespaces={a,b}", "--set-json", f"trainer.storage={storage}", *more)
    (container,) = found["Deployment/rl-operator"]["spec"]["template"]["spec"]["containers"]
    given = settings(container["args"], {})
    assert (given.defaults.image, given.namespaces, given.lease) == ("t:1", ("a", "b"), "rl-operator")
    assert given.defaults.storage == Storage({"persistentVolumeClaim": {"claimName": "runs"}})
    assert given.defaults.head_resources == {"requests": {"cpu": 2, "memory": "2Gi"}}
    assert given.defaults.worker_resources == {"limits": {"memory": "8Gi"}}
    assert given.defaults.ttl_after_deletion_s == 604800
    assert given.defaults.tool_pod_owner is ToolPodOwner.STATEFUL_SET


def test_the_operator_and_the_check_hear_that_agent_sandbox_makes_the_pods_for_tools():
    found = rendered("--set=agentSandbox.enabled=true")
    (container,) = found["Deployment/rl-operator"]["spec"]["template"]["spec"]["containers"]
    assert settings(container["args"], {}).defaults.tool_pod_owner is ToolPodOwner.SANDBOX
    (check,) = found["Pod/rl-operator-test"]["spec"]["containers"]
    assert "--agent-sandbox" in check["args"]


def test_operator_and_webhook_get_the_settings_for_the_pods_of_all_jobs():
    wanted = {
        "runtime": {"imagePullSecrets": ["registry"], "env": {"GREETING": "it's", "HOST": "$(NODE)"}},
        "pods": {"trainer": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}},
    }
    found = rendered("--set-json", f"trainer.defaults={json.dumps(wanted)}")
    for name, read in (("operator", settings), ("webhook", webhook_settings)):
        (container,) = found[f"Deployment/rl-{name}"]["spec"]["template"]["spec"]["containers"]
        assert "$$(NODE)" in str(container["args"])  # a kubelet replaces $(NODE), and writes $$( as $(
        assert read([each.replace("$$(", "$(") for each in container["args"]], {}).defaults.settings == wanted


@pytest.mark.parametrize("wrong", ['{"training":{}}', '{"runtime":{"image":"x"}}', '{"pods":{"head":{"template":{}}}}'])
def test_helm_refuses_what_cannot_be_a_default_of_jobs(wrong: str):
    with pytest.raises(RuntimeError, match="defaults"):
        rendered("--set-json", f"trainer.defaults={wrong}")


def test_jobs_let_the_chart_s_pods_in():
    labels = rendered()["Deployment/rl-operator"]["spec"]["template"]["metadata"]["labels"]
    assert OPERATOR_LABELS.items() <= labels.items()


def test_jobs_let_the_chart_s_pods_in_from_the_release_s_namespace_alone():
    deployment = rendered()["Deployment/rl-operator"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert settings(container["args"], {}).defaults.operator_namespace == deployment["metadata"]["namespace"]


@pytest.mark.parametrize(
    ("values", "egress"),
    [
        ((), None),
        (("--set-json", "trainer.egress=[]"), ()),
        (("--set-json", 'trainer.egress=[{"ports":[{"port":443}]}]'), ({"ports": [{"port": 443}]},)),
    ],
)
def test_what_jobs_may_reach_is_given_to_the_operator(values: tuple, egress: tuple | None):
    (container,) = rendered(*values)["Deployment/rl-operator"]["spec"]["template"]["spec"]["containers"]
    assert settings(container["args"], {}).defaults.egress == egress


def test_namespaces_narrow_the_rights_to_them():
    found = rendered("--set", "namespaces={a}", "--set", "crd.install=false,userRoles.create=false")
    assert not [name for name in found if name.startswith(("Cluster", "CustomResource"))]
    assert found["Role/rl-operator"]["metadata"]["namespace"] == "a"
    assert found["RoleBinding/rl-operator"]["metadata"]["namespace"] == "a"
    assert found["RoleBinding/rl-operator"]["roleRef"]["kind"] == "Role"


def test_the_image_has_no_default_that_somebody_else_could_own():
    with pytest.raises(RuntimeError, match=r"image\.repository is empty: build the image and name it"):
        helm("template", "rl", "--set", "image.repository=")


def test_the_podmonitor_of_jobs_limits_what_a_job_shows():
    spec = rendered("--set", "monitoring.podMonitors.enabled=true")["PodMonitor/rl-operator-jobs"]["spec"]
    assert (spec["sampleLimit"], spec["labelLimit"], spec["bodySizeLimit"]) == (10000, 40, "8MB")


def test_no_secret_of_a_job_is_readable_by_default():
    rules = rendered("--api-versions", "ray.io/v1/RayCluster")["ClusterRole/rl-operator"]["rules"]
    assert [each["verbs"] for each in rules if each["resources"] == ["secrets"]] == [["create", "delete"]]


def test_the_webhook_is_on_unless_it_would_need_rights_that_were_not_given():
    assert "ValidatingWebhookConfiguration/rl-webhook" in rendered()
    assert "Deployment/rl-webhook" not in rendered("--set", "namespaces={a}")
    assert "Deployment/rl-webhook" not in rendered("--set", "webhook.enabled=false")


def test_with_namespaces_the_webhook_sees_and_reviews_only_these():
    labels = '{"matchExpressions":[{"key":"team","operator":"Exists"}]}'
    found = rendered(
        "--set", "namespaces={a},webhook.enabled=true", "--set-json", f"webhook.namespaceSelector={labels}"
    )
    (hook,) = found["ValidatingWebhookConfiguration/rl-webhook"]["webhooks"]
    assert hook["namespaceSelector"]["matchExpressions"] == [
        {"key": "team", "operator": "Exists"},
        {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a"]},
    ]
    assert found["Role/rl-webhook"]["metadata"]["namespace"] == "a"
    cluster_wide = found["ClusterRole/rl-webhook"]["rules"]
    assert [rule["resources"] for rule in cluster_wide] == [["nodes"], ["validatingwebhookconfigurations"]]


def test_the_webhook_understands_what_the_chart_passes_to_it():
    nodes = '[{"count":2,"allocatable":{"nvidia.com/gpu":8}}]'
    found = rendered("--set", "trainer.image=t:1", "--set-json", f"webhook.autoscaler={nodes}")
    (container,) = found["Deployment/rl-webhook"]["spec"]["template"]["spec"]["containers"]
    given = webhook_settings(container["args"], {})
    assert given.names == ("rl-webhook.rljob.svc",)
    assert given.secret == ("rljob", "rl-webhook-certificate")
    assert given.configuration == "rl-webhook"
    assert given.defaults.image == "t:1"
    assert given.coming is not None
    assert len(given.coming) == 2
    (container,) = rendered()["Deployment/rl-webhook"]["spec"]["template"]["spec"]["containers"]
    assert webhook_settings(container["args"], {}).coming is None


def test_cert_manager_makes_the_certificate_when_chosen():
    found = rendered("--set", "webhook.certManager.enabled=true")
    assert found["Certificate/rl-webhook"]["spec"]["issuerRef"] == {"name": "rl-webhook", "kind": "Issuer"}
    assert "Secret/rl-webhook-certificate" not in found
    configuration = found["ValidatingWebhookConfiguration/rl-webhook"]
    assert configuration["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": "rljob/rl-webhook"}
    (container,) = found["Deployment/rl-webhook"]["spec"]["template"]["spec"]["containers"]
    assert webhook_settings(container["args"], {}).directory == Path("/certificate")


@pytest.mark.parametrize(
    ("values", "scrapers"),
    [
        ((), None),
        (("--set", "monitoring.podMonitors.enabled=true"), {}),
        (("--set-json", "monitoring.scrapeFrom={}"), {}),
        (("--set-json", 'monitoring.scrapeFrom={"team":"sre"}'), {"team": "sre"}),
    ],
)
def test_who_may_scrape_is_given_to_the_operator_and_to_its_own_network_policy(values: tuple, scrapers: dict | None):
    found = rendered(*values)
    (container,) = found["Deployment/rl-operator"]["spec"]["template"]["spec"]["containers"]
    assert settings(container["args"], {}).defaults.scrapers == scrapers
    ingress = found["NetworkPolicy/rl-operator"]["spec"]["ingress"]
    selectors = [source["namespaceSelector"] for rule in ingress for source in rule["from"]]
    assert selectors == ([] if scrapers is None else [{"matchLabels": scrapers} if scrapers else {}])


def test_the_operator_reaches_only_what_it_needs_where_the_api_server_is_named():
    usual = rendered()["NetworkPolicy/rl-operator"]["spec"]
    assert usual["policyTypes"] == ["Ingress"] and "egress" not in usual
    server = [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    named = rendered("--set-json", f"networkPolicy.apiServer={json.dumps(server)}")["NetworkPolicy/rl-operator"]["spec"]
    assert named["policyTypes"] == ["Ingress", "Egress"]
    to_server, dns, heads = named["egress"]
    assert to_server == {"to": server}
    assert {(each["port"], each["protocol"]) for each in dns["ports"]} == {(53, "UDP"), (53, "TCP")}
    assert heads["to"] == [{"namespaceSelector": {}}]
    assert [each["port"] for each in heads["ports"]] == [DASHBOARD_PORT, CONTROL_PORT]


def test_one_replica_needs_no_budget_for_its_disruption():
    assert "PodDisruptionBudget/rl-operator" in rendered()
    assert "PodDisruptionBudget/rl-operator" not in rendered("--set", "replicaCount=1")


def test_what_needs_prometheus_or_grafana_is_made_when_asked():
    usual, asked = rendered(), rendered(*MONITORED)
    assert {name.partition("/")[0] for name in asked.keys() - usual.keys()} == {
        "PodMonitor", "PrometheusRule", "ConfigMap",
    }  # fmt: skip
    urls = {
        rule["annotations"]["runbook_url"].partition("#")[0]
        for group in asked["PrometheusRule/rl-operator"]["spec"]["groups"]
        for rule in group["rules"]
    }
    assert urls == {"https://docs/runbooks/"}
    board = asked["ConfigMap/rl-operator-dashboard-job"]
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"]["rljob-job.json"])["uid"] == "rljob-job"


@pytest.mark.parametrize(
    "value",
    [
        "replicaCount=0",
        "trainer.storagePath=rljob",
        "replicas=2",
        "logLevel=chatty",
        "podDisruptionBudget.maxUnavailable=0",
        "monitoring.podMonitors.interval=soon",
        "monitoring.alerts=true",
        "namespaces={A}",
    ],
)
def test_values_that_mean_nothing_are_refused(value: str):
    with pytest.raises(RuntimeError, match=value.partition("=")[0].rpartition(".")[2]):
        helm("template", "rl", "--set", value)


@pytest.fixture
def monitoring_crds(kubectl: Kubectl) -> Iterator[None]:
    """The CRDs of the real Prometheus operator."""
    directory = manifests("prometheus-operator", os.environ)
    files = [f"--filename={directory}/monitoring.coreos.com_{kind}.yaml" for kind in ("podmonitors", "prometheusrules")]
    kubectl("apply", "--server-side", *files)
    kubectl("wait", "--for=condition=Established", "crd", "-l", "!none", "--timeout=30s")
    yield
    kubectl("delete", *files)


def test_an_api_server_takes_all_of_it(kubectl: Kubectl, namespace: str, monitoring_crds: None):
    text = helm("template", "rl", "--no-hooks", "--namespace", namespace, *EVERYTHING, *MONITORED)
    out = kubectl("apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", "-", given=text)
    assert "deployment.apps/rl-operator serverside-applied" in out
    assert "podmonitor.monitoring.coreos.com/rl-operator-jobs serverside-applied" in out
    assert "prometheusrule.monitoring.coreos.com/rl-operator serverside-applied" in out


def test_its_pods_keep_to_the_restricted_standard(kubectl: Kubectl, namespace: str):
    kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    found = rendered(*EVERYTHING)
    templates = [found[f"Deployment/rl-{part}"]["spec"]["template"] for part in ("operator", "webhook")]
    pods = [{"apiVersion": "v1", "kind": "Pod", **each, "metadata": {"name": "pod"}} for each in templates]
    for part in ("operator", "webhook"):
        kubectl("create", "serviceaccount", f"rl-{part}", "-n", namespace)
    for each in (*pods, found["Pod/rl-operator-test"]):
        each["metadata"]["namespace"] = namespace
        kubectl("create", "--dry-run=server", "-f", "-", given=json.dumps(each))
        (container,) = each["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_a_busy_node_does_not_end_what_works():
    objects = rendered("--set=webhook.enabled=true")
    probed = [
        container
        for each in objects.values()
        if each["kind"] == "Deployment"
        for container in each["spec"]["template"]["spec"]["containers"]
    ]
    patience = [each["livenessProbe"]["timeoutSeconds"] * each["livenessProbe"]["failureThreshold"] for each in probed]
    assert len(patience) == 2, "operator and webhook"
    assert min(patience) >= 60, "an answer took more than a second on a node of two cores with a load of 20"

"""The real Kueue, with the rights that its own RBAC manifests give it, for RayClusters and nothing else.

It manages its own certificate, as it does by default. A pod would see the Secret as files; here the files are there
first, and the Secret is made from them, so that Kueue finds a valid certificate for the address that it has here.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from local_cluster.api_server import ApiServer
from local_cluster.binaries import binary, manifests
from local_cluster.certificates import Authority, Certificate
from local_cluster.health import answers
from local_cluster.kubectl import Kubectl, Manifest
from local_cluster.network import LOOPBACK
from local_cluster.ports import free_port
from local_cluster.processes import Started, start

PROGRAMS = ("kueue",)
NAMESPACE = "kueue-system"
USER = f"system:serviceaccount:{NAMESPACE}:kueue-controller-manager"
VERSION = "v1beta2"
"""newer releases serve no other"""
CONVERTED = ("localqueues", "clusterqueues", "workloads", "cohorts", "multikueueclusters")
"""CRDs into which Kueue writes the authority of its conversion webhook, and waits for that"""
GROUPS = {"ray.io", "kueue.x-k8s.io"}
"""whose webhooks are registered: those of Deployments and Jobs would stop the cluster without Kueue"""
SECRET = "kueue-webhook-server-cert"
SERVICE = "kueue-webhook-service"
AUTHORITY = "kueue-ca"
"""name in the certificate of Kueue's authority; it makes another one if it differs"""


def start_kueue(api_server: ApiServer, kubectl: Kubectl, environ: Mapping[str, str]) -> Started:
    """Install Kueue, and start it. The cluster has KubeRay already."""
    components = manifests("kueue", environ) / "components"
    port, probe = free_port(), f"{LOOPBACK}:{free_port()}"
    kubectl("create", "namespace", NAMESPACE)
    kubectl.apply(*_crds(components / "crd" / "bases", port))
    kubectl.wait_for_crds()
    authority = Authority(api_server.directory / "kueue-certificates", AUTHORITY, is_rsa=True)
    server = authority.server("tls", [f"{SERVICE}.{NAMESPACE}.svc"], [LOOPBACK])
    kubectl.apply(_secret(authority, server), *_rights(components / "rbac"), *_webhooks(components / "webhook", port))
    settings = api_server.directory / "kueue.json"
    settings.write_text(json.dumps(_settings(port, probe, server)))
    command = [str(binary("kueue", environ)), f"--config={settings}", "--feature-gates=VisibilityOnDemand=false"]
    variables = {"KUBECONFIG": str(api_server.kubeconfig_for("kueue", USER))}
    return start("kueue", command, api_server.directory, lambda: answers(f"http://{probe}/readyz"), variables)


def _settings(port: int, probe: str, server: Certificate) -> Manifest:
    return {
        "apiVersion": f"config.kueue.x-k8s.io/{VERSION}",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": probe},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": LOOPBACK, "port": port, "certDir": str(server.certificate.parent)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": True, "webhookServiceName": SERVICE, "webhookSecretName": SECRET},
        "clientConnection": {"qps": 500, "burst": 1000},
        "integrations": {"frameworks": ["ray.io/raycluster"]},
    }


def _crds(directory: Path, port: int) -> Iterator[Manifest]:
    """Yield the CRDs with one version each."""
    for path in sorted(directory.glob("*.yaml")):
        crd: Manifest = yaml.safe_load(path.read_text())
        newest = next(each for each in crd["spec"]["versions"] if each["name"] == VERSION)
        crd["spec"]["versions"] = [{**newest, "storage": True}]
        if crd["spec"]["names"]["plural"] in CONVERTED:
            hook = {"clientConfig": {"url": _url(port, "/convert")}, "conversionReviewVersions": ["v1"]}
            crd["spec"]["conversion"] = {"strategy": "Webhook", "webhook": hook}
        yield crd


def _rights(directory: Path) -> Iterator[Manifest]:
    """Yield the roles of the controller, bound to its ServiceAccount."""
    for name, kind in (("role", "ClusterRole"), ("manager_secrets_role", "Role")):
        role: Manifest = yaml.safe_load((directory / f"{name}.yaml").read_text())
        role["metadata"] = {"name": f"kueue-{role['metadata']['name']}"}
        binding: Manifest = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": f"{kind}Binding",
            "metadata": {"name": role["metadata"]["name"]},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role["metadata"]["name"]},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
        }
        for each in (role, binding):
            if kind == "Role":
                each["metadata"]["namespace"] = NAMESPACE
            yield each


def _webhooks(directory: Path, port: int) -> Iterator[Manifest]:
    for given in yaml.safe_load_all((directory / "manifests.yaml").read_text()):
        configuration: Manifest = given
        kind = configuration["kind"].removesuffix("WebhookConfiguration").lower()
        configuration["metadata"]["name"] = f"kueue-{kind}-webhook-configuration"
        mine = [each for each in configuration["webhooks"] if set(each["rules"][0]["apiGroups"]) <= GROUPS]
        for hook in mine:
            hook["clientConfig"] = {"url": _url(port, hook["clientConfig"]["service"]["path"])}
        configuration["webhooks"] = mine
        yield configuration


def _url(port: int, path: str) -> str:
    return f"https://{LOOPBACK}:{port}{path}"


def _secret(authority: Authority, server: Certificate) -> Manifest:
    files = {
        "ca.crt": authority.own.certificate,
        "ca.key": authority.own.key,
        "tls.crt": server.certificate,
        "tls.key": server.key,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": NAMESPACE},
        "data": {name: base64.b64encode(path.read_bytes()).decode() for name, path in files.items()},
    }

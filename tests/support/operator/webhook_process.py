"""The webhook as a process of its own, with the chart's rights and configuration, beside the API server."""

import base64
import json
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from local_cluster.kubectl import Kubectl, Manifest
from local_cluster.ports import free_port
from support.operator.helm_release import rendered
from support.operator.operator_process import STORAGE, kubeconfig_of
from support.operator.python_programs import forked
from support.waiting import eventually

RELEASED = "rljob"
"""the namespace that the chart is rendered for"""
NEEDED = (
    *("ServiceAccount", "Secret", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
)


class WebhookProcess:
    """One replica, and the configuration that sends it the RLJobs of one namespace."""

    def __init__(
        self, kubectl: Kubectl, namespace: str, directory: Path, *values: str, mounted: Path | None = None
    ) -> None:
        """`values` are for the chart, as helm takes them; `mounted` has the certificate, if somebody else makes it."""
        self._kubectl, self._namespace = kubectl, namespace
        self.name = f"{namespace}-webhook"
        self.port, self._pages = free_port(), free_port()
        chart = rendered("--set", "webhook.enabled=true", *values, release=namespace)
        mine = [each for name, each in chart.items() if name.partition("/")[2].startswith(self.name)]
        self._configuration = self._local(chart[f"ValidatingWebhookConfiguration/{self.name}"])
        kubectl.apply(*[_in(namespace, each) for each in mine if each["kind"] in NEEDED], self._configuration)
        kubeconfig = kubeconfig_of(kubectl, namespace, self.name, directory)
        self._log = directory / "webhook.log"
        arguments = [
            f"--kubeconfig={kubeconfig}",
            "--host=127.0.0.1",
            f"--port={self.port}",
            f"--pages-port={self._pages}",
            *([f"--certificate-directory={mounted}"] if mounted else ["--name=127.0.0.1"]),
            f"--secret-namespace={namespace}",
            f"--secret={self.name}-certificate",
            f"--path-secret={self.name}-path",
            f"--configuration={self.name}",
            "--image=rljob/trainer:test",
            f"--storage={STORAGE}",
        ]
        self._process = forked(["-m", "rljob_operator.webhook", *arguments], self._log)

    def until_ready(self) -> None:
        """Wait until it has a certificate that the API server trusts, and the API server knows its path."""
        eventually(self._status, lambda status: status == 200)
        eventually(self.bundle, bool)
        eventually(self.path, bool)

    def trust(self, bundle: str) -> None:
        """Have the API server trust these authorities, as cert-manager does."""
        path = "/webhooks/0/clientConfig/caBundle"
        change = [{"op": "add", "path": path, "value": base64.b64encode(bundle.encode()).decode()}]
        self._kubectl("patch", "validatingwebhookconfiguration", self.name, "--type=json", "-p", json.dumps(change))

    def bundle(self) -> str:
        found = self._kubectl.get("validatingwebhookconfiguration", self.name)
        bundle: str = found["webhooks"][0]["clientConfig"].get("caBundle", "")
        return bundle

    def path(self) -> str:
        """Return the path that the API server was told."""
        found = self._kubectl.get("validatingwebhookconfiguration", self.name)
        return urlsplit(found["webhooks"][0]["clientConfig"]["url"]).path

    @property
    def log(self) -> str:
        return self._log.read_text()

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._pages}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
            return text

    def terminate(self) -> int:
        self._process.terminate()
        self._process.join(60)
        assert self._process.exitcode is not None, self.log
        return self._process.exitcode

    def close(self) -> None:
        """End it, and remove what does not belong to the namespace."""
        self._process.kill()
        self._process.join()
        for kind in ("validatingwebhookconfiguration", "clusterrolebinding", "clusterrole"):
            self._kubectl("delete", kind, self.name, "--ignore-not-found")
        for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
            self._kubectl("delete", kind, f"{self.name}-own", "--ignore-not-found")

    def _status(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._pages}/healthz", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            assert self._process.exitcode is None, self.log
            return 0

    def _local(self, configuration: Manifest) -> Manifest:
        """Return the configuration for a process on this machine, and for this namespace only."""
        (hook,) = configuration["webhooks"]
        hook["clientConfig"] = {"url": f"https://127.0.0.1:{self.port}"}
        hook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": self._namespace}}
        return configuration


def _in(namespace: str, manifest: Manifest) -> Manifest:
    """Return a manifest of the chart in this namespace instead of the one that it was rendered for."""
    found: Manifest = json.loads(
        json.dumps(manifest).replace(f"serviceaccount:{RELEASED}:", f"serviceaccount:{namespace}:")
    )
    if "namespace" in found["metadata"]:
        found["metadata"]["namespace"] = namespace
    for subject in found.get("subjects", ()):
        subject["namespace"] = namespace
    return found

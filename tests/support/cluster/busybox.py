"""An image with a shell and a few tools, made of the machine's static busybox."""

from pathlib import Path

from local_cluster.images import write_archive
from local_cluster.kubectl import Manifest
from local_cluster.packages import program
from support.cluster.restricted import CONTAINER, POD

IMAGE = "rljob.local/busybox:1"
APPLETS = ("cat", "echo", "httpd", "mkdir", "nslookup", "sh", "sleep", "tail", "wget")


def busybox_archive(directory: Path) -> Path:
    """Write the image's archive into this directory; return its path."""
    links = {f"/bin/{applet}": "busybox" for applet in APPLETS}
    return write_archive(
        directory / "busybox.tar", IMAGE, {"/bin/busybox": program("busybox")}, ["/bin/sh", "-c"], links
    )


def pod(name: str, namespace: str, script: str, limits: dict[str, str] | None = None) -> Manifest:
    """Return a pod, labelled `app: NAME`, that runs this shell script once."""
    container = {
        "name": "main",
        "image": IMAGE,
        "args": [script],
        "resources": {"limits": limits or {}},
        "securityContext": CONTAINER,
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "securityContext": POD,
            "containers": [container],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    }

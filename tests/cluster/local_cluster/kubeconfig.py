"""Writes kubeconfig files, and finds them again."""

import json
from pathlib import Path

from local_cluster.certificates import Certificate


def path_of(directory: Path, name: str) -> Path:
    """Return where the kubeconfig of a program of this cluster is."""
    return directory / f"{name}.kubeconfig"


def write_kubeconfig(path: Path, server: str, authority: Certificate, client: Certificate) -> Path:
    """Write a kubeconfig that names its certificates by path, readable by its owner alone; return its path."""
    entry = "rljob-test"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": entry,
        "clusters": [
            {"name": entry, "cluster": {"server": server, "certificate-authority": str(authority.certificate)}}
        ],
        "users": [
            {
                "name": entry,
                "user": {"client-certificate": str(client.certificate), "client-key": str(client.key)},
            }
        ],
        "contexts": [{"name": entry, "context": {"cluster": entry, "user": entry}}],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=2))  # JSON is YAML
    return path

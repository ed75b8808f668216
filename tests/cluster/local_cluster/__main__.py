"""`make cluster`, `make cluster-demo` and `make cluster-down`: a cluster that stays until `make cluster-down`."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from local_cluster import control_plane, home, node, packages, project_images
from local_cluster.api_server import start_api_server
from local_cluster.binaries import binary
from local_cluster.demo import demo
from local_cluster.errors import ClusterError
from local_cluster.kubectl import Kubectl
from local_cluster.node import NodeCluster
from local_cluster.runtime import runtime_of

Profile = Callable[[Path, Mapping[str, str], int], Kubectl]

PROFILE_FILE = "profile"
"""names the profile once the cluster is complete"""


def main(arguments: list[str]) -> int:
    """Run one verb; return the exit code."""
    parser = argparse.ArgumentParser(prog="local_cluster", description=__doc__)
    parser.add_argument("verb", choices=["up", "down", "build", "check", "packages", "demo"])
    parser.add_argument("--profile", choices=sorted(PROFILES), default="control-plane")
    parser.add_argument("--nodes", type=int, default=2, help="simulated nodes of eight GPUs each")
    parser.add_argument("--name", default="default", help="several clusters may run at a time")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        with home.named_directory(home.clusters_of_this_user(), options.name) as directory:
            match options.verb:
                case "up":
                    print(usage(up(directory, options.profile, options.nodes, os.environ)))
                case "down":
                    home.remove_orphans(directory.parent)
                    home.remove(directory)
                case "build":
                    build(options.profile, os.environ)
                    if options.profile == "node":
                        project_images.prepare(os.environ)
                case "check":
                    with home.owned_directory(directory.parent) as tried:
                        node.try_out(tried, os.environ)
                case "packages":
                    packages.install(os.environ)
                case "demo":
                    kubectl = up(directory, "node", 0, os.environ)
                    print(demo(NodeCluster(kubectl, runtime_of(directory)), os.environ))
                    print(usage(kubectl))
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def up(directory: Path, profile: str, nodes: int, environ: Mapping[str, str]) -> Kubectl:
    """Return a kubectl of the cluster in this directory, which is started unless it runs already.

    Whatever is left of a cluster that is not complete, does not answer or has another profile is removed first.
    """
    kubectl = Kubectl(binary("kubectl", environ), directory / "kubeconfig")
    if _profile(directory) == profile and _answers(kubectl):
        return kubectl
    home.remove_orphans(directory.parent)
    home.remove(directory)
    build(profile, environ)
    directory.mkdir()
    try:
        kubectl = PROFILES[profile](directory, environ, nodes)
    except BaseException:
        home.remove(directory)
        raise
    (directory / PROFILE_FILE).write_text(profile)
    return kubectl


def build(profile: str, environ: Mapping[str, str]) -> None:
    """Build the programs of a profile into the cache, those of them that are not there."""
    for name in PROGRAMS[profile]:
        binary(name, environ)


def usage(kubectl: Kubectl) -> str:
    """Return what to do with a running cluster."""
    return f"""
The cluster is ready; its logs are in {kubectl.kubeconfig.parent}/logs.

  export KUBECONFIG={kubectl.kubeconfig}
  alias kubectl={kubectl.program}

`make integration` uses it while KUBECONFIG is set. `make cluster-down` removes it."""


def _start_control_plane(directory: Path, environ: Mapping[str, str], nodes: int) -> Kubectl:
    return control_plane.complete(start_api_server(directory, environ), environ, control_plane.simulated(nodes))


def _start_node(directory: Path, environ: Mapping[str, str], _: int) -> Kubectl:
    return node.start_cluster(directory, environ, gpus=8).kubectl


def _profile(directory: Path) -> str | None:
    file = directory / PROFILE_FILE
    return file.read_text() if file.exists() else None


def _answers(kubectl: Kubectl) -> bool:
    try:
        return kubectl("get", "--raw", "/readyz", "--request-timeout=5s") == "ok"
    except ClusterError:
        return False


PROFILES: Mapping[str, Profile] = {"control-plane": _start_control_plane, "node": _start_node}
PROGRAMS: Mapping[str, tuple[str, ...]] = {"control-plane": control_plane.PROGRAMS, "node": node.PROGRAMS}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

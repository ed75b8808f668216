"""`make cluster`, `make cluster-demo` and `make cluster-down`: a cluster that stays until `make cluster-down`.

`make cluster-node` calls `node ACTION NODE`: something happens to a real node of it.
"""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from local_cluster import control_plane, faults, home, machine_image, node_cluster, packages, project_images
from local_cluster.api_server import start_api_server
from local_cluster.binaries import binary
from local_cluster.demo import demo
from local_cluster.errors import ClusterError
from local_cluster.kubectl import Kubectl
from local_cluster.node import Node, nodes_of

PROFILE_FILE = "profile"
"""has profile and number of nodes once the cluster is complete"""
ACTIONS = (
    *("cordon", "uncordon", "drain", "stop-kubelet", "continue-kubelet"),
    *("power-off", "power-on", "unplug", "slow", "partition", "heal"),
)
"""of the verb `node`; the last two concern all nodes"""


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of cluster."""

    programs: tuple[str, ...]
    nodes: int
    """how many it has by default"""
    start: Callable[[Path, Mapping[str, str], int], Kubectl]


def main(arguments: list[str]) -> int:
    """Run one verb; return the exit code."""
    options = _parser().parse_args(arguments)
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
                        node_cluster.try_out(tried, os.environ)
                case "packages":
                    packages.install(os.environ)
                case "demo":
                    kubectl = up(directory, "node", None, os.environ)
                    print(demo(node_cluster.cluster_of(kubectl), os.environ))
                    print(usage(kubectl))
                case "node":
                    kubectl = _kubectl(directory, os.environ)
                    happen(options.action, options.node, options.rate, kubectl, os.environ)
                    print(kubectl("get", "nodes", "-o", "wide"))
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def up(directory: Path, profile: str, nodes: int | None, environ: Mapping[str, str]) -> Kubectl:
    """Return a kubectl of the cluster in this directory, which is started unless it runs already.

    What is left of a cluster that is not complete, does not answer, has another profile or another number of nodes is
    removed first. `nodes` None: as many as it has, or the profile's default.
    """
    kubectl = _kubectl(directory, environ)
    wanted = f"{profile} {'' if nodes is None else nodes}"
    if _profile(directory).startswith(wanted) and _answers(kubectl):
        return kubectl
    home.remove_orphans(directory.parent)
    home.remove(directory)
    build(profile, environ)
    directory.mkdir()
    number = PROFILES[profile].nodes if nodes is None else nodes
    try:
        kubectl = PROFILES[profile].start(directory, environ, number)
    except BaseException:
        home.remove(directory)
        raise
    (directory / PROFILE_FILE).write_text(f"{profile} {number}\n")
    return kubectl


def happen(action: str, name: str | None, rate: str, kubectl: Kubectl, environ: Mapping[str, str]) -> None:
    """Let this happen to the node of this name, or to all. Raises ClusterError."""
    nodes = nodes_of(kubectl.kubeconfig.parent)
    match action:
        case "partition":
            faults.partition(nodes)
        case "heal":
            faults.heal(nodes)
        case _:
            _happen_to(_named(nodes, name), action, rate, kubectl, environ)


def build(profile: str, environ: Mapping[str, str]) -> None:
    """Build the programs of a profile into the cache, those of them that are not there."""
    for name in PROFILES[profile].programs:
        binary(name, environ)


def usage(kubectl: Kubectl) -> str:
    """Return what to do with a running cluster."""
    return f"""
The cluster is ready; its logs are in {kubectl.kubeconfig.parent}/logs, those of real nodes in NODE/logs beside it.

  export KUBECONFIG={kubectl.kubeconfig}
  alias kubectl={kubectl.program}

`make integration` uses it while KUBECONFIG is set. `make cluster-down` removes it."""


def _happen_to(node: Node, action: str, rate: str, kubectl: Kubectl, environ: Mapping[str, str]) -> None:
    match action:
        case "cordon":
            faults.cordon(node, kubectl)
        case "uncordon":
            faults.uncordon(node, kubectl)
        case "drain":
            faults.drain(node, kubectl)
        case "stop-kubelet":
            faults.stop_kubelet(node)
        case "continue-kubelet":
            faults.continue_kubelet(node)
        case "power-off":
            faults.power_off(node)
        case "power-on":
            faults.power_on(node, kubectl, environ)
        case "unplug":
            faults.unplug(node)
        case "slow":
            faults.slow(node, rate)


def _named(nodes: Sequence[Node], name: str | None) -> Node:
    for node in nodes:
        if node.name == name:
            return node
    real = ", ".join(node.name for node in nodes) or "none"
    raise ClusterError(f"NODE is {name}; the real nodes of this cluster are: {real}")


def _start_control_plane(directory: Path, environ: Mapping[str, str], nodes: int) -> Kubectl:
    return control_plane.complete(start_api_server(directory, environ), environ, control_plane.simulated(nodes))


def _start_nodes(directory: Path, environ: Mapping[str, str], nodes: int) -> Kubectl:
    return node_cluster.start_cluster(directory, environ, nodes).kubectl


def _start_gpu_nodes(directory: Path, environ: Mapping[str, str], nodes: int) -> Kubectl:
    return node_cluster.start_cluster(directory, environ, nodes, machine_image.hardware(environ, nodes)).kubectl


def _kubectl(directory: Path, environ: Mapping[str, str]) -> Kubectl:
    return Kubectl(binary("kubectl", environ), directory / "kubeconfig")


def _profile(directory: Path) -> str:
    file = directory / PROFILE_FILE
    return file.read_text() if file.exists() else ""


def _answers(kubectl: Kubectl) -> bool:
    try:
        return kubectl("get", "--raw", "/readyz", "--request-timeout=5s") == "ok"
    except ClusterError:
        return False


def _parser() -> argparse.ArgumentParser:
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default="default", help="several clusters may run at a time")
    parser = argparse.ArgumentParser(prog="local_cluster", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("up", "down", "build", "check", "packages", "demo"):
        added = verbs.add_parser(verb, parents=[named])
        added.add_argument("--profile", choices=sorted(PROFILES), default="control-plane")
        added.add_argument("--nodes", type=int, help="of control-plane: simulated; of node and gpu: real")
    node = verbs.add_parser("node", parents=[named])
    node.add_argument("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    node.add_argument("node", nargs="?", metavar="NODE", help="not for partition and heal, which concern all nodes")
    node.add_argument("--rate", default="1mbit", help="of `slow`")
    return parser


PROFILES: Mapping[str, Profile] = {
    "control-plane": Profile(control_plane.PROGRAMS, 2, _start_control_plane),
    "node": Profile(node_cluster.PROGRAMS, 1, _start_nodes),
    "gpu": Profile(node_cluster.PROGRAMS, 2, _start_gpu_nodes),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

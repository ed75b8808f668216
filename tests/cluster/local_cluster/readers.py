"""What a program of the cluster may read, and who it is: a user, as it is no pod with an account."""

from collections.abc import Sequence

from local_cluster.kubectl import Manifest

GROUP = "rbac.authorization.k8s.io"


def reader(user: str, rules: Sequence[Manifest]) -> tuple[Manifest, Manifest]:
    """Return the role of a user's name with these rules, and what gives it to that user."""
    role = {"apiVersion": f"{GROUP}/v1", "kind": "ClusterRole", "metadata": {"name": user}, "rules": list(rules)}
    return role, binding(user, user)


def binding(user: str, role: str) -> Manifest:
    """Return what gives a role to a user."""
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": user},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": GROUP, "kind": "User", "name": user}],
    }

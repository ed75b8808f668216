"""Options and arguments of the verbs that look at a cluster, and how the completion of a shell fills them."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

KINDS = ("rljob", "rljobs")
"""what stands before the slash in kubectl's names of jobs, without the group"""


class Format(StrEnum):
    """How `rljob plot` shows a curve."""

    TEXT = "text"
    JSON = "json"
    SVG = "svg"


def job_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the jobs in the command line's namespace; none when the API server does not answer."""
    from rljob_cli.cluster.cluster import ClusterError, connect

    given = context.params
    try:
        cluster = connect(given.get("kubeconfig"), given.get("context"))
        jobs = cluster.jobs(given.get("namespace") or cluster.namespace)
    except ClusterError:
        return []
    return [job.name for job in jobs if job.name.startswith(incomplete)]


def job_name(given: str | None) -> str | None:
    """Refuse a path, and the forms in which kubectl and `rljob status` print a job."""
    if given is None or "/" not in given:
        return given
    before, _, name = given.partition("/")
    if Path(given).exists() or "/" in name or not name:
        instead = "for a run on this machine there are `rljob report`, `why`, `plot` and `doctor` RUN_DIR"
    elif before.partition(".")[0] in KINDS:
        instead = f"nearest valid: {name}"
    else:
        instead = f"a job of a namespace is {name} -n {before}; a run on this machine has `rljob report RUN_DIR`"
    raise typer.BadParameter(f"{given!r} is not the name of an RLJob of the cluster; {instead}")


JobName = Annotated[
    str, typer.Argument(metavar="NAME", autocompletion=job_names, callback=job_name, help="Name of the RLJob.")
]
MaybeJobName = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]", autocompletion=job_names, callback=job_name, help="Name of an RLJob; default: all."
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Namespace; default: the namespace of the context.", show_default=False),
]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig; default: the current one.")]
Kubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", help="Kubeconfig file; default: KUBECONFIG or ~/.kube/config.")
]

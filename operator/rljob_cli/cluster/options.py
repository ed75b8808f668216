"""Options and arguments of the verbs that look at a cluster, and how the completion of a shell fills them."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


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


JobName = Annotated[str, typer.Argument(metavar="NAME", autocompletion=job_names, help="Name of the RLJob.")]
MaybeJobName = Annotated[
    str | None, typer.Argument(metavar="[NAME]", autocompletion=job_names, help="Name of an RLJob; default: all.")
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

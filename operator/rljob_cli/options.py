"""Options and arguments that several verbs have, and how the completion of a shell fills them."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rljob_cli.validate import STDIN


class Output(StrEnum):
    """How a verb shows its result."""

    TABLE = "table"
    JSON = "json"


class Format(StrEnum):
    """How `rljob plot` shows a curve."""

    TEXT = "text"
    JSON = "json"
    SVG = "svg"


def job_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the jobs in the namespace that the command line means; none when nobody answers."""
    from rljob_cli.cluster import ClusterError, connect

    given = context.params
    try:
        cluster = connect(given.get("kubeconfig"), given.get("context"))
        jobs = cluster.jobs(given.get("namespace") or cluster.namespace)
    except ClusterError:
        return []
    return [job.name for job in jobs if job.name.startswith(incomplete)]


def readable(path: Path) -> Path:
    """Refuse what cannot be read; `-` is stdin, and a pipe, as in `<(helm template)`, is a file, too."""
    if path != STDIN and not path.exists():
        raise typer.BadParameter(f"file '{path}' does not exist.")
    if path.is_dir():
        raise typer.BadParameter(f"'{path}' is a directory; a file is expected.")
    return path


def all_readable(paths: list[Path]) -> list[Path]:
    """Refuse files that cannot be read. (typer 0.29 forgets `-` for `allow_dash`.)"""
    return [readable(path) for path in paths]


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Output format.")]
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

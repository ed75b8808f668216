"""The verbs that look at a cluster: their arguments and options. What they do is in `cluster_verbs`.

That module imports `kubernetes`, so it is imported when a verb runs: the others work without that package.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from rljob_api.exits import Exit
from rljob_cli.options import (
    AllNamespaces,
    Context,
    Format,
    JobName,
    Kubeconfig,
    MaybeJobName,
    Namespace,
    Output,
    OutputOption,
)

PACKAGE = "this verb needs the package kubernetes: pip install 'rljob[cluster]'"
METRICS = (
    "reward, held-out, perplexity, held-out-perplexity or tokens (made per second by the engines); may be repeated."
)


def status(
    name: MaybeJobName = None,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    output: OutputOption = Output.TABLE,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on; with a name until the job has ended.")] = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the RLJobs of a cluster, or one of them."""
    if name is not None and all_namespaces:
        raise typer.BadParameter("a job is found by name in one namespace; leave --all-namespaces out")
    with _verbs() as verbs:
        scope = verbs.scope(kubeconfig, context, namespace, all_namespaces)
        if name is None:
            verbs.table(scope, as_json=output is Output.JSON, watch=watch)
        else:
            raise typer.Exit(verbs.page(scope, name, as_json=output is Output.JSON, watch=watch))


def top(
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    output: OutputOption = Output.TABLE,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show what jobs and engines do now."""
    with _verbs() as verbs:
        verbs.top(verbs.scope(kubeconfig, context, namespace, all_namespaces), as_json=output is Output.JSON)


def logs(
    name: JobName,
    engine: Annotated[str | None, typer.Option("--engine", help="Of this engine, for example engine-0.")] = None,
    driver: Annotated[bool, typer.Option("--driver", help="Of the driver; so it is without --engine.")] = False,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Of this start of the driver.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until nothing more comes.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", min=1, help="Only so many last lines.")] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the log of a job's driver or engine."""
    if engine is not None and (driver or attempt is not None):
        raise typer.BadParameter("--engine goes with neither --driver nor --attempt: an engine outlives attempts")
    with _verbs() as verbs:
        scope = verbs.scope(kubeconfig, context, namespace, False)
        verbs.logs(scope, name, engine=engine, attempt=attempt, follow=follow, tail=tail)


def plot(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the RLJob, or RUN_DIR of a local run.")],
    metric: Annotated[list[str] | None, typer.Option("--metric", "-m", help=METRICS)] = None,
    output: Annotated[Format, typer.Option("--output", "-o", help="A chart here, JSON, or SVG.")] = Format.TEXT,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Plot the reward of a job, also after its end."""
    from rljob_cli import plotting

    metrics = plotting.metrics(metric or [])
    if plotting.is_directory(name):
        plotting.show(plotting.local_curve(Path(name)), metrics, output)
        return
    with _verbs() as verbs:
        scope = verbs.scope(kubeconfig, context, namespace, False)
        plotting.show(plotting.job_curve(scope.job(name)), metrics, output)


EXAMPLES: dict[Callable[..., None], str] = {
    status: "rljob status job -n ml --watch",
    top: "rljob top -A",
    logs: "rljob logs job --attempt 1 --tail 50",
    plot: "rljob plot job -o svg > curve.svg",
}


def add_to(app: typer.Typer) -> None:
    """Make these verbs known."""
    for verb, example in EXAMPLES.items():
        app.command(epilog=f"Example: {example}")(verb)


@contextmanager
def _verbs() -> Iterator[ModuleType]:
    """Give the module with the work, and end the process with a message and a code when the cluster fails it."""
    try:
        from rljob_cli import cluster_verbs
        from rljob_cli.cluster import ClusterError
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("kubernetes", "urllib3"):
            raise
        typer.echo(PACKAGE, err=True)
        raise typer.Exit(Exit.SETUP) from error
    try:
        yield cluster_verbs
    except ClusterError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(error.exit) from error

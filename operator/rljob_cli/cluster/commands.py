"""Arguments and options of the commands that read a cluster. `verbs` does the work.

That module imports `kubernetes`, so it is imported when a verb runs: the others work without that package. What reads
run directories needs packages of the trainer, and is imported in the same way.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from rljob_cli.chaos.faults import Fault, UnknownFaultError
from rljob_cli.chaos.faults import faults as listed
from rljob_cli.chaos.schedule import TooManyFaultsError
from rljob_cli.cluster.options import (
    AllNamespaces,
    Context,
    Format,
    JobName,
    Kubeconfig,
    MaybeJobName,
    Namespace,
    job_names,
)
from rljob_cli.jobs.job_logs import Wanted
from rljob_cli.terminal.options import Output, OutputOption
from rljob_cli.terminal.screen import say
from rljob_cli.volume.commands import period

EVENTS = "events.jsonl"
"""what makes a directory that of a run"""
METRICS = "reward, held-out, perplexity, held-out-perplexity or tokens (generated per second); repeatable."


def status(
    name: MaybeJobName = None,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    output: OutputOption = Output.TABLE,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Watch for changes; with a name, until the job ends.")
    ] = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show all RLJobs, or one in detail."""
    if name is not None and all_namespaces:
        raise typer.BadParameter("NAME and --all-namespaces exclude each other")
    with cluster_verbs() as verbs:
        scope = verbs.scope(kubeconfig, context, namespace, all_namespaces)
        if name is None:
            verbs.table(scope, as_json=output is Output.JSON, watch=watch)
        else:
            raise typer.Exit(verbs.page(scope, name, as_json=output is Output.JSON, watch=watch))


def why(
    name: Annotated[
        str,
        typer.Argument(
            metavar="JOB | RUN_DIR",
            autocompletion=job_names,
            help="An RLJob of the cluster, or the directory of a run.",
        ),
    ],
    namespace: Namespace = None,
    output: OutputOption = Output.TABLE,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Explain why a job waits, fails, is slow or does not learn."""
    if (Path(name) / EVENTS).is_file():
        from rljob_cli.records import run_health_view

        run_health_view.show_run(Path(name), as_json=output is Output.JSON)
        return
    if "/" in name:
        raise typer.BadParameter(
            f"{name!r} is not the directory of a run: it has no {EVENTS}", param_hint="JOB | RUN_DIR"
        )
    with cluster_verbs() as verbs:
        verbs.why(verbs.scope(kubeconfig, context, namespace, False), name, as_json=output is Output.JSON)


def resume(
    name: JobName,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Resume a failed job from its newest checkpoint."""
    with cluster_verbs() as verbs:
        verbs.resume(verbs.scope(kubeconfig, context, namespace, False), name)


def top(
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    queues: Annotated[bool, typer.Option("--queues", help="Show who holds GPUs, and who waits for them.")] = False,
    output: OutputOption = Output.TABLE,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the load of jobs and engines, or the queue."""
    with cluster_verbs() as verbs:
        scope = verbs.scope(kubeconfig, context, namespace, all_namespaces)
        verbs.top(scope, queues=queues, as_json=output is Output.JSON)


def logs(
    name: JobName,
    engine: Annotated[str | None, typer.Option("--engine", help="Log of this engine, for example engine-0.")] = None,
    component: Annotated[
        str | None,
        typer.Option("--component", help="Only: driver, ranks, router, rewards, tools or stacks.", show_default=False),
    ] = None,
    driver: Annotated[bool, typer.Option("--driver", help="Log of the driver and the ranks (default).")] = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Attempt of the driver; default: the newest.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until it ends.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", min=1, help="Number of last lines.")] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the log of a job's driver, engine or another component."""
    if engine is not None and (driver or attempt is not None):
        raise typer.BadParameter("--engine excludes --driver and --attempt: an engine's log covers all attempts")
    if component is not None and (engine is not None or driver):
        raise typer.BadParameter("--component excludes --engine and --driver")
    with cluster_verbs() as verbs:
        scope = verbs.scope(kubeconfig, context, namespace, False)
        verbs.logs(scope, name, Wanted(engine, component, attempt), follow=follow, tail=tail)


def plot(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the RLJob, or RUN_DIR of a local run.")],
    metric: Annotated[list[str] | None, typer.Option("--metric", "-m", help=METRICS)] = None,
    output: Annotated[Format, typer.Option("--output", "-o", help="Chart in the terminal, JSON or SVG.")] = Format.TEXT,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Plot the reward of a job or of a local run."""
    from rljob_cli.cluster import plotting

    metrics = plotting.metrics(metric or [])
    if plotting.is_directory(name):
        plotting.show(plotting.local_curve(Path(name)), metrics, output)
        return
    with cluster_verbs() as verbs:
        scope = verbs.scope(kubeconfig, context, namespace, False)
        plotting.show(plotting.job_curve(scope.job(name)), metrics, output)


def chaos(
    name: JobName,
    every: Annotated[
        int, typer.Option("--every", parser=period, metavar="TIME", help="Mean time between two faults.")
    ] = "20s",  # type: ignore[assignment]  # parsed, as what is typed
    for_: Annotated[
        int, typer.Option("--for", parser=period, metavar="TIME", help="Time in which faults are made.")
    ] = "5m",  # type: ignore[assignment]
    faults: Annotated[
        str, typer.Option("--faults", metavar="LIST", help="Faults, with commas; see the list in the documentation.")
    ] = ",".join(Fault),
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Repeats a plan; default: random.")] = None,
    recover_within: Annotated[
        int, typer.Option("--recover-within", parser=period, metavar="TIME", help="Longest time for a recovery.")
    ] = "10m",  # type: ignore[assignment]
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and do nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Hit a job of a namespace that is not marked for it.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Make faults in a job, and check that it holds."""
    with cluster_verbs() as verbs:
        from rljob_cli.cluster import chaos_verb

        if every < 1:
            raise typer.BadParameter("is less than a second; nearest valid: 1s", param_hint="--every")
        chosen = secrets.randbelow(10_000) if seed is None else seed
        try:
            wish = chaos_verb.Wish(chosen, listed(faults), every, for_, recover_within)
            where = verbs.scope(kubeconfig, context, namespace, False)
            raise typer.Exit(chaos_verb.chaos(where, name, wish, has_agreed=yes, dry_run=dry_run))
        except UnknownFaultError as error:
            raise typer.BadParameter(str(error), param_hint="--faults") from error
        except TooManyFaultsError as error:
            raise typer.BadParameter(str(error), param_hint="--every") from error


EXAMPLES: dict[Callable[..., None], str] = {
    status: "rljob status job -n ml --watch",
    why: "rljob why job -n ml",
    resume: "rljob resume job -n ml",
    top: "rljob top -A",
    logs: "rljob logs job --attempt 1 --tail 50",
    plot: "rljob plot job -o svg > curve.svg",
    chaos: "rljob chaos job -n staging --every 20s --for 5m --dry-run",
}


def add_to(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for verb, example in EXAMPLES.items():
        app.command(epilog=f"Example: {example}")(verb)


@contextmanager
def cluster_verbs() -> Iterator[ModuleType]:
    """Yield `verbs`; on a ClusterError, print it and exit with its code."""
    from rljob_cli.cluster import verbs
    from rljob_cli.cluster.cluster import ClusterError

    try:
        yield verbs
    except ClusterError as error:
        say(str(error), err=True)
        raise typer.Exit(error.exit) from error

"""Arguments and options of `rljob doctor`; `logs` and `cluster.verbs` do the work.

The doctor's catalogue takes a second to read: only this command, and a run that has failed, import it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rljob_api.exits import Exit
from rljob_cli.cluster.commands import cluster_verbs
from rljob_cli.cluster.options import Context, Kubeconfig, Namespace, job_names
from rljob_cli.terminal.options import Output, OutputOption
from rljob_cli.terminal.prose import say_prose
from rljob_cli.terminal.screen import say_json
from rljob_trainer.rundir.cores import cores, open_with
from rljob_trainer.rundir.logs import SUFFIXES

if TYPE_CHECKING:
    from rljob_doctor.diagnosis import Diagnosis
    from rljob_doctor.occurrences import Scanned

STDIN = "-"
NO_INPUT = "give a job, a run directory or a log; - reads stdin"


def doctor(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB | RUN_DIR | LOG...]",
            autocompletion=job_names,
            help="An RLJob of the cluster, a directory with logs, or logs of any of slime, Miles, verl, SGLang, "
            "Megatron, Ray and Kubernetes; - reads stdin.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Find out why a run failed: causes with evidence and remedy."""
    given = targets or ([] if sys.stdin.isatty() else [STDIN])
    if not given:
        raise typer.BadParameter(NO_INPUT)
    from rljob_cli.doctor.logs import left_out, limited
    from rljob_doctor.diagnosis import diagnose

    notes: list[str] = []
    if len(given) == 1 and is_job(given[0]):
        with cluster_verbs() as verbs:
            texts, notes = verbs.evidence(verbs.scope(kubeconfig, context, namespace, False), given[0])
        logs = [limited(name, text) for name, text in texts.items()]
    else:
        logs, notes = local(given), dumps(given)
    show(diagnose(logs), logs, [*left_out(logs), *notes], output)


def is_job(target: str) -> bool:
    """Return whether a target is the name of a job: there is no such path, and it does not look like one."""
    return target != STDIN and not Path(target).exists() and "/" not in target and not target.endswith(SUFFIXES)


def local(targets: list[str]) -> list[Scanned]:
    """Return what files, directories and the standard input contain."""
    from rljob_cli.doctor import logs as reading

    if STDIN in targets and len(targets) > 1:
        raise typer.BadParameter("- excludes other logs")
    if targets == [STDIN]:
        return [reading.streamed(sys.stdin.buffer, "stdin")]
    try:
        return [reading.scanned(path, name) for path, name in reading.named([Path(each) for each in targets])]
    except reading.NoLogError as error:
        raise typer.BadParameter(str(error)) from error


def dumps(targets: list[str]) -> list[str]:
    """Return how the core dumps of GPUs are opened that lie in run directories."""
    found = [core for each in targets if each != STDIN for core in cores(Path(each))]
    return [f"a GPU left a core dump, whose kernel is the cause: {open_with(core)}" for core in found]


def show(diagnosis: Diagnosis, logs: list[Scanned], notes: list[str], output: Output) -> None:
    """Write the diagnosis, and end with 0 if a failure is known, otherwise with 1, as grep does."""
    from rljob_cli.doctor import view

    if output is Output.JSON:
        say_json(view.as_json(diagnosis, logs, notes))
    else:
        say_prose(view.as_text(diagnosis, logs, notes))
    raise typer.Exit(Exit.FAILED if all(each.is_likely for each in diagnosis.findings) else Exit.OK)


def add_to(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog="Example: rljob doctor runs/gsm8k; kubectl logs POD | rljob doctor -")(doctor)

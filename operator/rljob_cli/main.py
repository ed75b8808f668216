"""The `rljob` command: its verbs, their options, their exit codes. Every verb's work is in a separate module.

A verb that needs the trainer's packages imports them when it runs, so `validate` and `plan` work, and start fast, where
only the base dependencies are installed.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rljob_api.errors import ManifestError
from rljob_api.exits import Exit
from rljob_api.sections import RLJob, Spec
from rljob_cli import habits
from rljob_cli.cluster import commands as cluster_commands
from rljob_cli.doctor import command as doctor_command
from rljob_cli.manifest import explain as explaining
from rljob_cli.manifest import fit as fitting
from rljob_cli.manifest import import_commands, init_command, plan_view
from rljob_cli.manifest import plan as planning
from rljob_cli.manifest import validate as validation
from rljob_cli.records import checkpoint_commands
from rljob_cli.terminal.options import Output, OutputOption, all_readable, readable
from rljob_cli.terminal.prose import say_prose
from rljob_cli.terminal.screen import console, printable_errors, say, say_json, tell
from rljob_cli.volume import commands as volume_commands
from rljob_trainer.data.hub import HubError
from rljob_trainer.preflight import look_at_machine
from rljob_trainer.preflight.downloads import download, references
from rljob_trainer.preflight.model_files import ModelFiles
from rljob_trainer.preflight.teacher import teacher_shape
from rljob_trainer.remote.errors import RemoteError

PIPE_WIDTH = 200
"""columns of a plan that goes to a file or a pipe; nothing is wrapped there"""
EXAMPLES = """\
  rljob init job.yaml
  rljob validate job.yaml
  rljob plan job.yaml
  rljob run job.yaml
  rljob report runs/job
  rljob status job -n ml"""
CODES = "\n".join(f"  {code.value:>3}  {code.meaning}" for code in Exit)
PLUGIN = "kubectl rljob"
"""what people type where kubectl finds the program as its plugin"""
AS_WRITTEN = "\b"
"""in front of a paragraph of a help text: do not wrap it"""
REQUIREMENT = re.compile(r"""(?P<package>[\w.-]+).*\bextra == ['"](?P<extra>\w+)['"]""")
PREFERRED = ("cluster", "doctor", "operator", "trainer")
"""of several extras that bring it, the first of these: the smaller ones"""
OTHERS_TOGETHER = ("cpu", "dev")
"""extras that no message names: `cpu` is made of others"""


class Commands(TyperGroup):
    """The verbs; what is wrong with a command line may name files of others."""

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        with printable_errors():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: Any) -> Any:
        with printable_errors(), options_of_others():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and (instead := habits.instead_of_command(args[0])):
            ctx.fail(f"No such command {args[0]!r}; {instead}")
        return super().resolve_command(ctx, args)


@contextmanager
def options_of_others() -> Iterator[None]:
    """Say what stands for an option that a command does not have."""
    try:
        yield
    except typer.TyperException as error:
        if instead := habits.instead_of_option(vars(error).get("option_name") or ""):
            error.message = f"{error.message}; {instead}"
        raise


app = typer.Typer(
    name="rljob",
    cls=Commands,
    help="Post-train language models with reinforcement learning, from one manifest.",
    epilog=f"{AS_WRITTEN}\nExamples:\n{EXAMPLES}\n\n{AS_WRITTEN}\nExit codes:\n{CODES}",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


Manifest = Annotated[Path, typer.Argument(callback=readable, help="YAML file of the RLJob; - reads stdin.")]
Manifests = Annotated[list[Path], typer.Argument(callback=all_readable, help="YAML files of RLJobs; - reads stdin.")]
ManifestFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="YAML file of the RLJob.")]
RunDirectory = Annotated[
    Path, typer.Argument(exists=True, file_okay=False, metavar="RUN_DIR", help="Run directory, runs/NAME.")
]


def show_version(wanted: bool) -> None:
    if wanted:
        say(f"rljob {version('rljob')}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Has the options of the program itself."""


def main() -> None:
    """Run the command line; the process ends with an exit code of `rljob_api.exits`."""
    sys.excepthook = tell
    try:
        app(prog_name=PLUGIN if Path(sys.argv[0]).name == "kubectl-rljob" else "rljob")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if (extra := extra_of(package)) is None:
            raise
        say(f"this command needs the package {package}: install rljob with its extra `{extra}`", err=True)
        sys.exit(Exit.SETUP)


init_command.add_to(app)


@app.command(epilog="Example: rljob validate docs/examples/*.yaml")
def validate(manifests: Manifests) -> None:
    """Check manifests and print each problem."""
    text, code = validation.validate(manifests)
    say_prose(text)
    raise typer.Exit(code)


@app.command(epilog="Example: rljob plan job.yaml -o json | jq .memory")
def plan(
    manifest: Manifest,
    output: OutputOption = Output.TABLE,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="GPU", help="Say whether it fits into such GPUs: H100-80, A100-40, ..., or GiB."),
    ] = None,
) -> None:
    """Show processes, batches, tokens and memory."""
    try:
        card = None if gpu is None else fitting.card(gpu)
    except fitting.UnknownCardError as error:
        raise typer.BadParameter(str(error), param_hint="--gpu") from error
    job, files = checked(manifest)
    planned = planning.plan(job, files, validation.looked(job, files, here=False), teacher_shape(job.spec), card)
    ends = Exit.BAD_INPUT if planned.problems or (planned.fit and not planned.fit.fits) else Exit.OK
    if output is Output.JSON:
        say_json(plan_view.as_json(planned))
        raise typer.Exit(ends)
    terminal = sys.stdout.isatty()
    console(PIPE_WIDTH).print(plan_view.as_tables(planned, boxes=terminal))
    raise typer.Exit(ends)


@app.command(epilog="Example: rljob run docs/examples/quickstart.yaml")
def run(manifest: ManifestFile) -> None:
    """Run a manifest here, or resume its run."""
    job, files = checked(manifest)
    if references(job.spec):
        need_downloads(job.spec)
        job, files = checked(manifest)  # now with the model's files
    from rljob_cli.run import run as running
    from rljob_cli.run.rundir import RunDirectoryError, run_directory, rundir
    from rljob_cli.terminal.display import display_for
    from rljob_cli.terminal.panels import run_facts
    from rljob_trainer.preflight.gpus import look_at_gpus
    from rljob_trainer.processes import leftovers

    directory = run_directory(job)
    left = bool(leftovers.find(leftovers.run_id(directory.path)))
    findings = validation.looked(job, files, here=True)
    findings += look_at_machine(job, files, directory.path, has_leftovers=left) + look_at_gpus(job.spec, os.environ)
    for warning in findings.warnings:
        say(f"warning: {warning}", err=True)
    if findings.problems:
        say("\n".join(map(str, findings.problems)), err=True)
        raise typer.Exit(Exit.BAD_INPUT)
    try:
        rundir(job)
    except RunDirectoryError as error:
        say(str(error), err=True)
        raise typer.Exit(Exit.BAD_INPUT) from error
    with display_for(run_facts(job, directory.path), console()) as display:
        code = running.run(manifest, display)
    raise typer.Exit(code)


@app.command(epilog="Example: rljob report runs/quickstart --open")
def report(
    run_directory: RunDirectory,
    output: OutputOption = Output.TABLE,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Write the report of a run and print a summary."""
    from rljob_cli.records import report as reporting

    reporting.report(run_directory, reporting.Output(output), open_browser)


reward_app = typer.Typer(help="Test the reward of a manifest.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(reward_app, name="reward")


@reward_app.command(epilog="Example: rljob reward test job.yaml --response 42 --response 'I do not know'")
def test(
    manifest: Manifest,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Number of rows of data.train.")] = 5,
    response: Annotated[
        list[str] | None,
        typer.Option(
            "--response", metavar="TEXT", help="Response to score for each row; repeatable.", show_default=False
        ),
    ] = None,
    responses: Annotated[
        Path | None,
        typer.Option(
            "--responses", exists=True, dir_okay=False, help="File with one line per row: a JSON string or a list."
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Score responses on real rows of the data."""
    job, _ = checked(manifest)
    if response and responses:
        raise typer.BadParameter("--response and --responses exclude each other.")
    from rljob_cli.trials import reward

    raise typer.Exit(reward.test(job, rows, response or (), responses, output))


rollout_app = typer.Typer(
    help="Test the rollouts of a manifest; show those of a run.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(rollout_app, name="rollout")


@rollout_app.command("test", epilog="Example: rljob rollout test job.yaml --rows 2 --samples 4")
def rollout_test(
    manifest: Manifest,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Number of rows of data.train.")] = 3,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Number of samples per row.")] = 1,
    greedy: Annotated[bool, typer.Option("--greedy", help="Sample greedily, as in evaluations.")] = False,
    url: Annotated[
        str | None,
        typer.Option("--url", help="Use a running engine or router instead of starting one.", show_default=False),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Sample and score real rows with one engine."""
    if url is not None and not url.startswith(("http://", "https://")):
        raise typer.BadParameter(f"{url!r} is not a URL; nearest valid: http://{url}", param_hint="--url")
    job, _ = checked(manifest)
    from rljob_cli.trials import rollout

    raise typer.Exit(rollout.test(job, rows, samples, greedy, url, output))


@rollout_app.command("show", epilog="Example: rljob rollout show runs/job; rljob rollout show job --step 3 --sample 7")
def rollout_show(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run directory, name of a run below runs, or a file of rollouts.")
    ],
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="Step, from 0; default: the last one.", show_default=False)
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option("--sample", min=0, help="Show this sample turn by turn; default: a table.", show_default=False),
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show the sample token by token.")] = False,
    page: Annotated[int, typer.Option("--page", min=1, help="Page of 50 samples, or of 200 tokens.")] = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show samples that a run has kept (spec.debug.dumpRollouts)."""
    if tokens and sample is None:
        raise typer.BadParameter("tokens are those of one sample; add --sample N", param_hint="--tokens")
    from rljob_cli.records import trajectories

    wanted = trajectories.Wanted(step, sample, tokens, page)
    raise typer.Exit(trajectories.show(run, wanted, output))


@app.command(
    epilog="Example: rljob explain 9; rljob explain EngineDown; rljob explain training.nodes; rljob explain --lr",
    context_settings={"ignore_unknown_options": True},  # a flag of another system is a name here
)
def explain(
    word: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Exit code, name of a condition, reason, phase or alert, or field of a manifest; default: all codes.",
            autocompletion=explaining.names_like,
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain a code, a name or a field of the manifest."""
    found = explaining.explained(word)
    if not found:
        raise typer.BadParameter(explaining.unknown(word or ""), param_hint="NAME")
    if output is Output.JSON:
        say_json(explaining.as_json(found))
    else:
        say_prose(explaining.as_text(found, whole=word is not None))


doctor_command.add_to(app)
checkpoint_commands.add_to(app)
volume_commands.add_to(app)
import_commands.add_to(app)
cluster_commands.add_to(app)


def need_downloads(spec: Spec) -> None:
    """Download what the checks before the start read; end the process if the hub or a store does not have it."""
    try:
        problems = [str(problem) for problem in download(spec).problems]
    except (HubError, RemoteError) as error:
        problems = [str(error)]
    if problems:
        say("\n".join(problems), err=True)
        raise typer.Exit(Exit.BAD_INPUT)


def checked(path: Path) -> tuple[RLJob, ModelFiles | None]:
    """Return a valid job and its model's files; end the process with its problems if there are any."""
    try:
        return validation.load(path)
    except ManifestError as error:
        say(str(error), err=True)
        raise typer.Exit(Exit.BAD_MANIFEST) from error


def extra_of(package: str) -> str | None:
    """Return the extra that brings a package; None: none does."""
    wanted = _plain(package)
    try:
        found = [each for line in requires("rljob") or () if (each := REQUIREMENT.match(line))]
    except PackageNotFoundError:  # a checkout on PYTHONPATH
        return None
    extras = [
        each["extra"] for each in found if _plain(each["package"]) == wanted and each["extra"] not in OTHERS_TOGETHER
    ]
    return min(extras, key=lambda extra: (extra not in PREFERRED, (*PREFERRED, extra).index(extra)), default=None)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()

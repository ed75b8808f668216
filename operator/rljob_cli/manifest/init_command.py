"""`rljob init`: asks five questions on a terminal, or takes flags, and writes a valid manifest."""

import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from rljob_api.algorithms import KNOWN
from rljob_api.errors import ManifestError
from rljob_api.exits import Exit
from rljob_api.reading import manifest
from rljob_cli.manifest.new_manifest import AnswerError, Answers, Where, default_data, default_model, text
from rljob_cli.terminal.screen import say

ALGORITHM = "grpo"
UNNAMED = "job"
DATA = "gsm8k, sums, a .jsonl or .parquet file, or a task of reasoning-gym"


def add_to(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog="Example: rljob init job.yaml --gpus 1 --model hf://Qwen/Qwen3-0.6B --data gsm8k")(init)


def algorithms() -> list[str]:
    """Return what `--algorithm` may be, for completion."""
    return list(KNOWN)


def init(
    path: Annotated[Path, typer.Argument(metavar="[FILE]", help="File to write; it must not exist.")] = Path(
        "job.yaml"
    ),
    where: Annotated[
        Where | None, typer.Option(help="This machine or a cluster; default: here.", show_default=False)
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            min=0, help="GPUs; 0: CPU cores; default: those of this machine, or 1 in a cluster.", show_default=False
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="hf://ORGANISATION/NAME, package://NAME or a directory.", show_default=False),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help=f"{DATA}.", show_default=False),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(KNOWN)}; default: {ALGORITHM}.", show_default=False, autocompletion=algorithms
        ),
    ] = None,
) -> None:
    """Write a manifest from five questions or from flags."""
    if path.exists():
        raise typer.BadParameter(f"file '{path}' exists already; name another one.", param_hint="FILE")
    asks = sys.stdin.isatty() and (where, gpus, model, data, algorithm) == (None,) * 5
    answers = asked(gpus_here()) if asks else completed(where, gpus, model, data, algorithm, gpus_here())
    try:
        content = text(manifest.dns_label(path.stem) or UNNAMED, answers, command(path, answers))
        job = manifest.load(content)
    except AnswerError as error:
        raise typer.BadParameter(str(error), param_hint="--gpus") from error
    except ManifestError as error:
        say(str(error), err=True)
        raise typer.Exit(Exit.BAD_MANIFEST) from error
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(content)
    except OSError as error:
        say(f"{path}: cannot be written: {error.strerror}", err=True)
        raise typer.Exit(Exit.BAD_INPUT) from error
    say(f"wrote {path}, RLJob {job.metadata.name}. Next:\n{next_steps(path, answers)}")


def asked(found: int) -> Answers:
    """Ask the five questions; an empty answer takes the default."""
    where = Where(typer.prompt("Where does it run: here, or in a cluster?", Where.HERE.value, value_proc=one_of(Where)))
    gpus = typer.prompt("How many GPUs? 0: CPU cores", _default_gpus(where, found), value_proc=whole_number)
    model = typer.prompt("Which model? hf://ORGANISATION/NAME, package://NAME or a directory", default_model(gpus))
    data = typer.prompt(f"Which questions? {DATA}", default_data(gpus))
    return Answers(where, gpus, model, data, typer.prompt("Which algorithm?", ALGORITHM, value_proc=one_of(KNOWN)))


def one_of(known: Iterable[str]) -> Callable[[str], str]:
    """Return a check of an answer; after a refusal the question is asked again."""
    names = [str(each) for each in known]

    def check(answer: str) -> str:
        if answer not in names:
            raise typer.BadParameter(f"{answer!r} is not one of {', '.join(names)}")
        return answer

    return check


def whole_number(answer: str) -> int:
    """Return an answer as a number; after a refusal the question is asked again."""
    if not str(answer).isdecimal():
        raise typer.BadParameter(f"{answer!r} is not a whole number")
    return int(answer)


def completed(
    where: Where | None, gpus: int | None, model: str | None, data: str | None, algorithm: str | None, found: int
) -> Answers:
    """Return the flags, with defaults for those that are absent."""
    where = where or Where.HERE
    gpus = _default_gpus(where, found) if gpus is None else gpus
    return Answers(where, gpus, model or default_model(gpus), data or default_data(gpus), algorithm or ALGORITHM)


def _default_gpus(where: Where, found: int) -> int:
    return found if where is Where.HERE else 1


def gpus_here() -> int:
    """Return how many GPUs NVIDIA's driver shows on this machine."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def command(path: Path, answers: Answers) -> str:
    """Return the command line that writes the same manifest."""
    flags = {"where": answers.where, "gpus": answers.gpus, "model": answers.model, "data": answers.data}
    given = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    return shlex.join(["rljob", "init", str(path), *given, "--algorithm", answers.algorithm])


def next_steps(path: Path, answers: Answers) -> str:
    """Return the commands that come after this one."""
    fits = " --gpu H100-80" if answers.gpus else ""
    start = f"rljob run {path}" if answers.where is Where.HERE else f"kubectl apply -f {path}"
    return "\n".join(f"  {each}" for each in (f"rljob validate {path}", f"rljob plan {path}{fits}", start))

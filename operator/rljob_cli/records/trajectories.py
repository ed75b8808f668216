"""`rljob rollout show RUN`: the samples that a run has kept, as turns."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import RenderableType

from rljob_api.exits import Exit
from rljob_cli.records import trajectory_view as view
from rljob_cli.terminal.options import Output
from rljob_cli.terminal.screen import console, say, say_json
from rljob_trainer.rundir.rollout_files import Dump, DumpError
from rljob_trainer.rundir.trajectories import NothingKeptError, Trajectory, kept, row, trajectories

PIPE_WIDTH = 200
"""columns of what goes to a file or a pipe"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be shown."""

    step: int | None
    """None: the last one"""
    sample: int | None
    """None: a table of all"""
    tokens: bool
    page: int
    """from 1"""


def show(run: Path, wanted: Wanted, output: Output) -> Exit:
    """Print samples of a step; return 9 for what is not there, or is damaged."""
    try:
        dump, steps = kept(run)
        step = steps[-1] if wanted.step is None else wanted.step
        if wanted.sample is None:
            page = _page(dump, steps, step, wanted.page)
            _print(view.page_as_json(page) if output is Output.JSON else view.page_as_table(page))
            return Exit.OK
        found = _found(trajectories(dump, step), wanted.sample, f"{dump.path(step)}: step {step}")
    except (NothingKeptError, DumpError) as error:
        say(str(error), err=True)
        return Exit.BAD_INPUT
    if output is Output.JSON:
        _print(view.as_json(step, found))
    else:
        _print(view.tokens_as_table(step, found, wanted.page) if wanted.tokens else view.as_text(step, found))
    return Exit.OK


def _page(dump: Dump, steps: tuple[int, ...], step: int, number: int) -> view.Page:
    """Return a page; all of the file is read, as its end says whether it is whole."""
    first, rows, samples = (number - 1) * view.ROWS, [], 0
    for samples, each in enumerate(trajectories(dump, step), 1):
        if first < samples <= first + view.ROWS:
            rows.append(row(each))
    return view.Page(step, steps, number, tuple(rows), samples)


def _found(all_: Iterator[Trajectory], number: int, where: str) -> Trajectory:
    """Return the sample with a number, when all of the file is read. Raises NothingKeptError."""
    found, samples = None, 0
    for each in all_:
        samples += 1
        if each.number == number:
            found = each
    if found is None:
        raise NothingKeptError(f"{where}: has {samples} samples, and no sample {number}; nearest valid: {samples - 1}")
    return found


def _print(shown: str | RenderableType) -> None:
    if isinstance(shown, str):
        say_json(shown)
    else:
        console(PIPE_WIDTH).print(shown)

"""`rljob convert SOURCE TARGET`: which way to go, and with which model's configuration; then the trainer converts."""

import os
import time
from pathlib import Path

from rljob_api.exits import Exit
from rljob_cli.terminal.screen import say
from rljob_trainer.data.packages import ModelError, cache_directory
from rljob_trainer.data.packages import checkpoint as model_directory
from rljob_trainer.learners.errors import UnsupportedModelError
from rljob_trainer.learners.rank.conversion import ConversionError, Converted, hugging_face, megatron
from rljob_trainer.reporting.events import FILE_NAME, EventsError, read_events
from rljob_trainer.reporting.records import RunRecord
from rljob_trainer.rundir import checkpoints
from rljob_trainer.rundir.checkpoints import CheckpointError
from rljob_trainer.rundir.missing_path import contents, nearest

KINDS = "a checkpoint of a run (iter_*/ with rljob.json), a run's directory, or a Hugging Face directory (config.json)"


def convert(source: Path, target: Path, model: str | None) -> Exit:
    """Convert, and print what was written; return the exit code."""
    began = time.monotonic()
    try:
        done = converted(source, target, model)
    except (CheckpointError, ConversionError, UnsupportedModelError, ModelError, EventsError, OSError) as error:
        say(str(error), err=True)
        return Exit.BAD_INPUT if source.exists() else Exit.USAGE
    say(summary(done, time.monotonic() - began))
    return Exit.OK


def converted(source: Path, target: Path, model: str | None) -> Converted:
    """Convert in the direction that the source asks for. Raises the errors of `convert`."""
    if (source / "config.json").is_file():
        if model is not None:
            raise ConversionError(f"--model {model}: {source} has its own configuration; omit --model")
        return megatron(source, target)
    path = checkpoint_of(source)
    return hugging_face(path, original_of(path, model), target)


def checkpoint_of(source: Path) -> Path:
    """Return the checkpoint that a path means; of a run, the newest that is undamaged."""
    named = checkpoints.NAME.fullmatch(source.resolve().name)
    if (source / checkpoints.MANIFEST).is_file() or (named and source.is_dir()):
        return source
    for directory in (source, source / checkpoints.DIRECTORY):
        if found := checkpoints.newest(directory):
            return found.path
    there = contents(source) if source.is_dir() else nearest(source)
    raise ConversionError(f"{source}: looked for {KINDS}; {there}")


def original_of(path: Path, model: str | None) -> Path:
    """Return the Hugging Face directory that training began with: as given, or as the checkpoint's run recorded it."""
    named = model or recorded_model(path.resolve().parent.parent / FILE_NAME)
    if named is None:
        raise ConversionError(
            f"{path}: the initial model is unknown, because the run's {FILE_NAME} is not beside it; set it with --model"
        )
    directory = model_directory(named, cache_directory(os.environ))
    if not (directory / "config.json").is_file():
        there = contents(directory) if directory.is_dir() else nearest(directory)
        raise ConversionError(f"{directory}: looked for the config.json of the initial model; {there}")
    return directory


def recorded_model(events: Path) -> str | None:
    """Return `spec.model.checkpoint` of the last start of a run; None when there is no record."""
    if not events.exists():
        return None
    runs = [record for record in read_events(events) if isinstance(record, RunRecord)]
    return str(runs[-1].manifest["spec"]["model"]["checkpoint"]) if runs else None


def summary(done: Converted, seconds: float) -> str:
    """Return, for example, `out: 272 tensors, 513.1 MiB in fp32, each read back and identical bit by bit; 4.2 s`."""
    size = f"{done.size / 2**20:.1f} MiB in {done.precision}"
    left_out = f"; omitted, because it is derived from others: {', '.join(done.left_out)}" if done.left_out else ""
    if done.untrained:
        left_out += f"; {done.untrained} tensors of layers for multi-token prediction are not trained, and not in it"
    same = "each read back and identical bit by bit"
    return f"{done.path}: {done.tensors} tensors, {size}, {same}{left_out}; {seconds:.1f} s"

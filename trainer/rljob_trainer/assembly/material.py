"""The second stage: model, data, algorithm, prompts and rollout files, read and checked before processes start."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rljob_api.sections import Spec
from rljob_api.sizing.token_limits import prompt_room
from rljob_trainer.assembly.foundation import Foundation
from rljob_trainer.assembly.settings import chosen_algorithm, made_by
from rljob_trainer.assembly.stages import Material, Source
from rljob_trainer.conversations import factory as conversations
from rljob_trainer.data.dataset import Dataset, dataset
from rljob_trainer.data.packages import cache_directory
from rljob_trainer.data.prompts import PromptStream
from rljob_trainer.data.teacher import teacher_directory
from rljob_trainer.data.tokenizer import load_config, load_tokenizer
from rljob_trainer.rundir import rollout_files
from rljob_trainer.rundir.checkpoints import Checkpoint, CheckpointError, Found, model_fingerprint
from rljob_trainer.rundir.journal import FILE_NAME as JOURNAL
from rljob_trainer.rundir.journal import Journal
from rljob_trainer.rundir.retries import Patience
from rljob_trainer.rundir.rollout_files import Dump, DumpError, Made

log = logging.getLogger(__name__)

ANOTHER = "use another checkpoint.directory"
ANEW = f"{ANOTHER}, or begin anew with checkpoint.resume: Fresh"

Prepare = Callable[[Foundation, Path, Dataset], Source]
"""reads and checks what a mode needs to get samples"""


def gather(
    foundation: Foundation, of_learner: Foundation, prepare: Prepare, model: Path, found: Found | None
) -> Material:
    """Read everything that the run works on, and go back in journal and dumps to the checkpoint in `found`.

    The stack of `of_learner` ends what lasts as long as one learner.
    Raises DataError, RewardError, GenerateError, AlgorithmError, CheckpointError, JournalError, DumpError.
    """
    spec = foundation.spec
    fingerprint, data = model_fingerprint(model), _data(spec, model)
    source = prepare(foundation, model, data)
    algorithm = chosen_algorithm(spec)
    teacher = teacher_directory(spec, model, cache_directory(foundation.environ))
    if found and not spec.debug.learner:
        raise CheckpointError(f"{found.path}: spec.debug.rolloutOnly starts no learner to load it; {ANEW}")
    if found:
        check_resumable(found.path, found.checkpoint, fingerprint, spec.training.precision.value)
    stream, journal = _stream(of_learner, data, found)
    foundation.status_store.beat()
    made = made_by(spec, fingerprint, stream.fingerprint)
    return Material(
        model=model,
        fingerprint=fingerprint,
        data=data,
        source=source,
        algorithm=algorithm,
        teacher=teacher,
        stream=stream,
        journal=journal,
        dump=_dump(spec, foundation.directory, found.checkpoint.step if found else 0, made, foundation.patience),
        made=made,
        resume=found,
    )


def begun_again(foundation: Foundation, material: Material, found: Found | None) -> Material:
    """Return the same material at the checkpoint in `found`: journal and dumps go back to it.

    Raises CheckpointError, JournalError, DumpError.
    """
    spec = foundation.spec
    if found:
        check_resumable(found.path, found.checkpoint, material.fingerprint, spec.training.precision.value)
    stream, journal = _stream(foundation, material.data, found)
    first = found.checkpoint.step if found else 0
    dump = _dump(spec, foundation.directory, first, material.made, foundation.patience)
    return replace(material, stream=stream, journal=journal, dump=dump, resume=found)


def check_resumable(path: Path, saved: Checkpoint, model: str, precision: str) -> None:
    """Raise CheckpointError when the checkpoint belongs to another model or precision; layouts may differ."""
    if saved.model != model:
        raise CheckpointError(f"{path}: training began with another model than model.checkpoint; {ANEW}")
    if saved.precision != precision:
        raise CheckpointError(f"{path}: written in {saved.precision}, and the manifest asks for {precision}; {ANEW}")


def _data(spec: Spec, model: Path) -> Dataset:
    room = prompt_room(spec, load_config(model).max_position_embeddings)
    return dataset(spec.data, load_tokenizer(model), room, conversations.schemas(spec), spec.is_sft)


def _stream(foundation: Foundation, data: Dataset, found: Found | None) -> tuple[PromptStream, Journal]:
    spec = foundation.spec
    stream = data.stream(seed=spec.seed, shuffle=spec.data.shuffle)
    journal = Journal(foundation.directory / JOURNAL, foundation.fence.check, foundation.patience)
    foundation.stack.callback(journal.close)
    if found is None:
        journal.rewind(0, "")
        return stream, journal
    path, saved = found.path, found.checkpoint
    if saved.data_fingerprint != stream.fingerprint:
        raise CheckpointError(f"{path}: the training questions are not those it was trained on; {ANEW}")
    stream.seek(saved.prompts)
    journal.rewind(saved.step, path.name)
    journal.check(stream.uids)
    now = str(foundation.topology.layout)
    log.info("action=resume checkpoint=%s step=%d saved_by=%r loaded_by=%r", path, saved.step, saved.layout, now)
    return stream, journal


def _dump(spec: Spec, directory: Path, first: int, made: Made, patience: Patience) -> Dump:
    """Return where rollouts are read or written, checked for what this run will do with it."""
    own = directory / rollout_files.DIRECTORY
    if spec.debug.replay is None:
        return Dump(own, patience).rewind(first, made) if spec.debug.dump_rollouts else Dump(own, patience)
    dump = Dump(Path(spec.debug.replay), patience)
    if dump.directory.resolve() == own:
        raise DumpError(f"{own}: spec.debug.replay is of this run itself; {ANOTHER}")
    dump.require(range(first, spec.training.steps))
    if first < spec.training.steps:
        dump.read(first, made)
    return dump

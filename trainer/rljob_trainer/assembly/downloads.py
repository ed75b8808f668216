"""Replaces references to the hub and to object stores in a manifest by local files; parts of a run see only paths.

A branch of the hub can move, and objects can be replaced. So the first attempt records the commit of each reference, or
the digest of the objects, in the run's directory, and an attempt that resumes uses the same.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rljob_api import hub, objects
from rljob_api.sections import RLJob, Source
from rljob_trainer.data import stored_objects
from rljob_trainer.data.hub import Hub, HubError, fetched
from rljob_trainer.data.stored_objects import Objects
from rljob_trainer.rundir.atomic_files import write_atomically

FILE_NAME = "revisions.json"
"""in the run's directory: commit or digest by reference"""
COMMIT = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
S = TypeVar("S", bound=Source)


def with_local_files(
    job: RLJob, source: Hub, stores: Objects, directory: Path, resumes: bool, beat: Callable[[], None]
) -> RLJob:
    """Download what the manifest names on the hub and in stores, and return the job with its paths.

    Raises HubError and RemoteError.

    `directory` is the run's; `beat` is called while a download lasts.
    """
    record = directory / FILE_NAME
    known = recorded_revisions(directory) if resumes else {}
    used: dict[str, str] = {}

    def local(text: str, is_model: bool) -> str:
        wanted = hub.model(text) if is_model else hub.file(text)
        if wanted is not None:
            found = fetched(source, replace(wanted, revision=known.get(text, wanted.revision)), beat=beat)
        elif objects.is_reference(text):
            found = stored_objects.fetched(stores, text, is_model=is_model, beat=beat, pinned=known.get(text))
        else:
            return text
        used[text] = commit_of(found)
        return str(found)

    placed = placed_in(job, lambda text: local(text, is_model=True), lambda text: local(text, is_model=False))
    if used:
        write_atomically(record, json.dumps(used, indent=2).encode())
    return placed


def recorded_revisions(directory: Path) -> Mapping[str, str]:
    """Return the commits and digests that an earlier attempt has recorded, by reference; none were. Raises HubError."""
    record = directory / FILE_NAME
    if not record.is_file():
        return {}
    try:
        known = json.loads(record.read_bytes())
    except (ValueError, RecursionError):
        known = None
    if not isinstance(known, dict) or not all(COMMIT.fullmatch(str(each)) for each in known.values()):
        rule = "does not hold the commits that the run began with; restore it, or remove it to use today's"
        raise HubError(f"{record}: {rule}")
    return known


def commit_of(path: Path) -> str:
    """Return the commit or digest of a directory or file in the cache: `…/snapshots/COMMIT/…`."""
    return path.parts[path.parts.index("snapshots") + 1]


def placed_in(job: RLJob, of_model: Callable[[str], str], of_file: Callable[[str], str]) -> RLJob:
    """Return the job with other checkpoints and other files of questions."""
    spec = job.spec
    model = spec.model.model_copy(update={"checkpoint": of_model(spec.model.checkpoint)})
    algorithm, teacher = spec.algorithm, spec.algorithm.teacher
    if teacher is not None:
        other = teacher.model_copy(update={"checkpoint": of_model(teacher.checkpoint)})
        algorithm = algorithm.model_copy(update={"teacher": other})

    def questions(source: S) -> S:
        files = {"jsonl": source.jsonl, "parquet": source.parquet}
        return source.model_copy(update={kind: of_file(path) for kind, path in files.items() if path is not None})

    data = spec.data.model_copy(
        update={
            "train": questions(spec.data.train),
            "held_out": None if spec.data.held_out is None else questions(spec.data.held_out),
            "evaluation_sets": tuple(map(questions, spec.data.evaluation_sets)),
        }
    )
    return job.model_copy(
        update={"spec": spec.model_copy(update={"model": model, "algorithm": algorithm, "data": data})}
    )

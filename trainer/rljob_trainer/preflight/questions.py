"""The thin shell around the questions: reads them with the trainer's readers, and their tokenizer from its files."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jinja2 import TemplateError

from rljob_api.errors import Problem
from rljob_api.sections import Spec
from rljob_api.sizing.model_shape import CHECKPOINT, shape
from rljob_trainer.data.packages import TOKENIZER_FILES, cache_directory, on_this_machine
from rljob_trainer.data.sources import large_file, raw_rows
from rljob_trainer.preflight.downloads import file_of, file_on_this_machine
from rljob_trainer.preflight.findings import Findings, total
from rljob_trainer.preflight.model_files import ModelFiles
from rljob_trainer.preflight.prompts import habits, judge_lengths, judge_stops, judge_template
from rljob_trainer.preflight.rows import Rows, judge_rows, judge_split, read_rows
from rljob_trainer.preflight.tokenizer import (
    FileTokenizer,
    TokenizerFileError,
    judge_teacher,
    judge_vocabulary,
    read_tokenizer,
)
from rljob_trainer.processes.text_makers import CostlyTemplateError, ForeignFileError

LOOKED_AT = 20_000
"""rows of a large file; a run checks all of them when it starts"""


def look_at_questions(spec: Spec, files: ModelFiles | None) -> Findings:
    """Look at the questions that are on this machine, and at them as prompts of the model if that is, too."""
    rows = read_sources(spec)
    found = total(judge_rows(spec, source) for source in rows) + judge_split(rows) + unseen(rows)
    # The tokenizer of a package's model is known once the first run has converted it.
    directory = on_this_machine(spec.model.checkpoint, cache_directory(os.environ))
    if files is None or directory is None:
        return found
    return found + look_at_prompts(spec, directory, files, rows)


def read_sources(spec: Spec) -> list[Rows]:
    """Return the rows of the files that are on this machine; of a large file the first ones."""
    rows = []
    for field, source in spec.data.sources.items():
        if (given := file_of(source)) is not None and (there := file_on_this_machine(given[1])) is not None:
            kind, _ = given
            local = source.model_copy(update={kind: str(there)})
            is_large = large_file(local) is not None
            first = local.model_copy(update={"limit": LOOKED_AT}) if is_large else local
            found = read_rows(f"{field}.{kind}", raw_rows(first), spec.data, spec.is_sft)
            rows.append(replace(found, is_whole=not is_large))
    return rows


def unseen(rows: Sequence[Rows]) -> Findings:
    """Return of which files only the first rows were looked at."""
    part = f"only the first {LOOKED_AT} rows were looked at, because it is large; a run checks every row when it starts"
    return Findings(unseen=tuple(f"{source.field}: {part}" for source in rows if not source.is_whole))


def look_at_prompts(spec: Spec, directory: Path, files: ModelFiles, rows: Sequence[Rows]) -> Findings:
    """Look at a checkpoint's tokenizer, at its chat template, and at the questions as prompts."""
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        rule = "is not there: the checkpoint has no tokenizer"
        return Findings((Problem(CHECKPOINT, "tokenizer.json", rule, "fetch it again"),))
    try:
        tokenizer = read_tokenizer(directory)
    except TokenizerFileError as error:
        return Findings((error.args[0],))
    if tokenizer is None:
        return Findings(unseen=("the tokenizer has no tokenizer.json, so it was not looked at",))
    try:
        return look_at_tokenizer(spec, tokenizer, files, rows)
    except ForeignFileError as error:
        return Findings((Problem(CHECKPOINT, str(directory), f"has a tokenizer that cannot be used: {error}"),))


def look_at_tokenizer(spec: Spec, tokenizer: FileTokenizer, files: ModelFiles, rows: Sequence[Rows]) -> Findings:
    """Look at a tokenizer, at its chat template, and at the questions as prompts. Raises ForeignFileError."""
    try:
        found = habits(tokenizer) if spec.data.chat_template and tokenizer.chat_template else None
    except CostlyTemplateError as error:
        return Findings((Problem(CHECKPOINT, "chat template", f"cannot be used: {error}"),))
    except TemplateError as error:
        return Findings(unseen=(f"the chat template refuses a plain conversation, so it was not looked at: {error}",))
    wrong = tuple(judge_vocabulary(tokenizer, files.config))
    teacher, cache = spec.algorithm.teacher, cache_directory(os.environ)
    if teacher is not None and spec.debug.learner and (other := on_this_machine(teacher.checkpoint, cache)) is not None:
        wrong += tuple(judge_teacher(tokenizer, other))
    judged = judge_template(spec, tokenizer, found, rows) + judge_stops(spec, found, tokenizer, files.stop_tokens)
    # A template that is missing or applied twice makes all lengths meaningless.
    measured = Findings() if judged.problems else judge_lengths(spec, shape(files.config), tokenizer, rows)
    return Findings(wrong) + judged + measured

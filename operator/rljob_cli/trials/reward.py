"""`rljob reward test MANIFEST`: the manifest's reward on real rows of its data, without model, engine or GPU."""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rljob_api.exits import Exit
from rljob_api.sections import RLJob
from rljob_cli.terminal.options import Output
from rljob_cli.terminal.screen import console, say, say_json
from rljob_cli.trials.reward_view import as_json, as_table
from rljob_trainer.assembly.reward_trial import Texts, Trial, prompts, trial, usual_texts
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.packages import ModelError
from rljob_trainer.preflight.functions import working_path
from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rewards.factory import RewardContext, rewards

LOG = "reward.log"
PIPE_WIDTH = 200
"""columns of a table that goes to a file or a pipe"""


class ResponsesError(ValueError):
    """The file of responses cannot be used; the text says which line, what was wanted and what was found."""


def test(job: RLJob, rows: int, given: Sequence[str], file: Path | None, output: Output) -> Exit:
    """Print what the reward says; return what a run would end with."""
    become_driver(job)
    with tempfile.TemporaryDirectory(prefix="rljob-") as directory, ExitStack() as stack:
        log = Path(directory) / LOG
        try:
            done = judged(job, rows, given, file, log, stack)
        except (DataError, ModelError, RewardError, ResponsesError) as error:
            say(str(error), err=True)
            return Exit.BAD_INPUT
        finally:
            stack.close()
            show_log(log)
    show(done, output)
    return Exit.BAD_INPUT if done.run_would_end else Exit.OK


def become_driver(job: RLJob) -> None:
    """Let functions be found where the driver finds them: below the present directory and the manifest's PYTHONPATH."""
    os.environ.update(job.spec.runtime.texts)
    sys.path[:0] = working_path(job.spec)


def judged(job: RLJob, rows: int, given: Sequence[str], file: Path | None, log: Path, stack: ExitStack) -> Trial:
    if not job.spec.reward.judgings:
        raise RewardError(f"spec.reward: {job.metadata.name} has none (spec.algorithm.name {job.spec.algorithm.name})")
    lines = responses(file) if file else None
    asked = prompts(job.spec, len(lines) if lines is not None else rows, os.environ)
    if lines is not None and len(lines) > len(asked):
        raise ResponsesError(f"{file}: {len(lines)} lines, but data.train has {len(asked)} rows")
    texts = lines if lines is not None else [tuple(given) or usual_texts(prompt) for prompt in asked]
    around = RewardContext(log, os.environ, with_metadata=job.spec.data.metadata_key is not None)
    return trial(rewards(job.spec.reward, around, stack), asked, texts)


def responses(file: Path) -> list[Texts]:
    """Return the responses to each row: a line is a JSON text, or a list of texts. Raises ResponsesError."""
    found: list[Texts] = []
    # Not splitlines: JSON may hold other separators of lines as they are.
    lines = file.read_text("utf-8", "replace").removesuffix("\n").split("\n")
    for number, line in enumerate(lines if lines != [""] else [], start=1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ResponsesError(f"{file}:{number}: not JSON: {error}") from error
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise ResponsesError(f"{file}:{number}: a JSON text or a list of texts is wanted, found {line[:60]}")
        found.append(texts)
    if not found:
        raise ResponsesError(f"{file}: no responses")
    return found


def show_log(log: Path) -> None:
    """Pass on what users' functions have printed."""
    if log.exists():
        say(log.read_text("utf-8", "replace"), err=True, nl=False)


def show(done: Trial, output: Output) -> None:
    if output is Output.JSON:
        say_json(as_json(done))
        return
    terminal = sys.stdout.isatty()
    console(PIPE_WIDTH).print(as_table(done, boxes=terminal))

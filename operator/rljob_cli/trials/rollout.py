"""`rljob rollout test MANIFEST`: samples of real rows in the manifest's way, by one engine, and their rewards."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rljob_api.exits import Exit
from rljob_api.sections import RLJob
from rljob_cli.terminal.options import Output
from rljob_cli.terminal.screen import console, say, say_json
from rljob_cli.trials.reward import LOG, PIPE_WIDTH, become_driver, show_log
from rljob_cli.trials.rollout_view import as_json, as_text
from rljob_trainer.assembly.rollout_trial import Door, RolloutTrial, engine, groups, judged, prompts
from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.packages import ModelError, cache_directory, checkpoint
from rljob_trainer.engines.client import EngineError, EngineRefusedError
from rljob_trainer.engines.key import KEY_VARIABLE
from rljob_trainer.engines.served import EngineStartError
from rljob_trainer.gateway.client import GatewayError
from rljob_trainer.generator import GenerationFailedError, RolloutTimeoutError
from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rewards.factory import RewardContext, rewards

WRONG = (DataError, ModelError, RewardError, GenerateError, EngineRefusedError)
GONE = (EngineError, EngineStartError, GatewayError, GenerationFailedError, RolloutTimeoutError)


def test(job: RLJob, rows: int, samples: int, greedy: bool, url: str | None, output: Output) -> Exit:
    """Print the samples with their rewards; return what a run would end with."""
    become_driver(job)
    with tempfile.TemporaryDirectory(prefix="rljob-") as directory:
        log = Path(directory) / LOG
        try:
            done = tried(job, rows, samples, greedy, url, Path(directory), log)
        except WRONG as error:
            say(str(error), err=True)
            return Exit.BAD_INPUT
        except GONE as error:
            say(str(error), err=True)
            return Exit.LOST_PEER
        finally:
            show_log(log)
    show(done, output)
    return Exit.BAD_INPUT if done.run_would_end else Exit.OK


def tried(
    job: RLJob, rows: int, samples: int, greedy: bool, url: str | None, directory: Path, log: Path
) -> RolloutTrial:
    spec = job.spec
    model = checkpoint(spec.model.checkpoint, cache_directory(os.environ))
    asked = prompts(spec, model, rows)
    with ExitStack() as stack:
        scoring = rewards(spec.reward, RewardContext(log, os.environ, spec.data.metadata_key is not None), stack)
        with serving(job, model, url, directory) as door:
            made = groups(spec, model, door, asked, samples, greedy, log)
        return judged(scoring, made)


@contextmanager
def serving(job: RLJob, model: Path, url: str | None, directory: Path) -> Iterator[Door]:
    """Give an engine: the one at `url`, with the key of the environment, or one that is started."""
    if url is not None:
        yield Door(url.rstrip("/"), os.environ.get(KEY_VARIABLE, ""))
        return
    say("starting an engine", err=True)
    with engine(job.spec, model, directory / "engine.log", os.environ.get("PYTHONPATH", "")) as door:
        yield door


def show(done: RolloutTrial, output: Output) -> None:
    if output is Output.JSON:
        say_json(as_json(done))
        return
    console(PIPE_WIDTH).print(as_text(done))

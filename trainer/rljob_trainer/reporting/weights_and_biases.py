"""A run at Weights & Biases, or in files that `wandb sync` sends later. A separate process of wandb sends.

All attempts of a run are one run there: its id is kept in the run's directory. Steps that are repeated after a restart
are sent again under the same `step`.
"""

import logging
import secrets
from pathlib import Path
from typing import Any, Final

import wandb
from wandb.errors import AuthenticationError, CommError, UsageError

from rljob_api.credentials import without_values
from rljob_api.sections import RLJob, Wandb, WandbMode
from rljob_trainer.private_files import write_whole
from rljob_trainer.reporting.errors import TrackingError
from rljob_trainer.reporting.records import EndRecord, Record
from rljob_trainer.reporting.tensorboard import scalars

log = logging.getLogger(__name__)
logging.getLogger("wandb").setLevel(logging.WARNING)  # it logs the whole manifest, and every step of its own start

ID_FILE: Final = "wandb-id"
STEP: Final = "step"
FIELD: Final = "spec.tracking.wandb"
KEPT_HERE: Final = {"spec": {"runtime": {"env"}}}
"""parts of the manifest that may hold secrets and are not sent"""
MODES: Final = {None: None, WandbMode.ONLINE: "online", WandbMode.OFFLINE: "offline"}
"""wandb's own names"""
INIT_S: Final = 60.0
"""timeout for the server's answer at the start"""
FINISH_S: Final = 60.0
"""timeout for the last uploads; the rest stays in the run's directory"""


class WeightsAndBiases:
    """Sends scalars by step, under their TensorBoard names."""

    def __init__(self, directory: Path, job: RLJob, settings: Wandb) -> None:
        """Open the run; offline, with a warning, if the server does not answer. Raises TrackingError."""
        self._code = 0
        try:
            self._run = opened(directory, job, settings, settings.mode)
        except (AuthenticationError, UsageError) as error:
            raise TrackingError(f"{FIELD}: {error}") from error
        except (CommError, TimeoutError) as error:
            log.warning("action=track mode=Offline reason=%r: `wandb sync` sends what is in %s", str(error), directory)
            self._run = opened(directory, job, settings, WandbMode.OFFLINE)
        self._run.define_metric("*", step_metric=STEP)

    def record(self, record: Record) -> None:
        if values := dict(scalars(record)):
            self._run.log({STEP: record.step, **values})
        if isinstance(record, EndRecord):
            self._code = int(record.outcome == "failed")

    def close(self) -> None:
        """Wait for the last uploads and for wandb's process, which still writes after `finish`."""
        self._run.finish(exit_code=self._code)
        wandb.teardown()


def opened(directory: Path, job: RLJob, settings: Wandb, mode: WandbMode | None) -> Any:
    """Return the run of earlier attempts, or a new one."""
    return wandb.init(
        project=settings.project,
        entity=settings.entity,
        group=settings.group,
        tags=settings.tags,
        name=job.metadata.name,
        id=run_id(directory),
        resume="allow",
        dir=str(directory),
        mode=MODES[mode],
        config=without_values(job.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=KEPT_HERE)),
        settings=wandb.Settings(
            api_key=key(settings.api_key_file),
            console="off",
            silent=True,
            disable_code=True,
            disable_git=True,
            init_timeout=INIT_S,
            finish_timeout=FINISH_S,
        ),
    )


def run_id(directory: Path) -> str:
    """Return the id of the run in a directory; the first attempt creates it."""
    path = directory / ID_FILE
    if not path.exists():
        write_whole(path, secrets.token_hex(4).encode())
    return path.read_text().strip()


def key(file: str | None) -> str | None:
    """Return the key in a file; None: wandb finds it by itself. Raises TrackingError."""
    if file is None:
        return None
    try:
        return Path(file).read_text().strip()
    except OSError as error:
        raise TrackingError(f"{FIELD}.apiKeyFile {file}: cannot be read: {error.strerror}") from error

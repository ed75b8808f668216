"""One JSON object a log line, with the job that it is about."""

import logging
from contextvars import ContextVar

from pythonjsonlogger.json import JsonFormatter

job: ContextVar[str] = ContextVar("job", default="")
"""key of the job that this task works on"""


class AboutJob(logging.Filter):
    """Adds the job's key to each record."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.job = job.get()
        return True


def configure(level: str) -> None:
    """Log to standard error."""
    handler = logging.StreamHandler()
    handler.addFilter(AboutJob())
    handler.setFormatter(
        JsonFormatter(
            "%(asctime)s %(levelname)s %(name)s %(job)s %(message)s",
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)

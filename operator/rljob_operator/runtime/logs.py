"""Logs one JSON object per line, with the key of the job."""

import logging
from contextvars import ContextVar
from typing import Any

from pythonjsonlogger.json import JsonFormatter

from rljob_api.foreign_text import without_tokens

job: ContextVar[str] = ContextVar("job", default="")
"""key of the job that this task works on"""


FIELDS = {"time", "level", "logger", "job", "message", "exc_info", "stack_info"}


class OurFields(JsonFormatter):
    """Leaves out what libraries attach to their records, and credentials.

    Our own messages have none. Those of libraries may: aiohttp's errors hold the headers of the request.
    """

    def format(self, record: logging.LogRecord) -> str:
        return without_tokens(super().format(record))

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        super().add_fields(log_data, record, message_dict)
        for name in log_data.keys() - FIELDS:
            del log_data[name]


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
        OurFields(
            "%(asctime)s %(levelname)s %(name)s %(job)s %(message)s",
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)

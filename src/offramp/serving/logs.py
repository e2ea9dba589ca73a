"""One format for everything that a service logs: a line of JSON, with the id of the request."""

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that is answered at present."""

access = logging.getLogger("offramp.access")
"""Every answer, as a record with the attribute `fields`."""


class JsonLines(logging.Formatter):
    """Records as lines of JSON: time, level, logger, message, request id, and `fields`.

    Example:
        >>> record = logging.makeLogRecord({"msg": "ready", "name": "a", "fields": {"port": 80}})
        >>> JsonLines().format(record).partition('"logger"')[2]
        ': "a", "message": "ready", "port": 80}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever stands in the message."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request_id := REQUEST_ID.get()) is not None:
            line["request_id"] = request_id
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _ToStderr(logging.StreamHandler[Any]):
    """Writes to `sys.stderr` as it is when a record comes, which tests may have replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def log_as_json() -> None:
    """Write what a service logs to stderr: its answers and warnings, and what uvicorn warns of."""
    handler = _ToStderr()
    for name in ("offramp", "uvicorn"):
        logger = logging.getLogger(name)
        if not any(isinstance(each, _ToStderr) for each in logger.handlers):
            logger.addHandler(handler)
            logger.propagate = False
    for name in ("offramp.access", "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)

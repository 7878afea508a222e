"""The log on standard error: one line per event, as logfmt or JSON."""

import json
import logging
import sys

from trackside_daemon.model.log_fields import ATTRIBUTE
from trackside_daemon.model.text import rfc3339


class _Logfmt(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={_quoted(value)}" for key, value in _fields(self, record).items())


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _json({**_fields(self, record), **getattr(record, ATTRIBUTE, {})})


def set_up(level: str, style: str) -> None:
    """Log from *level* on, as ``logfmt`` or ``json``, and only errors of libraries. May be called again."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if style == "json" else _Logfmt())
    root = logging.getLogger()
    # Replaced and not added: a second handler after a reload would write each line twice.
    root.handlers = [handler]
    root.setLevel(logging.ERROR)
    logging.getLogger("trackside").setLevel(level.upper())


def _fields(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, str]:
    fields = {
        "time": rfc3339(record.created, "milliseconds"),
        "level": record.levelname.lower(),
        "msg": record.getMessage(),
    }
    if record.exc_info:
        fields["exception"] = formatter.formatException(record.exc_info)
    return fields


def _quoted(value: str) -> str:
    plain = value.isprintable() and not any(sign in value for sign in ' ="')
    return value if plain and value else _json(value)


def _json(value: object) -> str:
    """Return JSON without invisible characters: those that change the direction of text would disguise a line."""
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)

"""Clean records before they are stored: no secrets, and only text that can be encoded."""

import json
from dataclasses import replace
from typing import Any

import msgspec

from trackside.redact import redact, redact_command, redact_text
from trackside.wire import Hello, ProcessInfo
from trackside_daemon.model.records import Alert, AlertNote, Event, Record, RunState, SessionOpened, Silence


def clean(record: Record) -> Record:
    """Return the record as the history and the JSON lines store it."""
    if isinstance(record, SessionOpened):
        session = record.session._replace(name=redact_text(record.session.name))
        return replace(record, session=session, hello=_hello(record.hello))
    if isinstance(record, RunState):
        return replace(record, cause=redact_text(record.cause))
    if isinstance(record, Event):
        return replace(record, fields=redact(dict(record.fields)))
    if isinstance(record, Silence):
        return replace(record, comment=redact_text(record.comment))
    return _alert(record) if isinstance(record, Alert | AlertNote) else record


def _alert(record: Alert | AlertNote) -> Alert | AlertNote:
    labels = {name: redact_text(value, named=True) for name, value in record.labels.items()}
    evidence = redact(dict(record.evidence))
    if isinstance(record, AlertNote):
        notified = {
            sink: sent._replace(summary=redact_text(sent.summary, named=True)) for sink, sent in record.notified.items()
        }
        return replace(record, labels=labels, evidence=evidence, notified=notified)
    summary, description = redact_text(record.summary, named=True), redact_text(record.description)
    return replace(record, labels=labels, summary=summary, description=description, evidence=evidence)


def to_json(value: Any) -> str:
    """Return compact JSON."""
    # An escape can write half a surrogate pair, which UTF-8 cannot encode: it becomes a question mark.
    return json.dumps(value, separators=(",", ":"), default=str, ensure_ascii=False).encode("utf-8", "replace").decode()


def _hello(hello: Hello) -> Hello:
    return msgspec.structs.replace(
        hello,
        config=_config(hello.config) if hello.config else "",
        tags=tuple(map(redact_text, hello.tags)),
        about=None if hello.about is None else _about(hello.about),
    )


def _config(text: str) -> str:
    """Return a configuration without its secrets, as JSON; text that is not JSON is replaced by a note."""
    try:
        return to_json(redact(json.loads(text)))
    except (ValueError, RecursionError):
        return to_json("not JSON")


def _about(about: ProcessInfo) -> ProcessInfo:
    return msgspec.structs.replace(
        about, command=tuple(redact_command(about.command)), directory=redact_text(about.directory)
    )

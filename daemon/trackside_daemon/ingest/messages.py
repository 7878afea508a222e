"""The messages of clients: their bodies, decoded and checked; how many there are; and what each owner may send."""

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from trackside.environment.config import CONFIG_BYTES
from trackside.limits import BATCH_MESSAGES, TEXT_LENGTH
from trackside.log_once import LogOnce
from trackside.redact import redact, redact_text
from trackside.wire import (
    REASONS,
    Hello,
    Identity,
    Pushes,
    TrainingAlert,
    TrainingEvent,
    WireError,
    decode_body,
    is_commit,
)
from trackside_daemon.model.columns import Columns, decode
from trackside_daemon.model.families import daemon
from trackside_daemon.model.metric import Sample
from trackside_daemon.model.records import USER_ALERT, Event
from trackside_daemon.model.session import SessionRef
from trackside_daemon.model.text import byte_size, cut_bytes
from trackside_daemon.training.admission import OwnerRate, redacted
from trackside_daemon.training.totals import bounded

Family = tuple[tuple[int, int], ...]


ANSWERS = {
    "stacks": "stacks?",
    "flight": "flight?",
    "steps": "steps?",
    "profile": "profile?",
    "memory": "memory?",
    "modules": "modules?",
    "pong": "ping",
}  # the kinds of answers, each with the kind of its question
UNNUMBERED = ("beat", *ANSWERS)
KINDS = ("hello", "batch", "skip", "bye", *UNNUMBERED)

# What fields of a hello may hold besides its identity, in bytes of msgpack: a client has far less of each. Only it limits its
# configuration; its text has a header of 5 bytes. Empty ones replace those that hold more.
HELLO_FIELD_LIMITS = {"config": CONFIG_BYTES + 5, "tags": 64 * 1024, "about": 256 * 1024}
EMPTY_HELLO_FIELDS = {"config": "", "tags": (), "about": None}
TEXT_BYTES = 4 * BATCH_MESSAGES * TEXT_LENGTH  # limit of the texts of a batch's events and alerts
CAUSE_BYTES = 256  # the longest cause of an end, in UTF-8

# How many pairs of sender and reason of one owner are remembered, so that each is logged once; later ones are only counted.
MAX_LOGGED = 1000

# New sessions of one owner: so many at once, and so many a second. A job of 1,024 ranks may restart three times at once.
SESSIONS_BURST, SESSIONS_RATE = 4096.0, 16.0
# Bytes of its events and alerts: each has some, and those of its texts.
EVENTS_BURST, EVENTS_RATE, EVENT_BYTES = 2.0**26, 2.0**16, 100
# Seconds of this thread for the secrets in them: a text can be made so that each MiB takes one. Further batches come again.
SEARCH_BURST, SEARCH_RATE = 1.0, 0.1

log = logging.getLogger("trackside")


def read(kind: str, frame: bytes) -> tuple[Any, list[Columns]]:
    """Return the body of a message of a kind, and the rows of a batch as columns; other kinds have none.

    Totals are within their limits. The texts of a bye are short and without secrets, since the log, alerts and its session have them.

    Raises:
        WireError: It cannot be decoded, or breaks a rule of its kind.
    """
    body = decode_body(kind, frame)
    if getattr(body, "totals", None) is not None:
        bounded(body.totals)
    if kind == "bye":
        texts = {name: redacted(getattr(body, name), CAUSE_BYTES) for name in ("status", "cause", "requested")}
        return replace(body, **texts), []
    if kind != "batch":
        return body, []
    # Of events and alerts together: a character of them can become twenty bytes in memory.
    size = sum(len(one.kind) + len(one.fields) for one in body.events)
    size += sum(len(one.title) + len(one.text) for one in body.alerts)
    if size > TEXT_BYTES:
        raise WireError("size", f"{size} characters of events and alerts, at most {TEXT_BYTES}")
    columns = decode(body.blocks)
    for one in (*body.distributions, *body.hashes):
        one.check()
    return body, columns


def family(hello: Hello) -> Family:
    """Return pid and start time of a client's process and of those above it, in its namespace; nothing for an older client."""
    parents = None if hello.about is None else hello.about.parents
    return () if parents is None else ((hello.identity.pid, hello.identity.start), *parents)


def checked(hello: Hello, identity: Identity) -> Hello:
    """Return the hello with its bounded *identity*, and without what is over `HELLO_FIELD_LIMITS`: a session keeps parts of both."""
    # Older clients send any text that a planted .git leads to.
    commit = identity.git_commit if is_commit(identity.git_commit) else ""
    sizes = {name: len(msgspec.msgpack.encode(getattr(hello, name))) for name in HELLO_FIELD_LIMITS}
    over = {name: EMPTY_HELLO_FIELDS[name] for name, most in HELLO_FIELD_LIMITS.items() if sizes[name] > most}
    found = replace(hello, identity=replace(identity, git_commit=commit), **over)
    if found.about is not None:  # a label, as of the client that cuts it
        found = replace(found, about=replace(found.about, correlation=cut_bytes(found.about.correlation, CAUSE_BYTES)))
    return found


def events(session: SessionRef, pushes: Pushes, shifted: int) -> list[Event]:
    """Return the events of a batch, then the user alerts that it raises, without secrets."""

    def event(item: TrainingEvent | TrainingAlert, kind: str, fields: dict[str, Any]) -> Event:
        time = (item.time + shifted) / 1e9
        size = len(item.fields if isinstance(item, TrainingEvent) else item.text)
        return Event(session.run, session.attempt, time, kind, session.rank, item.step, fields, size)

    happened = [event(item, item.kind, _fields(item.fields)) for item in pushes.events]
    raised = [event(notice, USER_ALERT, _alert(notice)) for notice in pushes.alerts]
    return [*happened, *raised]


def _fields(text: str) -> dict[str, Any]:
    """Return the fields of an event, which should be a JSON object."""
    try:
        fields = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        fields = None
    redacted_fields: dict[str, Any] = redact(fields if isinstance(fields, dict) else {"text": text})
    return redacted_fields


def _alert(notice: TrainingAlert) -> dict[str, Any]:
    return {"title": redact_text(notice.title), "severity": notice.severity, "text": redact_text(notice.text)}


class MessageLimits:
    """The counters since the daemon started, and what each owner has left of what is limited.

    Args:
        sessions: New sessions of one owner at once.
        event_bytes: Bytes of its events and alerts at once.
        logged: Pairs of sender and reason of one owner that are logged.

    Attributes:
        duplicates: Numbered messages that had been accepted before.
        gaps: Batches that clients had to drop.
        search: Seconds of this thread for the secrets in texts.
        logged_hooks: Failed hooks in the log.
        logged_spools: Spools in the log.
        spent: Returns the processor time of this thread in seconds.
    """

    def __init__(
        self, *, sessions: float = SESSIONS_BURST, event_bytes: float = EVENTS_BURST, logged: int = MAX_LOGGED
    ) -> None:
        self.duplicates = 0
        self.gaps = 0
        self.search = OwnerRate(SEARCH_BURST, SEARCH_RATE)
        self.logged_hooks = OwnerRate()
        self.logged_spools = OwnerRate()
        self.spent = time.thread_time
        self._most_sessions, self._most_event_bytes, self._most_logged = sessions, event_bytes, logged
        self._sessions = OwnerRate(sessions, SESSIONS_RATE)
        self._event_bytes = OwnerRate(event_bytes, EVENTS_RATE)
        self._accepted = dict.fromkeys(KINDS, 0)
        self._rejected = dict.fromkeys((*REASONS, "kind", "owner", "rate"), 0)
        self._logged: dict[str, LogOnce] = {}

    def accept(self, kind: str) -> None:
        """Count an accepted message."""
        self._accepted[kind] += 1

    def reject(self, owner: str, sender: bytes, error: WireError) -> None:
        """Count a refusal, and log it once for each sender of an owner and each reason."""
        self._rejected[error.reason] += 1
        if self._is_first(owner, sender, error.reason):
            log.warning("a message was refused: %s; further ones from this sender are only counted", error)

    def redirect(self, owner: str, wanted: str, run: str) -> None:
        """Count a session of an owner that wanted the run of another and got its own; log it once for each."""
        self._rejected["owner"] += 1
        if self._is_first(owner, run.encode(), "owner"):
            log.warning("the run with id %s belongs to another user: this one gets the id %s", wanted, run)

    def open_session(self, owner: str, now: float) -> None:
        """Count a new session of an owner at *now*, in monotonic seconds.

        Raises:
            WireError: The owner opens new sessions too fast.
        """
        if not self._sessions.admit(owner, now):
            more = f"more than {self._most_sessions:g} new sessions at once, or {SESSIONS_RATE:g} a second, of one user"
            raise WireError("rate", f"{more}: it is accepted later")

    def admit_events(self, owner: str, pushes: Pushes, now: float) -> bool:
        """Return whether the owner may send the events and alerts of a batch; count them, or refuse them."""
        size = sum(EVENT_BYTES + len(one.kind) + len(one.fields) for one in pushes.events)
        size += sum(EVENT_BYTES + len(one.title) + len(one.text) for one in pushes.alerts)
        admitted = self._event_bytes.admit(owner, now, size)
        if not admitted:
            more = (
                f"more than {byte_size(self._most_event_bytes)} of events at once, or {byte_size(EVENTS_RATE)} a second"
            )
            self.reject(owner, b"", WireError("rate", f"{more}, of one user: they are left out"))
        return admitted

    def samples(self, rejected_before: Mapping[str, int], restarts: int) -> list[Sample]:
        """Return all counters.

        Args:
            rejected_before: Refusals, by reason, that came before the protocol.
            restarts: Replacements of the worker.
        """
        rejected = {**self._rejected, **rejected_before}
        return [
            *(Sample(daemon.INGEST_MESSAGES, (kind,), count) for kind, count in self._accepted.items()),
            *(Sample(daemon.INGEST_REJECTED, (reason,), count) for reason, count in rejected.items()),
            Sample(daemon.INGEST_DUPLICATES, (), self.duplicates),
            Sample(daemon.INGEST_GAPS, (), self.gaps),
            Sample(daemon.INGEST_RESTARTS, (), restarts),
        ]

    def _is_first(self, owner: str, sender: bytes, reason: str) -> bool:
        return self._logged.setdefault(owner, LogOnce(self._most_logged)).first((sender, reason))

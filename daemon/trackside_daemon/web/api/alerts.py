"""Endpoints that dismiss, silence and test alerts."""

import logging
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Annotated, Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from trackside_daemon.alerts import silences as silence_store
from trackside_daemon.alerts import test_alert
from trackside_daemon.alerts.disabled import unknown_name
from trackside_daemon.alerts.silences import MAX_SILENCE_SECONDS, Silences, matches
from trackside_daemon.alerts.test_alert import AlertTester
from trackside_daemon.history.read import alert_reader, reader
from trackside_daemon.history.read.reader import UnknownRunError
from trackside_daemon.history.record.alert_rows import dismissal
from trackside_daemon.model.finding import Severity
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Silence
from trackside_daemon.model.text import matches_wildcards
from trackside_daemon.questions.alerts import Alert
from trackside_daemon.web.api.history_access import HistoryAccess, decoded_body, json_response, parsed

DEFAULT_SILENCE_SECONDS = 7200.0

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
log = logging.getLogger("trackside")


class AlertsApi:
    """Answers requests that change something of alerts and silences.

    Args:
        history: The history.
        silences: The active silences.
        tester: Raises test alerts.
        push: Queues a batch for the pipeline, so that it evaluates a test alert at once.
        names: The names of the alerts.
    """

    def __init__(
        self,
        history: HistoryAccess,
        silences: Silences,
        tester: AlertTester,
        push: Callable[[Sequence[Batch]], None],
        names: Collection[str],
    ) -> None:
        self._history = history
        self._silences = silences
        self._tester = tester
        self._push = push
        self._names = {*names, test_alert.TEST_ALERT}

    async def dismiss_alert(self, request: Request) -> Response:
        """Mark an alert as a false alarm."""
        wanted = await decoded_body(request, DismissBody, '{"dismissed": true, "comment": TEXT}')
        asked = parsed(Alert, request)
        alert = await self._history.answer(asked)
        note = dismissal(alert, time.time() if wanted.dismissed else None, wanted.comment)
        self._history.writer.put([note])
        await self._history.change(lambda _: None)  # after the note, since the writer handles its queue in order
        return json_response(await self._history.answer(asked))

    async def test_alert(self, request: Request) -> Response:
        """Raise TestAlert, to check that notifications arrive."""
        wanted = await decoded_body(request, TestBody, '{"severity": "warning", "run": "NAME"}')
        run, name = await self._history.read(lambda connection: _resolve_run(connection, wanted.run))
        now = time.time()
        try:
            test = self._tester.request(wanted.severity, run, name, now)
        except test_alert.TooManyTestAlertsError as error:
            raise HTTPException(409, str(error)) from None
        # An empty batch is enough: the pipeline asks every finding source after each batch, so no tick is awaited.
        self._push([Batch("test")])
        return json_response(
            {"alert": test_alert.TEST_ALERT, "test": test, "run": run, "severity": wanted.severity, "started": now}
        )

    async def add_silence(self, request: Request) -> Response:
        """Mute notifications of some alerts for a while."""
        shape = '{"labels": {"alert": PATTERN, "run": PATTERN, …}, "for": SECONDS, "comment": TEXT}'
        wanted = await decoded_body(request, SilenceBody, f"{shape}, for {MAX_SILENCE_SECONDS:.0f} s at most")
        await self._check_name(wanted.labels.get("alert", "*"))
        now = time.time()
        silence = Silence(secrets.token_hex(4), wanted.labels, now, now + wanted.seconds, wanted.comment)
        try:
            self._silences.add(silence)
        except silence_store.TooManySilencesError as error:
            raise HTTPException(409, str(error)) from None
        end = f"{datetime.fromtimestamp(silence.until, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
        log.info("silence %s until %s: %s", silence.id, end, wanted.labels or "all alerts")
        problem = await self._save(silence)
        firing = await self._history.read(lambda connection: alert_reader.firing(connection, now))
        matching = [
            {"alert": alert.alert, "severity": alert.severity, "labels": alert.labels, "summary": alert.summary}
            for alert in firing
            if matches(silence, alert.alert, alert.labels)
        ]
        return json_response({"silence": asdict(silence), "firing": matching, "kept": not problem, "why": problem})

    async def _check_name(self, pattern: str) -> None:
        """Raise HTTP 400 for a pattern that matches no alert that exists or has fired."""
        if any(matches_wildcards(name, pattern) for name in self._names):
            return
        fired = await self._history.read(alert_reader.alert_names)
        if not any(matches_wildcards(name, pattern) for name in fired):
            raise HTTPException(400, f"alert: {unknown_name(pattern, {*self._names, *fired})}")

    async def end_silence(self, request: Request) -> Response:
        """End a silence early."""
        id_ = request.path_params["silence"]
        ended = self._silences.end(id_, time.time())
        if ended is None:
            raise HTTPException(
                404, f"silence {id_[:60]!r}: no active silence has this id; see trackside silence --list"
            )
        log.info("silence %s ended early", ended.id)
        problem = await self._save(ended)
        return json_response({"silence": asdict(ended), "kept": not problem, "why": problem})

    async def _save(self, silence: Silence) -> str:
        """Write a silence to the history; return the problem if that failed, else an empty text.

        An unwritten silence applies until the daemon restarts.
        """
        self._history.writer.put([silence])
        try:
            # The writer handles its queue in order, so this returns only after the silence was written.
            await self._history.change(lambda _: None)
        except HTTPException as error:
            return str(error.detail)
        return ""


def _resolve_run(connection: Any, text: str) -> tuple[str, str]:
    """Return a run's id and name; for an unknown run an empty id and the text itself."""
    if not text:
        return "", ""
    try:
        uid = reader.resolve(connection, text)
    except UnknownRunError:
        return "", text
    return uid, str(reader.head(connection, uid)["name"])


class SilenceBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request for a silence; empty labels match all alerts."""

    labels: Annotated[
        dict[Annotated[str, msgspec.Meta(pattern="^[a-zA-Z_][a-zA-Z0-9_]{0,63}$")], Text], msgspec.Meta(max_length=16)
    ]
    seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_SILENCE_SECONDS)] = msgspec.field(
        default=DEFAULT_SILENCE_SECONDS, name="for"
    )
    comment: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class DismissBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request to dismiss an alert."""

    dismissed: bool = True
    comment: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class TestBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request for a test alert."""

    severity: Severity = "warning"
    run: Annotated[str, msgspec.Meta(max_length=256)] = ""

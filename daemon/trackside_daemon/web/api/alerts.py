"""The pages of `/api/v1` that are about alerts: those that fire or have fired, silences, and a test of the way to people."""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException

from trackside_daemon.alerts import silences as kept_quiet
from trackside_daemon.alerts import test_alert as trial
from trackside_daemon.alerts.silences import LONGEST, Silences, fits, with_ends
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.reader import AlertFilter, UnknownRunError
from trackside_daemon.model.finding import SEVERITIES, Severity
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Silence
from trackside_daemon.web.api.history_access import as_json, listed
from trackside_daemon.web.api.query_params import flag, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.datastructures import QueryParams
    from starlette.requests import Request
    from starlette.responses import Response

    from trackside_daemon.alerts.test_alert import Trial
    from trackside_daemon.web.api.history_access import Kept

DEFAULT_SECONDS = 7200.0
LONGEST_NAME = 256

T = TypeVar("T")
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
log = logging.getLogger("trackside")


class AlertPages:
    """Answers about alerts.

    Args:
        kept: The history.
        silences: Those that last.
        trial: Raises test alerts.
        push: Queues a batch for the pipeline, so that the trial is asked at once.
    """

    def __init__(self, kept: Kept, silences: Silences, trial: Trial, push: Callable[[Sequence[Batch]], None]) -> None:
        self._kept = kept
        self._silences = silences
        self._trial = trial
        self._push = push

    async def alerts(self, request: Request) -> Response:
        """The alerts that fire or have fired, oldest first."""
        wanted = _wanted(request.query_params)

        def read(connection: Any, run: str, limit: int) -> list[dict[str, Any]]:
            return reader.alerts(connection, wanted._replace(run=run, limit=limit))

        return as_json({"alerts": with_ends(await listed(self._kept, request, read), self._lasting())})

    async def alert(self, request: Request) -> Response:
        """One of them."""
        text = request.path_params["number"]
        try:
            number = whole(text)
        except ValueError:
            raise HTTPException(400, f"alert {text[:60]!r}: an alert's id is a number, from /api/v1/alerts") from None
        found = await self._kept.read(lambda connection: reader.alert(connection, number))
        if found is None:
            raise HTTPException(404, f"alert {number}: there is none; /api/v1/alerts lists them with their ids")
        return as_json(*with_ends([found], self._lasting()))

    async def test_alert(self, request: Request) -> Response:
        """Raise one that says it is a test; it takes the way of all others."""
        asked = _read(await request.body(), _Test, '{"severity": "warning", "run": "NAME"}')
        run, name = await self._kept.read(lambda connection: _run(connection, asked.run))
        now = time.time()
        try:
            test = self._trial.ask(asked.severity, run, name, now)
        except trial.TooManyError as error:
            raise HTTPException(409, str(error)) from None
        self._push([Batch("test")])
        return as_json(
            {"alert": trial.TEST_ALERT, "test": test, "run": run, "severity": asked.severity, "started": now}
        )

    async def silences(self, _request: Request) -> Response:
        """Those that last, the first to end first."""
        return as_json({"silences": [asdict(one) for one in self._lasting()]})

    async def silence(self, request: Request) -> Response:
        """A new one; what fires now and fits is in the answer."""
        wanted = '{"labels": {"alert": PATTERN, "run": PATTERN, …}, "for": SECONDS, "comment": TEXT}'
        asked = _read(await request.body(), _Asked, f"{wanted}, for {LONGEST:.0f} s at most")
        now = time.time()
        silence = Silence(secrets.token_hex(4), asked.labels, now, now + asked.seconds, asked.comment)
        try:
            self._silences.add(silence)
        except kept_quiet.TooManyError as error:
            raise HTTPException(409, str(error)) from None
        end = f"{datetime.fromtimestamp(silence.until, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
        log.info("silence %s until %s: %s", silence.id, end, asked.labels or "all alerts")
        why = await self._keep(silence)
        firing = await self._kept.read(lambda connection: reader.firing(connection, now))
        silent = [
            {"alert": one.alert, "severity": one.severity, "labels": one.labels, "summary": one.summary}
            for one in firing
            if fits(silence, one.alert, one.labels)
        ]
        return as_json({"silence": asdict(silence), "firing": silent, "kept": not why, "why": why})

    async def unsilence(self, request: Request) -> Response:
        """End one before its time."""
        id_ = request.path_params["silence"]
        ended = self._silences.end(id_, time.time())
        if ended is None:
            raise HTTPException(404, f"silence {id_[:60]!r}: none of this id lasts; trackside silence --list has them")
        log.info("silence %s is ended", ended.id)
        why = await self._keep(ended)
        return as_json({"silence": asdict(ended), "kept": not why, "why": why})

    async def _keep(self, silence: Silence) -> str:
        """Have the history keep it; why it has not yet, in which case only a restart forgets it."""
        self._kept.writer.put([silence])
        try:
            await self._kept.change(lambda _: None)
        except HTTPException as error:
            return str(error.detail)
        return ""

    def _lasting(self) -> list[Silence]:
        return self._silences.active(time.time())


def _wanted(asked: QueryParams) -> AlertFilter:
    """Which alerts are asked for, but for their run and how many."""
    severity, alert = asked.get("severity", ""), asked.get("alert", "")
    if severity not in ("", *SEVERITIES):
        raise HTTPException(400, f"severity: {severity[:60]!r} is not one of {', '.join(SEVERITIES)}")
    if len(alert) > LONGEST_NAME:
        raise HTTPException(400, f"alert: longer than {LONGEST_NAME} characters")
    firing = time.time() if flag(asked, "firing", default=False) else None
    return AlertFilter(severity=severity, alert=alert, firing=firing, evidence=flag(asked, "evidence", default=True))


def _run(connection: Any, text: str) -> tuple[str, str]:
    """The id and the name of a run; of one that nobody knows only what it is called."""
    if not text:
        return "", ""
    try:
        uid = reader.resolve(connection, text)
    except UnknownRunError:
        return "", text
    return uid, str(reader.run(connection, uid)["name"])


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """A silence that is asked for; without labels it has all alerts."""

    labels: Annotated[
        dict[Annotated[str, msgspec.Meta(pattern="^[a-zA-Z_][a-zA-Z0-9_]{0,63}$")], Text], msgspec.Meta(max_length=16)
    ]
    seconds: Annotated[float, msgspec.Meta(gt=0, le=LONGEST)] = msgspec.field(default=DEFAULT_SECONDS, name="for")
    comment: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class _Test(msgspec.Struct, forbid_unknown_fields=True):
    """A test that is asked for."""

    severity: Severity = "warning"
    run: Annotated[str, msgspec.Meta(max_length=256)] = ""


def _read(body: bytes, kind: type[T], wanted: str) -> T:
    try:
        return msgspec.json.decode(body.strip() or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HTTPException(400, f"the body is {wanted} ({str(error)[:200]})") from None

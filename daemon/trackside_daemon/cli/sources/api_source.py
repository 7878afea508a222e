"""A daemon's API, for commands."""

from __future__ import annotations

import json
import os
import time
from contextlib import nullcontext
from http.client import HTTPException, IncompleteRead
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import BaseHandler, HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from trackside.os_errors import os_error_text
from trackside_daemon.cli.sources import credentials
from trackside_daemon.cli.sources.source import (
    ANSWER_SECONDS,
    CHUNK_BYTES,
    LockedError,
    NotFoundError,
    SourceError,
    TokenError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from http.client import HTTPResponse
    from pathlib import Path

    from trackside_daemon.history.files.importing import ImportResult
    from trackside_daemon.history.files.items import Item
    from trackside_daemon.questions.question import Question
    from trackside_daemon.questions.series import Export, Exported

STATUS_SECONDS = 5.0  # time limit of a status; a daemon that exceeds it counts as down

IMPORT_SECONDS = 3600.0
AGENT_SECONDS = 3900.0  # an agent may wait for an event for an hour
CAPTURE_POLL_SECONDS = 0.1
LISTS = {"runs", "keys", "events", "alerts", "silences", "captures", "checkpoints", "media"}
"""Names of answers that are lists."""


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirect, which could send a password or a token to another server."""

    def redirect_request(self, *_: Any) -> None:
        """Return nothing: the redirect becomes an `HTTPError`."""


class ApiSource:
    """The `Source` of a running daemon.

    Args:
        url: ``http://HOST:PORT``.
        token: Token of its API; empty if it needs none.
        remedy: Advice for a token that is missing or wrong.

    Raises:
        LockedError: The file of --web.credentials-file is invalid.
    """

    def __init__(self, url: str, token: str, remedy: str = "") -> None:
        self.live = True
        self.url, self.token = url.rstrip("/"), token
        self._remedy = remedy
        self._credentials = credentials.load()
        bearer = f"Bearer {token}" if token else ""
        basic = credentials.authorization_for(self.url, self._credentials)
        self._authorizations = [header for header in (basic, bearer) if header]
        # No proxy, whatever $http_proxy is: it would get the token.
        handlers: list[BaseHandler] = [_NoRedirects(), ProxyHandler({})]
        if self.url.startswith("https:"):
            handlers.append(HTTPSHandler(context=self._credentials.tls_context))
        self._open = build_opener(*handlers).open

    @property
    def link(self) -> str:
        """The dashboard's URL, with the token if the last answer needed it."""
        return f"{self.url}/" + (f"#token={self.token}" if self._authorizations[:1] == [f"Bearer {self.token}"] else "")

    def status(self) -> dict[str, Any]:
        """Return the daemon's status."""
        return self._checked(self._json("status", timeout=STATUS_SECONDS), "version")

    def rotate_token(self, keep: float = 0.0) -> str:
        """Make the daemon replace its token and keep the old one for some seconds, and return the new one."""
        return str(self._checked(self._post("token", {"keep": keep} if keep else {}), "token")["token"])

    def overview(self) -> dict[str, Any]:
        """Return the current state of runs, GPUs, host and alerts."""
        return self._json("overview", timeout=STATUS_SECONDS)

    def ask(self, question: Question, timeout: float = ANSWER_SECONDS) -> dict[str, Any]:
        """See `Source`."""
        from trackside_daemon.questions.question import address

        return self._checked(self._json(address(question)[1:], timeout=timeout), *question.fields)

    def gpu(self, action: str, body: Any) -> dict[str, Any]:
        """Make the daemon ``pause`` or ``resume`` the GPUs, and return its answer."""
        return self._post(f"gpu/{action}", body)

    def processes(self) -> list[dict[str, Any]]:
        """Return the training processes of the daemon's machine."""
        return list(self._checked(self._json("processes"), "processes")["processes"])

    def machine(self, query: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """Return the last hour of the host and its GPUs, by the query parameters of `/api/v1/machine`."""
        return list(self._json(f"machine?{urlencode(query)}", timeout=STATUS_SECONDS).get("series", ()))

    def end_process(self, pid: int, started: float) -> None:
        """Make the daemon send SIGTERM to a process of a training, which started at that Unix time."""
        self._post(f"processes/{pid}/end", {"started": started})

    def test_alert(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make the daemon raise a test alert, and return its answer."""
        return self._post("alerts/test", body)

    def silence(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create a silence; return it and the firing alerts that match."""
        return self._post("silences", body)

    def unsilence(self, id_: str) -> dict[str, Any]:
        """End a silence."""
        return self._json(f"silences/{quote(id_, safe='')}", "DELETE")

    def audit(self, text: str) -> dict[str, Any]:
        """Have the checkpoints of the run that *text* identifies audited again."""
        return self._post(f"runs/{quote(text, safe='')}/checkpoints/audit", {})

    def answer_agent(self, message: bytes, *, actions: bool) -> dict[str, Any]:
        """See `Source`."""
        if actions:
            from trackside_daemon.cli.sources import agent_actions

            if (answer := agent_actions.answer(message, self.record)) is not None:
                return answer
        return self._json("mcp", "POST", message, {"Content-Type": "application/json"}, AGENT_SECONDS)

    def record(self, text: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a capture of the run that *text* identifies, wait for its end, and return it with its summary."""
        from trackside_daemon.questions.artifacts import Capture

        capture = self._checked(self._post(f"runs/{quote(text, safe='')}/captures", body), "id", "state")
        while capture["state"] not in {"summarised", "failed"}:
            time.sleep(CAPTURE_POLL_SECONDS)
            capture = self.ask(Capture(capture=capture["id"]))
        return capture

    def capture_file(self, id_: str, name: str) -> Iterator[bytes]:
        """See `Source`."""
        return self._chunks(self._request(f"captures/{quote(id_, safe='')}/files/{quote(name, safe='')}"))

    def dismiss(self, number: int, *, dismissed: bool, comment: str) -> dict[str, Any]:
        """See `Source`."""
        return self._checked(self._post(f"alerts/{number}/dismiss", {"dismissed": dismissed, "comment": comment}), "id")

    def export(self, wanted: Export) -> Exported:
        """See `Source`."""
        from trackside_daemon.questions.question import address
        from trackside_daemon.questions.series import Exported

        answer = self._request(address(wanted)[1:])
        samples = answer.headers.get("X-Trackside-Samples", "")
        return Exported(int(samples) if samples.isdecimal() else None, self._chunks(answer))

    def pin(self, uid: str, *, pinned: bool) -> None:
        """See `Source`."""
        self._post(f"runs/{quote(uid, safe='')}/pin", {"pinned": pinned})

    def delete(self, uid: str) -> None:
        """See `Source`."""
        self._json(f"runs/{quote(uid, safe='')}", "DELETE")

    def changes(self) -> AbstractContextManager[None]:
        """See `Source`."""
        return nullcontext()

    def import_file(self, file: Path, name: str, uid: str) -> ImportResult:
        """See `Source`."""
        headers = {"Content-Type": "application/octet-stream"}
        with file.open("rb") as stream:
            if file.is_file():
                headers["Content-Length"] = str(os.fstat(stream.fileno()).st_size)
            return self._import(stream, str(file), name, uid, headers)

    def import_run(self, items: Iterator[Item], file: str, name: str, uid: str) -> ImportResult:
        """See `Source`."""
        from trackside_daemon.history.files.items import chunks

        return self._import(chunks(items), file, name, uid, {"Content-Type": "application/x-ndjson"})

    def _import(self, body: Any, file: str, name: str, uid: str, headers: dict[str, str]) -> ImportResult:
        from trackside_daemon.history.files.importing import ImportResult  # no other command needs it

        if len(self._authorizations) > 1:
            self.status()  # finds the right authorization: the body can be sent only once
        query = urlencode({key: value for key, value in (("name", name), ("id", uid)) if value})
        headers = {"X-File-Name": quote(file), **headers}
        answer = self._checked(self._json(f"import?{query}", "POST", body, headers, IMPORT_SECONDS), "run", "samples")
        return ImportResult(str(answer["run"]), int(answer["samples"]), [str(note) for note in answer.get("notes", ())])

    def _checked(self, answer: dict[str, Any], *keys: str) -> dict[str, Any]:
        """Return an answer that has the keys of every such answer of ours, and lists where those are."""
        if not answer.keys() >= set(keys) or not all(isinstance(answer[key], list) for key in LISTS & set(keys)):
            raise self._not_trackside()
        return answer

    def _not_trackside(self) -> SourceError:
        return SourceError(f"{self.url}: this is not a trackside daemon")

    def _post(self, path: str, body: Any) -> dict[str, Any]:
        return self._json(path, "POST", json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _json(
        self,
        path: str,
        method: str = "GET",
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = ANSWER_SECONDS,
    ) -> dict[str, Any]:
        answer = self._request(path, method, body, headers or {}, timeout)
        try:
            with answer:
                text = answer.read()
            value = json.loads(text) if text.strip() else {}
        except (OSError, HTTPException) as error:
            raise SourceError(f"{self.url}: the daemon closed the connection: {error}", 1) from error
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self._not_trackside()
        return value

    def _request(
        self,
        path: str,
        method: str = "GET",
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = ANSWER_SECONDS,
    ) -> HTTPResponse:
        request = Request(f"{self.url}/api/v1/{path}", body, dict(headers or {}), method=method)  # noqa: S310  http(s) was checked
        if self._authorizations:
            request.add_header("Authorization", self._authorizations[0])
        try:
            answer: HTTPResponse = self._open(request, timeout=timeout)
        except HTTPError as error:
            with error:
                schemes = error.headers.get("WWW-Authenticate", "").lower()
                if "basic" in schemes:
                    reason = credentials.explain_refusal(self._credentials, self.url)
                    raise LockedError(f"{self.url}: {reason}") from error
                if 300 <= error.code < 400:
                    raise SourceError(
                        f"{self.url}: the server redirects to another address, which a trackside daemon never does; "
                        "give the daemon's address"
                    ) from error
                if "bearer" not in schemes or len(self._authorizations) < 2:
                    raise _refusal(self.url, error, self._remedy) from error
            del self._authorizations[0]  # the daemon has no users and expects its token
            return self._request(path, method, body, headers, timeout)
        except (OSError, HTTPException, ValueError) as error:  # ValueError: text that cannot be part of a request
            raise self._no_answer(error) from error
        return answer

    def _no_answer(self, error: Exception) -> SourceError:
        """Return why a request got no answer."""
        cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
        encrypted = self.url.startswith("https:")
        if isinstance(cause, ConnectionResetError | BrokenPipeError) and not (encrypted or self._drops_plain_http()):
            return SourceError(f"{self.url}: the daemon closed the connection before it answered: it was stopped", 1)
        if reason := credentials.explain_tls_error(cause, self._credentials, encrypted=encrypted):
            return (LockedError if encrypted else SourceError)(f"{self.url}: {reason}")
        reason = os_error_text(cause) or "the connection was closed"
        return SourceError(f"{self.url}: the daemon does not answer: {reason}", 1)

    def _drops_plain_http(self) -> bool:
        """Return whether the server closes a new connection without an answer, as one that uses TLS does."""
        try:
            self._open(f"{self.url}/-/healthy", timeout=STATUS_SECONDS).close()
        except HTTPError:
            return False
        except (OSError, HTTPException) as error:
            cause = error.reason if isinstance(error, URLError) else error
            return isinstance(cause, ConnectionResetError | BrokenPipeError)
        return False

    def _chunks(self, answer: HTTPResponse) -> Iterator[bytes]:
        try:
            with answer:
                while chunk := answer.read(CHUNK_BYTES):
                    yield chunk
                if answer.length:  # the rest of the announced length never came
                    raise IncompleteRead(b"", answer.length)
        except (OSError, HTTPException) as error:
            raise SourceError(
                f"{self.url}: the daemon closed the connection, so the output is incomplete: {error}", 1
            ) from error


def _refusal(url: str, error: HTTPError, remedy: str) -> SourceError:
    """Return the daemon's error message, in one line."""
    try:
        message = json.loads(error.read(CHUNK_BYTES))["error"]["message"]
    except (ValueError, KeyError, TypeError, OSError, HTTPException):
        message = f"{url}: {error.code} {error.reason}"
    if error.code == 401:
        message = f"{url}: {message}{remedy and f'; {remedy}'}"
    kind = {401: TokenError, 404: NotFoundError}.get(error.code, SourceError)
    return kind(" ".join(str(message).split()), 2 if error.code < 500 else 1)

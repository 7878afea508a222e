"""Where the commands get runs from: the daemon that is up, through its API, else the history's file.

`Source` has one method a question, and two ways to answer.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import contextmanager
from http.client import HTTPException, IncompleteRead
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from trackside_daemon.alerts.silences import with_silenced_until
from trackside_daemon.cli.sources import credentials
from trackside_daemon.cli.sources.errors import LockedError, SourceError, TokenError
from trackside_daemon.history import directory as place
from trackside_daemon.history.database import Database
from trackside_daemon.history.files import export as exports
from trackside_daemon.history.files.importing import ImportResult, RunFile, import_run
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.offline import Offline
from trackside_daemon.history.record import commands
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.record.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from http.client import HTTPResponse
    from pathlib import Path

    from trackside_daemon.history.files.export import Format
    from trackside_daemon.history.read.reader import RunFilter
    from trackside_daemon.history.record.store import Store
    from trackside_daemon.linux.file_lock import FileLock

STATUS_SECONDS = 5.0
"""A daemon that has not said how it is by then is not there."""

ANSWER_SECONDS = 60.0
IMPORT_SECONDS = 3600.0
CHUNK_BYTES = 64 * 1024


class Export(NamedTuple):
    """A run on its way: its bytes, and how many samples they have; None when nobody has counted."""

    samples: int | None
    chunks: Iterator[bytes]


class Source(Protocol):
    """A history that can be asked.

    Attributes:
        live: A daemon answers, and what lives is told as it is now.
    """

    live: bool

    def runs(self, wanted: RunFilter) -> list[dict[str, Any]]:
        """The runs, the newest first."""
        ...

    def run(self, text: str) -> dict[str, Any]:
        """All of the run that *text* means but its samples."""
        ...

    def events(self, uid: str) -> list[dict[str, Any]]:
        """What happened in a run, oldest first."""
        ...

    def alerts(self, uid: str) -> list[dict[str, Any]]:
        """A run's alerts, oldest first."""
        ...

    def alert(self, number: int) -> dict[str, Any]:
        """One alert by its id."""
        ...

    def export(self, uid: str, form: Format) -> Export:
        """A run with its samples."""
        ...

    def pin(self, uid: str, *, pinned: bool) -> None:
        """Keep a run whatever the bounds are, or no longer."""
        ...

    def delete(self, uid: str) -> None:
        """Take a run away."""
        ...

    def take(self, file: Path, name: str, uid: str) -> ImportResult:
        """Import a file."""
        ...


class FileSource:
    """The file, while no daemon writes it.

    Args:
        directory: As the user named it; None for the default one.
        warn: Told, in one line each, what is missing.
    """

    def __init__(self, directory: Path | None, warn: Callable[[str], None]) -> None:
        self.live = False
        self._named = directory
        self._warn = warn
        self._opened: Offline | None = None

    def runs(self, wanted: RunFilter) -> list[dict[str, Any]]:
        """See `Source`."""
        with self._file().reading() as connection:
            return reader.runs(connection, wanted)

    def run(self, text: str) -> dict[str, Any]:
        """See `Source`."""
        with self._file().reading() as connection:
            return reader.run(connection, reader.resolve(connection, text))

    def events(self, uid: str) -> list[dict[str, Any]]:
        """See `Source`."""
        with self._file().reading() as connection:
            return reader.events(connection, uid)

    def alerts(self, uid: str) -> list[dict[str, Any]]:
        """See `Source`."""
        with self._file().reading() as connection:
            return with_silenced_until(
                reader.alerts(connection, reader.AlertFilter(uid)), reader.silences(connection, time.time())
            )

    def alert(self, number: int) -> dict[str, Any]:
        """See `Source`."""
        with self._file().reading() as connection:
            found = reader.alert(connection, number)
            if found is None:
                raise SourceError(f"alert {number}: there is none with this id")
            return with_silenced_until([found], reader.silences(connection, time.time()))[0]

    def export(self, uid: str, form: Format) -> Export:
        """See `Source`."""
        return Export(exports.count(self._file(), uid), exports.export(self._file(), uid, form))

    def pin(self, uid: str, *, pinned: bool) -> None:
        """See `Source`."""
        self._change(lambda store: commands.pin(store, uid, pinned=pinned))

    def delete(self, uid: str) -> None:
        """See `Source`."""
        self._change(lambda store: commands.delete(store, uid))

    def take(self, file: Path, name: str, uid: str) -> ImportResult:
        """See `Source`."""
        with file.open("rb") as stream:
            begin = os.fstat(stream.fileno()).st_mtime if file.is_file() else time.time()
            reading = RunFile(stream, str(file), id=uid, name=name, begin=begin)
            with self._writing() as writer:
                return import_run(writer, reading)

    def _file(self) -> Offline:
        if self._opened is None:
            directory = self._named or place.default_directory(os.environ, os.getuid())
            self._opened = Offline(directory, self._warn)
        return self._opened

    def _change(self, work: Callable[[Store], Any]) -> None:
        with self._writing() as writer:
            writer.call(work).result(ANSWER_SECONDS)

    @contextmanager
    def _writing(self) -> Iterator[Writer]:
        """A writer of our own, which packs what it has written before it ends."""
        directory = place.prepare(self._named)
        lock = _lock(directory)
        try:
            remote = bool(place.network_file_system(directory))
            database = Database(directory, exclusive=remote or not lock.supported)
            try:
                writer = Writer(database, Bounds(0))
                writer.start()
                try:
                    yield writer
                    while writer.call(lambda store: len(store.due)).result(ANSWER_SECONDS):
                        time.sleep(0.01)
                finally:
                    writer.stop()
            finally:
                database.close()
        finally:
            lock.close()


def _lock(directory: Path) -> FileLock:
    try:
        return place.lock_history(directory)
    except place.HistoryError as error:
        holder = re.search(r"\(pid [^)]*\)", str(error))
        if holder is None:
            raise
        raise SourceError(
            f"{directory}: a daemon {holder[0]} writes there that cannot be asked; stop it, or say where it answers "
            "with --url=URL"
        ) from None


class _NoRedirects(HTTPRedirectHandler):
    """A password or a token is for who was asked, and not for whom he names."""

    def redirect_request(self, *_: Any) -> None:
        """See `HTTPRedirectHandler`."""


class ApiSource:
    """A daemon.

    Args:
        url: ``http://HOST:PORT``.
        token: Opens its API; empty for one that needs none.
        remedy: Of a token that is missing or wrong.

    Raises:
        LockedError: The file of --web.credentials-file cannot be used.
    """

    def __init__(self, url: str, token: str, remedy: str = "") -> None:
        self.live = True
        self.url, self.token = url.rstrip("/"), token
        self._remedy = remedy
        self._credentials = credentials.given()
        own = f"Bearer {token}" if token else ""
        password = credentials.password_for(self.url, self._credentials)
        self._authorizations = [one for one in (password, own) if one]
        self._open = build_opener(_NoRedirects, ProxyHandler({}), HTTPSHandler(context=self._credentials.tls)).open

    def status(self) -> dict[str, Any]:
        """What the daemon says of itself."""
        return self._whole(self._json("status", patience=STATUS_SECONDS), "version")

    def overview(self) -> dict[str, Any]:
        """What is now, of runs, GPUs, host and alerts."""
        return self._json("overview", patience=STATUS_SECONDS)

    def series(self, asked: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """Series of runs, by the names and values that `/api/v1/series` takes."""
        return list(self._json(f"series?{urlencode(asked)}", patience=STATUS_SECONDS).get("series", ()))

    def gpu(self, what: str, said: Any) -> dict[str, Any]:
        """Has the daemon ``pause`` or ``resume`` the GPUs; what it answers."""
        return self._post(f"gpu/{what}", said)

    def runs(self, wanted: RunFilter) -> list[dict[str, Any]]:
        """See `Source`."""
        asked = {name: value for name, value in wanted._asdict().items() if value not in ("", None, 0)}
        return self._list("runs", asked)

    def run(self, text: str) -> dict[str, Any]:
        """See `Source`."""
        return self._whole(self._json(f"runs/{quote(text, safe='')}"), "id")

    def events(self, uid: str) -> list[dict[str, Any]]:
        """See `Source`."""
        return self._list("events", {"run": uid})

    def alerts(self, uid: str, limit: int = 0) -> list[dict[str, Any]]:
        """See `Source`; with a *limit* so many of the newest."""
        return self._list("alerts", {"run": uid, **({"limit": limit} if limit else {})})

    def test_alert(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Has the daemon raise a test alert; what it answers."""
        return self._post("alerts/test", said)

    def silences(self) -> list[dict[str, Any]]:
        """The silences that last, the first to end first."""
        return self._list("silences", {})

    def silence(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Makes a silence; it, and what fires and fits."""
        return self._post("silences", said)

    def unsilence(self, id_: str) -> dict[str, Any]:
        """Ends a silence."""
        return self._json(f"silences/{quote(id_, safe='')}", "DELETE")

    def alert(self, number: int) -> dict[str, Any]:
        """See `Source`."""
        return self._whole(self._json(f"alerts/{number}"), "id")

    def export(self, uid: str, form: Format) -> Export:
        """See `Source`."""
        answer = self._ask(f"runs/{quote(uid, safe='')}/export?format={form}")
        samples = answer.headers.get("X-Trackside-Samples", "")
        return Export(int(samples) if samples.isdecimal() else None, self._chunks(answer))

    def pin(self, uid: str, *, pinned: bool) -> None:
        """See `Source`."""
        self._post(f"runs/{quote(uid, safe='')}/pin", {"pinned": pinned})

    def delete(self, uid: str) -> None:
        """See `Source`."""
        self._json(f"runs/{quote(uid, safe='')}", "DELETE")

    def take(self, file: Path, name: str, uid: str) -> ImportResult:
        """See `Source`."""
        asked = urlencode({key: value for key, value in (("name", name), ("id", uid)) if value})
        headers = {"X-File-Name": quote(str(file)), "Content-Type": "application/octet-stream"}
        with file.open("rb") as stream:
            if len(self._authorizations) > 1:
                self.status()  # by which it says what it takes: a file can be sent but once
            if file.is_file():
                headers["Content-Length"] = str(os.fstat(stream.fileno()).st_size)
            answer = self._json(f"import?{asked}", "POST", stream, headers, IMPORT_SECONDS)
            self._whole(answer, "run", "samples")
        return ImportResult(str(answer["run"]), int(answer["samples"]), [str(note) for note in answer.get("notes", ())])

    def _list(self, name: str, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        answer = self._whole(self._json(f"{name}?{urlencode(asked)}"), name)
        if not isinstance(answer[name], list):
            raise self._stranger()
        return list(answer[name])

    def _whole(self, answer: dict[str, Any], *keys: str) -> dict[str, Any]:
        """An answer that has what each of ours has."""
        if not answer.keys() >= set(keys):
            raise self._stranger()
        return answer

    def _stranger(self) -> SourceError:
        return SourceError(f"{self.url}: no daemon of trackside answers there")

    def _post(self, path: str, said: Any) -> dict[str, Any]:
        return self._json(path, "POST", json.dumps(said).encode(), {"Content-Type": "application/json"})

    def _json(
        self,
        path: str,
        method: str = "GET",
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        patience: float = ANSWER_SECONDS,
    ) -> dict[str, Any]:
        answer = self._ask(path, method, body, headers or {}, patience)
        try:
            with answer:
                text = answer.read()
            found = json.loads(text) if text.strip() else {}
        except (OSError, HTTPException) as error:
            raise SourceError(f"{self.url}: the daemon broke off: {error}", 1) from error
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._stranger()
        return found

    def _ask(
        self,
        path: str,
        method: str = "GET",
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        patience: float = ANSWER_SECONDS,
    ) -> HTTPResponse:
        request = Request(f"{self.url}/api/v1/{path}", body, dict(headers or {}), method=method)  # noqa: S310  http(s) was checked
        if self._authorizations:
            request.add_header("Authorization", self._authorizations[0])
        try:
            answer: HTTPResponse = self._open(request, timeout=patience)
        except HTTPError as error:
            with error:
                wanted = error.headers.get("WWW-Authenticate", "").lower()
                if "basic" in wanted:
                    raise LockedError(f"{self.url}: {credentials.refused(self._credentials, self.url)}") from error
                if 300 <= error.code < 400:
                    raise SourceError(
                        f"{self.url}: it sends on to another address, which no daemon of trackside does, "
                        "so nothing is asked there; give the daemon's own"
                    ) from error
                if "bearer" not in wanted or len(self._authorizations) < 2:
                    raise _refused(self.url, error, self._remedy) from error
            del self._authorizations[0]  # it has no users: its token is what it takes
            return self._ask(path, method, body, headers, patience)
        except (OSError, HTTPException, ValueError) as error:  # ValueError: what cannot be part of a request
            raise self._unasked(error) from error
        return answer

    def _unasked(self, error: Exception) -> SourceError:
        """Why there was no answer."""
        cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
        encrypted = self.url.startswith("https:")
        if wrong := credentials.untrusted(cause, self._credentials, encrypted=encrypted):
            return (LockedError if encrypted else SourceError)(f"{self.url}: {wrong}")
        reason = getattr(cause, "strerror", None) or str(cause) or "it hung up"
        return SourceError(f"{self.url}: the daemon cannot be asked: {reason.lower()}", 1)

    def _chunks(self, answer: HTTPResponse) -> Iterator[bytes]:
        try:
            with answer:
                while chunk := answer.read(CHUNK_BYTES):
                    yield chunk
                if answer.length:  # of a length that was announced, a part that never came
                    raise IncompleteRead(b"", answer.length)
        except (OSError, HTTPException) as error:
            raise SourceError(
                f"{self.url}: the daemon broke off, so what was written is not all: {error}", 1
            ) from error


def _refused(url: str, error: HTTPError, remedy: str) -> SourceError:
    """What the daemon says, in one line."""
    try:
        message = json.loads(error.read(CHUNK_BYTES))["error"]["message"]
    except (ValueError, KeyError, TypeError, OSError, HTTPException):
        message = f"{url}: {error.code} {error.reason}"
    if error.code == 401:
        message = f"{url}: {message}{remedy and f'; {remedy}'}"
    kind = TokenError if error.code == 401 else SourceError
    return kind(" ".join(str(message).split()), 2 if error.code < 500 else 1)

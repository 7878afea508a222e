"""The web configuration in force: read anew whenever its file, or one that it names, changes."""

from __future__ import annotations

import logging
import ssl
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from trackside.transport.paths import open_regular
from trackside_daemon.web.http.config import WebConfig, WebConfigError, read
from trackside_daemon.web.http.tls import Context, Pems, context

MOST_BYTES = 1024 * 1024
"""Of a file; more than any has that is one."""

log = logging.getLogger("trackside")


class InForce(NamedTuple):
    """What holds at a moment.

    Attributes:
        config: What the file says.
        tls: Made from it; None where plain HTTP is spoken.
        sources: All that was read.
    """

    config: WebConfig
    tls: Context | None
    sources: tuple[bytes, ...]


class ConfigFile:
    """One web configuration, of which the last good reading is in force.

    Args:
        file: Its path; other paths are relative to it. Empty for no configuration, which keeps nobody out.

    Raises:
        WebConfigError: It cannot be used.
    """

    def __init__(self, file: str) -> None:
        self._file = Path(file) if file else None
        self._named: tuple[Path, ...] = ()
        self._said = ""
        self._stamps: tuple[Any, ...] = ()
        self._exposed = False
        self._in_force = self._read()

    def current(self) -> InForce:
        """What holds now. Costs a look at each file; what is wrong with a new one is logged once."""
        stamps = self._look()
        if stamps != self._stamps:
            self._stamps = stamps
            self._renew()
        return self._in_force

    @property
    def scheme(self) -> str:
        """``https`` or ``http``, which does not change."""
        return "http" if self._in_force.tls is None else "https"

    @property
    def authenticates(self) -> bool:
        """Whether nobody is answered without credentials."""
        return self._in_force.config.authenticates

    def _renew(self) -> None:
        try:
            new = self._read()
            if new.sources == self._in_force.sources:
                self._said = ""
                return
            _refuse_opening(self._in_force.config, new.config, self._file)
        except WebConfigError as error:
            self._say(str(error))
            return
        except Exception as error:  # noqa: BLE001  whoever asks meanwhile has no part in it
            self._say(f"{self._file}: it cannot be read: {type(error).__name__}")
            return
        if new.config.rate_limit != self._in_force.config.rate_limit:
            log.warning("%s: changes of rate_limit need a restart", self._file)
        self._said, self._in_force = "", new
        log.info("%s: read anew", self._file)

    def _say(self, wrong: str) -> None:
        if wrong != self._said:
            log.error("the web configuration stays as it was: %s", wrong)
        self._said = wrong

    def _look(self) -> tuple[Any, ...]:
        """By what a change of the files is seen; a file that is replaced has another inode."""
        return tuple(map(_stamp, (self._file, *self._named))) if self._file is not None else ()

    def _read(self) -> InForce:
        if self._file is None:
            return InForce(WebConfig(), None, ())
        seen = _stamp(self._file)  # before it is read: what is put in its place meanwhile is seen later
        text = _content(self._file, "--web.config.file")
        config = read(text, self._file)
        section = config.tls_server_config
        if section is None:
            self._named, self._stamps = (), (seen,)
            return InForce(config, None, (text,))
        place = self._file.parent
        files = {name: getattr(section, f"{name}_file") for name in Pems._fields}
        self._named = tuple(place / file for file in files.values() if file)
        self._stamps = (seen, *map(_stamp, self._named))
        self._warn_of_key(place / section.key_file if section.key_file else None)
        pems = Pems(
            *(
                _content(place / file, f"{self._file}: tls_server_config.{name}_file")
                if file
                else str(getattr(section, name)).encode()
                for name, file in files.items()
            )
        )
        try:
            return InForce(config, context(section, pems), (text, *pems))
        except ValueError as error:
            raise WebConfigError(f"{self._file}: tls_server_config.{error}") from None

    def _warn_of_key(self, file: Path | None) -> None:
        exposed = file is not None and _is_exposed(file)
        if exposed and not self._exposed:
            log.warning("%s: tls_server_config.key_file: all users can read it; to end that: chmod o= %s", file, file)
        self._exposed = exposed


def _is_exposed(file: Path) -> bool:
    with suppress(OSError):
        return bool(file.stat().st_mode & stat.S_IROTH)
    return False


def _refuse_opening(old: WebConfig, new: WebConfig, file: Path | None) -> None:
    """What keeps strangers out does not vanish while running: a file that is being written is empty for a moment.

    Raises:
        WebConfigError: It would.
    """
    lost = sorted(old.protections - new.protections)
    if lost:
        raise WebConfigError(
            f"{file}: {', '.join(lost)}: no longer there, which opens what was closed; restart for that"
        )
    if (old.tls_server_config is None) != (new.tls_server_config is None):
        raise WebConfigError(f"{file}: tls_server_config: TLS begins with a restart")


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError as error:
        return (error.errno or 0,)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _content(file: Path, setting: str) -> bytes:
    """What a file holds.

    Raises:
        WebConfigError: It cannot be read.
    """
    try:
        with open_regular(file, links=True) as stream:
            content = stream.read(MOST_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise WebConfigError(f"{setting}: {file}: {reason}; name a file that the daemon may read") from None
    except ValueError:
        raise WebConfigError(f"{setting}: {str(file)!r} is no path") from None
    if len(content) > MOST_BYTES:
        raise WebConfigError(f"{setting}: {file}: it is over {MOST_BYTES // 1024**2} MiB; name another file")
    return content


class Listening(ssl.SSLContext):
    """What a listener is given: each handshake has the context that is then in force.

    Attributes:
        file: Where that comes from.
    """

    file: ConfigFile

    def wrap_bio(self, *given: Any, **named: Any) -> ssl.SSLObject:
        """See `ssl.SSLContext`."""
        now = self.file.current().tls
        if now is None:
            raise ssl.SSLError("there is no TLS")
        return now.wrap_bio(*given, **named)

"""The active web configuration, reloaded when its file or a file that it names changes."""

import logging
import ssl
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from trackside.environment.paths import open_regular
from trackside.log_once import LogOnce
from trackside.os_errors import os_error_text
from trackside_daemon.web.http.config import WebConfig, WebConfigError, read_config
from trackside_daemon.web.http.tls import PemFiles, TlsContext, certificate_end, make_context

MAX_BYTES = 1024 * 1024  # size limit of each file; real ones are far smaller

log = logging.getLogger("trackside")


class ActiveConfig(NamedTuple):
    """A configuration that was read without errors."""

    config: WebConfig  # the parsed file
    tls: TlsContext | None  # the TLS context made from it; None for plain HTTP
    sources: tuple[bytes, ...]  # the content of every file that was read
    certificate_end: float | None = None  # when the certificate expires, in Unix seconds; None without one


class ConfigFile:
    """A web configuration file; the last valid version stays active.

    Args:
        file: The path, to which paths in the file are relative. Empty for no configuration, which restricts nothing.

    Attributes:
        reloaded: Called after a reload, in the thread of the web server.

    Raises:
        WebConfigError: The configuration is invalid.
    """

    def __init__(self, file: str) -> None:
        self.reloaded: Callable[[], None] = lambda: None
        self._file = Path(file) if file else None
        self._referenced_files: tuple[Path, ...] = ()
        self._logged = LogOnce()
        self._stamps: tuple[Any, ...] = ()
        self._key_exposed = False
        self._active = self._read()

    def current(self) -> ActiveConfig:
        """Return the active configuration, reloaded if a file has changed.

        Each call costs one stat per file. An invalid new version is logged once.
        """
        stamps = self._current_stamps()
        if stamps != self._stamps:
            self._stamps = stamps
            self._reload()
        return self._active

    @property
    def scheme(self) -> str:
        """Return ``https`` or ``http``; it does not change while the daemon runs."""
        return "http" if self._active.tls is None else "https"

    @property
    def authenticates(self) -> bool:
        """Return True when every request needs a client certificate or a password."""
        return self._active.config.authenticates

    @property
    def certificate_end(self) -> float | None:
        """Return when the certificate in use expires, in Unix seconds; None without one."""
        return self._active.certificate_end

    def _reload(self) -> None:
        try:
            new = self._read()
            # Only the stamps have changed, for example after `touch`.
            if new.sources == self._active.sources:
                self._logged.clear()
                return
            _refuse_weakening(self._active.config, new.config, self._file)
        except WebConfigError as error:
            self._log_once(str(error))
            return
        except Exception as error:  # noqa: BLE001  the current request must not fail for it
            self._log_once(f"{self._file}: cannot be read: {type(error).__name__}")
            return
        if new.config.rate_limit != self._active.config.rate_limit:
            log.warning("%s: a change of rate_limit needs a restart", self._file)
        self._logged.clear()
        self._active = new
        log.info("%s: reloaded", self._file)
        self.reloaded()

    def _log_once(self, problem: str) -> None:
        if self._logged.first("", problem):
            log.error("the previous web configuration stays active: %s", problem)

    def _current_stamps(self) -> tuple[Any, ...]:
        """Return a stamp of each file; a replaced file has another inode."""
        return tuple(map(_stamp, (self._file, *self._referenced_files))) if self._file is not None else ()

    def _read(self) -> ActiveConfig:
        if self._file is None:
            return ActiveConfig(WebConfig(), None, ())
        stamp = _stamp(self._file)  # before the content, so that a file replaced meanwhile is read again
        text = _read_file(self._file, "--web.config.file")
        config = read_config(text, self._file)
        section = config.tls_server_config
        if section is None:
            self._referenced_files = ()
            self._stamps = (stamp,)
            return ActiveConfig(config, None, (text,))
        directory = self._file.parent
        files = {name: getattr(section, f"{name}_file") for name in PemFiles._fields}
        self._referenced_files = tuple(directory / file for file in files.values() if file)
        # Before the content is read, for the same reason as above.
        self._stamps = (stamp, *map(_stamp, self._referenced_files))
        self._warn_of_exposed_key(directory / section.key_file if section.key_file else None)
        pems = PemFiles(
            *(
                _read_file(directory / file, f"{self._file}: tls_server_config.{name}_file")
                if file
                else str(getattr(section, name)).encode()
                for name, file in files.items()
            )
        )
        try:
            return ActiveConfig(config, make_context(section, pems), (text, *pems), certificate_end(pems.cert))
        except ValueError as error:
            raise WebConfigError(f"{self._file}: tls_server_config.{error}") from None

    def _warn_of_exposed_key(self, file: Path | None) -> None:
        exposed = False
        with suppress(OSError):
            exposed = file is not None and bool(file.stat().st_mode & stat.S_IROTH)
        if exposed and not self._key_exposed:
            log.warning("%s: tls_server_config.key_file: all users can read it; to fix that: chmod o= %s", file, file)
        self._key_exposed = exposed


def _refuse_weakening(old: WebConfig, new: WebConfig, file: Path | None) -> None:
    """Check that a reload removes no access restriction; a file that is being written is empty for a moment.

    Raises:
        WebConfigError: The new version removes a restriction, or starts or stops TLS.
    """
    lost = sorted(old.protections - new.protections)
    if lost:
        raise WebConfigError(
            f"{file}: {', '.join(lost)}: removed, which would open what was restricted; restart the daemon to apply that"
        )
    if (old.tls_server_config is None) != (new.tls_server_config is None):
        raise WebConfigError(f"{file}: tls_server_config: switching TLS on or off needs a restart")


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        status = file.stat()
    except OSError as error:
        return (error.errno or 0,)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _read_file(file: Path, setting: str) -> bytes:
    """Return the content of a file.

    Raises:
        WebConfigError: The file cannot be read or is too large.
    """
    try:
        with open_regular(file, links=True) as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise WebConfigError(
            f"{setting}: {file}: {os_error_text(error)}; name a file that the daemon can read"
        ) from None
    except ValueError:
        raise WebConfigError(f"{setting}: {str(file)!r} is not a path") from None
    if len(content) > MAX_BYTES:
        raise WebConfigError(f"{setting}: {file}: larger than {MAX_BYTES // 1024**2} MiB; name another file")
    return content


class ReloadingContext(ssl.SSLContext):
    """The listener's TLS context, which uses the active configuration for each handshake."""

    file: ConfigFile  # the web configuration

    def wrap_bio(self, *given: Any, **named: Any) -> ssl.SSLObject:
        """Return the server side of a TLS connection; see `ssl.SSLContext.wrap_bio`."""
        context = self.file.current().tls
        if context is None:
            raise ssl.SSLError("TLS is not configured")
        return context.wrap_bio(*given, **named)

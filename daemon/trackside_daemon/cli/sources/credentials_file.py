"""The content of a ``--web.credentials-file``: a subset of Prometheus' HTTP client configuration."""

import os
import socket
import ssl
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, ValidationError

from trackside.environment.paths import open_regular
from trackside.os_errors import os_error_text
from trackside_daemon.cli.credentials_flag import FLAG
from trackside_daemon.cli.sources.source import LockedError
from trackside_daemon.config.near import explain
from trackside_daemon.config.section import Section
from trackside_daemon.config.yaml import YamlError, parse

MOST_BYTES = 64 * 1024


class _BasicAuth(Section):
    """The section ``basic_auth``."""

    username: str
    password: SecretStr = SecretStr("")
    password_file: str = ""


class _Tls(Section):
    """The section ``tls_config``."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    insecure_skip_verify: bool = False


class _File(Section):
    """The whole file."""

    basic_auth: _BasicAuth | None = None
    tls_config: _Tls = Field(default_factory=_Tls)


class _NamedContext(ssl.SSLContext):
    """A TLS context that expects a certain name in the server's certificate.

    Attributes:
        server_name: The name; empty for that of the address.
    """

    server_name = ""

    def wrap_socket(self, sock: socket.socket, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """See `ssl.SSLContext`."""
        if self.server_name:
            # urllib has no parameter for this name and always passes the host of the address.
            kwargs["server_hostname"] = self.server_name
        return super().wrap_socket(sock, *args, **kwargs)


def read(file: Path) -> tuple[str | None, str, ssl.SSLContext | None]:
    """Return the user, the password, and the TLS context; None for a user or a ``tls_config`` that the file lacks.

    Raises:
        LockedError: The file is invalid, or other users can read its password.
    """
    content = _read(file)
    user, password = None, ""
    if content.basic_auth is not None:
        user = content.basic_auth.username
        password = _password(file, content.basic_auth)
    return user, password, _context(file, content.tls_config) if content.tls_config != _Tls() else None


def _read(file: Path) -> _File:
    text, private = _content(file, FLAG)
    try:
        content = _File.model_validate(parse(text) or {})
    except YamlError as error:
        raise LockedError(f"{file}: {error}") from None
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"])) or "it"
        unknown = problem["type"] == "extra_forbidden"
        known = "no such key; basic_auth and tls_config are those of Prometheus"
        reason = known if unknown else explain(problem, secret=True)
        raise LockedError(f"{file}: {key}: {reason}") from None
    if content.basic_auth is not None and content.basic_auth.password.get_secret_value():
        _require_private(file, private=private)
    return content


def _password(file: Path, auth: _BasicAuth) -> str:
    if not auth.password_file:
        return auth.password.get_secret_value()
    if auth.password.get_secret_value():
        raise LockedError(f"{file}: basic_auth: password and password_file are both set; remove one")
    path = file.parent / auth.password_file
    text, private = _content(path, f"{file}: basic_auth.password_file")
    _require_private(path, private=private)
    return text.decode(errors="replace").strip()


def _context(file: Path, tls: _Tls) -> ssl.SSLContext:
    context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.server_name = tls.server_name
    if tls.insecure_skip_verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        if tls.ca_file:
            context.load_verify_locations(file.parent / tls.ca_file)
        else:
            context.load_default_certs()
        if tls.cert_file or tls.key_file:
            # Without a callback, OpenSSL would ask for the password of an encrypted key on the terminal.
            context.load_cert_chain(file.parent / tls.cert_file, file.parent / tls.key_file, password=_refuse)
    except (OSError, ValueError) as error:
        names = ", ".join(filter(None, (tls.ca_file, tls.cert_file, tls.key_file)))
        raise LockedError(f"{file}: tls_config: {names}: {os_error_text(error)}; give PEM files") from None
    return context


def _refuse() -> bytes:
    raise ValueError("the key is encrypted")


def _content(file: Path, setting: str) -> tuple[bytes, bool]:
    """Return a file's content, and whether it is private.

    A group may read the files of root: Kubernetes mounts secrets like that.
    """
    try:
        with open_regular(file, links=True) as stream:
            status = os.fstat(stream.fileno())
            return stream.read(MOST_BYTES), not status.st_mode & (0o037 if status.st_uid == 0 else 0o077)
    except (OSError, ValueError) as error:
        raise LockedError(f"{setting}: {file}: {os_error_text(error)}; give a file that you may read") from None


def _require_private(file: Path, *, private: bool) -> None:
    if not private:
        raise LockedError(f"{file}: contains a password that other users can read; run: chmod 600 {file}")

"""The file of ``--web.credentials-file``, for commands that query a daemon with a web configuration.

The format is a subset of Prometheus' HTTP client configuration: ``basic_auth`` and ``tls_config``.
"""

from __future__ import annotations

import base64
import os
import socket
import ssl
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError

from trackside.transport.paths import open_regular
from trackside_daemon.cli.credentials_flag import FLAG, VARIABLE
from trackside_daemon.cli.sources.errors import LockedError
from trackside_daemon.config.section import Section
from trackside_daemon.config.yaml import YamlError, parse

MOST_BYTES = 64 * 1024
_OTHER_NAME = frozenset({62, 64})  # openSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH


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


class Credentials(NamedTuple):
    """The credentials for a daemon.

    Attributes:
        file: Path of the file; empty for none.
        user: Empty for none.
        authorization: Value of the header, with the password; empty for none.
        tls: Trusted authorities and the client's certificate.
        encrypted: Whether the file has a ``tls_config``.
    """

    file: str
    user: str
    authorization: str
    tls: ssl.SSLContext
    encrypted: bool


class _NamedContext(ssl.SSLContext):
    """A TLS context that expects a certain name in the server's certificate.

    Attributes:
        server_name: The name; empty for that of the address.
    """

    server_name = ""

    def wrap_socket(self, sock: socket.socket, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """See `ssl.SSLContext`."""
        if self.server_name:
            kwargs["server_hostname"] = self.server_name
        return super().wrap_socket(sock, *args, **kwargs)


def load() -> Credentials:
    """Read the file that the variable names; the flag sets the variable.

    Raises:
        LockedError: The file is invalid.
    """
    path = os.environ.get(VARIABLE, "")
    if not path:
        return _none()
    file = Path(path).expanduser()
    content = _read(file)
    user = header = ""
    if content.basic_auth is not None:
        user = content.basic_auth.username
        password = _password(file, content.basic_auth)
        header = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    encrypted = content.tls_config != _Tls()
    return Credentials(path, user, header, _context(file, content.tls_config), encrypted)


@cache
def _none() -> Credentials:
    return Credentials("", "", "", _context(Path(), _Tls()), encrypted=False)


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
        reason = "no such key; basic_auth and tls_config are those of Prometheus" if unknown else problem["msg"].lower()
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
            context.load_cert_chain(file.parent / tls.cert_file, file.parent / tls.key_file, password=_refuse)
    except (OSError, ValueError) as error:
        names = ", ".join(filter(None, (tls.ca_file, tls.cert_file, tls.key_file)))
        reason = getattr(error, "strerror", None) or str(error)
        raise LockedError(f"{file}: tls_config: {names}: {reason.lower()}; give PEM files") from None
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
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise LockedError(f"{setting}: {file}: {reason}; give a file that you may read") from None


def _require_private(file: Path, *, private: bool) -> None:
    if not private:
        raise LockedError(f"{file}: contains a password that other users can read; run: chmod 600 {file}")


def authorization_for(url: str, credentials: Credentials) -> str:
    """Return the header with the password; empty for an unencrypted connection if the file has a ``tls_config``.

    A daemon of this machine may lack TLS; it accepts its token instead.

    Raises:
        LockedError: The address is remote and unencrypted.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not credentials.encrypted:
        return credentials.authorization
    if not _is_loopback(parts.hostname or ""):
        raise LockedError(f"{url}: {credentials.file} has tls_config, so only https:// addresses are allowed")
    return ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def explain_refusal(credentials: Credentials, url: str) -> str:
    """Return how to fix a 401 of the web configuration."""
    if credentials.user and not authorization_for(url, credentials):
        return f"{credentials.file} has tls_config, so its password is not sent without TLS; use https://"
    if credentials.user:
        return f"user {credentials.user!r} or the password in {credentials.file} is wrong"
    return f"a user and a password are required; give a file with basic_auth: {FLAG}=FILE"


def explain_tls_error(error: BaseException, credentials: Credentials, *, encrypted: bool) -> str:
    """Return how to fix an error of TLS; empty for other errors.

    Args:
        error: The error of a connection.
        credentials: The credentials that it used.
        encrypted: Whether it should have used TLS.
    """
    where = f"in {credentials.file}" if credentials.file else f"in a file for {FLAG}"
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_NAME:
            return f"the daemon's certificate is for another name; set that {where}: tls_config: server_name"
        return (
            f"the daemon's certificate is not trusted: {error.verify_message}; "
            f"set its authority {where}: tls_config: ca_file"
        )
    if isinstance(error, ConnectionResetError | BrokenPipeError):  # asyncio sends no TLS alert
        if encrypted:
            return (
                "the daemon closed the connection; it probably requires a client certificate: "
                f"set one {where}: tls_config: cert_file, key_file"
            )
        return "the daemon closed the connection; it probably uses TLS: try https://"
    if not isinstance(error, ssl.SSLError):
        return ""
    reason = str(error.reason or error).lower().replace("_", " ")
    return "the daemon does not use TLS; try http://" if "wrong version" in reason else f"TLS fails: {reason}"


def certificate_expiry(url: str, credentials: Credentials, timeout: float) -> float | None:
    """Return when the certificate of an ``https://HOST:PORT`` expires, in Unix seconds; None if it is not verified."""
    parts = urlsplit(url)
    if parts.scheme != "https" or credentials.tls.verify_mode is ssl.CERT_NONE:
        return None
    address = (parts.hostname or "", parts.port or 443)
    with (
        socket.create_connection(address, timeout) as plain,
        credentials.tls.wrap_socket(plain, server_hostname=parts.hostname) as encrypted,
    ):
        return float(ssl.cert_time_to_seconds(str((encrypted.getpeercert() or {})["notAfter"])))

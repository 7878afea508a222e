"""The file of ``--web.credentials-file``: by what our commands are let in where the daemon has a web configuration.

It is a part of the HTTP client configuration of Prometheus: ``basic_auth`` and ``tls_config``.
"""

from __future__ import annotations

import base64
import os
import socket
import ssl
from functools import cache
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError

from trackside.transport.paths import open_regular
from trackside_daemon.cli.sources.errors import LockedError
from trackside_daemon.config.environment import WEB_CREDENTIALS
from trackside_daemon.config.section import Section
from trackside_daemon.config.yaml import YamlError, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

FLAG = "--web.credentials-file"
MOST_BYTES = 64 * 1024
_OTHER_NAME = frozenset({62, 64})
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""


class _BasicAuth(Section):
    """``basic_auth``."""

    username: str
    password: SecretStr = SecretStr("")
    password_file: str = ""


class _Tls(Section):
    """``tls_config``."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    insecure_skip_verify: bool = False


class _File(Section):
    """All of it."""

    basic_auth: _BasicAuth | None = None
    tls_config: _Tls = Field(default_factory=_Tls)


class Credentials(NamedTuple):
    """How a daemon is asked.

    Attributes:
        file: Where it is said; empty where nothing is.
        user: Empty for none.
        authorization: The header, with the password.
        tls: Whom to trust, and with which certificate.
        encrypted: Whether the file speaks of TLS.
    """

    file: str
    user: str
    authorization: str
    tls: ssl.SSLContext
    encrypted: bool


class _Context(ssl.SSLContext):
    """One that looks for another name in the server's certificate than that of the address.

    Attributes:
        server_name: That one; empty for the address'.
    """

    server_name = ""

    def wrap_socket(self, sock: socket.socket, *given: Any, **named: Any) -> ssl.SSLSocket:
        """See `ssl.SSLContext`."""
        if self.server_name:
            named["server_hostname"] = self.server_name
        return super().wrap_socket(sock, *given, **named)


def given() -> Credentials:
    """What the user has given, by the flag, which sets the variable, or by the variable.

    Raises:
        LockedError: It cannot be used.
    """
    path = os.environ.get(WEB_CREDENTIALS, "")
    if not path:
        return _none()
    file = Path(path).expanduser()
    said = _read(file)
    user = password = ""
    if said.basic_auth is not None:
        user, password = said.basic_auth.username, _password(file, said.basic_auth)
    header = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode() if said.basic_auth else ""
    encrypted = said.tls_config != _Tls()
    return Credentials(path, user, header, _context(file, said.tls_config), encrypted)


@cache
def _none() -> Credentials:
    return Credentials("", "", "", _context(Path(), _Tls()), encrypted=False)


def taken_out(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The flag, which all commands share and which may stand behind one, and the other arguments."""
    ours: list[str] = []
    others: list[str] = []
    rest = iter(arguments)
    for one in rest:
        if one == "--":
            others += [one, *rest]
        elif one == FLAG:
            ours += [one, *islice(rest, 1)]
        else:
            (ours if one.startswith(f"{FLAG}=") else others).append(one)
    return ours, others


def _read(file: Path) -> _File:
    text, private = _content(file, FLAG)
    try:
        said = _File.model_validate(parse(text) or {})
    except YamlError as error:
        raise LockedError(f"{file}: {error}") from None
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"])) or "it"
        unknown = problem["type"] == "extra_forbidden"
        text_ = "no such key; basic_auth and tls_config are those of Prometheus" if unknown else problem["msg"].lower()
        raise LockedError(f"{file}: {key}: {text_}") from None
    if said.basic_auth is not None and said.basic_auth.password.get_secret_value():
        _want_private(file, private=private)
    return said


def _password(file: Path, auth: _BasicAuth) -> str:
    if not auth.password_file:
        return auth.password.get_secret_value()
    if auth.password.get_secret_value():
        raise LockedError(f"{file}: basic_auth: password and password_file are both there; leave one out")
    path = file.parent / auth.password_file
    text, private = _content(path, f"{file}: basic_auth.password_file")
    _want_private(path, private=private)
    return text.decode(errors="replace").strip()


def _context(file: Path, tls: _Tls) -> ssl.SSLContext:
    made = _Context(ssl.PROTOCOL_TLS_CLIENT)
    made.server_name = tls.server_name
    if tls.insecure_skip_verify:
        made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    try:
        if tls.ca_file:
            made.load_verify_locations(file.parent / tls.ca_file)
        else:
            made.load_default_certs()
        if tls.cert_file or tls.key_file:
            made.load_cert_chain(file.parent / tls.cert_file, file.parent / tls.key_file, password=_refuse)
    except (OSError, ValueError) as error:
        names = ", ".join(one for one in (tls.ca_file, tls.cert_file, tls.key_file) if one)
        reason = getattr(error, "strerror", None) or str(error)
        raise LockedError(f"{file}: tls_config: {names}: {reason.lower()}; name files with PEM") from None
    return made


def _refuse() -> bytes:
    raise ValueError("the key is encrypted")


def _content(file: Path, setting: str) -> tuple[bytes, bool]:
    """What a file holds, and whether nobody else can read it; of root's, a group may, as Kubernetes mounts secrets."""
    try:
        with open_regular(file, links=True) as stream:
            status = os.fstat(stream.fileno())
            return stream.read(MOST_BYTES), not status.st_mode & (0o037 if status.st_uid == 0 else 0o077)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise LockedError(f"{setting}: {file}: {reason}; name a file that you may read") from None


def _want_private(file: Path, *, private: bool) -> None:
    if not private:
        raise LockedError(f"{file}: holds a password that others can read; make it yours alone: chmod 600 {file}")


def password_for(url: str, credentials: Credentials) -> str:
    """The header with the password; none goes unencrypted where the file speaks of TLS.

    The daemon of this machine may be one without TLS, which is asked with its token.

    Raises:
        LockedError: Nothing may go to that address.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not credentials.encrypted:
        return credentials.authorization
    if not _is_loopback(parts.hostname or ""):
        raise LockedError(f"{url}: {credentials.file} has tls_config, so it is not asked without TLS; use https://")
    return ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def refused(credentials: Credentials, url: str) -> str:
    """What to do about a 401 of the web configuration."""
    if credentials.user and not password_for(url, credentials):
        return f"{credentials.file} has tls_config, so its password does not go there without TLS; use https://"
    if credentials.user:
        return f"user {credentials.user!r} or the password in {credentials.file} is wrong"
    return f"a user and a password are needed; name a file with them: {FLAG}=FILE, with basic_auth"


def untrusted(error: BaseException, credentials: Credentials, *, encrypted: bool) -> str:
    """What to do about an error of TLS; empty for another.

    Args:
        error: Of a connection.
        credentials: That it was made with.
        encrypted: Whether it was to be by TLS.
    """
    where = f"in {credentials.file}" if credentials.file else f"in a file for {FLAG}"
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_NAME:
            return f"its certificate is for another name; name that {where}: tls_config: server_name"
        return (
            f"its certificate is not trusted: {error.verify_message}; name its authority {where}: tls_config: ca_file"
        )
    if isinstance(error, ConnectionResetError | BrokenPipeError):  # no alert comes from asyncio
        cure = f"name one {where}: tls_config: cert_file, key_file" if encrypted else "ask it by https://"
        return f"it hung up, as one that {'wants another certificate of ours' if encrypted else 'speaks TLS'}; {cure}"
    if not isinstance(error, ssl.SSLError):
        return ""
    reason = str(error.reason or error).lower().replace("_", " ")
    return "it speaks no TLS; ask it by http://" if "wrong version" in reason else f"TLS fails: {reason}"


def expires(url: str, credentials: Credentials, seconds: float) -> float | None:
    """When the certificate of an ``https://HOST:PORT`` ends, in seconds of Unix time; None where nobody can tell."""
    parts = urlsplit(url)
    if parts.scheme != "https" or credentials.tls.verify_mode is ssl.CERT_NONE:
        return None
    address = (parts.hostname or "", parts.port or 443)
    with (
        socket.create_connection(address, seconds) as plain,
        credentials.tls.wrap_socket(plain, server_hostname=parts.hostname) as encrypted,
    ):
        return float(ssl.cert_time_to_seconds(str((encrypted.getpeercert() or {})["notAfter"])))

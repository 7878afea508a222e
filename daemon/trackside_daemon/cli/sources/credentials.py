"""The file of ``--web.credentials-file``, for commands that query a daemon with a web configuration.

The format is a subset of Prometheus' HTTP client configuration: ``basic_auth`` and ``tls_config``.
"""

import base64
import os
import socket
import ssl
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from trackside_daemon.cli.credentials_flag import FLAG, VARIABLE
from trackside_daemon.cli.sources.source import LockedError
from trackside_daemon.http_client.http_request import is_local

_OTHER_NAME = frozenset({62, 64})  # openSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH


class Credentials(NamedTuple):
    """The credentials for a daemon."""

    file: str = ""  # path of the file; empty for none
    user: str = ""  # empty for none
    authorization: str = ""  # value of the header, with the password; empty for none
    tls: ssl.SSLContext | None = None  # the context of the file's ``tls_config``; None if it has none

    @property
    def tls_context(self) -> ssl.SSLContext:
        """The context of connections; without a ``tls_config`` it trusts the system's authorities."""
        if self.tls is not None:
            return self.tls
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_default_certs()
        return context


def load() -> Credentials:
    """Read the file that the variable names; the flag sets the variable.

    Raises:
        LockedError: The file is invalid.
    """
    path = os.environ.get(VARIABLE, "")
    if not path:
        return Credentials()
    from trackside_daemon.cli.sources import credentials_file

    user, password, tls = credentials_file.read(Path(path).expanduser())
    header = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode() if user is not None else ""
    return Credentials(path, user or "", header, tls)


def authorization_for(url: str, credentials: Credentials) -> str:
    """Return the header with the password; empty for an unencrypted connection if the file has a ``tls_config``.

    A daemon of this machine may lack TLS; it accepts its token instead.

    Raises:
        LockedError: The address is remote and unencrypted.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or credentials.tls is None:
        return credentials.authorization
    if not is_local(parts.hostname or ""):
        raise LockedError(f"{url}: {credentials.file} has tls_config, so only https:// addresses are allowed")
    return ""


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
    if parts.scheme != "https":
        return None
    context = credentials.tls_context
    if context.verify_mode is ssl.CERT_NONE:
        return None
    address = (parts.hostname or "", parts.port or 443)
    with (
        socket.create_connection(address, timeout) as plain,
        context.wrap_socket(plain, server_hostname=parts.hostname) as encrypted,
    ):
        return float(ssl.cert_time_to_seconds(str((encrypted.getpeercert() or {})["notAfter"])))

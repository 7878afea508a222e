"""HTTP requests, in a bounded time however slow the server is.

Logs and errors show only scheme, host and port of an address, because the rest may be secret.
"""

import base64
import re
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from errno import EAGAIN
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    ProxyHandler,
    Request,
    build_opener,
    getproxies,
    proxy_bypass,
)

from trackside.os_errors import os_error_text
from trackside_daemon.http_client.errors import Retry, SendError, SettingError

LONGEST_SECRET = 64 * 1024
_BAD_MESSAGE = frozenset({400, 411, 413, 414, 415, 422, 431})
PROXY_AUTHENTICATION_REQUIRED = 407
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*:\s*(\S.*)")
_TUNNEL = re.compile(r"Tunnel connection failed: (\d{3})")
_BUSY = frozenset({408, 425, 429})
_REMEDIES = {
    401: "check the token, or the user and the password",
    403: "check the token, or the user and the password, and their permissions",
    404: "check the path of the URL",
    405: "check the path of the URL",
    410: "check the path of the URL",
    413: "the message is too long for it",
}


def read_secret(path: str, setting: str) -> str:
    """Return the content of a file that holds a secret.

    Raises:
        SettingError: The file is missing, unreadable or empty; the text names *setting*.
    """
    try:
        with Path(path).expanduser().open(encoding="utf-8") as file:
            text = file.read(LONGEST_SECRET).strip()
    except (OSError, RuntimeError) as error:
        raise SettingError(f"{setting}: {path}: {os_error_text(error)}; name a file that the daemon can read") from None
    except UnicodeDecodeError:
        raise SettingError(f"{setting}: {path}: the file is not text") from None
    if not text:
        raise SettingError(f"{setting}: {path}: the file is empty")
    return text


def read_secret_line(path: str, setting: str) -> str:
    """Return the content of a file that holds a secret of one line.

    Raises:
        SettingError: See `read_secret`; or the file has more than one line.
    """
    text = read_secret(path, setting)
    if not text.isprintable():
        raise SettingError(f"{setting}: {path}: the file must have exactly one line")
    return text


def read_headers(path: str, setting: str) -> dict[str, str]:
    """Return the headers in a file, one ``NAME: VALUE`` per line; without a file, none.

    Raises:
        SettingError: See `read_secret`; or a line is no header.
    """
    headers = {}
    for number, line in enumerate(read_secret(path, setting).splitlines() if path else (), 1):
        header = _HEADER.fullmatch(line.strip()) if line.isprintable() and line.isascii() else None
        if header is None:
            raise SettingError(f"{setting}: {path}: line {number} is not NAME: VALUE")
        headers[header[1]] = header[2]
    return headers


def bearer_header(path: str, setting: str) -> str:
    """Return the value of an Authorization header with the token in a file.

    Raises:
        SettingError: See `read_secret_line`; or HTTP cannot carry the token.
    """
    token = read_secret_line(path, setting)
    if not token.isascii():
        raise SettingError(f"{setting}: {path}: a token may have ASCII characters only")
    return f"Bearer {token}"


def tls_context(ca_file: str, setting: str) -> ssl.SSLContext:
    """Return a TLS context that trusts the authorities in a file; without a file, those of the system.

    Raises:
        SettingError: The file is missing, unreadable or has no certificate.
    """
    try:
        return ssl.create_default_context(cafile=str(Path(ca_file).expanduser()) if ca_file else None)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "no certificate in PEM").lower()
        raise SettingError(f"{setting}: {ca_file}: {reason}") from None


def without_secrets(url: str) -> str:
    """Return the scheme, host and port of a URL.

    Raises:
        ValueError: The URL is invalid; the text explains why.
    """
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        raise ValueError("not a URL such as http://HOST:PORT/PATH") from None
    plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
        raise ValueError("not a URL such as http://HOST:PORT/PATH")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{port}"


def basic_header(user: str, password: str) -> str:
    """Return the value of an Authorization header for basic authentication."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def post(url: str, body: bytes, headers: Mapping[str, str], context: ssl.SSLContext) -> None:
    """Post JSON to a server; see `request`."""
    request("POST", url, body, headers, context)


def request(
    method: str,
    url: str,
    body: bytes | None,
    headers: Mapping[str, str],
    context: ssl.SSLContext,
    *,
    longest: int = 0,
) -> bytes:
    """Send a request, with JSON by default, and return at most *longest* bytes of the answer.

    A user and a password in the URL are sent as a header.

    Raises:
        SendError: The server did not accept it.
    """
    try:
        server = without_secrets(url)
    except ValueError as error:
        raise SendError(f"the URL cannot be used: {error}", "later") from None
    parts = urlsplit(url)
    # urllib would take a user and a password for a part of the host name.
    sent = Request(  # noqa: S310  http(s) was checked
        parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl(),
        body,
        {"Content-Type": "application/json", "User-Agent": "trackside", **headers},
        method=method,
    )
    if parts.username is not None:
        sent.add_header("Authorization", basic_header(unquote(parts.username), unquote(parts.password or "")))
    proxy = _proxy(parts.scheme, parts.hostname or "")
    try:
        return HttpExchange(context, proxied=bool(proxy)).run(sent, longest)
    except HTTPError as error:
        # The body is not read, because it may contain secrets.
        error.close()
        raise _rejected(server, error.code, proxy) from None
    except URLError as error:
        raise _unreachable(server, error.reason, proxy) from None
    except (OSError, HTTPException) as error:
        raise _unreachable(server, error, proxy) from None
    except ValueError:
        raise SendError(f"{server}: HTTP cannot carry the address or a header; check both", "later") from None


def _proxy(scheme: str, host: str) -> str:
    """Return the proxy of the environment for a host, without secrets; empty for none."""
    proxy = "" if is_local(host) or proxy_bypass(host) else getproxies().get(scheme, "")
    try:
        return proxy and without_secrets(proxy if "//" in proxy else f"http://{proxy}")
    except ValueError:
        return f"of {scheme}_proxy"


def is_local(host: str) -> bool:
    """Return True for this machine, which is never reached through a proxy."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _unreachable(server: str, error: object, proxy: str) -> SendError:
    """Return the error for a server that did not respond."""
    tunnel_failure = _TUNNEL.match(str(error)) if proxy else None
    if tunnel_failure is not None:
        return _rejected_by_proxy(proxy, int(tunnel_failure[1]))
    through = f" through the proxy {proxy}" if proxy else ""
    return SendError(f"{server} cannot be reached{through}: {_reason(error)}")


def _rejected_by_proxy(proxy: str, code: int) -> SendError:
    phrase = HTTPStatus(code).phrase if code in [*HTTPStatus] else ""
    remedy = (
        "; check its user and password in the daemon's environment" if code == PROXY_AUTHENTICATION_REQUIRED else ""
    )
    return SendError(
        f"the proxy {proxy} answered {code} {phrase}".rstrip() + remedy, "soon" if code >= 500 else "later"
    )


def _rejected(server: str, code: int, proxy: str) -> SendError:
    """Return the error for a status code, without the body of the response, which may have secrets."""
    if code == PROXY_AUTHENTICATION_REQUIRED and proxy:
        return _rejected_by_proxy(proxy, code)
    phrase = HTTPStatus(code).phrase if code in [*HTTPStatus] else ""
    text = f"{server} answered {code} {phrase}".rstrip()
    retry: Retry = "soon" if code >= 500 or code in _BUSY else "never" if code in _BAD_MESSAGE else "later"
    if 300 <= code < 400:
        return SendError(f"{text}: redirects are not followed; set the URL that it leads to", retry)
    remedy = _REMEDIES.get(code, "")
    given_up = "; the message is given up" if retry == "never" else ""
    return SendError(f"{text}{remedy and f'; {remedy}'}{given_up}", retry, code)


def _reason(error: object) -> str:
    """Return the system's message or the kind of error; other texts may contain the address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}; set its authority in ca-file"
    if isinstance(error, TimeoutError):
        return f"no response within {PATIENCE_SECONDS:g} s, or no complete one within {LONGEST_SECONDS:g} s"
    if isinstance(error, OSError) and error.strerror:
        return os_error_text(error)
    if isinstance(error, HTTPException | ConnectionError):
        return "it closed the connection"
    return type(error).__name__


PATIENCE_SECONDS = 10.0  # seconds that the connection may be idle
LONGEST_SECONDS = 30.0  # seconds that the whole exchange may last


class HttpExchange:
    """HTTP request with a deadline.

    Args:
        context: Trusted certificates.
        proxied: Use the proxy that the environment names, if any.
    """

    def __init__(self, context: ssl.SSLContext, *, proxied: bool) -> None:
        self._late = threading.Event()
        self._sockets: list[socket.socket] = []
        proxies = [] if proxied else [ProxyHandler({})]
        self._opener = build_opener(_NoRedirects, _Plain(self._connect), _Secure(self._connect, context), *proxies)

    def run(self, request: Request, longest: int = 0) -> bytes:
        """Send a request, read the status of the response, and return at most *longest* bytes of its body.

        Raises:
            TimeoutError: The exchange took too long.
            OSError: Error of `urllib` or `http.client`; they also raise `http.client.HTTPException` and `ValueError`.
        """
        # A socket timeout bounds each read only, so a slow server could keep the request open for ever.
        timer = threading.Timer(LONGEST_SECONDS, self._abort)
        timer.daemon = True
        answer = b""
        try:
            timer.start()
        except RuntimeError:
            raise OSError(EAGAIN, "no thread can be started to bound its time; raise the limit of threads") from None
        try:
            with self._opener.open(request, timeout=PATIENCE_SECONDS) as response:
                answer = bytes(response.read(longest)) if longest else b""
        except Exception:
            if not self._late.is_set():
                raise
        finally:
            timer.cancel()
            for opened in self._sockets:
                opened.close()
        if self._late.is_set():  # an exchange that was cut off may appear to have a response
            raise TimeoutError
        return answer

    def _connect(self, *arguments: Any) -> socket.socket:
        opened = socket.create_connection(*arguments)
        # TLS wraps the first handle, so keep a second one to shut the connection down.
        self._sockets.append(opened.dup())
        if self._late.is_set():
            self._abort()
        return opened

    def _abort(self) -> None:
        self._late.set()
        for opened in list(self._sockets):
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)


class _Connection(HTTPConnection):
    """Connection that reads the response even if the server disconnects before it has read the whole request."""

    def send(self, data: Any) -> None:
        """See `HTTPConnection`."""
        if self.sock is None:
            self.connect()
        with suppress(BrokenPipeError, ConnectionResetError):
            super().send(data)


class _SecureConnection(_Connection, HTTPSConnection):
    """`_Connection` with TLS."""


class _Plain(HTTPHandler):
    """Handler that connects by *connect*."""

    def __init__(self, connect: Any) -> None:
        super().__init__()
        self._connect = connect

    def http_open(self, req: Request) -> Any:
        """See `HTTPHandler`."""
        return self.do_open(_factory(_Connection, self._connect), req)


class _Secure(HTTPSHandler):
    """Handler for TLS that connects by *connect*."""

    def __init__(self, connect: Any, context: ssl.SSLContext) -> None:
        super().__init__()
        self._connect, self._trust = connect, context

    def https_open(self, req: Request) -> Any:
        """See `HTTPSHandler`."""
        return self.do_open(_factory(_SecureConnection, self._connect), req, context=self._trust)


class _NoRedirects(HTTPRedirectHandler):
    """Handler that follows no redirects, because a message with secrets is for one server only."""

    def redirect_request(self, *_: object) -> None:
        """Return None, which follows no redirect."""


def _factory(kind: type[HTTPConnection], connect: Any) -> Any:
    """Return a factory of connections of this kind that connect by *connect*."""

    def make(*arguments: Any, **options: Any) -> HTTPConnection:
        connection = kind(*arguments, **options)
        connection._create_connection = connect  # type: ignore[attr-defined]  # noqa: SLF001  there is no other way
        return connection

    return make

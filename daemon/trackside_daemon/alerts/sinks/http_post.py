"""A message goes to a server by HTTP. No word of an address but its scheme, host and port is ever said."""

from __future__ import annotations

import base64
import re
import ssl
from http import HTTPStatus
from http.client import HTTPException
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, getproxies, proxy_bypass

from trackside_daemon.alerts.sinks.http_exchange import LONGEST_SECONDS, PATIENCE_SECONDS, Exchange
from trackside_daemon.alerts.sinks.sink import SendError, SinkError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.alerts.sinks.sink import Again

LONGEST_SECRET = 64 * 1024
_BAD_MESSAGE = frozenset({400, 411, 413, 414, 415, 422, 431})
PROXY_WANTS = 407
_TUNNEL = re.compile(r"Tunnel connection failed: (\d{3})")
_BUSY = frozenset({408, 425, 429})
_CURES = {
    401: "check the token, or user and password",
    403: "check the token, or user and password, and what they may do",
    404: "check the path of the URL",
    405: "check the path of the URL",
    410: "check the path of the URL",
    413: "the message is too long for it",
}


def secret(path: str, setting: str) -> str:
    """The content of a file that holds a secret.

    Raises:
        SinkError: There is none; *setting* is named.
    """
    try:
        with Path(path).expanduser().open(encoding="utf-8") as file:
            text = file.read(LONGEST_SECRET).strip()
    except (OSError, RuntimeError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise SinkError(f"{setting}: {path}: {reason}; name a file that the daemon may read") from None
    except UnicodeDecodeError:
        raise SinkError(f"{setting}: {path}: it is no text") from None
    if not text:
        raise SinkError(f"{setting}: {path}: it is empty")
    return text


def one_line(path: str, setting: str) -> str:
    """The same of a secret that is one line.

    Raises:
        SinkError: It is not.
    """
    text = secret(path, setting)
    if not text.isprintable():
        raise SinkError(f"{setting}: {path}: it is to be one line")
    return text


def bearer(path: str, setting: str) -> str:
    """The value of an Authorization header, with the token in a file.

    Raises:
        SinkError: It is not one line of what HTTP can carry.
    """
    token = one_line(path, setting)
    if not token.isascii():
        raise SinkError(f"{setting}: {path}: a token has letters, digits and signs of ASCII only")
    return f"Bearer {token}"


def trust(ca_file: str, setting: str) -> ssl.SSLContext:
    """Whom to trust: the authorities in a file, else the system's.

    Raises:
        SinkError: The file cannot be used.
    """
    try:
        return ssl.create_default_context(cafile=str(Path(ca_file).expanduser()) if ca_file else None)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "no certificate in PEM").lower()
        raise SinkError(f"{setting}: {ca_file}: {reason}") from None


def shown(url: str) -> str:
    """The address without what may be a secret.

    Raises:
        ValueError: It is none; the text says why.
    """
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        raise ValueError("it is no URL such as http://HOST:PORT/PATH") from None
    plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
        raise ValueError("it is no URL such as http://HOST:PORT/PATH")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{port}"


def basic(user: str, password: str) -> str:
    """The value of an Authorization header."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def post(url: str, body: bytes, headers: Mapping[str, str], context: ssl.SSLContext) -> None:
    """Give a server JSON; a user and a password in the address are sent as a header.

    Raises:
        SendError: It was not taken.
    """
    try:
        where = shown(url)
    except ValueError as error:
        raise SendError(f"the URL cannot be used: {error}", "later") from None
    parts = urlsplit(url)
    request = Request(  # noqa: S310  http(s) was checked
        parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl(),
        body,
        {"Content-Type": "application/json", "User-Agent": "trackside", **headers},
        method="POST",
    )
    if parts.username is not None:
        request.add_header("Authorization", basic(unquote(parts.username), unquote(parts.password or "")))
    proxy = _proxy(parts.scheme, parts.hostname or "")
    try:
        Exchange(context, proxied=bool(proxy)).run(request)
    except HTTPError as error:
        error.close()
        raise _refused(where, error.code, proxy) from None
    except URLError as error:
        raise _failed(where, error.reason, proxy) from None
    except (OSError, HTTPException) as error:
        raise _failed(where, error, proxy) from None
    except ValueError:
        raise SendError(f"{where}: HTTP cannot carry the address or a header; check both", "later") from None


def _proxy(scheme: str, host: str) -> str:
    """The proxy by which the environment has it sent, as it may be shown; empty for none."""
    proxy = "" if _is_local(host) or proxy_bypass(host) else getproxies().get(scheme, "")
    try:
        return proxy and shown(proxy if "//" in proxy else f"http://{proxy}")
    except ValueError:
        return f"of {scheme}_proxy"


def _is_local(host: str) -> bool:
    """Whether it is this machine, to which no proxy leads."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _failed(where: str, error: object, proxy: str) -> SendError:
    """Why there was no answer."""
    refused = _TUNNEL.match(str(error)) if proxy else None
    if refused is not None:
        return _by_proxy(proxy, int(refused[1]))
    by = f" through the proxy {proxy}" if proxy else ""
    return SendError(f"{where} cannot be reached{by}: {_reason(error)}")


def _by_proxy(proxy: str, code: int) -> SendError:
    """What the answer of a proxy means."""
    phrase = HTTPStatus(code).phrase if code in [*HTTPStatus] else ""
    cure = "; check its user and password in the daemon's environment" if code == PROXY_WANTS else ""
    return SendError(f"the proxy {proxy} answered {code} {phrase}".rstrip() + cure, "soon" if code >= 500 else "later")


def _refused(where: str, code: int, proxy: str) -> SendError:
    """What an answer means, in one line and none of its own words."""
    if code == PROXY_WANTS and proxy:
        return _by_proxy(proxy, code)
    phrase = HTTPStatus(code).phrase if code in [*HTTPStatus] else ""
    text = f"{where} answered {code} {phrase}".rstrip()
    again: Again = "soon" if code >= 500 or code in _BUSY else "never" if code in _BAD_MESSAGE else "later"
    if 300 <= code < 400:
        return SendError(f"{text}: redirects are not followed; set the URL that it leads to", again)
    cure = _CURES.get(code, "")
    given_up = "; the message is given up" if again == "never" else ""
    return SendError(f"{text}{cure and f'; {cure}'}{given_up}", again)


def _reason(error: object) -> str:
    """What the system says, or what kind of trouble it is: other words may hold the address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}; name its authority in ca-file"
    if isinstance(error, TimeoutError):
        return f"no answer within {PATIENCE_SECONDS:g} s, or not all of it within {LONGEST_SECONDS:g} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return "it hung up" if isinstance(error, HTTPException | ConnectionError) else type(error).__name__

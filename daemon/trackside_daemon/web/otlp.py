"""The receiver of OTLP metrics: a web server of its own with one path, as programs that export them expect."""

import asyncio
import hmac
import zlib
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from trackside.packing import encoded_varint
from trackside_daemon.bridges.otlp.receiver import OtlpCollector, decode
from trackside_daemon.http_client.http_request import bearer_header
from trackside_daemon.linux.socket_address import format_address, may_push, user_of
from trackside_daemon.web.http.address import AddressError, is_loopback, listen
from trackside_daemon.web.http.auth_token import error_response
from trackside_daemon.web.http.config_file import ConfigFile
from trackside_daemon.web.http.connection_limit import HttpLimits
from trackside_daemon.web.http.server import WebServer
from trackside_daemon.web.settings import OtlpInSection

BODY_BYTES = 4 * 2**20  # also of what a compressed body contains
BODY_SECONDS = 10.0  # until a body has to be complete, since eight requests that never are would keep out all others
LIMITS = HttpLimits(connections=256, requests=8)
_TYPES = {"application/json": True, "application/x-protobuf": False}


def otlp_server(settings: OtlpInSection, collector: OtlpCollector, group: int | None) -> tuple[WebServer, str]:
    """Return the server of ``otlp.endpoint``, and the address that it listens on.

    Without a token, users send that may push: root, this one, and those of *group*.

    Raises:
        AddressError: It cannot listen there, or anybody could send to it.
        SettingError: The file of the token cannot be used.
    """
    token = bearer_header(settings.token_file, "otlp.token-file") if settings.token_file else ""
    listener = listen(settings.endpoint, "otlp.endpoint")
    address = format_address(listener)
    if not token and not is_loopback(address):
        listener.close()
        raise AddressError(
            f"otlp.endpoint: {settings.endpoint} is reached from other machines; set otlp.token-file, or use 127.0.0.1:{address.rpartition(':')[2]}"
        )
    receiver = OtlpReceiver(collector, token, lambda scope: may_push(user_of(scope["client"], scope["server"]), group))
    app = Starlette(routes=[Route("/v1/metrics", receiver.receive, methods=["POST"])])
    server = WebServer(app, listener, ConfigFile(""), LIMITS)
    return server, address


class OtlpReceiver:
    """Answers ``POST /v1/metrics``.

    Args:
        collector: Gets the points.
        authorization: The header that a request needs; empty for none.
        may_send: Returns whether the user of a connection may send without that; it may wait.
    """

    def __init__(self, collector: OtlpCollector, authorization: str, may_send: Callable[[Scope], bool]) -> None:
        self._collector = collector
        self._authorization = authorization.encode()
        self._may_send = may_send

    async def receive(self, request: Request) -> Response:
        """Keep the points of a request; what is left out is counted in the answer."""
        if refusal := self._refusal(request):
            return refusal
        if not self._authorization and not await run_in_threadpool(self._may_send, request.scope):
            message = "this user may not push to the daemon; set otlp.token-file, or give the user its group"
            return error_response(403, "user", message)
        kind = _content_type(request)
        try:
            body = await asyncio.wait_for(_body(request), BODY_SECONDS)
            points = decode(body, is_json=_TYPES[kind])
        except asyncio.TimeoutError:
            message = f"the body is not complete after {BODY_SECONDS:g} s"
            return error_response(408, "slow", message, {"Connection": "close"})
        except OverflowError as error:
            return error_response(413, "too_large", str(error))
        except (ValueError, RecursionError, zlib.error, ClientDisconnect) as error:
            return error_response(400, "bad_request", f"no OTLP metrics: {error}")
        refused = self._collector.accept(points)
        partial = b"\x08" + encoded_varint(refused)  # ExportMetricsServiceResponse
        answer = b"\x0a" + encoded_varint(len(partial)) + partial if refused else b""
        if _TYPES[kind]:
            answer = b'{"partialSuccess":{"rejectedDataPoints":"%d"}}' % refused if refused else b"{}"
        return Response(answer, 200, None, kind)

    def _refusal(self, request: Request) -> Response | None:
        given = request.headers.get("authorization", "").encode()
        if self._authorization and not hmac.compare_digest(given, self._authorization):
            message = "the token of otlp.token-file is needed"
            return error_response(401, "token", message, {"WWW-Authenticate": "Bearer"})
        if "origin" in request.headers:
            return error_response(403, "cross_site", "a web page must not send metrics")
        if (kind := _content_type(request)) not in _TYPES:
            return error_response(415, "type", f"Content-Type: {kind[:60]!r} is none of {', '.join(_TYPES)}")
        return None


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _body(request: Request) -> bytes:
    """Return the body, decompressed.

    Raises:
        OverflowError: It is too large.
        ValueError: It is compressed in another way than gzip.
    """
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding not in {"identity", "gzip"}:
        raise ValueError(f"Content-Encoding: {coding[:60]!r} is not gzip")
    inflated = zlib.decompressobj(31) if coding == "gzip" else None
    data = bytearray()
    async for chunk in request.stream():
        data += inflated.decompress(chunk, BODY_BYTES + 1 - len(data)) if inflated else chunk
        if len(data) > BODY_BYTES or (inflated and inflated.unconsumed_tail):
            raise OverflowError(f"a request has at most {BODY_BYTES >> 20} MiB")
        if inflated and inflated.unused_data:  # of which zlib would keep any length
            raise ValueError("something follows the compressed body")
    return bytes(data)

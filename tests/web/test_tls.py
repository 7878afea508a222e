"""TLS with real sockets: client certificates, their expiry, and slow handshakes."""

from __future__ import annotations

import socket
import ssl
import sys
import time
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from certificate_authorities import PAST, Authority
from http_service import HttpService
from processes import DEADLINE, eventually
from starlette.responses import PlainTextResponse
from trustme import CA

from trackside_daemon.web.http import tls
from trackside_daemon.web.http.config import TlsSection
from trackside_daemon.web.http.config_file import ConfigFile
from trackside_daemon.web.http.connection_limit import LIMITS, HttpLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from starlette.types import Receive, Scope, Send


BASE = "tls_server_config: {cert_file: server.pem, key_file: server.key"
CLIENTS = "client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.pem"


class Service(HttpService):
    """A TLS server, and the authority of its certificate and of its clients' certificates."""

    def __init__(self, directory: Path, text: str, limits: HttpLimits = LIMITS) -> None:
        self.file = directory / "web.yml"
        self.file.write_text(text)
        super().__init__(_answer, self.file, "https", limits=limits)

    def get(self, context: ssl.SSLContext) -> httpx.Response:
        return httpx.get(self.url, verify=context, timeout=DEADLINE, trust_env=False)

    def shaken(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        """Return a connection after its handshake."""
        return context.wrap_socket(socket.create_connection(self.address, DEADLINE), server_hostname="localhost")


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(scope["scheme"])(scope, receive, send)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path)
    made.issue("server")
    return made


@pytest.fixture
def serve(tmp_path: Path, authority: Authority) -> Iterator[Callable[[str], Service]]:
    started: list[Service] = []

    def start(section: str = "", limits: HttpLimits = LIMITS) -> Service:
        started.append(Service(tmp_path, f"{BASE}{section and f', {section}'}}}\n", limits))
        return started[-1]

    yield start
    for one in started:
        one.server.stop()


def is_let_in(service: Service, context: ssl.SSLContext) -> bool:
    try:
        return service.get(context).status_code == 200
    except httpx.TransportError:
        return False


def ask(connection: ssl.SSLSocket) -> int:
    """Return the status of a response on a connection that stays open; 0 when it is closed without one."""
    try:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = HTTPResponse(connection)
        answer.begin()
        answer.read()
        return answer.status
    except (OSError, HTTPException):
        return 0


def test_it_speaks_tls(serve: Callable[..., Service], authority: Authority) -> None:
    service = serve()
    assert service.get(authority.trust()).text == "https"
    with service.shaken(authority.trust()) as connection:
        assert connection.version() == "TLSv1.3"
        assert connection.selected_alpn_protocol() is None


@pytest.mark.parametrize(
    ("section", "maximum", "works"),
    [
        ("", ssl.TLSVersion.TLSv1_2, True),
        ("min_version: TLS13", ssl.TLSVersion.TLSv1_2, False),
        ("max_version: TLS12", ssl.TLSVersion.TLSv1_3, True),
        ("cipher_suites: [TLS_AES_128_GCM_SHA256]", ssl.TLSVersion.TLSv1_2, False),
        ("cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]", ssl.TLSVersion.TLSv1_2, True),
        ("curve_preferences: [CurveP384]", ssl.TLSVersion.TLSv1_3, True),
    ],
)
def test_versions_and_ciphers_are_those_that_are_set(
    serve: Callable[..., Service], authority: Authority, section: str, maximum: ssl.TLSVersion, works: bool
) -> None:
    service, context = serve(section), authority.trust()
    context.maximum_version = maximum
    assert is_let_in(service, context) is works
    if "256_GCM" in section:
        with service.shaken(context) as connection:
            assert (connection.cipher() or "")[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
        context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        assert not is_let_in(service, context)


def test_each_cipher_of_go_is_one_of_openssl_name() -> None:
    annotation: Any = TlsSection.model_fields["cipher_suites"].annotation
    names = [one for one in annotation.__args__[0].__args__ if "_WITH_" in one]
    assert len(names) == 10
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name in names:
        context.set_ciphers(tls.openssl_name(name))
        assert tls.openssl_name(name) in {one["name"] for one in context.get_ciphers()}


@pytest.mark.parametrize(
    "curve", [*(["X25519"] if sys.version_info >= (3, 11) else []), "CurveP256", "CurveP384", "CurveP521"]
)
def test_each_curve_of_go_is_one_of_openssl_name(curve: str) -> None:
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ecdh_curve(tls._CURVES[curve])


def test_of_several_curves_the_first_that_is_supported_counts() -> None:
    context = tls.TlsContext(ssl.PROTOCOL_TLS_SERVER)
    tls.choose_curve(context, ["no-curve", "prime256v1"])
    with pytest.raises((ssl.SSLError, ValueError)):
        tls.choose_curve(context, ["no-curve"])


def test_a_client_without_a_certificate_of_the_authority_is_not_answered(
    serve: Callable[..., Service], authority: Authority, tmp_path: Path
) -> None:
    service = serve(CLIENTS)
    stranger = Authority(tmp_path, "strangers").issue("stranger")
    assert is_let_in(service, authority.trust(authority.issue("client", "prometheus@example.org")))
    assert not is_let_in(service, authority.trust())
    assert not is_let_in(service, authority.trust(authority.issue("expired", until=PAST)))
    assert not is_let_in(service, authority.trust(stranger))


@pytest.mark.parametrize("kind", ["RequireAnyClientCert", "RequireClientCert"])
def test_any_certificate_is_one_of_the_authority(
    serve: Callable[..., Service], authority: Authority, tmp_path: Path, kind: str
) -> None:
    service = serve(CLIENTS.replace("RequireAndVerifyClientCert", kind))
    assert is_let_in(service, authority.trust(authority.issue("client")))
    assert not is_let_in(service, authority.trust(Authority(tmp_path, "strangers").issue("stranger")))
    assert not is_let_in(service, authority.trust())


def test_a_certificate_that_may_be_left_out_is_verified_when_it_is_there(
    serve: Callable[..., Service], authority: Authority, tmp_path: Path
) -> None:
    service = serve(CLIENTS.replace("RequireAndVerifyClientCert", "VerifyClientCertIfGiven"))
    assert is_let_in(service, authority.trust())
    assert is_let_in(service, authority.trust(authority.issue("client")))
    assert not is_let_in(service, authority.trust(Authority(tmp_path, "strangers").issue("stranger")))


@pytest.mark.parametrize("kind", ["NoClientCert", "RequestClientCert"])
def test_an_unused_certificate_hinders_no_client(
    serve: Callable[..., Service], authority: Authority, tmp_path: Path, kind: str
) -> None:
    service = serve(f"client_auth_type: {kind}")
    assert is_let_in(service, authority.trust())
    assert is_let_in(service, authority.trust(Authority(tmp_path, "strangers").issue("stranger")))


@pytest.mark.parametrize(
    ("identities", "works"),
    [
        (("prometheus.example.org",), True),
        (("other.example.org", "prometheus.example.org"), True),
        (("prometheus@example.org",), True),
        (("10.0.0.7",), True),
        (("2001:db8::7",), True),
        (("xprometheus.example.org",), False),
        (("prometheus.example.org.evil",), False),
        (("*.example.org",), False),
        (("10.0.0.8",), False),
    ],
)
def test_only_names_that_are_allowed_are_let_in(
    serve: Callable[..., Service], authority: Authority, identities: tuple[str, ...], works: bool
) -> None:
    sans = "prometheus.example.org, prometheus@example.org, 10.0.0.7, '2001:DB8:0::7'"
    service = serve(f"{CLIENTS}, client_allowed_sans: [{sans}]")
    assert is_let_in(service, authority.trust(authority.issue("client", *identities))) is works


def test_silent_connections_delay_no_other_and_are_closed(serve: Callable[..., Service], authority: Authority) -> None:
    service = serve()
    silent = [service.connect() for _ in range(50)] + [service.connect(b"\x16\x03\x01\x02\x00\x01")]
    assert service.get(authority.trust()).status_code == 200, "while all of them are open"
    for one in silent:
        one.close()
    other = serve(limits=HttpLimits(request_seconds=0.05))
    for data in (b"", b"\x16\x03\x01\x02\x00\x01", b"\x16\x03\x01"):
        with other.connect(data) as one:
            assert one.recv(1024) == b""
    with other.shaken(authority.trust()) as one:
        assert one.recv(1024) == b"", "one that asks nothing is closed, too"


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x00" * 600, b"\x16\x03\x01\xff\xff" + b"x" * 600]
)
def test_what_is_no_tls_is_closed_without_a_word_in_the_log(
    serve: Callable[..., Service], authority: Authority, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    service = serve()
    with service.connect(data) as one, suppress(ConnectionResetError):
        assert b"HTTP" not in one.recv(1024)
    assert service.get(authority.trust()).status_code == 200
    assert [record for record in caplog.records if record.levelname in {"WARNING", "ERROR"}] == []


def test_why_a_handshake_failed_is_in_the_log_of_debugging(
    serve: Callable[..., Service], authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "trackside")
    assert not is_let_in(serve(CLIENTS), authority.trust(authority.issue("expired", until=PAST)))
    eventually(lambda: "a TLS handshake failed: certificate has expired" in caplog.text)


def test_a_new_certificate_is_shown_to_new_connections_and_open_ones_stay(
    serve: Callable[..., Service], authority: Authority
) -> None:
    service = serve()
    with service.shaken(authority.trust()) as old:
        authority.issue("server", "localhost", "new.example")
        with service.shaken(authority.trust()) as new:
            certificate = new.getpeercert() or {}
            assert ("DNS", "new.example") in certificate["subjectAltName"]
        assert ask(old) == 200


def test_an_authority_that_is_replaced_ends_connections_of_its_clients_and_no_others(
    serve: Callable[..., Service], authority: Authority, tmp_path: Path
) -> None:
    service = serve(CLIENTS)
    context = authority.trust(authority.issue("client"))
    with service.shaken(context) as first, service.shaken(context) as second:
        assert ask(first) == 200
        old = authority.file.read_text()
        authority.file.write_text(CA().cert_pem.bytes().decode())
        assert (ask(first), ask(second)) == (0, 0)
    assert not is_let_in(service, context)
    authority.file.write_text(authority.file.read_text() + old)
    assert is_let_in(service, context)


def test_a_resumed_session_is_none_of_another_authority(serve: Callable[..., Service], authority: Authority) -> None:
    service = serve(CLIENTS)
    context = authority.trust(authority.issue("client"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def again(session: ssl.SSLSession | None) -> ssl.SSLSocket:
        plain = socket.create_connection(service.address, DEADLINE)
        return context.wrap_socket(plain, server_hostname="localhost", session=session)

    with again(None) as first:
        assert ask(first) == 200
        session = first.session
    with again(session) as second:
        assert second.session_reused
        assert ask(second) == 200
    authority.file.write_text(CA().cert_pem.bytes().decode())
    with pytest.raises((ssl.SSLError, ConnectionError)):
        again(session)


def test_a_certificate_ends_on_its_day_also_where_the_connection_stays(
    serve: Callable[..., Service], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = serve(CLIENTS)
    with service.shaken(authority.trust(authority.issue("client"))) as connection:
        assert ask(connection) == 200
        monkeypatch.setattr(time, "time", lambda: 1e11)
        assert ask(connection) == 0


def test_names_that_are_allowed_no_more_are_not_answered(serve: Callable[..., Service], authority: Authority) -> None:
    service = serve(f"{CLIENTS}, client_allowed_sans: [a.example]")
    with service.shaken(authority.trust(authority.issue("client", "a.example"))) as connection:
        assert ask(connection) == 200
        service.file.write_text(f"{BASE}, {CLIENTS}, client_allowed_sans: [b.example]}}")
        assert ask(connection) == 0
    assert is_let_in(service, authority.trust(authority.issue("client", "b.example")))


@pytest.mark.parametrize(("prefers", "flag"), [("true", True), ("false", False)])
def test_the_side_that_decides_the_order_of_ciphers_may_be_set(
    authority: Authority, tmp_path: Path, prefers: str, flag: bool
) -> None:
    file = tmp_path / "web.yml"
    file.write_text(f"{BASE}, prefer_server_cipher_suites: {prefers}}}")
    context = ConfigFile(str(file)).current().tls
    assert context is not None
    assert bool(context.options & ssl.OP_CIPHER_SERVER_PREFERENCE) is flag
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2

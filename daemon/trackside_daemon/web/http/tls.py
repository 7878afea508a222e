"""TLS: contexts made from ``tls_server_config``, and whom one lets in."""

from __future__ import annotations

import logging
import os
import ssl
import time
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.web.http.config import TlsSection

log = logging.getLogger("trackside")

_MINIMUM = {"TLS13": ssl.TLSVersion.TLSv1_3}
_MAXIMUM = {"TLS12": ssl.TLSVersion.TLSv1_2}
_CURVES = {"X25519": "X25519", "CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1"}
_NAMES = frozenset({"DNS", "email", "URI", "IP Address"})


class Pems(NamedTuple):
    """What a context is made from beside its settings."""

    cert: bytes
    key: bytes
    client_ca: bytes


class _Peer(ssl.SSLObject):
    """The server's end of a connection; asyncio says nothing of a handshake that fails."""

    def do_handshake(self) -> None:
        """See `ssl.SSLObject`."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            log.debug("a TLS handshake failed: %s", getattr(error, "verify_message", None) or error.reason or error)
            raise


class Context(ssl.SSLContext):
    """One that knows whom it lets in.

    Attributes:
        clients: What decides on that; of two contexts with the same, each lets in whom the other does.
        sans: Names of which a client's certificate has one; empty for any.
    """

    sslobject_class = _Peer
    clients: tuple[Any, ...]
    sans: frozenset[str]


def context(section: TlsSection, pems: Pems) -> Context:
    """A server's context.

    Raises:
        ValueError: A certificate or a key cannot be used; the text names the key of the section.
    """
    made = Context(ssl.PROTOCOL_TLS_SERVER)
    made.clients = (section.client_auth_type, pems.client_ca, section.client_allowed_sans)
    made.sans = frozenset(map(_canonical, section.client_allowed_sans))
    made.minimum_version = _MINIMUM.get(section.min_version, ssl.TLSVersion.TLSv1_2)
    made.maximum_version = _MAXIMUM.get(section.max_version, ssl.TLSVersion.TLSv1_3)
    made.options |= ssl.OP_NO_RENEGOTIATION
    made.set_alpn_protocols(["http/1.1"])
    _choose_ciphers(made, section)
    _load_pair(made, section, pems)
    if section.verifies:
        given = section.client_auth_type == "VerifyClientCertIfGiven"
        made.verify_mode = ssl.CERT_OPTIONAL if given else ssl.CERT_REQUIRED
        try:
            made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an authority need not be a root, as in Go
            made.load_verify_locations(cadata=pems.client_ca.decode("ascii", "ignore"))
        except ssl.SSLError:
            raise ValueError(f"{_named(section, 'client_ca')}: no certificate in PEM is in it") from None
    return made


def _choose_ciphers(made: Context, section: TlsSection) -> None:
    """Those of TLS 1.3 are always on, as in Go."""
    if not section.prefer_server_cipher_suites:
        made.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    older = [_openssl(one) for one in section.cipher_suites if "_WITH_" in one]
    try:
        if older:
            made.set_ciphers(":".join(older))
        elif section.cipher_suites:
            made.minimum_version = ssl.TLSVersion.TLSv1_3
        if section.curve_preferences:  # Python can name one only, so those that come after it are left out
            made.set_ecdh_curve(_CURVES[section.curve_preferences[0]])
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(f"cipher_suites, curve_preferences: OpenSSL here knows none of them: {error}") from None


def _openssl(suite: str) -> str:
    """OpenSSL's name of what Go calls ``TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256``."""
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.removesuffix("_SHA256") if "POLY1305" in cipher else cipher
    return f"{exchange}_{cipher}".replace("AES_", "AES").replace("_CBC", "").replace("_", "-")


def _load_pair(made: Context, section: TlsSection, pems: Pems) -> None:
    names = f"{_named(section, 'cert')} and {_named(section, 'key')}"
    try:
        with _in_memory(pems.cert) as cert, _in_memory(pems.key) as key:
            made.load_cert_chain(cert, key, password=_refuse)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(f"{names}: the key is not that of the certificate") from None
        raise ValueError(
            f"{names}: not a certificate and its key in PEM: {error.reason or 'nothing is in it'}"
        ) from None


def _named(section: TlsSection, name: str) -> str:
    file = getattr(section, f"{name}_file")
    return f"{name}_file {file}" if file else name


def _refuse() -> bytes:
    raise ValueError("key_file: the key is encrypted; decrypt it, with: openssl pkey -in FILE")


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """A path to what is not on disk: `ssl` takes paths only, and what was read and checked is what is to be loaded."""
    descriptor = os.memfd_create("trackside-pem", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def admits(peer: ssl.SSLObject, now: Context) -> bool:
    """Whether who came by a handshake may ask now: his certificate is of those that are let in, and still valid.

    A connection and a resumed session outlive both, so this is asked at each request.

    Args:
        peer: Of the connection, which another context may have verified.
        now: The context in force.
    """
    if now.verify_mode is ssl.CERT_NONE:
        return True
    made = peer.context
    if not isinstance(made, Context) or made.clients != now.clients:
        return False
    certificate = peer.getpeercert()
    if not certificate:
        return now.verify_mode is ssl.CERT_OPTIONAL
    if ssl.cert_time_to_seconds(str(certificate["notAfter"])) < time.time():
        return False
    names: Any = certificate.get("subjectAltName", ())
    return not now.sans or any(kind in _NAMES and _canonical(name) in now.sans for kind, name in names)


def _canonical(name: str) -> str:
    """An address of IPv6 has several forms."""
    try:
        return str(ip_address(name))
    except ValueError:
        return name

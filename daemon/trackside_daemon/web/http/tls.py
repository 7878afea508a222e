"""TLS contexts made from ``tls_server_config``, and the check of client certificates."""

import logging
import os
import ssl
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from ipaddress import ip_address
from typing import Any, NamedTuple

from trackside_daemon.web.http.config import TlsSection

log = logging.getLogger("trackside")

# Lower versions count as TLS12, the lowest that the server supports.
_MINIMUM = {"TLS13": ssl.TLSVersion.TLSv1_3}
_MAXIMUM = {"TLS12": ssl.TLSVersion.TLSv1_2}
_CURVES = {"X25519": "X25519", "CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1"}
_NAMES = frozenset({"DNS", "email", "URI", "IP Address"})


class PemFiles(NamedTuple):
    """The PEM content of a context: certificate, key and client authority, each empty when not configured."""

    cert: bytes
    key: bytes
    client_ca: bytes


class _LoggingSSLObject(ssl.SSLObject):
    """The server's end of a TLS connection; it logs failed handshakes, which asyncio does not."""

    def do_handshake(self) -> None:
        """Do the handshake; see `ssl.SSLObject`."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            log.debug("a TLS handshake failed: %s", getattr(error, "verify_message", None) or error.reason or error)
            raise


class TlsContext(ssl.SSLContext):
    """A server's TLS context with its policy for client certificates.

    Attributes:
        client_policy: The settings that decide on clients; two contexts with equal policies accept the same clients.
        allowed_sans: Subject alternative names; a client certificate must have at least one of them. Empty for any.
    """

    sslobject_class = _LoggingSSLObject
    client_policy: tuple[Any, ...]
    allowed_sans: frozenset[str]


def make_context(section: TlsSection, pems: PemFiles) -> TlsContext:
    """Return a server's TLS context.

    Raises:
        ValueError: A certificate or key is unusable; the message names the key of the section.
    """
    context = TlsContext(ssl.PROTOCOL_TLS_SERVER)
    context.client_policy = (section.client_auth_type, pems.client_ca, section.client_allowed_sans)
    context.allowed_sans = frozenset(map(_canonical, section.client_allowed_sans))
    context.minimum_version = _MINIMUM.get(section.min_version, ssl.TLSVersion.TLSv1_2)
    context.maximum_version = _MAXIMUM.get(section.max_version, ssl.TLSVersion.TLSv1_3)
    # Renegotiation lets a client cause much work, and would change the certificate after the check.
    context.options |= ssl.OP_NO_RENEGOTIATION
    # uvicorn does not implement HTTP/2, whatever http2 is set to.
    context.set_alpn_protocols(["http/1.1"])
    _choose_ciphers(context, section)
    _load_pair(context, section, pems)
    if section.verifies:
        given = section.client_auth_type == "VerifyClientCertIfGiven"
        context.verify_mode = ssl.CERT_OPTIONAL if given else ssl.CERT_REQUIRED
        try:
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Go, an authority need not be a root
            context.load_verify_locations(cadata=pems.client_ca.decode("ascii", "ignore"))
        except ssl.SSLError:
            raise ValueError(f"{_setting_name(section, 'client_ca')}: contains no certificate in PEM") from None
    return context


def certificate_end(pem: bytes) -> float:
    """Return when the first certificate of a file expires, in Unix seconds; `ssl` tells that of a peer's only.

    See RFC 5280, section 4.1: Certificate, its TBSCertificate, and there the Validity.
    """
    text = pem.decode("ascii", "ignore")
    begin = text.index("-----BEGIN CERTIFICATE-----")
    body = ssl.PEM_cert_to_DER_cert(text[begin : text.index("-----END CERTIFICATE-----") + 25])
    fields = [*_elements(next(_elements(next(_elements(body))[1]))[1])]
    validity = fields[4 if fields[0][0] == 0xA0 else 3][1]  # the version, which version 1 leaves out, comes first
    kind, moment = [*_elements(validity)][1]
    year = "%y" if kind == 0x17 else "%Y"  # UTCTime, or from 2050 on GeneralizedTime
    return datetime.strptime(moment.decode() + "+0000", f"{year}%m%d%H%M%SZ%z").timestamp()


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each element of a value in DER (X.690)."""
    place = 0
    while place < len(data):
        tag, length, place = data[place], data[place + 1], place + 2
        if length > 0x80:
            length, place = int.from_bytes(data[place : place + length - 0x80], "big"), place + length - 0x80
        yield tag, data[place : place + length]
        place += length


def _choose_ciphers(context: TlsContext, section: TlsSection) -> None:
    """Set ciphers and curves; as in Go, the ciphers of TLS 1.3 are always enabled."""
    if not section.prefer_server_cipher_suites:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    older = [openssl_name(suite) for suite in section.cipher_suites if "_WITH_" in suite]
    try:
        if older:
            context.set_ciphers(":".join(older))
        # All listed suites are of TLS 1.3, so older versions are off; set_ciphers() handles only the older suites.
        elif section.cipher_suites:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        choose_curve(context, [_CURVES[name] for name in section.curve_preferences])
    except (ssl.SSLError, ValueError) as error:
        text = f"cipher_suites, curve_preferences: this Python and OpenSSL support none of them: {error}"
        raise ValueError(text) from None


def choose_curve(context: TlsContext, curves: Sequence[str]) -> None:
    """Set the first curve that is supported, since Python accepts only one; 3.10 has no X25519."""
    for number, curve in enumerate(curves, 1):
        try:
            context.set_ecdh_curve(curve)
        except (ssl.SSLError, ValueError):
            if number == len(curves):
                raise
        else:
            return


def openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a suite that Go calls, say, ``TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256``."""
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.removesuffix("_SHA256") if "POLY1305" in cipher else cipher
    return f"{exchange}_{cipher}".replace("AES_", "AES").replace("_CBC", "").replace("_", "-")


def _load_pair(context: TlsContext, section: TlsSection, pems: PemFiles) -> None:
    names = f"{_setting_name(section, 'cert')} and {_setting_name(section, 'key')}"
    try:
        with _in_memory(pems.cert) as cert, _in_memory(pems.key) as key:
            # Without a callback, OpenSSL would ask for the password of an encrypted key on the terminal.
            context.load_cert_chain(cert, key, password=_reject_encrypted_key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(f"{names}: the key does not match the certificate") from None
        raise ValueError(f"{names}: not a certificate and its key in PEM: {error.reason or 'it is empty'}") from None


def _setting_name(section: TlsSection, name: str) -> str:
    file = getattr(section, f"{name}_file")
    return f"{name}_file {file}" if file else name


def _reject_encrypted_key() -> bytes:
    raise ValueError("key_file: the key is encrypted; decrypt it with: openssl pkey -in FILE")


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Yield a path to content in memory: `ssl` loads only paths, and must load exactly the bytes that were checked."""
    if not hasattr(os, "memfd_create"):  # macOS
        with tempfile.NamedTemporaryFile(prefix="trackside-pem-") as file:  # mode 0600
            file.write(content)
            file.flush()
            yield file.name
        return
    descriptor = os.memfd_create("trackside-pem", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as memory:
            memory.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def client_is_allowed(peer: ssl.SSLObject, active: TlsContext) -> bool:
    """Return True when the client's certificate is permitted by the active configuration and has not expired.

    Connections and resumed sessions outlive both conditions, so every request is checked.

    Args:
        peer: The connection's TLS object, possibly verified by an earlier context.
        active: The context of the active configuration.
    """
    if active.verify_mode is ssl.CERT_NONE:
        return True
    context = peer.context
    # The handshake checked the certificate against other authorities or rules than those that apply now.
    if not isinstance(context, TlsContext) or context.client_policy != active.client_policy:
        return False
    certificate = peer.getpeercert()
    if not certificate:
        return active.verify_mode is ssl.CERT_OPTIONAL
    if ssl.cert_time_to_seconds(str(certificate["notAfter"])) < time.time():
        return False
    if not active.allowed_sans:
        return True
    names: Any = certificate.get("subjectAltName", ())
    return any(kind in _NAMES and _canonical(name) in active.allowed_sans for kind, name in names)


def _canonical(name: str) -> str:
    """Return a name in a form that compares equal for every spelling of an IPv6 address."""
    try:
        return str(ip_address(name))
    except ValueError:
        return name

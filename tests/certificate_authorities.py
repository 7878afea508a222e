"""Certificates of authorities that live as long as a test, as files."""

from __future__ import annotations

import ssl
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import bcrypt
import trustme

if TYPE_CHECKING:
    from pathlib import Path

PAST = datetime.now(timezone.utc) - timedelta(days=1)


class Authority:
    """An authority that signs certificates.

    Args:
        directory: The directory for the files.
        name: The beginning of the file names; ``NAME.pem`` is the authority's own certificate.
    """

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._authority = trustme.CA()
        self._directory = directory
        self.file = directory / f"{name}.pem"
        self._authority.cert_pem.write_to_path(self.file)

    def issue(self, name: str, *identities: str, until: datetime | None = None) -> tuple[Path, Path]:
        """Issue a certificate and its key, as NAME.pem and NAME.key, by default for this machine."""
        made = self._authority.issue_cert(*(identities or ("localhost", "127.0.0.1")), not_after=until)
        cert, key = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        cert.write_bytes(made.cert_chain_pems[0].bytes())
        key.write_bytes(made.private_key_pem.bytes())
        key.chmod(0o600)
        return cert, key

    def trust(self, client: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Return a client's context that trusts this authority and presents a certificate if one is given."""
        context = ssl.create_default_context(cafile=self.file)
        if client is not None:
            context.load_cert_chain(*client)
        return context


def hashed(password: str) -> str:
    """Return the bcrypt hash of a password, of the least cost."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()

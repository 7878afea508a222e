"""Models of the web configuration, in the format of Prometheus' exporter-toolkit."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, model_validator

from trackside_daemon.config.near import explain, near_name
from trackside_daemon.config.section import Section
from trackside_daemon.model.text import seconds
from trackside_daemon.web.http.roles import Role

MAX_BCRYPT_COST = 15  # highest bcrypt cost; at this cost a password check takes seconds

# Headers that may be set, with their permitted values; an empty tuple permits any value.
_HEADERS: dict[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}

# Keys whose values must not appear in error messages.
_SECRET_KEYS = frozenset({"basic_auth_users", "cert", "key", "client_ca"})


class WebConfigError(Exception):
    """An unusable web configuration; the message names the file, the key and the remedy."""


def _parse_duration(value: object) -> object:
    """Return a duration in seconds; require a unit, since a bare number means nanoseconds in Go's format."""
    if not isinstance(value, str) and value != 0:
        raise ValueError(f"{value!r} is not a duration such as 1s or 500ms")
    return seconds(value)


def _check_bcrypt(value: str) -> str:
    if find_spec("bcrypt") is None:
        raise ValueError("passwords need bcrypt, which is not installed; pip install 'trackside[daemon,passwords]'")
    match = re.fullmatch(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}", value, re.ASCII)
    if match is None:
        raise ValueError("not a bcrypt hash; create one with: htpasswd -nBC 10 USER")
    if not 4 <= int(match[1]) <= MAX_BCRYPT_COST:
        raise ValueError(f"the bcrypt cost is {match[1]}; 10 to 12 is usual, {MAX_BCRYPT_COST} is the maximum")
    return value


def _check_headers(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if name not in _HEADERS:
            raise ValueError(f"{name!r} cannot be set; use one of {', '.join(_HEADERS)}")
        if (allowed := _HEADERS[name]) and text not in allowed:
            raise ValueError(f"{name}: {text!r} is not {' or '.join(allowed)}")
        if not (text and text.isascii() and text.isprintable() and text == text.strip()):
            raise ValueError(f"{name}: {text!r} is not a single line of ASCII")
    return value


def _check_users(value: dict[str, str]) -> dict[str, str]:
    if any(":" in name for name in value):
        raise ValueError("a user name must not contain a colon, which ends the name in HTTP")
    return value


Version = Literal["TLS10", "TLS11", "TLS12", "TLS13"]
ClientAuth = Literal[
    "NoClientCert",
    "RequestClientCert",
    "RequireAnyClientCert",
    "RequireClientCert",
    "VerifyClientCertIfGiven",
    "RequireAndVerifyClientCert",
]
_VERIFYING = frozenset(
    {"RequireAnyClientCert", "RequireClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"}
)

# The cipher suites that Go considers secure, by their Go names.
CipherSuite = Literal[
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
]


class TlsSection(Section):
    """The section ``tls_server_config``."""

    cert: str = ""
    cert_file: str = ""
    key: Annotated[str, Field(repr=False)] = ""
    key_file: str = ""
    client_auth_type: ClientAuth = "NoClientCert"
    client_ca: str = ""
    client_ca_file: str = ""
    client_allowed_sans: tuple[str, ...] = ()
    cipher_suites: tuple[CipherSuite, ...] = ()
    prefer_server_cipher_suites: bool = True
    min_version: Version = "TLS12"
    max_version: Version = "TLS13"
    curve_preferences: tuple[Literal["X25519", "CurveP256", "CurveP384", "CurveP521"], ...] = ()

    @property
    def verifies(self) -> bool:
        """Return True when client certificates are verified."""
        return self.client_auth_type in _VERIFYING

    @model_validator(mode="after")
    def _check(self) -> TlsSection:
        self._check_pairs()
        self._check_clients()
        self._check_versions()
        return self

    def _check_pairs(self) -> None:
        for name in ("cert", "key", "client_ca"):
            text, file = getattr(self, name), getattr(self, f"{name}_file")
            if text and file:
                raise ValueError(f"{name} and {name}_file are both set; remove one")
            if not text and not file and name != "client_ca":
                raise ValueError(f"{name}_file is missing")

    def _check_clients(self) -> None:
        authority = bool(self.client_ca or self.client_ca_file)
        if self.verifies and not authority:
            raise ValueError(f"client_auth_type is {self.client_auth_type}, but client_ca_file is missing")
        if authority and self.client_auth_type == "NoClientCert":
            raise ValueError("client_ca_file needs a client_auth_type, such as RequireAndVerifyClientCert")
        if self.client_allowed_sans and self.client_auth_type != "RequireAndVerifyClientCert":
            raise ValueError("client_allowed_sans needs the client_auth_type RequireAndVerifyClientCert")

    def _check_versions(self) -> None:
        if self.max_version in {"TLS10", "TLS11"}:
            raise ValueError(f"max_version is {self.max_version}, but the server supports only TLS12 and TLS13")
        if (self.min_version, self.max_version) == ("TLS13", "TLS12"):
            raise ValueError("max_version is below min_version")
        if (
            self.cipher_suites
            and self.max_version == "TLS12"
            and not any("_WITH_" in one for one in self.cipher_suites)
        ):
            raise ValueError("cipher_suites has no suite for TLS12, which max_version requires")


class HttpSection(Section):
    """The section ``http_server_config``."""

    http2: bool = True
    headers: Annotated[dict[str, str], AfterValidator(_check_headers)] = Field(default_factory=dict)


class RateLimitSection(Section):
    """The section ``rate_limit``; the interval is in seconds."""

    interval: Annotated[float, BeforeValidator(_parse_duration), Field(ge=0, allow_inf_nan=False)] = 0.0
    burst: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _check(self) -> RateLimitSection:
        if self.interval and not self.burst:
            raise ValueError("burst is missing; it is the number of requests answered at once, at least 1")
        return self


class WebConfig(Section):
    """The whole file."""

    tls_server_config: TlsSection | None = None
    http_server_config: HttpSection = HttpSection.model_construct()
    basic_auth_users: Annotated[
        dict[str, Annotated[str, AfterValidator(_check_bcrypt)]], AfterValidator(_check_users)
    ] = Field(default_factory=dict)
    basic_auth_roles: dict[str, Role] = Field(default_factory=dict)
    rate_limit: RateLimitSection = RateLimitSection.model_construct()

    @model_validator(mode="after")
    def _check_roles(self) -> WebConfig:
        if unknown := [name for name in self.basic_auth_roles if name not in self.basic_auth_users]:
            raise ValueError(f"basic_auth_roles: basic_auth_users has no user {unknown[0]!r}")
        return self

    def role(self, user: str) -> Role:
        """Return the role of a user: ``metrics`` if others have one and this one has none, as in a half-written file."""
        return self.basic_auth_roles.get(user, "metrics") if self.basic_auth_roles else "admin"

    @property
    def authenticates(self) -> bool:
        """Return True when every request needs a client certificate or a password."""
        tls = self.tls_server_config
        verified = tls is not None and tls.client_auth_type == "RequireAndVerifyClientCert"
        return verified or bool(self.basic_auth_users)

    @property
    def protections(self) -> frozenset[str]:
        """Return the keys that restrict access."""
        tls = self.tls_server_config
        active = {
            "tls_server_config": tls is not None,
            "client_auth_type": tls is not None and tls.client_auth_type.startswith("Require"),
            "client_allowed_sans": tls is not None and bool(tls.client_allowed_sans),
            "basic_auth_users": bool(self.basic_auth_users),
            "basic_auth_roles": bool(self.basic_auth_roles),
        }
        return frozenset(name for name, is_active in active.items() if is_active)


def read_config(text: bytes, file: Path) -> WebConfig:
    """Parse and check the content of a web configuration file.

    Args:
        text: The content; empty content is valid and restricts nothing.
        file: The path, for error messages.

    Raises:
        WebConfigError: The first problem, in one line.
    """
    from trackside_daemon.config.yaml import YamlError, parse  # imports PyYAML, which costs 1 MiB

    try:
        values = parse(text)
    except YamlError as error:
        raise WebConfigError(f"{file}: {error}") from None
    if values is None:
        return WebConfig()
    if not isinstance(values, dict):
        raise WebConfigError(f"{file}: expected a mapping of sections, not a {type(values).__name__}")
    # A section whose lines are all commented out is None in YAML.
    empty = {name for name, value in values.items() if name in WebConfig.model_fields and value in (None, {})}
    try:
        return WebConfig.model_validate({name: value for name, value in values.items() if name not in empty})
    except ValidationError as error:
        raise WebConfigError(f"{file}: {_explain(error)}") from None


def _explain(error: ValidationError) -> str:
    problem = error.errors()[0]
    path = [str(part) for part in problem["loc"] if part != "[key]"]
    key = ".".join(part for part in path if not part.isdecimal())
    if problem["type"] == "extra_forbidden":
        return f"{key}: no such key{near_name(path[-1], _keys(path[:-1]))}"
    if problem["type"] in {"model_type", "dict_type"}:
        return f"{key}: must be a mapping"
    if problem["type"] == "tuple_type":
        return f"{key}: must be a list"
    if "[key]" in problem["loc"]:
        return f"{key}: {problem['input']!r} is not text; put it in quotes"
    where = f"{key}: " if key else ""  # a check of the whole file names its key itself
    return where + explain(problem, secret=not _SECRET_KEYS.isdisjoint(path))


def _keys(path: list[str]) -> list[str]:
    """Return the keys of a section; an empty list when there is no such section."""
    sections: dict[str, type[BaseModel]] = {
        "": WebConfig,
        "tls_server_config": TlsSection,
        "http_server_config": HttpSection,
        "rate_limit": RateLimitSection,
    }
    section = sections.get(".".join(path))
    return list(section.model_fields) if section is not None else []

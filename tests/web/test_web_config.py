"""The web configuration's format, and the errors for invalid ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
import pytest
from certificate_authorities import Authority
from processes import ROOT, command

from trackside_daemon.web.http.config import MAX_BCRYPT_COST, WebConfig, WebConfigError, read_config
from trackside_daemon.web.http.config_file import ConfigFile

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = Path("/etc/trackside/web.yml")
TLS = "tls_server_config: {cert_file: c, key_file: k"
HASH = "$2b$10$" + "a" * 53


def refusal(text: str) -> str:
    with pytest.raises(WebConfigError) as caught:
        read_config(text.encode(), FILE)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{FILE}: ")


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "{}", "tls_server_config:\nbasic_auth_users:\n", "tls_server_config: {}"]
)
def test_an_empty_file_is_valid_and_keeps_no_client_out(text: str) -> None:
    config = read_config(text.encode(), FILE)
    assert config == WebConfig()
    assert (config.authenticates, config.protections) == (False, frozenset())


def test_without_bcrypt_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bcrypt", None)
    wanted = "passwords need bcrypt, which is not installed; pip install 'trackside[daemon,passwords]'"
    assert refusal(f"basic_auth_users: {{ada: {HASH}}}") == f"basic_auth_users.ada: {wanted}"


def test_every_key_of_exporter_toolkit_is_accepted() -> None:
    config = read_config(
        f"""
tls_server_config:
  cert_file: server.crt
  key_file: server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.crt
  client_allowed_sans: [prometheus.example.org]
  min_version: TLS10
  max_version: TLS13
  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]
  prefer_server_cipher_suites: on
  curve_preferences: [X25519, CurveP256]
http_server_config:
  http2: false
  headers:
    Content-Security-Policy: default-src 'none'
    Strict-Transport-Security: max-age=31536000
    X-Content-Type-Options: nosniff
    X-Frame-Options: sameorigin
    X-XSS-Protection: "0"
basic_auth_users:
  prometheus: {HASH}
rate_limit: {{interval: 500ms, burst: 20}}
""".encode(),
        FILE,
    )
    assert (config.rate_limit.interval, config.rate_limit.burst) == (0.5, 20)
    assert config.protections == {"tls_server_config", "client_auth_type", "client_allowed_sans", "basic_auth_users"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tls_server_config: {cert_file: c", "not YAML: line 1, column 33: "),
        ("- a", "expected a mapping of sections, not a list"),
        (
            "basic_auth_users: {a: x}\nbasic_auth_users: {b: y}",
            "not YAML: line 2, column 1: basic_auth_users is a duplicate key",
        ),
        (f"basic_auth_users: {{a: {HASH}, a: {HASH}}}", "not YAML: line 1, column 85: a is a duplicate key"),
        ("basic_auth_user: {}", "basic_auth_user: no such key; did you mean basic_auth_users?"),
        ("basic_auth_user:", "basic_auth_user: no such key; did you mean basic_auth_users?"),
        ("tls_server_config: 7", "tls_server_config: must be a mapping"),
        (f"{TLS}, client_auth: x}}", "tls_server_config.client_auth: no such key; did you mean client_auth_type?"),
        (f"{TLS}, client_auth_type: Verify}}", "tls_server_config.client_auth_type: input should be 'NoClientCert', "),
        (f"{TLS}, client_auth_type: }}", "tls_server_config.client_auth_type: input should be 'NoClientCert', "),
        (
            f"{TLS}, client_ca_file: a}}",
            "tls_server_config: client_ca_file needs a client_auth_type, such as RequireAndVerifyClientCert",
        ),
        (f"{TLS}, client_ca: a}}", "tls_server_config: client_ca_file needs a client_auth_type, such as "),
        *(
            (
                f"{TLS}, client_auth_type: {one}}}",
                f"tls_server_config: client_auth_type is {one}, but client_ca_file is missing",
            )
            for one in (
                "RequireAnyClientCert",
                "RequireClientCert",
                "VerifyClientCertIfGiven",
                "RequireAndVerifyClientCert",
            )
        ),
        (
            f"{TLS}, client_auth_type: VerifyClientCertIfGiven, client_ca_file: a, client_allowed_sans: [b]}}",
            "tls_server_config: client_allowed_sans needs the client_auth_type RequireAndVerifyClientCert",
        ),
        ("tls_server_config: {cert_file: c}", "tls_server_config: key_file is missing"),
        ("tls_server_config: {min_version: TLS13}", "tls_server_config: cert_file is missing"),
        (f"{TLS}, cert: PEM}}", "tls_server_config: cert and cert_file are both set; remove one"),
        (
            f"{TLS}, min_version: TLS9}}",
            "tls_server_config.min_version: input should be 'TLS10', 'TLS11', 'TLS12' or 'TLS13'",
        ),
        (
            f"{TLS}, max_version: TLS11}}",
            "tls_server_config: max_version is TLS11, but the server supports only TLS12 and TLS13",
        ),
        (f"{TLS}, min_version: TLS13, max_version: TLS12}}", "tls_server_config: max_version is below min_version"),
        (
            f"{TLS}, cipher_suites: [RC4]}}",
            "tls_server_config.cipher_suites: input should be 'TLS_AES_128_GCM_SHA256', ",
        ),
        (f"{TLS}, cipher_suites: RC4}}", "tls_server_config.cipher_suites: must be a list"),
        (
            f"{TLS}, max_version: TLS12, cipher_suites: [TLS_AES_128_GCM_SHA256]}}",
            "tls_server_config: cipher_suites has no suite for TLS12, which max_version requires",
        ),
        (f"{TLS}, curve_preferences: [CurveP192]}}", "tls_server_config.curve_preferences: input should be 'X25519', "),
        (
            "http_server_config: {headers: {Server: x}}",
            "http_server_config.headers: 'Server' cannot be set; use one of Content-Security-Policy, ",
        ),
        (
            "http_server_config: {headers: {X-Frame-Options: allow}}",
            "http_server_config.headers: X-Frame-Options: 'allow' is not ",
        ),
        (
            'http_server_config: {headers: {X-XSS-Protection: "a\\r\\nSet-Cookie: b"}}',
            "http_server_config.headers: X-XSS-Protection: 'a\\r\\nSet-Cookie: b' is not a single line of ASCII",
        ),
        (
            "rate_limit: {interval: 1s}",
            "rate_limit: burst is missing; it is the number of requests answered at once, at least 1",
        ),
        ("rate_limit: {interval: 5, burst: 1}", "rate_limit.interval: 5 is not a duration such as 1s or 500ms"),
        ("rate_limit: {interval: -1s, burst: 1}", "rate_limit.interval: '-1s' is not a duration such as 1s"),
        ("basic_auth_users: [a]", "basic_auth_users: must be a mapping"),
        ("basic_auth_roles: {a: read}", "basic_auth_roles: basic_auth_users has no user 'a'"),
        (f"basic_auth_users: {{7: {HASH}}}", "basic_auth_users: 7 is not text; put it in quotes"),
        (
            f'basic_auth_users: {{"a:b": {HASH}}}',
            "basic_auth_users: a user name must not contain a colon, which ends the name in HTTP",
        ),
        (
            f"basic_auth_users: {{a: $2b$16${'a' * 53}}}",
            f"basic_auth_users.a: the bcrypt cost is 16; 10 to 12 is usual, {MAX_BCRYPT_COST} is the maximum",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_key_and_remedy(text: str, message: str) -> None:
    assert refusal(text).startswith(message)


@pytest.mark.parametrize(
    "text",
    [
        "basic_auth_users: {a: SECRET}",
        "basic_auth_users: {a: [SECRET]}",
        "basic_auth_users: {a: }",
        "basic_auth_users: SECRET",
        "tls_server_config: {cert_file: c, key: [SECRET]}",
        "tls_server_config: {cert: {SECRET: b}, key: k}",
    ],
)
def test_no_hash_and_no_key_is_ever_printed(text: str) -> None:
    assert "SECRET" not in refusal(text)


@pytest.fixture
def web_file(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a web configuration next to an authority's files."""
    authority = Authority(tmp_path)
    authority.issue("server")
    authority.issue("other")

    def write(text: str) -> Path:
        path = tmp_path / "web.yml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            "cert_file: absent, key_file: server.key",
            r": tls_server_config\.cert_file: \S+/absent: no such file or directory; ",
        ),
        ("cert_file: ., key_file: server.key", r": tls_server_config\.cert_file: \S+: not a regular file; "),
        (
            "cert_file: server.pem, key_file: other.key",
            r": tls_server_config\.cert_file server\.pem and key_file other\.key: the key does not match ",
        ),
        (
            "cert_file: web.yml, key_file: server.key",
            r": tls_server_config\.cert_file web\.yml and .*: not a certificate and its key in PEM: ",
        ),
        ("cert: x, key: y", r": tls_server_config\.cert and key: not a certificate and its key in PEM: "),
        (
            "cert_file: server.pem, key_file: locked.key",
            r": tls_server_config\.key_file: the key is encrypted; decrypt it with",
        ),
        (
            "cert_file: server.pem, key_file: server.key, client_auth_type: RequireAndVerifyClientCert, client_ca_file: server.key",
            r": tls_server_config\.client_ca_file server\.key: contains no certificate in PEM",
        ),
    ],
)
def test_certificates_that_are_none_are_named(web_file: Callable[[str], Path], section: str, message: str) -> None:
    file = web_file(f"tls_server_config: {{{section}}}")
    locked = ["openssl", "pkey", "-in", "server.key", "-aes256", "-passout", "pass:x", "-out", "locked.key"]
    subprocess.run(locked, cwd=file.parent, check=True)
    with pytest.raises(WebConfigError) as caught:
        ConfigFile(str(file))
    assert re.match(re.escape(str(file)) + message, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)


def test_certificates_may_stand_in_the_file_itself(web_file: Callable[[str], Path]) -> None:
    directory = web_file("").parent
    pems = {
        name: "\n    ".join((directory / name).read_text().splitlines())
        for name in ("server.pem", "server.key", "ca.pem")
    }
    text = f"""
tls_server_config:
  cert: |
    {pems["server.pem"]}
  key: |
    {pems["server.key"]}
  client_ca: |
    {pems["ca.pem"]}
  client_auth_type: RequireAndVerifyClientCert
"""
    assert ConfigFile(str(web_file(text))).scheme == "https"


def test_a_wrong_file_refuses_the_start_and_check_config_names_it(place: Path) -> None:
    (place / "web.yml").write_text("tls: {}")
    (place / "trackside.yml").write_text(f"web: {{config: {{file: {place}/web.yml}}}}")
    message = f"trackside: {place}/web.yml: tls: no such key\n"
    flags = [f"--push.endpoint=ipc://{place}/push.sock", "--web.listen-address=127.0.0.1:0", f"--storage.path={place}"]
    for arguments in (
        ["check-config", f"{place}/trackside.yml"],
        ["daemon", f"--config.file={place}/trackside.yml", *flags],
    ):
        done = processes.run(command(*arguments))
        assert (done.returncode, done.stderr) == (2, message)


def test_the_sample_is_accepted_by_promtool_and_by_us(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "client-ca")
    authority.issue("server")
    sample = (ROOT / "deploy" / "web-config.yml").read_text(encoding="utf-8")
    uncommented = re.sub(r"^# (?=\s*[\w-]+:)", "", sample, flags=re.MULTILINE)
    for text, wanted in (
        (sample, {"tls_server_config", "basic_auth_users", "basic_auth_roles"}),
        (uncommented, {"tls_server_config", "basic_auth_users", "basic_auth_roles", "client_auth_type"}),
    ):
        # Prometheus' exporters do not have the key of the roles.
        (tmp_path / "web-config.yml").write_text(text.replace("basic_auth_roles:\n  prometheus: metrics\n", ""))
        check: Any = subprocess.run(
            ["promtool", "check", "web-config", tmp_path / "web-config.yml"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert check.returncode == 0, check.stderr
        (tmp_path / "web-config.yml").write_text(text)
        assert ConfigFile(str(tmp_path / "web-config.yml")).current().config.protections == wanted

"""Configuration files and variables of any bytes: a line that names the place, or settings; those of the web come back equal."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import yaml
from certificate_authorities import Authority
from fuzz.mutation import mutants

from trackside_daemon.alerts.rules.custom import RuleError
from trackside_daemon.config.loading import ConfigError, load, variables
from trackside_daemon.service.config import Config
from trackside_daemon.service.finding_sources import rules, unknown_alerts
from trackside_daemon.web.http.config import WebConfig, WebConfigError, read_config
from trackside_daemon.web.http.config_file import ConfigFile

if TYPE_CHECKING:
    from collections.abc import Callable

PLACE = tempfile.TemporaryDirectory(prefix="ts-")  # deleted at the end of the process
HASH = f"$2b$10${'a' * 53}"

WEB = (
    f"""\
tls_server_config:
  cert_file: server.pem
  key_file: server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.pem
  client_allowed_sans: [a, b.c]
  cipher_suites: [TLS_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]
  min_version: TLS12
  curve_preferences: [X25519, CurveP256]
http_server_config: {{http2: true, headers: {{X-Frame-Options: deny, X-XSS-Protection: "1"}}}}
basic_auth_users: {{ada: {HASH}}}
rate_limit: {{interval: 1s, burst: 3}}
""",
    f"basic_auth_users:\n  ada: {HASH}\n  'ü': &a {HASH}\n  bob: *a\n",
    "rate_limit:\n  interval: 500ms\n  <<: {burst: !!int 3}\n",
)
SETTINGS = (
    """\
web: {listen-address: "127.0.0.1:0", public-read: on, allowed-hosts: [a, b]}
sample.interval: 1s
storage: {retention: {size: 5GB}, path: /tmp}
log: {level: debug}
collector: {gpu: {extra: [power], simulate: 2, trouble: hot}, filesystem: {paths: ~/data}}
alerts:
  off: [LossPlateau, SlowStep@debug-*]
  stall-after: 2m
  thresholds: {gpu-hot-celsius: 80.5, gpu-held-bytes: 5GB}
  sinks: {log: {severity: warning}, webhook: {url: "https://hooks/x"}, alertmanager: {urls: "http://a:1", labels: "a=b"}}
  rules:
    - {alert: A, metric: "key:a/b", above: 1, for: 5m, labels: {run: "~x.*"}, summary: "{run} {value:percent}"}
    - {alert: B, metric: trackside_gpu_up, absent: true}
    - {alert: C, metric: "key:a", over: {metric: "key:loss"}, below: 0.5, severity: critical}
""",
    "alerts.rules: [{alert: D, metric: 'key:a', rate: 1m, below: .5, keep-firing-for: 1s}]\nalerts.enabled: no\n",
)


@cache
def directory() -> Path:
    """Return a directory with the files that the web configuration names."""
    Authority(Path(PLACE.name)).issue("server")
    return Path(PLACE.name)


VARIABLES = sorted(variables(Config))
VALUES = (
    b"9" * 400 + b"GiB",
    b"1h30m",
    b"~x/\xff",
    b"a,b=c",
    b"http://[",
    b"(?P<a",
    b"127.0.0.1:99999",
    b"[" * 3000,
    b"[{}]",
    b"1e999",
)


def check(data: bytes) -> None:
    """Read the file as each of the two kinds, or set a variable if it begins with $ and the variable's number."""
    if data.startswith(b"$") and len(data) > 1:
        check_variable(VARIABLES[data[1] % len(VARIABLES)], data[2:].replace(b"\0", b""))
        return
    file = directory() / "file.yml"
    file.write_bytes(data)
    check_web(data, file)
    check_settings(file)


def check_web(data: bytes, file: Path) -> None:
    """Check a web configuration: first its text, then with the files that it names."""
    try:
        config = read_config(data, file)
        written = config.model_dump(mode="json", exclude_unset=True)
        if interval := written.get("rate_limit", {}).get("interval"):
            written["rate_limit"]["interval"] = f"{interval!r}s"
        assert read_config(yaml.safe_dump(written).encode(), file) == config
        ConfigFile(str(file))
    except WebConfigError as problem:
        check_line(str(problem), file)


def check_settings(file: Path) -> None:
    """Check the daemon's settings, and the rules that they have."""
    try:
        config = load(Config, file)
        assert rules(config.alerts)
        assert all(map(str.isprintable, unknown_alerts(config.alerts)))
    except ConfigError as problem:
        check_line(str(problem), file)
    except RuleError as problem:
        check_line(str(problem), "alerts.rules")


def check_variable(name: str, value: bytes) -> None:
    """Check the daemon's settings with one of them in the environment."""
    with mock.patch.dict(os.environ, {name: os.fsdecode(value)}):
        try:
            assert rules(load(Config).alerts)
        except ConfigError as problem:
            check_line(str(problem), name)
        except RuleError as problem:
            check_line(str(problem), "alerts.rules")


def check_line(line: str, origin: Path | str) -> None:
    """Check that an error is a line that begins with the file or the variable."""
    assert line.startswith(f"{origin}: "), line
    assert len(line.splitlines()) == 1, line


def test_the_seeds_are_valid() -> None:
    for number, text in enumerate((*WEB, *SETTINGS)):
        file = directory() / f"{number}.yml"
        file.write_text(text)
        if text in WEB:
            assert ConfigFile(str(file)).current().config != WebConfig()
        else:
            assert load(Config, file) != Config()


def seeds() -> list[bytes]:
    """Return valid files, and one that is empty."""
    settings = [b"$" + bytes([number]) + VALUES[number % len(VALUES)] for number in range(len(VARIABLES))]
    return [b"", *map(str.encode, (*WEB, *SETTINGS)), *settings]


def test_any_file_is_refused_with_a_line_or_read(fuzz: Callable[..., None]) -> None:
    def short() -> None:
        for data in mutants(seeds(), 150):
            check(data)

    fuzz(short, seeds())

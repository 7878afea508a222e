"""The configuration: the order of its sources, and its errors."""

from __future__ import annotations

import json
import os
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from trackside_daemon.collectors.settings import PathSection
from trackside_daemon.config.loading import (
    CLIENT_VARIABLES,
    ConfigError,
    describe,
    load,
    setting_paths,
    variables,
    warn_of_unknown_variables,
)
from trackside_daemon.model.text import seconds, size_bytes
from trackside_daemon.nvml.reader_groups import GROUPS
from trackside_daemon.service.config import Config, check_roots
from trackside_daemon.web.http.config import WebConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.alerts.settings import RuleSection

VARIABLES = Path(__file__).with_name("variables.json")
"""By setting, a text for its variable, and the value that it then has."""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TRACKSIDE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], Path]:
    """A function that writes a configuration file and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "trackside.yml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def refusal(*arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(Config, *arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_everything_has_a_default() -> None:
    config = load(Config)
    assert (config.sample.interval, config.run.linger) == (1.0, 60.0)
    assert config.web.listen_address == "127.0.0.1:21790"
    assert (config.web.public_read, config.web.enable_lifecycle, config.require_gpu) == (False, False, False)
    assert (config.web.allowed_hosts, config.push.endpoint) == ((), ())
    assert config.collector.cpu.enabled
    assert tuple(config.limits.model_dump().values()) == ("full", 64, 64, 1000, 10_000, 256, 512 << 20, ())
    storage = config.storage
    assert (storage.path, storage.jsonl, storage.synchronous, storage.interval) == ("", "", "normal", 10.0)
    assert (storage.retention.size, storage.retention.age) == (10 * 1024**3, 0.0)


def test_flags_count_before_variables_and_those_before_the_file(
    file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file("sample: {interval: 2s}\nrun: {linger: 20s}\nlog: {level: error, format: json}\n")
    monkeypatch.setenv("TRACKSIDE_RUN__LINGER", "30s")
    monkeypatch.setenv("TRACKSIDE_LOG__LEVEL", "warning")
    config = load(Config, path, {"log": {"level": "debug"}})
    assert config.sample.interval == 2.0, "from the file"
    assert config.run.linger == 30.0, "from the environment, over the file"
    assert config.log.level == "debug", "from the flags, over both"
    assert config.log.format == "json", "beside them, from the file"


def test_a_setting_may_be_written_with_hyphens_or_underscores(file: Callable[[str], Path]) -> None:
    for text in ("web: {public-read: true, listen-address: ':1'}", "web: {public_read: true, listen_address: ':1'}"):
        config = load(Config, file(text))
        assert (config.web.public_read, config.web.listen_address) == (True, ":1")
    assert load(Config, file("require-gpu: true")).require_gpu


def test_only_the_history_itself_has_a_least_size(file: Callable[[str], Path]) -> None:
    assert load(Config, file("storage: {media: {quota-run: 1MiB}}")).storage.media.quota_run == 2**20
    with pytest.raises(ConfigError, match=r"storage\.retention\.size: 1048576 bytes are too few for a history"):
        load(Config, file("storage: {retention: {size: 1MiB}}"))


def plain(value: SecretStr | RuleSection) -> object:
    """Return a secret or a rule as JSON."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value.model_dump(exclude_defaults=True)


def test_every_setting_has_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    given = json.loads(VARIABLES.read_text())
    assert {".".join(path) for path in setting_paths(Config)} == set(given)
    for variable, path in variables(Config).items():
        monkeypatch.setenv(variable, given[".".join(path)][0])
    config: Any = load(Config)
    for name, (_, expected) in given.items():
        value = config
        for part in name.split("."):
            value = getattr(value, part)
        assert json.loads(json.dumps(value, default=plain)) == expected, name


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1s", 1.0),
        ("500ms", 0.5),
        ("1h30m", 5400.0),
        ("1d", 86400.0),
        ("1.5s", 1.5),
        ("2m500ms", 120.5),
        ("0.25", "0.25"),
    ],
)
def test_a_duration_is_understood(written: str, meant: object) -> None:
    assert seconds(written) == meant


@pytest.mark.parametrize("written", ["", "s", "1 s", "1x", "-1s", "1s!", "1m 30s", "one", "1e3s", "1s2"])
def test_an_invalid_duration_is_refused_with_an_example(written: str) -> None:
    flags = {"run": {"linger": written}}
    assert refusal(None, flags) == f"--run.linger: {written!r} is not a duration such as 1s, 500ms or 1h30m"


@pytest.mark.parametrize(("text", "linger"), [("30", 30.0), ("1.5", 1.5), ("'90'", 90.0), ("0", 0.0), ("1m", 60.0)])
def test_a_number_in_the_file_is_seconds(file: Callable[[str], Path], text: str, linger: float) -> None:
    assert load(Config, file(f"run: {{linger: {text}}}")).run.linger == linger


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("10GiB", 10 * 1024**3),
        ("500MB", 500_000_000),
        ("1.5 GiB", 1_610_612_736),
        ("64k", 64_000),
        ("64Ki", 65_536),
        ("2T", 2 * 10**12),
        ("0", "0"),
        (1024, 1024),
    ],
)
def test_a_size_is_understood(written: object, meant: object) -> None:
    assert size_bytes(written) == meant


@pytest.mark.parametrize("written", ["", "GiB", "1 X", "-1GiB", "10GiBs", "1e3MB", "much", f"{10**310}GiB"])
def test_an_invalid_size_is_refused_with_an_example(written: str) -> None:
    error = refusal(None, {"storage": {"retention": {"size": written}}})
    assert error == f"--storage.retention.size: {written!r} is not a size such as 10GiB, 500MB or a number of bytes"


def test_rules_nested_too_deeply_are_no_list_of_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKSIDE_ALERTS__RULES", "[" * 100_000)
    assert refusal().endswith("is not a JSON list of rules")


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("'0'", 0), ("16777216", 16777216), ("'16777216'", 16777216), ("1GiB", 1024**3)]
)
def test_a_number_in_the_file_is_bytes(file: Callable[[str], Path], text: str, size: int) -> None:
    assert load(Config, file(f"storage: {{retention: {{size: {text}}}}}")).storage.retention.size == size


@pytest.mark.parametrize(
    ("text", "hosts"),
    [("[a, b]", ("a", "b")), ("a", ("a",)), ("'a, b'", ("a", "b")), ("[]", ()), ("''", ())],
)
def test_a_list_may_be_one_or_be_separated_by_commas(
    file: Callable[[str], Path], text: str, hosts: tuple[str, ...]
) -> None:
    assert load(Config, file(f"web: {{allowed-hosts: {text}}}")).web.allowed_hosts == hosts


def test_the_keys_of_a_web_configuration_are_recognized() -> None:
    assert set(WebConfig.model_fields) == set(Config.misplaced)


@pytest.mark.parametrize(
    "text", ["", "# nothing", "---", "sample:", "sample:\n  # interval: 2s\nweb: {listen-address:}"]
)
def test_what_is_left_empty_has_its_default(file: Callable[[str], Path], text: str) -> None:
    assert load(Config, file(text)) == load(Config)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("sample: {intervall: 2s}", "sample.intervall: no such setting; did you mean sample.interval?"),
        ("alerts: {thresholds: {NonFinit: 3}, z: 3}", "alerts.thresholds.NonFinit: no such setting; also: "),
        ("smaple: {interval: 2s}", "smaple: no such setting; did you mean sample?"),
        ("web: {listen-adress: x}", "web.listen-adress: no such setting; did you mean web.listen-address?"),
        ("collector: {discs: {enabled: true}}", "collector.discs: no such setting"),
        ("zzz: 1", "zzz: no such setting"),
        ("alerts: {thresholds: {performance-after: 5m}}", "alerts.thresholds.performance-after: no such setting"),
        ("bridges: {wandb: {interval: 30s}}", "bridges.wandb.interval: no such setting"),
        ("bridges: {parquet: {ranks: all}}", "bridges.parquet.ranks: no such setting"),
        (
            "tls_server_config: {cert_file: a}",
            "tls-server-config: no such setting; it belongs in a web configuration, the file of --web.config.file",
        ),
        ("1: 2", "1: no such setting"),
        ("sample.interval: 1s\nsample.interval.x: 2", "sample.interval: input should be a valid number, got {'x': 2}"),
        ("sample: 5\nsample.x: 2", "sample.x: no such setting"),
        ("sample: 5", "sample: is a section of settings, got 5"),
        ("sample: [1]", "sample: is a section of settings, got [1]"),
        ("log: {level: loud}", "log.level: input should be 'debug', 'info', 'warning' or 'error', got 'loud'"),
        ("sample: {interval: 0.01}", "sample.interval: input should be greater than or equal to 0.1, got 0.01"),
        ("sample: {interval: 1h}", "sample.interval: input should be less than or equal to 300, got "),
        ("sample: {interval: soon}", "sample.interval: 'soon' is not a duration such as 1s, 500ms or 1h30m"),
        ("limits: {runs: 0}", "limits.runs: input should be greater than or equal to 1, got 0"),
        ("web: {public-read: 7}", "web.public-read: input should be a valid boolean, unable to interpret input, got 7"),
        ("storage: {retention: {size: -1}}", "storage.retention.size: input should be greater than or equal to 0"),
        ("storage: {retention: {age: soon}}", "storage.retention.age: 'soon' is not a duration such as 1s, 500ms"),
        ("storage: {synchronous: off}", "storage.synchronous: input should be 'normal' or 'full', got 'off'"),
        ("storage: {retention: 1GiB}", "storage.retention: is a section of settings, got '1GiB'"),
        ("storage: {interval: 0}", "storage.interval: input should be greater than or equal to 0.1, got 0"),
        (
            "collector: {gpu: {trouble: ['cold:1', hot]}}",
            "collector.gpu.trouble: 'cold:1' is none of hot, throttled, xid, lost, with or without :INDEX of the GPU",
        ),
        (
            "collector: {gpu: {trouble: 'lost:x'}}",
            "collector.gpu.trouble: 'lost:x' is none of hot, throttled, xid, lost",
        ),
        (
            "collector: {gpu: {profile: h200}}",
            "collector.gpu.profile: input should be 'h100', 'a100' or 'l40s', got 'h2",
        ),
        (
            "collector: {gpu: {expected: -1}}",
            "collector.gpu.expected: input should be greater than or equal to 0, got -",
        ),
        ("path: {procfs: ''}", "path.procfs: '' is not an absolute path, such as /data"),
        ("path: {rootfs: nowhere}", "path.rootfs: 'nowhere' is not an absolute path, such as /data"),
        ("path: {sysfs: ~nobody-has-this/sys}", "path.sysfs: '~nobody-has-this/sys'"),
        ("collector: {filesystem: {paths: ['']}}", "collector.filesystem.paths: '' is not an absolute path"),
        ("collector: {filesystem: {paths: '/, data'}}", "collector.filesystem.paths: 'data' is not an absolute path"),
        ("collector: {filesystem: {paths: 5}}", "collector.filesystem.paths: should be a list such as /,/data,/ch"),
        ("collector: {gpu: {extra: 5}}", "collector.gpu.extra: should be a list such as links,engines, got 5"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_file_key_and_remedy(
    file: Callable[[str], Path], text: str, error: str
) -> None:
    path = file(text)
    assert refusal(path).startswith(f"{path}: {error}")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: [", "not YAML: line 1, column 5: expected the node content, but found '<stream end>'"),
        ("a: 1\nb: c: d", "not YAML: line 2, column 5: mapping values are not allowed here"),
        ("\tx: 1", "not YAML: line 1, column 1: found character '\\t' that cannot start any token"),
        ("!!python/object:os.system {}", "not YAML: line 1, column 1: an unknown tag"),
        ("a: \x00", "not YAML: unacceptable character #x0000: special characters are not allowed"),
        ("just words", "a mapping of settings is expected, not a str"),
        ("[1, 2]", "a mapping of settings is expected, not a list"),
        ("{[1]: 2}", "not YAML: line 1, column 2: found unhashable key"),
    ],
)
def test_what_is_no_mapping_is_refused_in_one_line(file: Callable[[str], Path], text: str, error: str) -> None:
    path = file(text)
    assert refusal(path).startswith(f"{path}: {error}")


def test_several_errors_are_named_at_once(file: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match=r"run\.lingr: no such setting.*; also: .*web\.lisen: no such setting"):
        load(Config, file("web: {lisen: 3}\nrun: {lingr: 3}"))


def test_a_file_that_is_no_text_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "trackside.yml"
    path.write_bytes(b"\xff\xfe\x00")
    assert refusal(path).startswith(f"{path}: not YAML: 'utf-8' codec can't decode byte 0xff")


@pytest.mark.parametrize(("name", "error"), [("missing.yml", "no such file or directory"), (".", "is a directory")])
def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path, name: str, error: str) -> None:
    assert refusal(tmp_path / name) == f"{tmp_path / name}: {error}; give a YAML file with --config.file"


def test_what_is_wrong_in_a_variable_is_named_by_the_variable(
    file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKSIDE_SAMPLE__INTERVAL", "soon")
    path = file("sample: {interval: 1s}")
    assert refusal(path) == "TRACKSIDE_SAMPLE__INTERVAL: 'soon' is not a duration such as 1s, 500ms or 1h30m"


def test_what_is_wrong_in_a_flag_is_named_by_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKSIDE_LOG__LEVEL", "debug")
    assert refusal(None, {"log": {"level": "loud"}}).startswith("--log.level: input should be 'debug'")


def test_the_home_directory_may_be_written_as_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    flags = {"path": {"rootfs": "~/host"}, "collector": {"filesystem": {"paths": "~,~/data"}}}
    config = load(Config, None, flags)
    assert config.path.rootfs == "/home/ada/host"
    assert config.collector.filesystem.paths == ("/home/ada", "/home/ada/data")


@pytest.mark.parametrize(
    ("name", "what", "sign", "default"),
    [("procfs", "procfs", "stat", "/proc"), ("sysfs", "sysfs", "class", "/sys"), ("rootfs", "directory", "", "/")],
)
def test_an_invalid_root_is_reported_in_one_line(tmp_path: Path, name: str, what: str, sign: str, default: str) -> None:
    file, empty, good = tmp_path / "file", tmp_path / "empty", tmp_path / "good"
    file.touch()
    empty.mkdir()
    (good / sign).mkdir(parents=True)
    wrong = {file: "it is a file", tmp_path / "nowhere": "it does not exist", empty: f"it has no {sign}"}
    for root, lacks in wrong.items():
        if root == empty and not sign:
            continue
        with pytest.raises(ConfigError) as caught:
            check_roots(PathSection(**{name: str(root)}))
        expected = f"path.{name}: {root} is no {what}: {lacks}; set it to where the host's {default} is mounted"
        assert str(caught.value) == expected
    check_roots(PathSection(**{name: str(good)}))


def test_a_machine_without_sysfs_is_no_slip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_dir", lambda _: False)
    check_roots(PathSection())


@pytest.mark.parametrize("name", ["extra", "skip"])
def test_a_group_that_is_none_is_named_with_where_it_was_set_and_those_that_there_are(
    file: Callable[[str], Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    valid = [*GROUPS, "all"] if name == "extra" else [*GROUPS]
    error = f"no group 'link'; there are {', '.join(valid)}"
    path = file(f"collector: {{gpu: {{{name}: [power, link]}}}}")
    assert refusal(path) == f"{path}: collector.gpu.{name}: {error}"
    assert refusal(None, {"collector": {"gpu": {name: "link"}}}) == f"--collector.gpu.{name}: {error}"
    monkeypatch.setenv(f"TRACKSIDE_COLLECTOR__GPU__{name.upper()}", "link")
    assert refusal() == f"TRACKSIDE_COLLECTOR__GPU__{name.upper()}: {error}"


@pytest.mark.parametrize(
    ("flags", "mend"),
    [
        ({"trouble": "hot"}, "set collector.gpu.simulate to the number of GPUs"),
        ({"simulate": 2, "trouble": "hot,lost:2"}, "give an index from 0 to 1"),
    ],
)
def test_a_fault_of_a_gpu_that_is_not_simulated_is_refused(flags: dict[str, Any], mend: str) -> None:
    one = flags["trouble"].rpartition(",")[2]
    assert refusal(None, {"collector": {"gpu": flags}}) == (
        f"--collector.gpu.trouble: {one!r} is for a GPU that is not simulated; {mend}"
    )


def test_each_setting_that_is_a_list_has_an_example(file: Callable[[str], Path]) -> None:
    lists = [".".join(path) for path in setting_paths(Config) if isinstance(reduce(getattr, path, load(Config)), tuple)]
    assert "collector.gpu.extra" in lists
    for name in lists:
        assert "should be a list such as " in refusal(file(f"{name}: 7"))


@pytest.mark.parametrize(
    "text",
    [
        "webhook: https://hooks/hush",
        "webhook: {url: [https://hooks/hush]}",
        "webhook: {url: 7, also: {hush: 1}}",
        "webhook: {uri: https://hooks/hush}",
        "webhook: {url-file: {hush: hush}}",
        "alertmanager: {urls: 'https://ada:hush@host'}",
        "alertmanager: {urls: 'hush://host'}",
        "alertmanager: {urls: {hush: 1}}",
        "alertmanager: {severity: hush}",
        "alertmanager: {labels: hush}",
        "hush",
    ],
)
def test_no_value_of_a_sink_of_alerts_is_ever_printed(file: Callable[[str], Path], text: str) -> None:
    error = refusal(file(f"alerts: {{sinks: {{{text}}}}}" if ":" in text else f"alerts: {{sinks: {text}}}"))
    assert "alerts.sinks" in error
    assert "hush" not in error


def test_off_is_a_word(file: Callable[[str], Path]) -> None:
    assert load(Config, file("alerts: {sinks: {log: {severity: off}}}")).alerts.sinks.log.severity == "off"
    assert load(
        Config, file("alerts: {off: [LossPlateau], rules: [{alert: A, metric: key:a, above: 1, labels: {on: no}}]}")
    ).alerts.off
    assert load(Config, file("alerts.off: [on]")).alerts.off == ("on",)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("true", True), ("True", True), ("on", True), ("yes", True), ("false", False), ("OFF", False), ("No", False)],
)
def test_a_switch_is_understood_in_all_the_words_of_yaml(file: Callable[[str], Path], text: str, meant: bool) -> None:
    assert load(Config, file(f"web: {{public-read: {text}}}")).web.public_read is meant


def test_all_extra_groups_may_be_asked_for_at_once_and_not_left_out_at_once() -> None:
    assert load(Config, None, {"collector": {"gpu": {"extra": "all"}}}).collector.gpu.extra == ("all",)
    with pytest.raises(ConfigError, match=r"no group 'all'; there are .*(?<!all)$"):
        load(Config, None, {"collector": {"gpu": {"skip": "all"}}})


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("TRACKSIDE_SAMPLE_INTERVAL", "; did you mean TRACKSIDE_SAMPLE__INTERVAL?"),
        ("TRACKSIDE_RUN_NMAE", "; did you mean TRACKSIDE_RUN_NAME?"),
        ("TRACKSIDE_LOG", ""),
        ("TRACKSIDE_Q", ""),
    ],
)
def test_an_unknown_variable_is_one_warning_and_no_error(
    name: str, error: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, "x")
    assert load(Config) == Config()
    warn_of_unknown_variables(Config)
    (message,) = caplog.messages
    assert message.startswith(f"{name} is not a setting and is ignored")
    if error:
        assert message.endswith(error)


@pytest.mark.parametrize(
    "name",
    [
        *sorted(CLIENT_VARIABLES),
        "TRACKSIDE_SERVICE_HOST",
        "TRACKSIDE_SERVICE_PORT",
        "TRACKSIDE_SERVICE_PORT_METRICS",
        "TRACKSIDE_PORT",
        "TRACKSIDE_PORT_21790_TCP",
        "TRACKSIDE_PORT_21790_TCP_ADDR",
        "TRACKSIDE_PORT_21790_TCP_PORT",
        "TRACKSIDE_PORT_21790_TCP_PROTO",
        "TRACKSIDE_PORT_53_UDP_ADDR",
        "TRACKSIDE_FOO_SERVICE_HOST",
        "TRACKSIDE_FOO_SERVICE_PORT",
        "TRACKSIDE_FOO_SERVICE_PORT_HTTP",
        "TRACKSIDE_FOO_BAR_PORT_80_TCP",
        "TRACKSIDE_LOG__LEVEL",
    ],
)
def test_what_the_client_owns_and_what_kubernetes_puts_there_is_no_warning(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, "debug")
    load(Config)
    warn_of_unknown_variables(Config)
    assert caplog.messages == []


def test_a_variable_that_is_read_without_a_setting_is_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRACKSIDE_WEB__CREDENTIALS_FILE", "web.yml")
    warn_of_unknown_variables(Config, ["TRACKSIDE_WEB__CREDENTIALS_FILE"])
    assert caplog.messages == []


def test_every_setting_has_a_description_and_shows_its_default() -> None:
    for path in setting_paths(Config):
        assert describe(Config, ".".join(path)).endswith((".", "]"))
    assert describe(Config, "alerts.thresholds.shm-ratio").endswith("[default: 0.9]")
    assert describe(Config, "alerts.thresholds.disk-full-in").endswith("[default: 14400s]")
    assert describe(Config, "sample.interval").endswith("[default: 1s]")
    assert describe(Config, "web.listen-address").endswith("[default: 127.0.0.1:21790]")
    assert describe(Config, "storage.retention.size").endswith("[default: 10GiB]")


def test_nothing_can_be_changed_afterwards() -> None:
    config: Any = load(Config)
    with pytest.raises(ValueError, match="frozen"):
        config.require_gpu = True
    with pytest.raises(ValueError, match="frozen"):
        config.web.public_read = True

"""`trackside rules`: the rules follow the configuration, and errors are clear."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from processes import DEADLINE, run_here

from trackside_daemon.alerts.disabled import DisabledAlerts
from trackside_daemon.alerts.rules.custom import RuleError
from trackside_daemon.alerts.rules.query import Targets
from trackside_daemon.alerts.rules.rule_file import RuleFileOptions, format_promql, groups
from trackside_daemon.alerts.rules.rule_text import prometheus
from trackside_daemon.alerts.settings import AlertsSection, RuleSection, ThresholdsSection
from trackside_daemon.model.families.catalogue import catalogue

if TYPE_CHECKING:
    from pathlib import Path

CUSTOM = (
    RuleSection(
        alert="RewardLow", metric="key:reward/mean", below=0.1, labels={"run": "~big-.*"}, summary="{run}: {value}"
    ),
    RuleSection(alert="NoGpu", metric="trackside_gpu_up", labels={"gpu": "3"}, absent=True),
    RuleSection(alert="Odd", metric='key:a"b\\c (or {x} unless) y', above=1, description="line\nline"),
)


def made(wanted: RuleFileOptions | None = None, **settings: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the rules by the name of their group, those of all thresholds together."""
    rules: dict[str, list[dict[str, Any]]] = {}
    for group in groups(AlertsSection(**settings), catalogue(), wanted or RuleFileOptions()):
        rules.setdefault(group["name"].split(".")[1], []).extend(group["rules"])
    return rules


def named(rules: list[dict[str, Any]], alert: str) -> list[dict[str, Any]]:
    return [rule for rule in rules if rule.get("alert") == f"Trackside{alert}"]


def test_thresholds_are_those_of_the_configuration() -> None:
    found = made(thresholds=ThresholdsSection(gpu_hot_margin_celsius=8.5))["thresholds"]
    assert named(found, "GpuHot")[0]["expr"].splitlines()[1].endswith("< 8.5")


def test_a_disabled_alert_is_omitted_and_one_disabled_for_some_runs_excludes_them() -> None:
    found = made(
        off=("LossPlateau", "GpuPowerCapped", "ShmFull@debug-*", "ShmFull@x.y?", "GpuHot@*", "GpuLost@debug-*")
    )
    assert not named(found["detectors"], "LossPlateau")
    assert not named(found["thresholds"], "GpuPowerCapped")
    assert named(found["detectors"], "ShmFull"), "the daemon exports none of these runs"
    fleet = made(off=("TracksideRunVanished@debug-*", "RunVanished@x.y?", "RunRestarting@*"))["fleet"]
    others = 'trackside_training_run_info{run!~"debug\\\\-.*|x\\\\.y."}'
    assert [rule["alert"] for rule in fleet if others in rule["expr"]] == ["TracksideRunVanished"]
    assert not named(fleet, "RunRestarting")
    assert not named(found["thresholds"], "GpuHot"), "what is of no run fits *, as the daemon has it"
    assert named(found["thresholds"], "GpuLost"), "what is of no run is none of a run that is called so"


def test_custom_rules_about_runs_are_the_daemon_s_with_the_owner_and_others_are_thresholds() -> None:
    every = made(rules=CUSTOM)
    found = every["thresholds"]
    assert not named(found, "RewardLow")
    (low,) = named(every["detectors"], "RewardLow")
    assert low["expr"] == 'alert:trackside_alert_firing:held20m{alert="RewardLow"}'
    assert "runbook_url" not in low["annotations"]
    (gone,) = named(found, "NoGpu")
    assert 'unless on (cluster, namespace, job, instance, pod) trackside_gpu_up{gpu="3"}, "gpu", "3",' in " ".join(
        gone["expr"].split()
    )


def test_windows_are_four_scrapes_at_least() -> None:
    assert "[1m]" in named(made()["thresholds"], "HostMemoryPressure")[-1]["expr"]
    wide = made(RuleFileOptions(scrape=30.0))["thresholds"]
    assert "[2m]" in named(wide, "HostMemoryPressure")[-1]["expr"]
    (_, throttled) = named(wide, "GpuThrottled")
    assert "[2m]" in throttled["expr"]
    assert "offset 2m" in throttled["expr"]
    assert not [rule for rule in wide if "[1m]" in rule["expr"]]


def test_a_threshold_outlives_the_scrapes_that_a_restart_costs() -> None:
    assert {rule["keep_firing_for"] for rule in made()["thresholds"] if "alert" in rule} == {"3m", "10m"}
    assert named(made(RuleFileOptions(scrape=60.0))["thresholds"], "GpuLost")[0]["keep_firing_for"] == "4m"


def test_an_inhibiting_alert_has_its_name_in_prometheus() -> None:
    (counted, _) = named(made()["thresholds"], "GpuThrottled")
    assert 'ALERTS{alertname="TracksideGpuHot"}' in counted["expr"]


def test_with_alerts_disabled_the_fleet_rules_remain() -> None:
    assert list(made(enabled=False)) == ["recording", "seldom", "fleet"]


def test_job_and_runbooks_can_be_set() -> None:
    found = made(RuleFileOptions(job="ml", runbooks="https://wiki/x"))
    assert named(found["fleet"], "SidecarDown")[0]["expr"] == 'up{job="ml"} == 0'
    assert named(found["detectors"], "NonFinite")[0]["annotations"]["runbook_url"] == "https://wiki/x#nonfinite"
    bare = made(RuleFileOptions(runbooks=""))
    assert not [rule for rules in bare.values() for rule in rules if "runbook_url" in rule.get("annotations", {})]


def test_a_run_goes_beyond_the_labels_of_a_place() -> None:
    found = made(RuleFileOptions(targets=Targets(places=("instance", "node", "pod", "rack"))))
    exprs = {rule.get("record", rule.get("alert")): rule["expr"] for rules in found.values() for rule in rules}
    beyond = "without (instance, node, pod, rack"
    named = ("run:trackside_training_tokens:rate5m", "TracksideRunVanished", "run:trackside_training_restarts:count1d")
    assert [name for name in (*named, "TracksideRunRestarting") if beyond not in exprs[name]] == []


def test_every_join_and_count_is_of_one_cluster_under_any_name_of_its_label() -> None:
    found = made(RuleFileOptions(targets=Targets(clusters=("site", "region"))), rules=CUSTOM)
    exprs = [rule["expr"] for rules in found.values() for rule in rules]
    listed = [one for expr in exprs for one in re.findall(r"\b(?:on|by) \(([^)]*)\)", expr)]
    assert len(listed) > 60
    assert [one for one in listed if one and not one.startswith("site, region, ")] == []  # absent() has no labels
    texts = [rule["annotations"]["description"] for rule in found["thresholds"] if "alert" in rule]
    assert [text for text in texts if "{{ with $labels.site }} in " not in text] == []
    alerts = [rule for rules in found.values() for rule in rules if "alert" in rule]
    assert {rule["labels"].get("cluster") for rule in alerts} == {"{{ $labels.site }}", None}  # without: the Watchdog


def test_a_run_that_vanished_pages_only_where_all_runs_do() -> None:
    for page, severity in ((("own",), "warning"), (("own", "all"), "critical")):
        (rule,) = named(made(page=page)["fleet"], "RunVanished")
        assert rule["labels"]["severity"] == severity


def test_no_text_has_a_link_of_a_page() -> None:
    texts = [rule["annotations"]["description"] for rule in made()["detectors"] if "alert" in rule]
    assert [text for text in texts if "](" in text] == []


def test_no_critical_threshold_fires_for_a_drained_machine() -> None:
    rules = [rule for rule in made()["thresholds"] if "alert" in rule]
    drained = {rule["labels"]["severity"] for rule in rules if "trackside_drained" in rule["expr"]}
    left = {rule["labels"]["severity"] for rule in rules if "trackside_drained" not in rule["expr"]}
    assert (drained, "critical" in left) == ({"critical"}, False)


@pytest.mark.parametrize("prefix", ["", "Trackside"])
def test_alerts_of_the_fleet_can_be_turned_off(prefix: str) -> None:
    kept = {rule["alert"] for rule in made(off=(f"{prefix}Watchdog", f"{prefix}RunVanished"))["fleet"]}
    every = {rule["alert"] for rule in made()["fleet"]}
    assert every - kept == {"TracksideWatchdog", "TracksideRunVanished"}


def test_texts_contain_the_window_of_the_rule() -> None:
    *_, wide = named(made(RuleFileOptions(scrape=30.0))["thresholds"], "HostMemoryPressure")
    *_, narrow = named(made()["thresholds"], "HostMemoryPressure")
    assert "of the last 2 min." in wide["annotations"]["description"]
    assert "of the last minute." in narrow["annotations"]["description"]


def test_a_rule_of_the_daemon_names_its_alert() -> None:
    (rule,) = named(made()["detectors"], "LossSpike")
    assert "`trackside alerts show LossSpike` on {{ $labels.instance }} has" in rule["annotations"]["description"]


@pytest.mark.parametrize(
    "expr",
    [
        "up",
        'a{x="(" , y="} and "} and on (job) (b > 0 or c unless d)' + " and on (job) e" * 9,
        'absent(trackside_training_value{key="a\\"b\\\\c (or {x} unless) y"})' + " or aaaaaaaaaaaaaaaaaaaa" * 4,
        "((" + "x + " * 40 + "y) > 1)",
        'unbalanced{x="' + "y" * 120,
    ],
)
def test_formatting_an_expression_changes_white_space_only(expr: str) -> None:
    assert "".join(format_promql(expr).split()) == "".join(expr.split())


def test_quoted_text_is_never_split() -> None:
    text = 'key="a or b unless c / d and (e"'
    assert text in format_promql(f"x{{{text}}} or " + f"y{{{text}}} and on (job) " * 5 + "z")


def test_a_bracket_in_a_pattern_of_runs_is_a_bracket_for_the_daemon_too() -> None:
    disabled = DisabledAlerts(["ShmFull@run[1]*"])
    assert disabled.contains("ShmFull", {"run": "run[1]-a"})
    assert not disabled.contains("ShmFull", {"run": "run1"})


@pytest.mark.parametrize(
    "pattern", ["(?=a)b", r"(a)\1", "a*+", "[a[b]", r"\u0041", "a{1001}", "a{,3}", "(?#x)a", r"a\Z"]
)
def test_a_regular_expression_that_only_python_has_is_refused(pattern: str) -> None:
    section = RuleSection(alert="A", metric="key:a", above=1, labels={"run": f"~{pattern}"})
    # Python 3.10 reads "a*+" no more than Prometheus does.
    with pytest.raises(
        RuleError, match=r"rule A: run: .* (has a form that Prometheus does not read|multiple repeat at position 2)"
    ):
        made(rules=(section,))


@pytest.mark.parametrize(
    "pattern", [r"big-.*", r"(?i)a|b", r"x\d{2,3}?\.", r"[^\]a-z]+", "^(?:a|(b))*$", r"\x41-(?P<n>é)"]
)
def test_other_regular_expressions_are_not(pattern: str) -> None:
    section = RuleSection(alert="A", metric="key:a", above=1, labels={"run": f"~{pattern}"})
    assert made(rules=(section,))


def test_line_breaks_in_a_command_and_a_job_name_break_no_line() -> None:
    found = groups(AlertsSection(), catalogue(), RuleFileOptions(job="a\x85b\u2028"))
    text = prometheus(found, "trackside rules --job 'a\nb\x85'")
    assert "#   trackside rules --job 'a\\nb\\x85'\n" in text
    assert yaml.safe_load(text)["groups"] == found


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_accepts_odd_rules(tmp_path: Path) -> None:
    found = groups(
        AlertsSection(rules=CUSTOM, off=("ShmFull@a b-*",)), catalogue(), RuleFileOptions(60.0, 'j"b😀', "x")
    )
    file = tmp_path / "rules.yml"
    file.write_text(prometheus(found, "trackside rules"), encoding="utf-8")
    assert yaml.safe_load(file.read_text(encoding="utf-8"))["groups"] == found
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint=all", "--lint-fatal", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return run_here("rules", *arguments, environ=environ)


def test_the_command_reads_file_and_environment(tmp_path: Path) -> None:
    file = tmp_path / "trackside.yml"
    file.write_text("alerts: {thresholds: {gpu-memory-ratio: 0.75}}\n", encoding="utf-8")
    done = run(f"--config.file={file}", TRACKSIDE_ALERTS__OFF="LossPlateau")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"#   trackside rules --config.file={file}\n" in done.stdout
    assert "> 0.75" in done.stdout
    assert "LossPlateau" not in done.stdout


def test_a_manifest_has_the_same_groups() -> None:
    done = run("--format", "kubernetes", "--label", "release=prometheus", "--namespace", "monitoring")
    manifest = yaml.safe_load(done.stdout)
    assert (manifest["apiVersion"], manifest["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert manifest["metadata"] == {
        "name": "trackside",
        "namespace": "monitoring",
        "labels": {"app.kubernetes.io/name": "trackside", "release": "prometheus"},
    }
    assert manifest["spec"]["groups"] == groups(AlertsSection(), catalogue(), RuleFileOptions())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--scrape-interval", "5m"), "--scrape-interval 5m: give a duration between 1s and 1m"),
        (("--scrape-interval", "often"), "--scrape-interval often: give a duration such as 15s"),
        (("--label", "a=b"), "--label and --namespace apply only to a PrometheusRule: add --format kubernetes"),
        (
            ("--format", "kubernetes", "--label", "release"),
            "--label release: give NAME=VALUE, such as release=prometheus",
        ),
        (
            ("--format", "kubernetes", "--namespace", "A"),
            "--namespace A: a namespace consists of lower-case letters, digits and -",
        ),
        (("--job", ""), "--job is empty: give the job_name of the daemons' targets, such as trackside"),
        (
            ("--runbook-url", "https://x/{{ y }}"),
            "--runbook-url https://x/{{ y }}: it contains braces, which Prometheus would expand; give the page's address",
        ),
        (
            ("--place-label", "top rack"),
            "--place-label top rack: a label's name consists of letters, digits and _, such as rack",
        ),
        (
            ("--cluster-label", "top rack"),
            "--cluster-label top rack: a label's name consists of letters, digits and _, such as rack",
        ),
        (
            ("--place-label", "rank"),
            "--place-label rank: this label distinguishes runs; give one of the targets' location, such as rack",
        ),
        *(
            (
                given,
                f"{given[-2]} {given[-1]}: the rules know this label in another meaning, within a cluster or beyond; omit it",
            )
            for given in (
                ("--cluster-label", "instance"),
                ("--cluster-label", "namespace"),
                ("--cluster-label", "site", "--place-label", "site"),
            )
        ),
        (("--config.file", "/no/such"), "/no/such: no such file or directory; give a YAML file with --config.file"),
    ],
)
def test_an_error_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    done = run_here("rules", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"trackside: {words}\n")


@pytest.mark.parametrize("alert", ["Watchdog", "RunVanished", "TracksideSidecarDown", "GpuHot", "NonFinite"])
def test_a_custom_rule_must_not_have_a_reserved_name(alert: str) -> None:
    with pytest.raises(RuleError, match=rf"rule {alert}: trackside has an alert of this name; choose another name"):
        made(rules=(RuleSection(alert=alert, metric="trackside_gpu_up", below=1),))


def test_a_wrong_rule_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trackside.yml"
    file.write_text("alerts: {rules: [{alert: A, metric: trackside_gpu_upp, below: 1}]}\n", encoding="utf-8")
    done = run(f"--config.file={file}")
    assert done.returncode == 2
    assert done.stderr.startswith("trackside: alerts.rules: rule A: ")
    assert done.stderr.count("\n") == 1

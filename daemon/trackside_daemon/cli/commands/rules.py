"""The command rules: Prometheus rules for the same alerts as the daemon's."""

from __future__ import annotations

import re
import shlex
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from trackside_daemon.cli.errors import CommandError, errors_reported
from trackside_daemon.cli.options import option
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    from collections.abc import Collection

    from trackside_daemon.alerts.rules.rule_file import Group, RuleFileOptions

_LABEL = re.compile(r"(?:[a-z0-9.-]+/)?[A-Za-z0-9][\w.-]*", re.ASCII)
_VALUE = re.compile(r"(?:[A-Za-z0-9][\w.-]*)?", re.ASCII)
_PLACE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NAMESPACE = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")


class RuleFormat(str, Enum):
    """Format of the rules."""

    prometheus = "prometheus"
    kubernetes = "kubernetes"


class _Manifest(NamedTuple):
    """The metadata of a manifest."""

    labels: dict[str, str]
    namespace: str


def rules(
    *,
    config_file: Annotated[Path | None, option("FILE", "YAML file of the daemons' settings.", "--config.file")] = None,
    form: Annotated[
        RuleFormat, typer.Option("--format", help="A rule file, or a PrometheusRule of the Prometheus operator.")
    ] = RuleFormat.prometheus,
    scrape_interval: Annotated[
        str, option("DURATION", "Scrape interval of Prometheus; windows are four times as long at least.")
    ] = "15s",
    job: Annotated[str, option("NAME", "Job name of the daemons' targets.")] = "trackside",
    runbook_url: Annotated[
        str, option("URL", "Address of docs/alerts.md for links; empty for none.")
    ] = "docs/alerts.md",
    place_label: Annotated[
        list[str] | None,
        option("NAME", ("A further label of the targets, such as rack, of which a run may span several.")),
    ] = None,
    cluster_label: Annotated[
        list[str], option("NAME", "The label of the targets with their cluster; may be repeated.")
    ] = ["cluster"],  # noqa: B006  typer copies it
    label: Annotated[
        list[str] | None,
        option("NAME=VALUE", "A label of the PrometheusRule, such as release=prometheus; may be repeated."),
    ] = None,
    namespace: Annotated[str, option("NAME", "Namespace of the PrometheusRule.")] = "",
) -> None:
    """Print Prometheus rules for a configuration: thresholds, custom rules and alerts of detectors.

    Environment variables apply as they do for the daemon, for example TRACKSIDE_ALERTS__OFF=LossPlateau.
    """
    with errors_reported():
        from trackside_daemon.alerts.rules import rule_text
        from trackside_daemon.alerts.rules.query import TARGETS, Targets
        from trackside_daemon.alerts.rules.rule_file import RuleFileOptions

        if form is RuleFormat.prometheus and (label or namespace):
            raise CommandError("--label and --namespace apply only to a PrometheusRule: add --format kubernetes")
        manifest = _Manifest(dict(map(_pair, label or ())), _namespace(namespace))
        clusters = [_label_name("--cluster-label", name, (*TARGETS.places, "namespace")) for name in cluster_label]
        places = [_label_name("--place-label", name, ("namespace", *clusters)) for name in place_label or ()]
        targets = Targets(tuple(dict.fromkeys(clusters)), tuple(dict.fromkeys((*TARGETS.places, *places))))
        wanted = RuleFileOptions(_interval(scrape_interval), _job(job), _runbooks(runbook_url), targets)
        groups = _groups(config_file, wanted)
        command = shlex.join(["trackside", "rules", *sys.argv[2:]])
        if form is RuleFormat.prometheus:
            typer.echo(rule_text.prometheus(groups, command), nl=False)
        else:
            typer.echo(rule_text.kubernetes(groups, command, *manifest), nl=False)


def _groups(config_file: Path | None, wanted: RuleFileOptions) -> list[Group]:
    from trackside_daemon.alerts.rules.custom import RuleError
    from trackside_daemon.alerts.rules.rule_file import groups
    from trackside_daemon.config.loading import ConfigError, load
    from trackside_daemon.model.families.catalogue import catalogue
    from trackside_daemon.service.config import Config

    try:
        return groups(load(Config, config_file).alerts, catalogue(), wanted)
    except (ConfigError, RuleError) as error:
        raise CommandError(str(error)) from None


def _interval(text: str) -> float:
    """Return the seconds of an interval that gives the recording rules some scrapes in their five minutes."""
    from trackside_daemon.model.text import seconds

    try:
        interval = float(str(seconds(text)))
    except ValueError:
        raise CommandError(f"--scrape-interval {shown(text)}: give a duration such as 15s") from None
    if not 1 <= interval <= 60:
        raise CommandError(f"--scrape-interval {shown(text)}: give a duration between 1s and 1m")
    return interval


def _job(text: str) -> str:
    if not text:
        raise CommandError("--job is empty: give the job_name of the daemons' targets, such as trackside")
    return text


def _runbooks(text: str) -> str:
    """Return the URL, which becomes part of an annotation that Prometheus reads as a template."""
    if "{{" in text or "}}" in text:
        raise CommandError(
            f"--runbook-url {shown(text)}: it contains braces, which Prometheus would expand; give the page's address"
        )
    return text


def _label_name(flag: str, text: str, others: Collection[str]) -> str:
    """Return a label of targets that does not distinguish runs, ranks or GPUs, and is none of the *others*."""
    from trackside_daemon.alerts.rules.recording import DISTINGUISHING_LABELS

    if not _PLACE.fullmatch(text):
        raise CommandError(f"{flag} {shown(text)}: a label's name consists of letters, digits and _, such as rack")
    if text in DISTINGUISHING_LABELS:
        raise CommandError(
            f"{flag} {text}: this label distinguishes runs; give one of the targets' location, such as rack"
        )
    if text in others:
        raise CommandError(
            f"{flag} {text}: the rules know this label in another meaning, within a cluster or beyond; omit it"
        )
    return text


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not _LABEL.fullmatch(name) or not _VALUE.fullmatch(value):
        raise CommandError(f"--label {shown(text)}: give NAME=VALUE, such as release=prometheus")
    return name, value


def _namespace(text: str) -> str:
    if text and not _NAMESPACE.fullmatch(text):
        raise CommandError(f"--namespace {shown(text)}: a namespace consists of lower-case letters, digits and -")
    return text

"""The command rules: what Prometheus has to know for the same alerts as the daemon's."""

from __future__ import annotations

import re
import shlex
import sys
from enum import Enum
from pathlib import Path  # noqa: TC003  typer reads the annotations while running
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from trackside_daemon.cli.commands.runs import WrongError, told
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    from trackside_daemon.alerts.rules.rule_file import Group, RuleFileOptions

_LABEL = re.compile(r"(?:[a-z0-9.-]+/)?[A-Za-z0-9][\w.-]*", re.ASCII)
_VALUE = re.compile(r"(?:[A-Za-z0-9][\w.-]*)?", re.ASCII)
_PLACE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NAMESPACE = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")


class Format(str, Enum):
    """How the rules are written."""

    prometheus = "prometheus"
    kubernetes = "kubernetes"


class _Manifest(NamedTuple):
    """What a manifest has beside the rules."""

    labels: dict[str, str]
    namespace: str


def rules(
    *,
    config_file: Annotated[
        Path | None,
        typer.Option("--config.file", help="The daemons' YAML file: its thresholds and rules count.", metavar="FILE"),
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="A rule file, or a PrometheusRule of the Prometheus operator.")
    ] = Format.prometheus,
    scrape_interval: Annotated[
        str,
        typer.Option(help="How often Prometheus scrapes; windows are four times that at least.", metavar="DURATION"),
    ] = "15s",
    job: Annotated[str, typer.Option(help="The job of the daemons' targets.", metavar="NAME")] = "trackside",
    runbook_url: Annotated[
        str, typer.Option(help="Where docs/alerts.md is read; empty for no links.", metavar="URL")
    ] = "docs/alerts.md",
    place_label: Annotated[
        list[str] | None,
        typer.Option(help="A further label of the targets, such as rack: a run goes beyond it.", metavar="NAME"),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="A label of the PrometheusRule, such as release=prometheus.", metavar="NAME=VALUE"),
    ] = None,
    namespace: Annotated[str, typer.Option(help="The namespace of the PrometheusRule.", metavar="NAME")] = "",
) -> None:
    """Print the Prometheus rules for a configuration: its thresholds, its own rules, and what the daemon finds.

    The environment counts as it does for the daemon: TRACKSIDE_ALERTS__OFF=LossPlateau.
    """
    with told():
        from trackside_daemon.alerts.rules import rule_text
        from trackside_daemon.alerts.rules.rule_file import RuleFileOptions

        if form is Format.prometheus and (label or namespace):
            raise WrongError("--label and --namespace are of a PrometheusRule: add --format kubernetes")
        manifest = _Manifest(dict(map(_pair, label or ())), _namespace(namespace))
        places = tuple(map(_place, place_label or ()))
        found = _groups(
            config_file, RuleFileOptions(_interval(scrape_interval), _job(job), _runbooks(runbook_url), places)
        )
        command = shlex.join(["trackside", "rules", *sys.argv[2:]])
        if form is Format.prometheus:
            typer.echo(rule_text.prometheus(found, command), nl=False)
        else:
            typer.echo(rule_text.kubernetes(found, command, *manifest), nl=False)


def _groups(config_file: Path | None, wanted: RuleFileOptions) -> list[Group]:
    from trackside_daemon.alerts.rules.custom import RuleError
    from trackside_daemon.alerts.rules.rule_file import groups
    from trackside_daemon.config.loading import ConfigError, load
    from trackside_daemon.service.config import Config
    from trackside_daemon.service.watchers import families

    try:
        return groups(load(Config, config_file).alerts, families(), wanted)
    except (ConfigError, RuleError) as error:
        raise WrongError(str(error)) from None


def _interval(text: str) -> float:
    """Seconds; the recording rules look at five minutes, in which there are to be some scrapes."""
    from trackside_daemon.model.setting_types import seconds

    try:
        found = float(str(seconds(text)))
    except ValueError:
        raise WrongError(f"--scrape-interval {shown(text)}: it is a duration such as 15s") from None
    if not 1 <= found <= 60:
        raise WrongError(f"--scrape-interval {shown(text)}: it is between 1s and 1m")
    return found


def _job(text: str) -> str:
    if not text:
        raise WrongError("--job is empty: give the job_name of the daemons' targets, such as trackside")
    return text


def _runbooks(text: str) -> str:
    """It becomes part of an annotation, which Prometheus reads as a template."""
    if "{{" in text or "}}" in text:
        raise WrongError(
            f"--runbook-url {shown(text)}: it has braces, which Prometheus would fill in; write the page's address"
        )
    return text


def _place(text: str) -> str:
    """A label of targets, and none by which runs, ranks and GPUs are told apart."""
    from trackside_daemon.alerts.rules.recording import APART

    if not _PLACE.fullmatch(text):
        raise WrongError(f"--place-label {shown(text)}: a label's name has letters, digits and _ only, such as rack")
    if text in APART:
        raise WrongError(
            f"--place-label {text}: runs are told apart by it; give a label of the targets' place, such as rack"
        )
    return text


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not _LABEL.fullmatch(name) or not _VALUE.fullmatch(value):
        raise WrongError(f"--label {shown(text)}: write NAME=VALUE, such as release=prometheus")
    return name, value


def _namespace(text: str) -> str:
    if text and not _NAMESPACE.fullmatch(text):
        raise WrongError(f"--namespace {shown(text)}: a namespace has small letters, digits and - only")
    return text

"""The command dashboards: writes the files by which Grafana shows what the daemon exports."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from trackside_daemon.cli.commands.runs import WrongError, told
from trackside_daemon.model.text import shown

PROVIDER = Path("provisioning", "dashboards", "trackside.yml")
SOURCE = Path("provisioning", "datasources", "trackside.yml")
DASHBOARDS = Path("dashboards", "trackside")
"""A directory of their own: Grafana is to take no others for trackside's."""
READ_AT = "/var/lib/grafana/dashboards/trackside"
"""Where the provider of the project's own containers finds the dashboards."""
ASKED_AT = "http://prometheus:9090"
"""Where the data source of the project's own containers finds Prometheus."""


def dashboards(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIR", help="Where to, such as /etc/grafana; made where it is missing.", show_default=False
        ),
    ],
    *,
    prometheus_url: Annotated[
        str, typer.Option(help="Where Grafana finds the Prometheus that scrapes the daemons.", metavar="URL")
    ] = "http://127.0.0.1:9090",
    datasource: Annotated[
        bool,
        typer.Option(
            "--datasource/--no-datasource",
            help="Write the file by which Grafana finds Prometheus; not where Grafana knows it already.",
        ),
    ] = True,
    force: Annotated[
        bool, typer.Option("--force", help="Write over provisioning files that are there and differ.")
    ] = False,
) -> None:
    """Write the Grafana dashboards, and the provisioning files by which Grafana finds them and Prometheus.

    Grafana reads DIR/provisioning at its start when DIR is /etc/grafana, or when GF_PATHS_PROVISIONING names it.

    Once more after an upgrade it replaces the dashboards, whatever was done to them, and keeps the provisioning files as
    they are; other files in DIR/dashboards/trackside are left alone, those of dashboards that are no more too.
    """
    with told():
        where = _place(directory)
        wanted = {where / name: text for name, text in files(where, _url(prometheus_url)).items()}
        if not datasource:
            del wanted[where / SOURCE]
        for file, text in wanted.items():
            old = _read(file)
            if old is not None and old != text and file.suffix == ".yml" and not force:
                typer.echo(f"kept {shown(file)}, which differs; --force writes over it")
                continue
            if old != text:
                _write(file, text)
            typer.echo(f"{'kept' if old == text else 'wrote'} {shown(file)}")


def _place(directory: str) -> Path:
    """Where to.

    Raises:
        WrongError: Nothing can be written there.
    """
    where = Path(directory).absolute()
    name = shown(directory)
    if not directory:
        raise WrongError("DIR is empty; name a directory, which is made where it is missing")
    if where.is_symlink() and not where.exists():
        raise WrongError(
            f"{name}: it is a link to {shown(where.readlink())}, which is not there; make that, or name another"
        )
    if where.exists() and not where.is_dir():
        raise WrongError(f"{name}: it is no directory; name one, which is made where it is missing")
    return where


def files(where: Path, prometheus: str) -> dict[Path, bytes]:
    """What is written, by its path below *where*.

    Args:
        where: The directory, as Grafana sees it.
        prometheus: Its URL, as Grafana sees it.
    """
    source = _source()
    found = {DASHBOARDS / one.name: one.read_bytes() for one in sorted((source / "dashboards").glob("*.json"))}
    for name, old, new in ((PROVIDER, READ_AT, str(where / DASHBOARDS)), (SOURCE, ASKED_AT, prometheus)):
        found[name] = (source / name).read_text(encoding="utf-8").replace(old, _yaml(new)).encode()
    return found


def _source() -> Path:
    """Where the wheel has the files, else the clone."""
    installed = Path(__file__).parents[2] / "grafana"
    return installed if installed.is_dir() else Path(__file__).parents[4] / "grafana"


def _yaml(text: str) -> str:
    """A text as YAML has it, in which Grafana looks for variables."""
    return json.dumps(text, ensure_ascii=False).replace("$", "$$")


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and text.isprintable() and " " not in text
        _ = parts.port
    except ValueError:
        right = False
    if not right:
        raise WrongError(f"--prometheus-url {shown(text)}: write its address, such as http://127.0.0.1:9090")
    return text


def _read(file: Path) -> bytes | None:
    """What is there; None for nothing."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None


def _write(file: Path, text: bytes) -> None:
    """Give the file its name when it is whole: Grafana may look at any moment, as a user of its own, whatever our umask is."""
    for directory in reversed(file.parents):
        if not directory.exists():
            directory.mkdir()
            directory.chmod(0o755)
    unfinished = file.with_name(f".{file.name}.unfinished-{os.getpid()}")
    try:
        unfinished.write_bytes(text)
        unfinished.chmod(0o644)
        unfinished.replace(file)
    except OSError as error:
        error.filename = str(file)
        raise
    finally:
        unfinished.unlink(missing_ok=True)

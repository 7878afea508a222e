"""The command dashboards: writes the Grafana dashboards of trackside and their provisioning."""

import json
import os
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from trackside_daemon.cli.errors import CommandError, errors_reported
from trackside_daemon.cli.options import argument, flag, option
from trackside_daemon.model.text import shown

PROVIDER = Path("provisioning", "dashboards", "trackside.yml")
SOURCE = Path("provisioning", "datasources", "trackside.yml")
# A separate directory, so that Grafana loads nothing else as a dashboard of trackside.
DASHBOARDS = Path("dashboards", "trackside")
# Path of the dashboards in the provisioning of the project's containers; `files` replaces it.
READ_AT = "/var/lib/grafana/dashboards/trackside"
# URL of Prometheus in the provisioning of the project's containers; `files` replaces it.
ASKED_AT = "http://prometheus:9090"


def dashboards(
    directory: Annotated[str, argument("DIR", "Target directory, such as /etc/grafana; it is created if missing.")],
    *,
    prometheus_url: Annotated[
        str, option("URL", "Address at which Grafana reaches the Prometheus that scrapes the daemons.")
    ] = "http://127.0.0.1:9090",
    datasource: Annotated[bool, flag("--datasource/--no-datasource", "Write the data source for Prometheus.")] = True,
    force: Annotated[bool, flag("--force", "Overwrite provisioning files that differ.")] = False,
) -> None:
    """Write the Grafana dashboards and the files that provision them and Prometheus.

    Grafana reads DIR/provisioning when it starts, if DIR is /etc/grafana or GF_PATHS_PROVISIONING names it.

    Run it again after an upgrade: it overwrites the dashboards, including your changes, and keeps the provisioning
    files. It never deletes files in DIR/dashboards/trackside.
    """
    with errors_reported():
        where = _place(directory)
        wanted = {where / name: text for name, text in files(where, _url(prometheus_url)).items()}
        if not datasource:
            del wanted[where / SOURCE]
        for file, text in wanted.items():
            old = _read(file)
            if old is not None and old != text and file.suffix == ".yml" and not force:
                typer.echo(f"kept {shown(file)}, which differs; --force overwrites it")
                continue
            if old != text:
                _write(file, text)
            typer.echo(f"{'kept' if old == text else 'wrote'} {shown(file)}")


def _place(directory: str) -> Path:
    """Return the target directory.

    Raises:
        CommandError: It is no directory.
    """
    where = Path(directory).absolute()
    name = shown(directory)
    if not directory:
        raise CommandError("DIR is empty; give a directory, which is created if missing")
    if where.is_symlink() and not where.exists():
        raise CommandError(
            f"{name}: it is a link to {shown(where.readlink())}, which does not exist; create that, or give another"
        )
    if where.exists() and not where.is_dir():
        raise CommandError(f"{name}: it is no directory; give one, which is created if missing")
    return where


def files(where: Path, prometheus: str) -> dict[Path, bytes]:
    """Return the content of each file, by its path below *where*.

    Args:
        where: The directory, as Grafana sees it.
        prometheus: Its URL, as Grafana sees it.
    """
    source = _source()
    contents = {DASHBOARDS / file.name: file.read_bytes() for file in sorted((source / "dashboards").glob("*.json"))}
    for name, old, new in ((PROVIDER, READ_AT, str(where / DASHBOARDS)), (SOURCE, ASKED_AT, prometheus)):
        contents[name] = (source / name).read_text(encoding="utf-8").replace(old, _yaml(new)).encode()
    return contents


def _source() -> Path:
    """Return the directory of the files in the wheel, else in the clone."""
    installed = Path(__file__).parents[2] / "grafana"
    return installed if installed.is_dir() else Path(__file__).parents[4] / "grafana"


def _yaml(text: str) -> str:
    """Return a text as YAML for Grafana, which expands variables in it."""
    return json.dumps(text, ensure_ascii=False).replace("$", "$$")


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and text.isprintable() and " " not in text
        # urlsplit checks the port only when it is read.
        _ = parts.port
    except ValueError:
        valid = False
    if not valid:
        raise CommandError(f"--prometheus-url {shown(text)}: give an address such as http://127.0.0.1:9090")
    return text


def _read(file: Path) -> bytes | None:
    """Return the file's content; None if it does not exist."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None


def _write(file: Path, text: bytes) -> None:
    """Write a file that other users can read, whatever the umask; it appears complete, since Grafana may read at any time."""
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

"""The command daemon."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from logging import getLogger
from typing import TYPE_CHECKING

import typer

from trackside_daemon.cli.errors import fail
from trackside_daemon.cli.options import ConfigFile, HelpAll
from trackside_daemon.cli.setting_options import Flags, from_settings, nested
from trackside_daemon.linux.signals import block_signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.ingest.push_socket import PushSocket
    from trackside_daemon.ingest.worker_handle import WorkerHandle
    from trackside_daemon.service.config import Config


GROUPS = {
    "sample": "Sampling",
    "require_gpu": "Sampling",
    "path": "Sampling",
    "collector": "Collectors",
    "run": "Metrics and dashboard",
    "web": "Metrics and dashboard",
    "push": "Trainings",
    "otlp": "Metrics and dashboard",
    "capture": "Trainings",
    "storage": "History",
    "log": "Log",
}
"""The headings of the options in the help, by section."""

USUAL = frozenset(
    (
        *("sample.interval", "require-gpu", "collector.gpu.enabled", "collector.gpu.simulate", "run.linger"),
        *("collector.textfile.directory", "otlp.endpoint"),
        *("web.listen-address", "web.external-url", "web.config.file", "web.allowed-hosts", "web.public-read"),
        *("web.enable-lifecycle", "push.endpoint", "push.keys", "push.group", "capture.auto"),
        *("storage.path", "storage.retention.size", "storage.retention.age", "log.level", "log.format"),
    )
)
"""The settings that people set most often."""


@from_settings(
    *("sample", "require-gpu", "path", "collector", "run", "web", "push", "otlp"),
    *("capture.auto", "capture.kineto", "storage", "log"),
    groups=GROUPS,
    usual=USUAL,
)
def daemon(*, config_file: ConfigFile = None, help_all: HelpAll = False, flags: Flags) -> None:  # noqa: ARG001  see HelpAll
    """Run the daemon: sample GPUs and host, accept pushes, store runs, and serve /metrics.

    --help-all shows all options, such as one for each collector. docs/configuration.md lists all settings, also those
    without an option, and how to set them in a file or as variables.
    """
    block_signals()  # before the imports, which take so long that a signal may come
    # No plugin checks the settings, and to search all installed packages for one takes a tenth of the start.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from trackside_daemon.cli import credentials_flag
    from trackside_daemon.config.loading import ConfigError, file_warnings, load, warn_of_unknown_variables
    from trackside_daemon.ingest.endpoint import EndpointError
    from trackside_daemon.ingest.push_socket import PushSocket
    from trackside_daemon.linux.process_limits import raise_limit
    from trackside_daemon.nvml.worker import lock
    from trackside_daemon.service import logging
    from trackside_daemon.service.config import Config, check_roots

    def reload() -> Config:
        return load(Config, config_file, nested(flags))

    try:
        config = reload()
        check_roots(config.path)
        logging.set_up(config.log.level, config.log.format)
        warn_of_unknown_variables(Config, (lock.LOCK_VARIABLE, credentials_flag.VARIABLE))
        for line in file_warnings(Config, config_file) if config_file is not None else ():
            getLogger("trackside").warning("%s", line)
        raise_limit()
        with closing(PushSocket(config.push.endpoint, keys=config.push.keys, group=config.push.group)) as push_socket:
            named = os.environ.get("TRACKSIDE_ENDPOINT") or push_socket.endpoints[0]
            if named not in push_socket.endpoints:
                text = "trainings of this shell push to %s ($TRACKSIDE_ENDPOINT), where this daemon does not listen: %s"
                getLogger("trackside").warning(text, named, f"start it with --push.endpoint={named}")
            status = _serve(config, reload, push_socket)
    except (ConfigError, EndpointError) as error:
        fail(str(error))
    raise typer.Exit(status)


def _serve(config: Config, reload: Callable[[], Config], push_socket: PushSocket) -> int:
    """Run the daemon on a push socket that is already bound; return its exit status."""
    # Only now that it is bound: these imports take long, and clients should find the daemon soon.
    from trackside_daemon.ingest.worker_handle import WorkerHandle

    with closing(WorkerHandle(push_socket)) as ingest_worker:
        ingest_worker.start()
        return _serve_web(config, reload, push_socket, ingest_worker)


def _serve_web(
    config: Config, reload: Callable[[], Config], push_socket: PushSocket, ingest_worker: WorkerHandle
) -> int:
    from trackside_daemon.history.directory import HistoryError
    from trackside_daemon.web.http.address import AddressError, listen
    from trackside_daemon.web.http.config import WebConfigError

    try:
        listener = listen(config.web.listen_address)
        from trackside_daemon.service.assembly import StartError
        from trackside_daemon.service.daemon import Daemon
    except AddressError as error:
        fail(str(error))
    try:
        running = Daemon(config, reload, push_socket, ingest_worker, listener)
        ingest_worker.wait_ready()
        # The link contains the token, which must not get into a log.
        if sys.stdout.isatty():
            typer.echo(f"dashboard: {running.link}")
        return running.run()
    except (StartError, AddressError, HistoryError, WebConfigError) as error:
        fail(str(error))

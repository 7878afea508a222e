"""Collect the nodes of Ray on this machine, and the cluster of the dashboard, with the token that this wants."""

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from trackside.environment.identity import start_time
from trackside_daemon.collectors.base import NothingToCollect, StillBusy
from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.collectors.ray.dashboard import ACTORS, READ_SECONDS, STALE_SECONDS, Cluster
from trackside_daemon.http_client.errors import SendError, SettingError
from trackside_daemon.http_client.http_request import bearer_header, request, tls_context
from trackside_daemon.linux.socket_address import strangers
from trackside_daemon.model.families import ray as f
from trackside_daemon.model.metric import Metric, Sample

# What actors of a name do, in the frameworks of reinforcement learning.
_ROLES = (
    ("reward", re.compile(r"reward|judge|scor|(^|_)rm(_|$)")),
    ("generate", re.compile(r"rollout|vllm|sglang|generat|sampl|infer|env_?runner|llm")),
    ("train", re.compile(r"train(?!_?controller)|learner|policy|critic|reference|(^|_)(actor|ref)(_|$)")),
)
_ID = re.compile(r"[0-9a-f]{16,64}")
_NOT_ACTORS = frozenset(("IDLE", "DashboardAgent", "RuntimeEnvAgent"))
_PORT_DIGITS = 8
_NAME_LENGTH = 200  # characters of a label: any job names actors and resources

# A line of the text format: the name, its labels and the value. Begun anywhere in a long line, a search would last for days.
_LINE = re.compile(r"^(ray_resources|ray_object_store_(?:used|available)_memory|ray_tasks)\{(.*)\} (\S+)", re.MULTILINE)
_LABEL = re.compile(rf'\b(Name|State)="([^"\\]{{0,{_NAME_LENGTH}}})"')
_ENDED = frozenset(("FINISHED", "FAILED"))


def actor_role(name: str, class_name: str) -> str:
    """Return what an actor does by its name or its class; empty if they do not show it."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", class_name.removesuffix("Actor")).lower()  # each actor may be named so
    texts = (name.lower(), words)
    return next((role for text in texts for role, pattern in _ROLES if pattern.search(text)), "")


class LocalNode(NamedTuple):
    """A node of Ray: a raylet process."""

    id: str  # the node's id, hexadecimal
    pid: int  # the raylet's pid
    session: str  # the directory of Ray's session
    uid: int  # the user who runs it


class RayWorker(NamedTuple):
    """A process of an actor or a task."""

    pid: int
    parent: int  # the pid of its raylet
    title: str  # what follows ``ray::`` in its title: a class or a function, and the method that runs


def processes(proc: Path) -> tuple[dict[str, LocalNode], list[RayWorker]]:
    """Return the nodes by id, and the workers, of all processes whose command line this user may read.

    A node has an id of its own: of several processes with one id, the first that started is the node.
    """
    nodes: dict[str, LocalNode] = {}
    workers = []
    for entry in os.listdir(proc):  # noqa: PTH208  a Path for each process would cost more than the reading
        if not entry.isdigit():
            continue
        try:
            line = read(f"{proc}/{entry}/cmdline").decode(errors="replace")
            if line.startswith("ray::"):
                title = line.partition("\0")[0].strip().removeprefix("ray::")[:_NAME_LENGTH]
                parent = int(read(f"{proc}/{entry}/stat").rpartition(b")")[2].split()[1])
                workers.append(RayWorker(int(entry), parent, title))
            elif line.partition("\0")[0].endswith("/raylet"):
                given = dict(part[2:].split("=", 1) for part in line.split("\0") if part[:2] == "--" and "=" in part)
                if _ID.fullmatch(given.get("node_id", "")):
                    uid = os.stat(f"{proc}/{entry}").st_uid  # noqa: PTH116  see above
                    node = LocalNode(given["node_id"], int(entry), given.get("session_dir", ""), uid)
                    before = nodes.setdefault(node.id, node)
                    if start_time(proc, node.pid) < start_time(proc, before.pid):
                        nodes[node.id] = node
        except (OSError, ValueError, IndexError):  # it has ended meanwhile
            continue
    return nodes, workers


def actor_class(title: str) -> str:
    """Return the class of an actor from its process title; empty for a process that is none, such as a task's."""
    name = title.partition(".")[0]
    return "" if name in _NOT_ACTORS or "(" in name or ":" in name or "-" in name or not name[:1].isupper() else name


def metrics_port(node: LocalNode) -> int | None:
    """Return the port of a node's metrics on this machine, which Ray writes into a file of its session.

    Raises:
        ValueError: The file has no number.
    """
    path = Path(node.session) / f"metrics_export_port_{node.id}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return int(os.read(descriptor, _PORT_DIGITS))
    finally:
        os.close(descriptor)


def samples(node: LocalNode, text: str) -> Iterator[Sample]:
    """Yield the samples of a node from the text of its metrics port; tasks without labels of a node, to be summed."""
    store: dict[str, float] = {}
    for name, labels, value in (line.groups() for line in _LINE.finditer(text)):
        has = {label[1]: label[2] for label in _LABEL.finditer(labels)}  # of which a line may repeat millions
        number, state = float(value), has.get("State", "")
        if name == "ray_resources":
            yield Sample(f.RESOURCES, (node.id, has.get("Name", ""), state.lower()), number)
        elif name == "ray_tasks":
            if number and state not in _ENDED:
                yield Sample(f.TASKS, (state.lower(),), number)
        else:
            store[name] = number
    if len(store) == 2:
        used = store["ray_object_store_used_memory"]
        yield Sample(f.STORE_USED, (node.id,), used)
        yield Sample(f.STORE_SIZE, (node.id,), used + store["ray_object_store_available_memory"])


log = logging.getLogger("trackside")

SCAN_SECONDS = 2.0  # interval of the search for processes, which finds a node that was killed
REMEMBERED_SECONDS = 600.0  # for which an ended node is shown
ANSWER_BYTES = 32 * 2**20
NODES = 64  # most nodes of this machine
SERIES = 2000  # most series of one answer


class RayCollector:
    """The state of Ray. Requests are made by a thread of its own, since a server may hang.

    Args:
        dashboard: URL of the dashboard; empty for none.
        token_file: See `RayToken`.
        proc: Path of procfs.
        clock: Seconds of the monotonic clock.
        read_seconds: See `READ_SECONDS`.
    """

    name = "ray"

    def __init__(
        self,
        dashboard: str,
        token_file: str = "",
        proc: Path = Path("/proc"),
        *,
        clock: Callable[[], float] = time.monotonic,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self._read_seconds = read_seconds
        self._url = dashboard.rstrip("/")
        self._proc = proc
        self._token = RayToken(token_file, lambda: self._strangers(self._url))
        self._clock = clock
        self._context = tls_context("", "collector.ray.dashboard")
        self._cluster = Cluster(self._dashboard)
        self._scan_at = -1.0
        self._nodes: dict[str, LocalNode] = {}
        self._workers: list[RayWorker] = []
        self._ended: dict[str, float] = {}
        self._read: tuple[float, list[Sample]] | None = None
        self._failed: dict[str, set[int]] = {}
        self.left_out = ""
        self._wake, self._closed = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="trackside-ray", daemon=True)

    def collect(self) -> list[Sample]:
        """Return the samples of the processes now, and those of the last answers.

        Raises:
            NothingToCollect: No node runs here, and no dashboard answers.
            StillBusy: Nothing has answered for `STALE_SECONDS`.
        """
        now = self._clock()
        if now >= self._scan_at:
            self._scan(now)
        if not self._thread.is_alive() and not self._closed:
            self._thread.start()
        answered = self._read
        if answered is None and not self._nodes:
            raise NothingToCollect(
                f"no raylet runs on this machine, and no dashboard of Ray answers at {self._url or '(none)'}; start Ray, or set "
                "collector.ray.dashboard"
            )
        if answered is None or now - answered[0] > STALE_SECONDS:
            raise StillBusy(f"Ray has not answered for {STALE_SECONDS:.0f} s")
        return [
            *(Sample(f.UP, (node,), 1.0) for node in self._nodes),
            *(Sample(f.UP, (node,), 0.0) for node in self._ended),
            *self._actors(),
            *answered[1],
        ]

    def close(self) -> None:
        """End the thread; one that waits for a server ends with the process."""
        self._closed = True
        self._wake.set()

    def _scan(self, now: float) -> None:
        self._scan_at = now + SCAN_SECONDS
        found, self._workers = processes(self._proc)
        # An id never moves to another process, which would hide the end of the node.
        same = [
            one for one in found.values() if one.id not in self._ended and self._nodes.get(one.id, one).pid == one.pid
        ]
        same.sort(key=lambda one: one.id not in self._nodes)
        nodes = {one.id: one for one in same[:NODES]}
        for gone in self._nodes.keys() - nodes.keys():
            self._ended[gone] = now
        if nodes.keys() != self._nodes.keys():
            self._wake.set()
        self._nodes = nodes
        ended = [(one, at) for one, at in self._ended.items() if now - at < REMEMBERED_SECONDS]
        self._ended = dict(ended[-NODES:])

    def _actors(self) -> list[Sample]:
        found = []
        by_pid = {node.pid: node.id for node in self._nodes.values()}
        for worker in self._workers:
            node = by_pid.get(worker.parent)
            actor = None if node is None else self._cluster.actors.get((node, worker.pid))
            kind = (actor.class_name or "")[:_NAME_LENGTH] if actor else actor_class(worker.title)
            if node is not None and kind:
                name, job = ((actor.name or "")[:_NAME_LENGTH], actor.job_id[:_NAME_LENGTH]) if actor else ("", "")
                found.append(Sample(f.ACTOR, (str(worker.pid), name, kind, actor_role(name, kind), job, node), 1.0))
        return found[:ACTORS]

    def _run(self) -> None:
        while not self._closed:
            self._wake.clear()
            found = self._ask("dashboard", [lambda: self._cluster.read(self._ended)] if self._url else [])
            found += self._ask("metrics port", [partial(self._page, node) for node in [*self._nodes.values()]])
            if found:
                self._read = self._clock(), _summed(found, SERIES * (NODES + 1))
            self._wake.wait(self._read_seconds)

    def _page(self, node: LocalNode) -> Iterator[Sample]:
        port = metrics_port(node)
        if port is not None:
            page = self._get(f"http://127.0.0.1:{port}", "/metrics", {node.uid})
            yield from samples(node, page.decode(errors="replace"))

    def _ask(self, what: str, reads: Sequence[Callable[[], Iterator[Sample]]]) -> list[Sample]:
        """Return what sources of a kind answer; log the first failure, the first refusal, and that all answer again."""
        found: list[Sample] = []
        failed, left_out = False, ""
        for one in reads:
            try:
                found += _summed(one())
            except (SendError, SettingError, ValueError, OSError) as error:
                logged, code = self._failed.setdefault(what, set()), getattr(error, "code", 0)
                text = f"the {what} of Ray is left out: {error}"
                failed, left_out = True, text if code or self._nodes else ""  # else Ray does not run
                if code not in logged:
                    logged.add(code)
                    log.warning("collector ray: %s", text)
        if what == "dashboard":
            self.left_out = left_out
        if reads and not failed and self._failed.pop(what, set()):
            log.info("collector ray: the %s of Ray answers again", what)
        return found

    def _dashboard(self, path: str) -> bytes:
        try:
            users = {node.uid for node in self._nodes.values()}
            return self._get(self._url, path, users, self._token.headers)
        except SendError as error:
            if error.code not in REFUSED:
                raise
            server = str(error).partition(";")[0]
            raise SendError(f"{server}; {self._token.advice()}", error.retry, error.code) from None

    def _get(
        self, url: str, path: str, users: Collection[int], headers: Callable[[], Mapping[str, str]] = dict
    ) -> bytes:
        """Return an answer of a server, which root, this user or one of *users* has to run if it is of this machine."""
        if others := self._strangers(url, users):
            raise SendError(f"uid {others[0]} listens at {url}, and runs no raylet that is served there", "later")
        answer = request("GET", url + path, None, headers(), self._context, longest=ANSWER_BYTES + 1)
        if len(answer) > ANSWER_BYTES:
            raise SendError(f"{url} answered more than {ANSWER_BYTES >> 20} MiB", "later")
        return answer

    def _strangers(self, url: str, trusted: Collection[int] = ()) -> list[int]:
        address = urlsplit(url)
        port = address.port or (443 if address.scheme == "https" else 80)
        return strangers(address.hostname or "", port, trusted, self._proc)


def _summed(found: Iterable[Sample], most: int = SERIES) -> list[Sample]:
    """Return the samples, those of the same series as one: each worker reports its own tasks.

    Raises:
        ValueError: They are too many.
    """
    total: dict[tuple[Metric, tuple[str, ...]], float] = {}
    for metric, labels, value in found:
        key = metric, tuple([label[:_NAME_LENGTH] for label in labels])
        total[key] = total.get(key, 0.0) + value  # type: ignore[operator]
        if len(total) > most:
            raise ValueError(f"it has more than {most} series")
    return [Sample(metric, labels, value) for (metric, labels), value in total.items()]


REFUSED = frozenset((401, 403))  # without a token, and with a wrong one


class RayToken:
    """The token with which a dashboard of Ray answers, where Ray itself finds it.

    Args:
        file: File with the token. Without one: ``RAY_AUTH_TOKEN``, the file ``RAY_AUTH_TOKEN_PATH``, ``~/.ray/auth_token``. Such a
            token of this user is for nobody else, so that no other user of this machine who listens at the address gets it.
        others: Returns the other users who listen at the address.
    """

    def __init__(self, file: str, others: Callable[[], list[int]]) -> None:
        self._file, self._others = file, others

    def headers(self) -> dict[str, str]:
        """Return the headers of a request; none without a token that this listener may have.

        Raises:
            SettingError: The file cannot be used.
        """
        path, setting = self._file, "collector.ray.token-file"
        if not path:
            if self._others():
                return {}
            if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
                return {"Authorization": f"Bearer {token}"}
            path = os.environ.get("RAY_AUTH_TOKEN_PATH", "")
            setting = "RAY_AUTH_TOKEN_PATH" if path else setting
        if not path:
            path = f"{os.environ.get('HOME', '')}/.ray/auth_token"
            if not os.path.exists(path):  # noqa: PTH110  a Path would raise for a directory that may not be read
                return {}
        return {"Authorization": bearer_header(path, setting)}

    def advice(self) -> str:
        """Return what to do when the dashboard refuses the request."""
        which = "the file with the token of this Ray, such as ~/.ray/auth_token of the user who started it"
        if (others := self._others()) and not self._file:
            return (
                f"uid {others[0]} listens there, and gets only the token of collector.ray.token-file: set it to {which}"
            )
        return f"set collector.ray.token-file to {which}"

"""Ray's dashboard: what it lists, and when it is given up."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Any

import msgspec

from trackside_daemon.model.families import ray as f
from trackside_daemon.model.metric import Sample

READ_SECONDS = 10.0  # interval of requests: Ray makes a page of some 300 KiB for each
STALE_SECONDS = 45.0  # age of answers that are no longer shown: a request may last 30 s
EXPECTED = "Expected termination"  # begin of the message of a node that was stopped
ACTORS = 2000  # limit of actors with a series
KNOWN = 100_000  # limit of actors and of dead nodes that are remembered


class Node(msgspec.Struct):
    """A node of ``/api/v0/nodes``."""

    node_id: str
    state: str
    state_message: str | None = None
    resources_total: dict[str, float] = {}


class Actor(msgspec.Struct, rename="camel"):
    """An actor of ``/logical/actors``."""

    state: str
    address: dict[str, Any] = {}
    name: str | None = ""
    class_name: str | None = ""
    job_id: str = ""
    num_restarts: str | int = 0
    pid: int | None = 0


class _Nodes(msgspec.Struct):
    result: list[Node]


class _NodesData(msgspec.Struct):
    result: _Nodes


class _NodesAnswer(msgspec.Struct):
    data: _NodesData


class _ActorsData(msgspec.Struct):
    actors: dict[str, Actor]


class _ActorsAnswer(msgspec.Struct):
    data: _ActorsData


class Cluster:
    """The nodes and actors that the dashboard listed last, and what has changed since the first time.

    Args:
        get: Returns the answer to a path of the dashboard.
    """

    def __init__(self, get: Callable[[str], bytes]) -> None:
        self._get = get
        self._dead: set[str] = set()
        self._old: set[str] | None = None
        self._restarts: dict[str, int] = {}
        self._forgotten = 0  # restarts of actors that are no longer in it
        self.actors: dict[tuple[str, int], Actor] = {}

    def read(self, ended: Collection[str]) -> Iterator[Sample]:
        """Yield the samples of the cluster.

        Args:
            ended: The ids of nodes of this machine whose process is gone. Ray itself notices that only after 15 s.

        Raises:
            SendError: The dashboard did not answer.
            msgspec.MsgspecError: The answer is no answer of a dashboard.
        """
        nodes = msgspec.json.decode(self._get("/api/v0/nodes"), type=_NodesAnswer).data.result.result
        actors = msgspec.json.decode(self._get("/logical/actors"), type=_ActorsAnswer).data.actors
        live = [node for node in nodes if node.state == "ALIVE" and node.node_id not in ended]
        dead = {node.node_id for node in nodes} - {node.node_id for node in live}
        expected = {node.node_id for node in nodes if (node.state_message or "").startswith(EXPECTED)}
        self._old = dead if self._old is None else self._old
        self._dead |= {*islice(dead - expected - self._old, max(0, KNOWN - len(self._dead)))}
        yield Sample(f.DEATHS, (), float(len(self._dead)))
        yield Sample(f.NODES, ("alive",), float(len(live)))
        yield Sample(f.NODES, ("dead",), float(len(dead)))
        total: Counter[str] = Counter()
        for node in live:
            total.update({name: amount for name, amount in node.resources_total.items() if ":" not in name})
        yield from (Sample(f.CLUSTER, (name,), amount) for name, amount in total.items())
        states = Counter(actor.state.lower() for actor in actors.values())
        yield from (Sample(f.ACTORS, (state,), float(count)) for state, count in states.items())
        self._restarts |= {key: int(actor.num_restarts) for key, actor in actors.items()}
        for key in [*islice(self._restarts, max(0, len(self._restarts) - KNOWN))]:
            self._forgotten += self._restarts.pop(key)
        yield Sample(f.RESTARTS, (), float(self._forgotten + sum(self._restarts.values())))
        live_actors = [actor for actor in actors.values() if actor.state == "ALIVE" and actor.pid]
        self.actors = {(str(one.address.get("nodeId")), one.pid or 0): one for one in live_actors[:ACTORS]}

"""A made training of 64 ranks on eight nodes, and what NCCL's Inspector says of its collectives each half minute.

In each operation a rank's kernel runs from its arrival until the last rank has arrived and the data has moved, as in NCCL. So the
times follow from the lateness of ranks and the speed of links, and are not chosen.
"""

import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trackside_daemon.detectors.collectives import Operation

HOSTS, GPUS = 8, 8
NETWORK, NVLINK = 45.0, 380.0  # GB/s
LATE_SECONDS = 0.1
Rank = tuple[int, int]
"""Node and GPU."""


class Fault(NamedTuple):
    """A planted fault.

    Attributes:
        kind: ``network``, ``nvlink``, ``rank`` or empty for nothing.
        host: Its node.
        gpu: The GPU of a late rank.
        factor: Of a link, the share of its speed that is left; of a rank, by how many tenths of a second it is late.
    """

    kind: str = ""
    host: int = 0
    gpu: int = 0
    factor: float = 0.5


class Communicator(NamedTuple):
    """A communicator, its ranks, and its operations in their order: name, size in GB and how that is written."""

    name: str
    ranks: Sequence[Rank]
    operations: Sequence[tuple[str, float, str]]


def communicators(start: int, *, mixed: bool) -> list[Communicator]:
    """Return those of a start of the training: tensor parallel in a node, shards of node pairs, replicas, a pipeline."""
    sizes = [(1.5, "1-2GB"), (4.5, "4-5GB"), *([(0.3, "256-512MB"), (12.0, "10-20GB")] if mixed else [])]
    name = f"0x{start:02x}"
    tensor = [
        Communicator(f"{name}a{host}", [(host, gpu) for gpu in range(GPUS)], [("AllReduce", 0.05, "32-64MB")])
        for host in range(HOSTS)
    ]
    shards = [
        Communicator(
            f"{name}b{pair}{gpu}",
            [(2 * pair, gpu), (2 * pair + 1, gpu)],
            [(operation, size, text) for operation in ("AllGather", "ReduceScatter") for size, text in sizes],
        )
        for pair in range(HOSTS // 2)
        for gpu in range(GPUS)
    ]
    replicas = [
        Communicator(
            f"{name}c{side}{gpu}", [(host, gpu) for host in range(side, HOSTS, 2)], [("AllReduce", 1.5, "1-2GB")]
        )
        for side in (0, 1)
        for gpu in range(GPUS)
    ]
    return [*tensor, *shards, *replicas]


def text_files(dump: Mapping[Operation, float]) -> dict[str, str]:
    """Return the Inspector's text files, one for each GPU, by name."""
    lines: dict[str, list[str]] = defaultdict(list)
    for one, value in dump.items():
        labels = (
            f'version="v5.1",slurm_job_id="77",node="{one.host}",gpu="GPU{one.gpu}",comm_name="{one.communicator}",n_nodes="8",'
            f'nranks="{one.ranks}",collective="{one.operation}",message_size="{one.size}",algo_proto="{one.algorithm}"'
        )
        lines[f"nccl-{one.host}-{one.gpu}.prom"] += [f"nccl_bus_bandwidth_gbs{{{labels}}} {value!r}"]
    head = "# HELP nccl_bus_bandwidth_gbs Bus bandwidth\n# TYPE nccl_bus_bandwidth_gbs gauge\n"
    return {name: head + "\n".join(found) + "\n" for name, found in lines.items()}


def otlp(dump: Mapping[Operation, float], time: float) -> bytes:
    """Return what the Inspector exports over OTLP, in JSON."""
    names = ("node", "gpu", "comm_name", "nranks", "collective", "message_size", "algo_proto")
    points = [
        {
            "attributes": [
                {"key": name, "value": {"stringValue": text}} for name, text in zip(names, one, strict=True)
            ],
            "timeUnixNano": str(int(time * 1e9) + 1),
            "asDouble": value,
        }
        for one, value in dump.items()
    ]
    metrics = [{"name": "nccl_bus_bandwidth_gbs", "gauge": {"dataPoints": points}}]
    return json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}).encode()


class InspectorJob:
    """The training.

    Args:
        seed: Of its noise.
        mixed: Messages of more sizes.
    """

    def __init__(self, seed: int, *, mixed: bool = False) -> None:
        self._random = random.Random(seed)
        self._mixed = mixed
        self._starts = 0
        self.restart()

    def restart(self) -> None:
        """Start again: the communicators get new names."""
        self._starts += 1
        self.communicators = communicators(self._starts, mixed=self._mixed)

    def dump(self, fault: Fault = Fault()) -> dict[Operation, float]:  # noqa: B008  it is a tuple
        """Return the bandwidth of each operation of each rank in the last half minute."""
        found: dict[Operation, float] = {}
        noise = self._random
        clock = {(host, gpu): abs(noise.gauss(0, 0.0005)) for host in range(HOSTS) for gpu in range(GPUS)}
        if fault.kind == "rank":
            clock[fault.host, fault.gpu] += fault.factor * LATE_SECONDS
        for communicator in self.communicators:
            for operation, size, text in communicator.operations:
                about = (communicator.name, str(len(communicator.ranks)), operation, text, "RING_SIMPLE")
                seconds = self._run(clock, communicator.ranks, size, fault)
                found |= {
                    Operation(f"node{host}", str(gpu), *about): size / one for (host, gpu), one in seconds.items()
                }
        return found

    def _run(self, clock: dict[Rank, float], ranks: Sequence[Rank], size: float, fault: Fault) -> dict[Rank, float]:
        """Return the seconds of an operation on each rank, from its arrival to the common end; move the ranks' clocks there."""
        noise = self._random
        hosts = {host for host, _ in ranks}
        speed = NVLINK if len(hosts) == 1 else NETWORK
        slow = fault.kind == ("nvlink" if len(hosts) == 1 else "network") and fault.host in hosts
        moves = size / (speed * (fault.factor if slow else 1.0)) * noise.lognormvariate(0, 0.04)
        if noise.random() < 0.001:
            moves *= 3  # others use the network for a moment
        arrivals = {rank: clock[rank] + abs(noise.gauss(0, 0.03)) * moves for rank in ranks}
        end = max(arrivals.values()) + moves
        clock.update(dict.fromkeys(ranks, end))
        return {rank: end - arrived for rank, arrived in arrivals.items()}

"""Collect the Pod of each GPU from the kubelet, so that a GPU has an owner also if its Pod pushes nothing.

The kubelet lists the devices of all containers at a Unix socket that root alone may open (PodResourcesLister, v1):
https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/#monitoring-device-plugin-resources.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trackside.os_errors import os_error_text
from trackside_daemon.collectors.base import NothingToCollect, StillBusy
from trackside_daemon.collectors.process.ranks import by_uuid
from trackside_daemon.http_client.grpc_call import call
from trackside_daemon.http_client.protobuf import messages, text
from trackside_daemon.model.families.gpu import POD_INFO
from trackside_daemon.model.metric import Sample
from trackside_daemon.nvml.reading import GpuReading

METHOD = "/v1.PodResourcesLister/List"
READ_SECONDS = 10.0  # interval of the requests
TIMEOUT_SECONDS = 0.25
ANSWER_BYTES = 16 * 2**20
SERIES = 1024


class PodOwnersCollector:
    """The Pods of the GPUs.

    Args:
        socket: The kubelet's socket.
        gpus: Returns the GPUs of the last reading.
        clock: Seconds of the monotonic clock.
    """

    name = "kubelet"

    def __init__(
        self, socket: Path, gpus: Callable[[], Sequence[GpuReading]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._socket, self._gpus, self._clock = socket, gpus, clock
        self._read_at = -READ_SECONDS
        self._owners: list[tuple[str, tuple[str, str, str]]] = []

    def collect(self) -> list[Sample]:
        """Return a sample for each container that has a GPU, as the kubelet listed them in the last 10 s.

        Raises:
            NothingToCollect: There is no kubelet, or this user may not ask it.
            StillBusy: It does not answer in time.
            ValueError: Its answer cannot be read.
        """
        now = self._clock()
        if now - self._read_at >= READ_SECONDS:
            try:
                self._owners = list(_owners(call(self._socket, METHOD, TIMEOUT_SECONDS, ANSWER_BYTES)))
            except TimeoutError:
                raise StillBusy(f"{self._socket}: the kubelet does not answer") from None
            except OSError as error:
                advice = "run the daemon as root, with the socket's directory mounted, or set collector.kubelet.enabled to false"
                raise NothingToCollect(f"{self._socket}: {os_error_text(error)}; {advice}") from error
            self._read_at = now
        gpus = self._gpus()
        found = ((by_uuid(device, gpus), owner) for device, owner in self._owners)
        labels = dict.fromkeys((str(gpu.index), gpu.uuid, *owner) for gpu, owner in found if gpu is not None)
        return [Sample(POD_INFO, each, 1.0) for each in labels][:SERIES]


def _owners(answer: bytes) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield the id of each device of NVIDIA, and namespace, Pod and container that have it, of a ListPodResourcesResponse."""
    for pod in messages(answer, 1):
        for container in messages(pod, 3):
            for devices in messages(container, 2):
                if text(devices, 1).startswith("nvidia.com/"):
                    for device in messages(devices, 2):
                        # A GPU that several share is GPU-…::0, GPU-…::1 and so on.
                        shared = device.decode(errors="replace").partition("::")[0]
                        yield shared, (text(pod, 2), text(pod, 1), text(container, 1))

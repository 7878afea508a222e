"""The Pods of GPUs, from a real gRPC server in the kubelet's place."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import clean_environ
from scripted_workers import Clock

from trackside_daemon.collectors.base import NothingToCollect, StillBusy
from trackside_daemon.collectors.gpu.pod_owners import METHOD, READ_SECONDS, PodOwnersCollector
from trackside_daemon.http_client.grpc_call import call
from trackside_daemon.nvml.reading import GpuReading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SERVICE = Path(__file__).parents[1] / "kubelet_service.py"


def field(number: int, *values: str | bytes) -> bytes:
    """Return fields of a message: texts, or messages."""
    parts = b""
    for value in values:
        data = value.encode() if isinstance(value, str) else value
        size, length = b"", len(data)
        while length > 127:
            size, length = size + bytes([length & 127 | 128]), length >> 7
        parts += bytes([number << 3 | 2]) + size + bytes([length]) + data
    return parts


def pod(namespace: str, name: str, *devices: str, resource: str = "nvidia.com/gpu") -> bytes:
    container = field(1, "main") + field(2, field(1, resource) + field(2, *devices)) + field(3, b"\1\2")
    return field(1, field(1, name) + field(2, namespace) + field(3, container))


def gpu(index: int, uuid: str, *migs: str) -> GpuReading:
    return GpuReading(index, uuid, {}, [("mig_info", (mig,), 1.0) for mig in migs])


GPUS = [gpu(0, "GPU-aaaa"), gpu(1, "GPU-bbbb", "MIG-cccc", "MIG-dddd"), gpu(2, "GPU-eeee")]


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Callable[[bytes], Path]]:
    """Return a function that starts a server with an answer, and returns its socket."""
    started: list[subprocess.Popen[str]] = []

    def start(answer: bytes) -> Path:
        path = tmp_path / f"{len(started)}.sock"
        program = [sys.executable, str(SERVICE), str(path)]
        one = subprocess.Popen(program, env=clean_environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(one)
        assert one.stdout is not None
        assert one.stdin is not None
        one.stdin.write(f"{answer.hex()}\n")
        one.stdin.flush()
        assert one.stdout.readline() == "listens\n"
        return path

    yield start
    for one in started:
        one.kill()
        one.communicate()


def test_each_container_with_a_gpu_of_this_machine_is_a_series(kubelet: Callable[[bytes], Path]) -> None:
    answer = pod("team-a", "bert-0", "GPU-aaaa") + pod("team-b", "llm", "MIG-dddd", "GPU-eeee::0", "GPU-eeee::1")
    answer += (
        pod("team-c", "web", "GPU-eeee::2") + pod("kube-system", "dns") + pod("x", "nic", "m0", resource="rdma/hca")
    )
    clock = Clock()
    collector = PodOwnersCollector(kubelet(answer), lambda: GPUS, clock)
    labels = {sample.labels for sample in collector.collect()}
    assert labels == {
        ("0", "GPU-aaaa", "team-a", "bert-0", "main"),
        ("1", "GPU-bbbb", "team-b", "llm", "main"),
        ("2", "GPU-eeee", "team-b", "llm", "main"),
        ("2", "GPU-eeee", "team-c", "web", "main"),
    }


def test_an_answer_larger_than_all_windows_and_frames_of_http2_arrives_whole(kubelet: Callable[[bytes], Path]) -> None:
    answer = b"".join(pod("team", f"pod-{number:05}", f"GPU-{number:032}") for number in range(5000))
    assert len(answer) > 4 * 65535
    assert call(kubelet(answer), METHOD, 20.0, 2**24) == answer
    with pytest.raises(ValueError, match="answered more than 100000 bytes"):
        call(kubelet(answer), METHOD, 20.0, 100_000)


def test_a_refusal_a_silent_server_and_none_have_errors_of_their_own(
    kubelet: Callable[[bytes], Path], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="answered no message"):
        PodOwnersCollector(kubelet(b""), lambda: GPUS, Clock()).collect()
    with pytest.raises(NothingToCollect, match=r"no such file.*run the daemon as root"):
        PodOwnersCollector(tmp_path / "none.sock", lambda: GPUS, Clock()).collect()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        with pytest.raises(StillBusy):
            PodOwnersCollector(tmp_path / "silent.sock", lambda: GPUS, Clock()).collect()


def test_a_server_that_never_stops_to_send_has_the_same_time(tmp_path: Path) -> None:
    frames = bytes((0, 0, 0, 4, 1, 0, 0, 0, 0)) * 1000  # SETTINGS, acknowledged

    def send() -> None:
        with suppress(OSError), endless.accept()[0] as connection:
            while True:
                connection.sendall(frames)

    with socket.socket(socket.AF_UNIX) as endless:
        endless.bind(str(tmp_path / "endless.sock"))
        endless.listen()
        sender = threading.Thread(target=send)
        sender.start()
        with pytest.raises(TimeoutError):
            call(tmp_path / "endless.sock", METHOD, 0.1, 2**20)
        sender.join()


def test_the_kubelet_is_asked_every_ten_seconds_and_not_at_each_tick(kubelet: Callable[[bytes], Path]) -> None:
    clock = Clock()
    path = kubelet(pod("team-a", "bert-0", "GPU-aaaa"))
    collector = PodOwnersCollector(path, lambda: GPUS, clock)
    assert len(collector.collect()) == 1
    path.unlink()
    clock.now += READ_SECONDS - 1
    assert len(collector.collect()) == 1
    clock.now += 1
    with pytest.raises(NothingToCollect):
        collector.collect()

"""JSON lines: their content and folders, and the state after a full disk or a crash."""

from __future__ import annotations

import json
import os
import resource
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from session_records import batch_ingested, session_opened

from trackside.packing import pack
from trackside.wire import Block, Clock, Hello, Identity, Totals
from trackside_daemon.history.directory import HistoryError
from trackside_daemon.history.files import jsonl
from trackside_daemon.history.files.jsonl import HOST, JsonLines, folder
from trackside_daemon.history.sanitize import clean
from trackside_daemon.model.records import (
    Alert,
    AlertNote,
    BatchIngested,
    Event,
    MachineSample,
    Notified,
    Record,
    RunState,
    SessionOpened,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SESSION = b"s" * 16
SHIFT = 1_700_000_000_000_000_000

AWKWARD = [
    *("", ".", "..", "../../etc", "/etc/passwd", "a/b", "a_b", "a\0b", ".hidden", "-rf", "host", "host/", "HOST"),
    *("x" * 300, "x" * 301, "ü" * 300, "日本", "a b", "a\nb", "\ud800", "run", "_", "*", "con", "a:b", "a?b"),
]


def opened(
    run: str = "r1", session: bytes = SESSION, *, attempt: int = 0, rank: int = 0, config: str = "", **more: Any
) -> SessionOpened:
    identity = Identity(run=run, name="asked", rank=rank, world=2, host="node", pid=7)
    hello = Hello(identity, Clock(0, 0), SHIFT, Totals(), config=config, tags=("a", "b"), **more)
    return session_opened(session, hello, "train", attempt, 1700000000.1234567, offset=0.25)


def ingested(
    steps: dict[int, dict[str, float]], session: bytes = SESSION, times: tuple[int, ...] = ()
) -> BatchIngested:
    blocks = [
        Block(
            list(values), pack("q", [step]), pack("q", [times[row] if times else row]), pack("d", list(values.values()))
        )
        for row, (step, values) in enumerate(steps.items())
    ]
    return batch_ingested(session, 1, blocks, SHIFT)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def steps(path: Path) -> list[int]:
    return [line["step"] for line in lines(path)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory for the lines, which does not exist yet."""
    return tmp_path / "out" / "lines"


@pytest.fixture
def start(directory: Path) -> Iterator[Callable[..., JsonLines]]:
    """A function that starts a writer; the writers are closed when the test ends."""
    begun: list[JsonLines] = []

    def begin(**settings: int) -> JsonLines:
        begun.append(JsonLines(directory, **settings))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()


def test_a_pushed_row_is_a_line(start: Callable[..., JsonLines], directory: Path) -> None:
    start().write([opened(), ingested({12: {"loss": 2.5}}, times=(123_456_499,))])
    assert (directory / "r1" / "samples.jsonl").read_text() == (
        '{"attempt":0,"rank":0,"step":12,"time":1700000000.123456,"values":{"loss":2.5}}\n'
    )


def test_a_block_has_a_line_for_each_row(start: Callable[..., JsonLines], directory: Path) -> None:
    block = Block(["a", "b"], pack("q", [1, 2]), pack("q", [0, 500]), pack("d", [1, 2, 3, 4]))
    start().write([opened(), batch_ingested(SESSION, 1, [block], SHIFT)])
    written = lines(directory / "r1" / "samples.jsonl")
    assert [line["values"] for line in written] == [{"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 4.0}]
    assert [line["time"] for line in written] == [1700000000.0, 1700000000.000001]


def test_nan_and_infinities_are_texts_and_large_numbers_are_numbers(
    start: Callable[..., JsonLines], directory: Path
) -> None:
    values = {"a": float("nan"), "b": float("inf"), "c": float("-inf"), "d": 1e308, "e": 1e308}
    start().write([opened(), ingested({1: values}), ingested({2: {"d": 1e308, "e": 1e308}})])
    first, second = (line["values"] for line in lines(directory / "r1" / "samples.jsonl"))
    assert first == {"a": "nan", "b": "inf", "c": "-inf", "d": 1e308, "e": 1e308}
    assert second == {"d": 1e308, "e": 1e308}


def test_a_session_belongs_to_the_run_and_rank_that_opened_it(start: Callable[..., JsonLines], directory: Path) -> None:
    other = b"t" * 16
    to = start()
    to.write([opened("a", attempt=2, rank=1), opened("b", other)])
    to.write([ingested({1: {"x": 1}}), ingested({2: {"x": 1}}, other)])
    assert [(line["attempt"], line["rank"], line["step"]) for line in lines(directory / "a" / "samples.jsonl")] == [
        (2, 1, 1)
    ]
    assert steps(directory / "b" / "samples.jsonl") == [2]


def test_sessions_that_were_silent_for_long_are_forgotten(start: Callable[..., JsonLines], directory: Path) -> None:
    to, one = start(), opened("more", b"m" * 16)
    ids = (b"%016d" % number for number in range(jsonl.SESSIONS - 1))
    others = (replace(one, session=one.session._replace(id=id_)) for id_ in ids)
    silent, lively = opened("silent", b"s" * 16), opened("lively", b"l" * 16)
    to.write([lively, silent, lively, *others, lively, silent])
    assert [len(lines(directory / run / "runs.jsonl")) for run in ("lively", "silent")] == [1, 2]


def test_messages_without_steps_make_no_file(start: Callable[..., JsonLines], directory: Path) -> None:
    start().write([batch_ingested(SESSION, 1)])
    assert list(directory.iterdir()) == []


def test_a_run_has_a_line_when_it_opens_and_one_for_each_state(
    start: Callable[..., JsonLines], directory: Path
) -> None:
    start().write([clean(opened(config='{"lr": 0.1, "api_key": "x"}', total_steps=9)), RunState("r1", 0, "running")])
    start().write([RunState("r1", 0, "failed", "ValueError", 1700000009.5)])
    run, *states = lines(directory / "r1" / "runs.jsonl")
    assert (run["run"], run["name"], run["attempt"], run["rank"], run["world"]) == ("r1", "train", 0, 0, 2)
    assert (run["time"], run["started"], run["clock_offset"]) == (1700000000.123457, 1700000000.0, 0.25)
    assert (run["tags"], run["total_steps"], run["host"]) == (["a", "b"], 9, "node")
    assert run["config"] == {"lr": 0.1, "api_key": "[redacted]"}
    assert states == [
        {"run": "r1", "attempt": 0, "state": "running", "cause": "", "ended": None},
        {"run": "r1", "attempt": 0, "state": "failed", "cause": "ValueError", "ended": 1700000009.5},
    ]


def test_a_client_that_sends_hello_again_is_not_written_again(start: Callable[..., JsonLines], directory: Path) -> None:
    start().write([opened(), opened(), opened(attempt=1)])
    assert [line["attempt"] for line in lines(directory / "r1" / "runs.jsonl")] == [0, 1]


@pytest.mark.parametrize(
    ("config", "stored"),
    [
        ("", None),
        ('{"x": NaN}', {"x": "nan"}),
        ("not json, password=x", "not JSON"),
        ('"\\ud800"', "?"),
        (str(2**70), 2**70),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_any_configuration_can_be_written(
    start: Callable[..., JsonLines], directory: Path, config: str, stored: Any
) -> None:
    start().write([clean(opened(config=config))])
    assert lines(directory / "r1" / "runs.jsonl")[0]["config"] == stored


def test_events_and_alerts_of_a_run_are_beside_its_samples(start: Callable[..., JsonLines], directory: Path) -> None:
    records: list[Record] = [
        Event(
            "r1",
            0,
            1700000001.5,
            "checkpoint",
            0,
            7,
            {"path": "/x", "seconds": float("nan"), "token": "a" * 20},
        ),
        Alert("LossSpike", "warning", 1700000002.0, "r1", {"rank": "0"}, "a spike", "see password=x"),
    ]
    start().write(list(map(clean, records)))
    assert lines(directory / "r1" / "events.jsonl") == [
        {
            "run": "r1",
            "attempt": 0,
            "rank": 0,
            "step": 7,
            "time": 1700000001.5,
            "kind": "checkpoint",
            "fields": {"path": "/x", "seconds": "nan", "token": "[redacted]"},
        }
    ]
    assert lines(directory / "r1" / "alerts.jsonl") == [
        {
            "alert": "LossSpike",
            "severity": "warning",
            "run": "r1",
            "labels": {"rank": "0"},
            "started": 1700000002.0,
            "ended": None,
            "summary": "a spike",
            "description": "see password=[redacted]",
            "evidence": {},
        }
    ]


def test_a_notification_has_its_fields_by_name(start: Callable[..., JsonLines], directory: Path) -> None:
    sent = {"slack": Notified("critical", "loss rose"), "mail": Notified("warning", "loss rose", over=True)}
    start().write([AlertNote("LossSpike", 1700000002.0, "r1", notified=sent)])
    assert lines(directory / "r1" / "alerts.jsonl")[0]["notified"] == {
        "slack": {"severity": "critical", "summary": "loss rose", "over": False},
        "mail": {"severity": "warning", "summary": "loss rose", "over": True},
    }


def test_what_is_about_the_machine_is_under_host(start: Callable[..., JsonLines], directory: Path) -> None:
    values = {'trackside_gpu_power_watts{gpu="0"}': 250.5, "x": float("nan")}
    start().write(
        [MachineSample(1700000000.0000004, values), Alert("GpuLost", "critical", 1.0, ended=2.0), opened(HOST)]
    )
    assert lines(directory / "host" / "samples.jsonl") == [{"time": 1700000000.0, "values": {**values, "x": "nan"}}]
    assert lines(directory / "host" / "alerts.jsonl")[0]["ended"] == 2.0
    assert not (directory / "host" / "runs.jsonl").exists()


def test_files_and_folders_are_this_users_alone(start: Callable[..., JsonLines], directory: Path) -> None:
    before = os.umask(0)
    try:
        start().write([opened()])
    finally:
        os.umask(before)
    modes = [directory.parent, directory, directory / "r1", directory / "r1" / "runs.jsonl"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in modes] == [0o700, 0o700, 0o700, 0o600]


@pytest.mark.parametrize("run", ["r1", "slurm-12345.0", "launch-10.0.0.1-29500-17-4711", "0123456789ab", "_x"])
def test_an_ordinary_id_is_its_folder(run: str) -> None:
    assert folder(run) == run


@given(st.text())
@example("x" * 300)
def test_a_folder_is_one_safe_component_whatever_the_id(run: str) -> None:
    name = folder(run)
    assert 0 < len(name) <= 128
    assert name.isascii()
    assert name.replace("_", "").replace(".", "").replace("-", "").isalnum() or set(name) <= set("_-.")
    assert name[0] not in ".-"
    assert name != HOST


def test_no_two_ids_share_a_folder() -> None:
    ids = [*AWKWARD, *map(folder, AWKWARD), *(folder(folder(run)) for run in AWKWARD)]
    assert len({folder(run) for run in ids}) == len(set(ids))


@pytest.mark.parametrize("run", AWKWARD)
def test_every_id_has_its_file_below_the_directory(
    start: Callable[..., JsonLines], directory: Path, tmp_path: Path, run: str
) -> None:
    start().write([opened(run), ingested({1: {"x": 1}})])
    (below,) = directory.iterdir()
    assert below.name == folder(run)
    assert sorted(path.name for path in below.iterdir()) == ["runs.jsonl", "samples.jsonl"]
    assert lines(below / "runs.jsonl")[0]["run"] == run
    assert list(tmp_path.iterdir()) == [directory.parent]


def test_a_full_file_is_rotated_and_nothing_is_lost(start: Callable[..., JsonLines], directory: Path) -> None:
    to = start(rotate_bytes=200)
    to.write([opened()])
    for step in range(10):
        to.write([ingested({step: {"x": 1}})])
    folder_of_run = directory / "r1"
    samples = [folder_of_run / f"samples.{number}.jsonl" for number in range(1, 5)] + [folder_of_run / "samples.jsonl"]
    assert [steps(path) for path in samples] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert all(path.stat().st_size <= 200 for path in samples)


def test_one_batch_may_fill_several_files_and_a_long_line_has_its_own(
    start: Callable[..., JsonLines], directory: Path
) -> None:
    to = start(rotate_bytes=200)
    to.write([opened(), ingested({1: {"x": 1}, 2: {"y" * 300: 1}, 3: {"x": 1}, 4: {"x": 1}, 5: {"x": 1}})])
    written = [directory / "r1" / f"samples{number}.jsonl" for number in (".1", ".2", ".3", "")]
    assert [steps(path) for path in written] == [[1], [2], [3, 4], [5]]


def test_rotation_continues_behind_the_highest_number(start: Callable[..., JsonLines], directory: Path) -> None:
    (directory / "r1").mkdir(parents=True)
    for name in ("samples.9.jsonl", "samples.10.jsonl", "samples.x.jsonl", "events.99.jsonl"):
        (directory / "r1" / name).touch()
    to = start(rotate_bytes=100)
    to.write([opened(), ingested({1: {"x": 1}}), ingested({2: {"x": 1}})])
    assert steps(directory / "r1" / "samples.11.jsonl") == [1]


def test_a_restart_continues_in_the_same_file(start: Callable[..., JsonLines], directory: Path) -> None:
    for step in (1, 2):
        to = start()
        to.write([opened(), ingested({step: {"x": 1}})])
        to.close()
        to.close()
    assert steps(directory / "r1" / "samples.jsonl") == [1, 2]


def test_it_writes_on_after_a_close(start: Callable[..., JsonLines], directory: Path) -> None:
    to = start()
    to.write([opened(), ingested({1: {"x": 1}})])
    to.close()
    to.write([ingested({2: {"x": 1}})])
    assert steps(directory / "r1" / "samples.jsonl") == [1, 2]


def test_what_a_crash_tore_is_ended_before_the_next_line(start: Callable[..., JsonLines], directory: Path) -> None:
    (directory / "r1").mkdir(parents=True)
    (directory / "r1" / "samples.jsonl").write_text('{"attempt":0,"ra')
    start().write([opened(), ingested({2: {"x": 1}})])
    torn, whole = (directory / "r1" / "samples.jsonl").read_text().splitlines()
    assert torn == '{"attempt":0,"ra'
    assert json.loads(whole)["step"] == 2


def test_a_disk_that_fills_within_a_line_leaves_no_half_of_it(start: Callable[..., JsonLines], directory: Path) -> None:
    to = start()
    to.write([opened(), ingested({1: {"x": 1}})])
    samples = directory / "r1" / "samples.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (samples.stat().st_size + 20, limits[1]))
    try:
        with pytest.raises(OSError, match=r"r1/samples\.jsonl"):
            to.write([ingested({2: {"x": 1}})])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert steps(samples) == [1]
    to.write([ingested({3: {"x": 1}})])
    assert steps(samples) == [1, 3]


def test_a_torn_line_that_cannot_be_removed_is_ended(
    start: Callable[..., JsonLines], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = start()
    to.write([opened(), ingested({1: {"x": 1}})])
    write = os.write

    def full(file: int, data: bytes) -> int:
        if len(data) <= 20:
            raise OSError(28, "No space left on device")
        return write(file, data[: len(data) - 20])

    def fail(_file: int, _size: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        patch.setattr("os.ftruncate", fail)
        with pytest.raises(OSError, match="No space left"):
            to.write([ingested({2: {"x": 1}})])
    to.write([ingested({3: {"x": 1}})])
    first, torn, last = (directory / "r1" / "samples.jsonl").read_text().splitlines()
    assert (json.loads(first)["step"], json.loads(last)["step"]) == (1, 3)
    assert torn.startswith('{"attempt":0')


def test_one_file_that_fails_does_not_cost_the_others_theirs(start: Callable[..., JsonLines], directory: Path) -> None:
    (directory / "r1" / "samples.jsonl").mkdir(parents=True)
    with pytest.raises(IsADirectoryError, match=r"r1/samples\.jsonl"):
        start().write(
            [opened(), ingested({1: {"x": 1}}), Event("r1", 0, 1.0, "resume"), MachineSample(1.0, {"x": 1.0})]
        )
    assert len(lines(directory / "r1" / "events.jsonl")) == 1
    assert len(lines(directory / "host" / "samples.jsonl")) == 1


def test_a_file_that_is_deleted_is_begun_anew(start: Callable[..., JsonLines], directory: Path) -> None:
    to = start()
    to.write([opened(), ingested({1: {"x": 1}})])
    for path in (directory / "r1").iterdir():
        path.unlink()
    (directory / "r1").rmdir()
    to.write([ingested({2: {"x": 1}})])
    assert steps(directory / "r1" / "samples.jsonl") == [2]


def test_a_link_in_a_files_place_is_not_followed(
    start: Callable[..., JsonLines], directory: Path, tmp_path: Path
) -> None:
    (directory / "r1").mkdir(parents=True)
    (directory / "r1" / "runs.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"r1/runs\.jsonl"):
        start().write([opened()])
    assert not (tmp_path / "elsewhere").exists()


def test_no_more_files_are_open_than_allowed_and_all_lines_are_there(
    start: Callable[..., JsonLines], directory: Path
) -> None:
    to = start(open_files=4)
    sessions = [number.to_bytes(16, "big") for number in range(10)]
    to.write([opened(f"r{number}", session) for number, session in enumerate(sessions)])
    for step in range(3):
        to.write([ingested({step: {"x": 1}}, session) for session in sessions])
    assert held_open(directory) == {f"{directory}/r{number}/samples.jsonl" for number in range(6, 10)}
    assert [steps(directory / f"r{number}" / "samples.jsonl") for number in range(10)] == [[0, 1, 2]] * 10
    to.close()
    assert held_open(directory) == set()


def held_open(directory: Path) -> set[str]:
    """Return the files below a directory that this process has open."""
    files = {str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.exists()}
    return {file for file in files if file.startswith(str(directory))}


def test_a_directory_that_cannot_be_had_is_reported_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HistoryError, match=r"file: .*--storage\.jsonl=DIR"):
        JsonLines(tmp_path / "file")


def test_each_gpu_has_a_flat_line_in_the_file_of_its_day_and_old_days_go(
    start: Callable[..., JsonLines], directory: Path
) -> None:
    values = {
        'trackside_gpu_utilization_ratio{gpu="0",uuid="G"}': 0.95,
        'trackside_gpu_clock_hertz{domain="sm",gpu="0",uuid="G"}': 1.4e9,
        'trackside_gpu_info{gpu="0",name="H200",uuid="G"}': 1.0,
        'trackside_gpu_power_watts{gpu="1",uuid="H"}': 320.0,
        'trackside_gpu_process_memory_bytes{gpu="1",pid="7",uuid="H"}': 3.0,
        "trackside_load1": 1.0,
    }
    writer = start()
    for day in range(jsonl.DAYS + 1):
        writer.write([MachineSample(1_700_000_000.25 + 86_400 * day, values)])
    kept = sorted((directory / "host").glob("gpu_metrics_*"))
    assert [path.name for path in kept[:2]] == ["gpu_metrics_20231115.jsonl", "gpu_metrics_20231116.jsonl"]
    assert len(kept) == jsonl.DAYS
    assert lines(kept[0]) == [
        {
            "timestamp": "2023-11-15T22:13:20.250000Z",
            "gpu_index": 0,
            "uuid": "G",
            "utilization_ratio": 0.95,
            "clock_hertz_sm": 1.4e9,
        },
        {"timestamp": "2023-11-15T22:13:20.250000Z", "gpu_index": 1, "uuid": "H", "power_watts": 320.0},
    ]


def test_the_newest_full_files_are_kept(start: Callable[..., JsonLines], directory: Path) -> None:
    writer = start(rotate_bytes=10)
    writer.write([opened()])
    for step in range(jsonl.KEPT + 5):
        writer.write([ingested({step: {"x": 1}})])
    kept = {"samples.jsonl", *(f"samples.{number}.jsonl" for number in range(5, jsonl.KEPT + 5))}
    assert {path.name for path in (directory / "r1").glob("samples*")} == kept

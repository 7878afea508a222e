"""Checkpoints are found, judged once they are stable, and published with their alerts and families."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from checkpoints.following import WALL, Following, record_of
from processes import DEADLINE

from trackside.checkpoints.file_names import checkpoint_of
from trackside_daemon.checkpoints import directories
from trackside_daemon.checkpoints.audit import files
from trackside_daemon.checkpoints.audit.request import MODULE, REFUSED, Audited, AuditRequest, Scanned, ScanRequest
from trackside_daemon.checkpoints.directories import written_files
from trackside_daemon.history.checkpoint_rows import StoredCheckpoint
from trackside_daemon.linux.worker_call import CallWorker
from trackside_daemon.linux.worker_process import WorkerFailed
from trackside_daemon.model.checkpoint import as_json, reported_step, shape_of, step_of
from trackside_daemon.model.records import Event


def save(path: Path, content: bytes = b"w" * 9000) -> Path:
    """Write an archive, as `torch.save` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content[:50])
        archive.writestr("archive/data/0", content)
    return path


def tear(path: Path) -> Path:
    """Cut a file off."""
    os.truncate(path, path.stat().st_size - 100)
    return path


def alerts(following: Following) -> list[tuple[str, bool]]:
    """Return the checkpoints of the findings, and whether each is over."""
    return [(dict(one.labels)["checkpoint"], one.over) for one in following.findings]


@pytest.fixture
def following() -> Following:
    """A machine with one run."""
    made = Following()
    made.open()
    return made


def test_what_is_reported_is_audited_once_it_is_stable(following: Following, tmp_path: Path) -> None:
    path = save(tmp_path / "step-400.pt")
    following.report(path, 400, metrics={"loss": 0.5, "bad": "x"})
    following.wait(2)
    assert following.state(path) == "writing"
    with path.open("ab"):
        os.utime(path)  # still written
    following.wait(3)
    assert following.state(path) == "writing"
    following.wait(4)
    one = record_of(following, path)
    assert (one.state, one.step, one.format, one.good, one.metrics) == ("complete", 400, "torch", True, {"loss": 0.5})
    assert (one.bytes, one.time) == (path.stat().st_size, WALL + 1000)
    assert as_json(one)["files"] == 1
    count = len(following.auditing.requests)
    following.wait(100)
    assert len(following.auditing.requests) == count  # nothing has changed


def test_damage_counts_when_it_is_confirmed_or_no_process_writes_any_more(following: Following, tmp_path: Path) -> None:
    first, torn = save(tmp_path / "step-1.pt"), tear(save(tmp_path / "step-2.pt"))
    following.report(first, 1)
    following.wait(6)
    following.report(torn, 2)
    following.wait(20)
    assert following.state(torn) == "writing"
    following.wait(30)
    one = record_of(following, torn)
    assert (one.state, one.file) == ("damaged", "step-2.pt")
    assert one.reason.startswith("step-2.pt: ")
    third = tear(save(tmp_path / "step-3.pt"))
    following.report(third, 3)
    following.wait(2)
    following.end()  # the crash that tore it
    following.wait(6)
    assert following.state(third) == "damaged"
    assert alerts(following) == [("step-2.pt", False), ("step-3.pt", False)]
    assert [one.severity for one in following.findings] == ["warning"] * 2
    assert "the last intact one is " + str(first) in following.findings[0].description
    following.open(1)
    fourth = save(tmp_path / "step-4.pt")
    following.report(fourth, 4, 1)
    following.wait(8)
    assert sorted(alerts(following)[2:]) == [("step-2.pt", True), ("step-3.pt", True)]


def test_without_an_intact_one_it_is_critical_and_ends_when_the_file_is_deleted(
    following: Following, tmp_path: Path
) -> None:
    torn = tear(save(tmp_path / "last.pt"))
    following.report(torn)
    following.wait(45)
    (one,) = following.findings
    assert (one.severity, one.summary.partition(":")[0]) == ("critical", "run run")
    torn.unlink()
    following.wait(30)
    assert following.state(torn) == "gone"
    assert following.findings[-1].over


def test_while_another_may_be_intact_it_is_a_warning(following: Following, tmp_path: Path) -> None:
    first, torn = save(tmp_path / "step-1.pt"), tear(save(tmp_path / "step-2.pt"))
    following.auditing.fails = True
    following.report(first, 1)
    following.wait(10)  # it cannot be read
    following.auditing.fails = False
    following.report(torn, 2)
    following.wait(45)
    assert [one.severity for one in following.findings] == ["warning"]


def test_a_folder_that_no_one_declares_complete_has_time(following: Following, tmp_path: Path) -> None:
    """Shards of asynchronous writers come late."""
    folder = tmp_path / "global-9"
    save(folder / "__0_0.distcp")
    save(folder / "__1_0.distcp")
    following.report(folder / "never-seen.pt", 9)  # its directory is looked at from now on
    following.processes = []
    following.report(tmp_path / "global-8", 8)
    following.wait(200)
    assert following.state(folder) == "writing"
    (folder / ".metadata").write_bytes(b"\x80\x04__0_0.distcp__1_0.distcp.")
    following.wait(30)
    assert following.state(folder) == "complete"
    late = tmp_path / "global-10"
    save(late / "__0_0.distcp")
    following.wait(700)
    assert (following.state(late), record_of(following, late).file) == ("damaged", ".metadata")


def test_damage_that_comes_later_is_found_at_the_next_audit(tmp_path: Path) -> None:
    following = Following(again=3600)
    following.open()
    path = tmp_path / "step-5.bin"
    path.write_bytes(os.urandom(20_000))
    following.report(path, 5)
    following.wait(6)
    assert following.state(path) == "complete"
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(7000)
        file.write(b"abc")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a failing disk does it
    following.wait(60)
    assert following.state(path) == "complete"
    following.wait(3600)
    assert following.state(path) == "damaged"
    assert "though nobody has written it" in record_of(following, path).reason
    following.report(path, 5)  # the training saves it again
    following.wait(10)
    assert following.state(path) == "complete"
    with path.open("r+b") as file:
        file.write(b"abc")
    following.checkpoints.audit_again("run")
    following.wait(8)
    assert record_of(following, path).reason == "step-5.bin: 1 of its 16 parts have changed since the last audit"


def test_a_file_that_is_overwritten_is_a_new_checkpoint(following: Following, tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    times = []
    for step in (10, 20):
        save(path, os.urandom(9000))
        following.report(path, step)
        following.wait(10)
        assert (following.state(path), record_of(following, path).step) == ("complete", step)
        times.append(record_of(following, path).time)
    assert times[1] > times[0]
    save(path, os.urandom(9000))  # and nobody reports it
    following.wait(60)
    assert record_of(following, path).time > times[1]
    assert [one.state for one in following.history if one.state == "damaged"] == []


def test_checkpoints_of_a_directory_are_found_without_a_report(tmp_path: Path) -> None:
    following = Following(directories=str(tmp_path / "{run}"))
    old = save(tmp_path / "run" / "step-1.pt")
    os.utime(old, (1.0, 1.0))  # of another training
    following.open(started=1000.0)
    new, data = save(tmp_path / "run" / "step-2.pt"), tmp_path / "run" / "log.txt"
    data.write_text("no checkpoint")
    (tmp_path / "run" / "plots").mkdir()
    following.wait(60)
    assert {Path(path).name: one.found for path, one in following.records.items()} == {"step-2.pt": "directory"}
    assert (record_of(following, new).step, following.state(new)) == (2, "complete")


def test_a_file_that_a_rank_writes_is_found_and_waited_for(following: Following, tmp_path: Path) -> None:
    following.rank(os.getpid())
    path = tmp_path / "step-7.pt"
    with path.open("wb") as file, (tmp_path / "data.pt").open("wb+") as _, save(tmp_path / "read.pt").open("rb"):
        file.write(b"PK\x03\x04")
        file.flush()
        assert {one.name for one in written_files(os.getpid())} >= {"step-7.pt", "data.pt"}
        assert "read.pt" not in {one.name for one in written_files(os.getpid())}
        following.wait(60)
        assert following.state(path) == "writing"
    save(path)
    following.wait(60)
    assert (following.state(path), record_of(following, path).found) == ("complete", "open")


def test_of_the_open_files_of_a_process_only_some_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "MAX_FILES", 2)
    with ExitStack() as opened:
        for number in range(5):
            opened.enter_context((tmp_path / f"step-{number}.pt").open("wb"))
        assert len([*written_files(os.getpid())]) <= 2


def test_the_runs_of_another_user_push_out_none_of_this_one(following: Following, tmp_path: Path) -> None:
    for number in range(directories.MAX_RUNS + 5):
        following.open(run=f"other-{number}", owner="uid:12345")
    path = save(tmp_path / "step-3.pt")
    following.report(path, 3)
    following.wait(60)
    assert following.state(path) == "complete"


def test_a_file_that_is_written_again_is_of_the_attempt_that_wrote_it(following: Following, tmp_path: Path) -> None:
    path = save(tmp_path / "step-7.pt")
    following.report(path, 7)
    following.wait(60)
    following.open(attempt=1)
    following.rank(os.getpid(), attempt=1)
    with path.open("r+b"):
        following.wait(2)
    following.wait(60)
    assert (following.state(path), record_of(following, path).attempt) == ("complete", 1)


def test_the_newest_is_the_one_saved_last_whatever_the_clock_shows(following: Following, tmp_path: Path) -> None:
    sequence = 10**15
    for step, moved in ((30, 0.0), (20, 0.0), (10, -86400.0)):
        path, sequence = save(tmp_path / f"step-{step}.pt"), sequence + 1
        fields = {"path": str(path), "step": step, "sequence": sequence}
        following.accept(Event("run", 0, WALL + following.now + moved, "checkpoint", 0, 99, fields))
        following.wait(60)
    newest = max(following.records.values(), key=lambda one: one.order)
    assert (newest.step, newest.path) == (10, str(path))
    assert following.series()["last_good_checkpoint_step", "run"] == 10.0


@pytest.mark.parametrize(
    ("file", "checkpoint"),
    [
        ("/runs/step400.pt", "/runs/step400.pt"),
        ("/runs/last.ckpt", "/runs/last.ckpt"),
        ("/runs/checkpoint-400/optimizer.pt", "/runs/checkpoint-400"),
        ("/runs/checkpoint-400/global_step400/mp_rank_00_model_states.pt", "/runs/checkpoint-400/global_step400"),
        ("/runs/epoch_3/__7_0.distcp", "/runs/epoch_3"),
        ("/runs/dcp/__7_0.distcp", "/runs/dcp"),
        ("/runs/2026/epoch=1-step=400.ckpt", "/runs/2026/epoch=1-step=400.ckpt"),
        ("/runs/exp1/model_400.pt", "/runs/exp1/model_400.pt"),
        ("/runs/exp1/0000400/model.pt", "/runs/exp1/0000400"),
        ("/runs/.writing-vm-7-step-00000400/state.pt", None),
    ],
)
def test_a_file_belongs_to_a_checkpoint(file: str, checkpoint: str | None) -> None:
    assert checkpoint_of(Path(file)) == (None if checkpoint is None else Path(checkpoint))


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-00000400", 400),
        ("step-00000400.2", 400),
        ("checkpoint-50", 50),
        ("epoch=1-step=400.ckpt", 400),
        ("iter_0000070", 70),
        ("model.pt", None),
        ("llama3-8b-90.pt", 90),
    ],
)
def test_a_name_has_a_step_and_a_shape(name: str, step: int | None) -> None:
    assert step_of(name) == step
    assert shape_of("epoch=1-step=400.ckpt") == "epoch=#-step=#.ckpt"


def test_a_checkpoint_of_a_run_without_a_push_has_the_step_of_its_name() -> None:
    assert reported_step({"path": "/out/checkpoint_step_400.pt"}, None) == 400
    assert reported_step({"path": "/out/checkpoint_step_400.pt"}, 7) == 7
    assert reported_step({"path": "/out/checkpoint_step_400.pt", "step": 3}, None) == 3
    assert reported_step({"path": ["x"]}, None) is None


def test_runs_of_other_machines_and_paths_of_object_stores_are_left_alone(tmp_path: Path) -> None:
    following = Following()
    following.open(boot="another")
    following.report(save(tmp_path / "step-1.pt"), 1)
    following.open(run="here")
    following.report("s3://bucket/step-1.pt", 1, run="here")
    following.accept(*[_event({"path": path}) for path in (None, 7, "", ["a"])])
    following.wait(60)
    assert following.records == {}


def test_what_no_file_can_have_costs_only_itself(following: Following, tmp_path: Path) -> None:
    for name in (b"mixed/step-0-\xff.pt", b"ranks/step-1/\xff.pt"):
        save(tmp_path / os.fsdecode(name))
    following.open(run="here")
    for bad in ("/\ud800/a.pt", "/a\0b/step-1.pt", "/" + "a" * 5000):
        following.accept(_event({"path": bad}))
    following.accept(_event({"path": str(tmp_path / "ranks" / "step-1"), "metrics": {"loss": 10**400}}))
    path = save(tmp_path / "mixed" / "step-1.pt")
    following.report(path, 10**400, metrics={"loss": math.inf, "accuracy": 0.5})
    following.wait(60)
    one = record_of(following, path)
    assert (one.good, one.step, one.metrics) == (True, None, {"accuracy": 0.5})
    assert following.series()["last_good_checkpoint_timestamp_seconds", "run"] > 0


def test_directories_share_the_room_of_an_answer(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        for number in range(3):
            (tmp_path / place / f"{number}.pt").touch()
            (tmp_path / place / f"{number}.jpg").touch()
    request = ScanRequest(tuple(str(tmp_path / place) for place in ("a", "b")))
    places = files.scan(request, entries=4).places
    assert [len(entries) for entries in places.values()] == [2, 2]


def test_a_directory_that_hangs_stops_the_scans_of_its_run_only(following: Following, tmp_path: Path) -> None:
    following.open(run="other")
    dead, path = save(tmp_path / "dead" / "step-1.pt"), save(tmp_path / "alive" / "step-1.pt")
    following.scanning.hangs = {str(dead.parent)}
    following.report(dead, 1, run="other")
    following.report(path, 1)
    following.wait(400)
    assert (following.state(path), following.state(dead)) == ("complete", "")
    tries = [str(dead.parent) in request.places for request in following.scanning.requests]
    assert 2 <= sum(tries) <= 4 < len(tries)
    following.scanning.hangs = set()
    following.wait(500)
    assert following.state(dead) == "complete"


def test_what_appears_belongs_to_the_run_that_reports_it_or_writes_such_names(
    following: Following, tmp_path: Path
) -> None:
    following.open(run="other")
    following.report(save(tmp_path / "a-1.pt"), 1)
    following.report(save(tmp_path / "b-1.pt"), 1, run="other")
    following.wait(20)
    later = {name: save(tmp_path / f"{name}.pt") for name in ("a-2", "a-3", "b-2")}
    following.wait(20)
    assert [record_of(following, path).run for path in later.values()] == ["run", "run", "other"]
    following.report(later["a-3"], 3, run="other")
    following.wait(20)
    last = {one.run: one.state for one in following.history if one.path == str(later["a-3"])}
    assert last == {"run": "gone", "other": "complete"}
    following.end(state="finished")
    path = save(tmp_path / "b-3.pt")
    following.wait(20)
    assert record_of(following, path).run == "other"


def test_a_run_of_another_user_claims_nothing(following: Following, tmp_path: Path) -> None:
    following.open(run="other", owner="uid:12345")
    following.report(save(tmp_path / "step-1.pt"), 1, run="other")
    following.wait(5)
    following.report(tmp_path / "step-1.pt", 1)
    following.wait(20)
    path = save(tmp_path / "step-2.pt")
    following.wait(20)
    following.report(path, 2, run="other")
    following.wait(20)
    last = {one.run: one.state for one in following.history if one.path == str(path) and one.good}
    assert last == {"run": "complete"}


def test_only_a_user_s_own_files_are_listed(tmp_path: Path) -> None:
    own = save(tmp_path / "step-1.pt")
    request = ScanRequest((str(tmp_path),), (str(own), str(tmp_path)), os.getuid() + 1)
    found = files.scan(request)
    assert (found.places, found.paths) == ({str(tmp_path): []}, dict.fromkeys(request.paths, REFUSED))


def _event(fields: dict[str, Any]) -> Any:
    from trackside_daemon.model.records import Event

    return Event("here", 0, WALL, "checkpoint", 0, 1, fields)


def test_a_relative_path_is_that_of_the_training_and_another_user_s_file_is_not_read(tmp_path: Path) -> None:
    following = Following()
    following.open(directory=str(tmp_path), owner="uid:12345")
    save(tmp_path / "out" / "step-1.pt")
    following.report("out/../out/step-1.pt", 1)
    following.wait(10)
    one = record_of(following, tmp_path / "out" / "step-1.pt")
    assert (one.state, one.good, one.reason) == ("complete", False, "step-1.pt belongs to another user")


def test_the_page_has_the_counts_the_last_good_one_and_the_room(following: Following, tmp_path: Path) -> None:
    for step in (1, 2):
        following.report(save(tmp_path / f"step-{step}.pt"), step)
        following.wait(10)
    following.report(tear(save(tmp_path / "step-3.pt")), 3)
    following.wait(45)
    page = following.series()
    assert page["stored_checkpoints", "run", "complete"] == 2
    assert page["stored_checkpoints", "run", "damaged"] == 1
    assert page["last_good_checkpoint_step", "run"] == 2
    assert page["last_good_checkpoint_timestamp_seconds", "run"] == WALL + 1010
    size = (tmp_path / "step-2.pt").stat().st_size
    assert page["next_checkpoint_bytes", "run"] == size
    disk = os.statvfs(tmp_path)
    assert page["checkpoint_room_ratio", "run", str(tmp_path)] == pytest.approx(
        disk.f_bavail * disk.f_frsize / size, rel=0.1
    )
    following.end(state="finished")
    following.wait(2)
    assert following.series() == {}


def test_another_daemon_continues_where_this_one_ended(following: Following, tmp_path: Path) -> None:
    good, torn = save(tmp_path / "step-1.pt"), save(tmp_path / "step-2.pt")
    following.report(good, 1)
    following.wait(10)
    following.report(torn, 2)
    following.wait(1)
    tear(torn)  # the machine crashes, and no process comes back
    later = Following()
    later.now = following.now + 100
    later.checkpoints.restore([StoredCheckpoint(one, "name", "uid:0") for one in following.records.values()])
    later.wait(30)
    assert later.state(torn) == "writing"  # its process may come back
    later.wait(60)
    assert later.state(torn) == "damaged"
    assert [request.path for request in later.auditing.requests] == [str(torn)]  # the other one was read before


def test_a_reader_that_dies_is_no_damage(following: Following, tmp_path: Path) -> None:
    following.auditing.fails = True
    path = save(tmp_path / "step-1.pt")
    following.report(path, 1)
    following.wait(10)
    one = record_of(following, path)
    assert (one.state, one.good) == ("complete", False)
    assert one.reason == "the process that reads it failed: it was killed: Killed"


def test_the_process_answers_ends_and_is_limited(tmp_path: Path) -> None:
    path = save(tmp_path / "step-1.pt")
    auditing, process = CallWorker(MODULE, Audited, memory=1 << 29), CallWorker(MODULE, Scanned, memory=1 << 29)
    audited = auditing.ask(AuditRequest(str(path)), DEADLINE)
    assert (audited.format, audited.problem) == ("torch", "")
    assert process.ask(ScanRequest((str(tmp_path),), (str(path),)), DEADLINE).paths[str(path)] is not None
    pid = process.pid
    assert pid is not None
    assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    subprocess.run([sys.executable, "-c", f"import os, signal; os.kill({pid}, signal.SIGKILL)"], check=True)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(WorkerFailed, match="it was killed"):
        process.begin(ScanRequest(), DEADLINE)
    assert process.ask(ScanRequest(), DEADLINE).places == {}  # of another one
    process.end()
    assert process.poll() is None
    with pytest.raises(WorkerFailed, match="it took longer than 0 s"):
        auditing.ask(AuditRequest(str(path), rate=1.0), 0.0)

"""Files of a hostile training that become large in memory, or take long: they cost their worker, and no other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from checkpoints.following import Following
from checkpoints.test_checkpoints import save
from histories import history
from hostile_trainings import HEADERS, archive, header, trace
from process_endings import MEMORY_BYTES, memory_cgroup
from processes import DEADLINE, eventually
from scripted_recorder import CapturesHarness

from trackside.wire import ProfilePlan
from trackside_daemon.captures.automatic import PlannedCaptures
from trackside_daemon.captures.captures import CaptureError, CaptureRequest
from trackside_daemon.captures.kinds.profile import started, summarize
from trackside_daemon.checkpoints.audit.request import MODULE, Audited, AuditRequest
from trackside_daemon.linux.worker_call import CallWorker
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.model.state import State

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKER = 256 << 20  # a quarter of the unit's MemoryMax


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[CapturesHarness]:
    """Captures of runs that wait until they are released."""
    with history(tmp_path) as one:
        made = CapturesHarness(one.database, one.writer)
        made.recorder.released.clear()
        yield made
        made.recorder.released.set()
        made.captures.stop()


def audited(path: Path) -> Audited:
    with CallWorker(MODULE, Audited, memory=WORKER) as worker:
        return worker.ask(AuditRequest(str(path)), DEADLINE)


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_unpacks_to_gigabytes_is_refused_within_the_limit(tmp_path: Path, name: str) -> None:
    path = tmp_path / "step-1.safetensors"
    path.write_bytes(header(name))
    answer = audited(path)
    assert (
        answer.problem == f"{path.name}: its header is damaged" or answer.unread == "reading it needs too much memory"
    )


def test_an_archive_with_members_that_unpack_a_thousandfold_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "step-1.pt"
    archive(path, 4, 16)
    answer = audited(path)
    assert answer.unread == "its members unpack to more than 32 times its size"
    assert not answer.problem


def test_a_file_of_holes_does_not_keep_the_process_busy(tmp_path: Path) -> None:
    path = tmp_path / "step-1.bin"
    path.touch()
    os.truncate(path, 1 << 42)
    assert audited(path).unread == "step-1.bin consists of holes"


def test_users_take_turns_and_one_with_a_failed_audit_goes_to_the_end(tmp_path: Path) -> None:
    following = Following()
    own, other = os.getuid(), 12345
    for run, user in (("bad", other), ("good", own)):
        following.open(run=run, owner=f"uid:{user}")
    for number in range(4):
        for run in ("good", "bad"):
            path = tmp_path / f"{run}{number}" / "step-1.pt"
            path.parent.mkdir()
            save(path)
            following.report(path, number, run=run)
    following.wait(60)
    users = [
        Path(request.path).parent.name.rstrip("0123456789")
        for request in following.auditing.requests
        if isinstance(request, AuditRequest)
    ]
    assert users[:4] in (["good", "bad"] * 2, ["bad", "good"] * 2)


@pytest.mark.parametrize("events", [400_000, 4_300_000])
def test_a_trace_of_too_many_events_is_refused_before_it_becomes_gigabytes(tmp_path: Path, events: int) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(trace(events))
    with started(WORKER) as worker:
        summary = summarize(worker, {0: path}, 1)
    assert not summary["ranks"]
    assert "record fewer steps" in summary["failed"]["0"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a cgroup")
def test_the_kernel_kills_the_worker_and_not_the_daemon_when_memory_is_short(tmp_path: Path) -> None:
    with memory_cgroup(f"trackside-bombs-{os.getpid()}") as join:
        process = CallWorker(MODULE, Audited, memory=2 * MEMORY_BYTES)
        path = tmp_path / "step-1.safetensors"
        path.write_bytes(header("objects"))
        process.begin(AuditRequest(str(path)), DEADLINE)
        join.write_text(str(process.pid))
        score = Path(f"/proc/{process.pid}/oom_score_adj")
        eventually(lambda: score.read_text() == "1000\n")
        process.end()


def test_a_person_may_capture_while_automatic_captures_of_all_users_run(harness: CapturesHarness) -> None:
    harness.owners = {f"run{number}": f"uid:{number}" for number in range(9)}
    captures = harness.captures
    for number in range(3):
        captures.begin(CaptureRequest(f"run{number}", 0, trigger="plan"))
    for run in ("run1", "run5"):
        with pytest.raises(CaptureError, match="another automatic capture"):
            captures.begin(CaptureRequest(run, 0, trigger="alert"))
    captures.begin(CaptureRequest("run1", 0, trigger="person"))


@pytest.mark.parametrize(("owner", "of_others", "asked"), [("own", False, 1), ("uid:1", False, 0), ("", False, 0), ("uid:1", True, 1)])  # fmt: skip
def test_only_the_daemons_user_plans_profiles_unless_a_setting_opens_them(
    owner: str, of_others: bool, asked: int
) -> None:
    plan = ProfilePlan(steps=1)
    owner = f"uid:{os.getuid()}" if owner == "own" else owner
    process = RankProcess("run", "run", 0, 0, 0, "", 1, plan=plan, owner=owner)
    requests: list[CaptureRequest] = []
    state = State(4)
    state.update(Batch("training", [Sample(f.STEPS, ("run", "0"), 1000.0)]))
    planned = PlannedCaptures(requests.append, lambda: [process], state, None, of_others=of_others)  # type: ignore[arg-type]
    planned.tick()
    assert len(requests) == asked

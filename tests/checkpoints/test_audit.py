"""The audit finds damaged checkpoints of all formats with the right file, and blames no good one."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import zipfile
from typing import TYPE_CHECKING

import pytest
from processes import require

from trackside_daemon.checkpoints.audit.audit import audit
from trackside_daemon.checkpoints.audit.files import PIECE, SMALL, FileReader, scan
from trackside_daemon.checkpoints.audit.request import AuditRequest, ScanRequest

require("torch")
require("safetensors")

import torch  # noqa: E402  not where it is missing
from checkpoints.formats import DAMAGES, FORMATS, as_dcp, as_torch, as_transformers, copied, flipped, sizes  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from trackside import Checkpoints  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trackside_daemon.checkpoints.audit.request import Audited

EACH = 12
"""Damaged checkpoints of each of the five formats."""


def audited(path: Path, before: Audited | None = None, previous: Audited | None = None, **more: bool) -> Audited:
    """Audit a checkpoint, given the audits of it and of the one before it."""
    known = {} if previous is None else sizes(previous)
    return audit(AuditRequest(str(path), before=() if before is None else before.files, previous=known, **more))


@pytest.mark.parametrize("name", FORMATS)
def test_each_damage_is_found_with_its_file(name: str, tmp_path: Path) -> None:
    """A bit of a format without checksums of its own is found by those of the audit before; all others at first sight."""
    chance = random.Random(name)
    good = FORMATS[name](tmp_path, 100)
    first = audited(good)
    missed = []
    for number in range(EACH):
        damage = DAMAGES[number % len(DAMAGES)]
        folder = tmp_path / str(number)
        folder.mkdir()
        path = copied(good, folder)
        seen = audited(path) if damage is flipped and name in {"safetensors", "transformers"} else None
        file = damage(path, chance)
        found = audited(path, seen, first)
        if not found.problem or found.file != file:
            missed.append((damage.__name__, file, found))
    assert missed == []


def test_no_good_one_is_blamed(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    for name, write in FORMATS.items():
        folder = tmp_path / name
        folder.mkdir()
        before: Audited | None = None
        for seed in range(100, 100 + count(10, 40)):
            path = write(folder, seed)
            found = audited(path, previous=before)
            assert (found.problem, found.unread, found.gone, found.format) == ("", "", False, name)
            assert audited(path, found).problem == ""
            before = found


def test_a_bit_that_flips_later_is_found_whatever_the_file_s_modification_time(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.randn(100, 100)}, path)
    first = audited(path)
    times = path.stat()
    for clock in ((times.st_atime_ns, times.st_mtime_ns), (times.st_atime_ns, times.st_mtime_ns + 10**9)):
        flipped_at = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(20_000)
            file.write(bytes([flipped_at[20_000] ^ 4]))
        os.utime(path, ns=clock)
        assert "last audit" in audited(path, first).problem
        path.write_bytes(flipped_at)
    save_file({"a": torch.randn(100, 100)}, path)  # written anew, as every file of the training that is overwritten
    assert audited(path, first).problem == ""
    with path.open("r+b") as file:
        file.seek(20_000)
        file.write(b"abc")
    assert audited(path, first, rewritten=True).problem == ""  # the training says so itself


def test_checksums_that_pytorch_left_out_are_no_damage(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        path = as_torch(tmp_path, 1)
    finally:
        torch.serialization.set_crc32_options(True)
    found = audited(path)
    assert (found.problem, len(found.files[0].sums)) == ("", 16)
    with zipfile.ZipFile(path) as archive:
        assert {one.CRC for one in archive.infolist()} == {0}


def test_more_data_than_the_header_describes_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(4)}, path)
    path.write_bytes(path.read_bytes() + b"\0")
    assert "its header describes" in audited(path).problem


def test_nan_and_infinities_are_found_only_where_they_are(tmp_path: Path) -> None:
    kinds = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
    for kind in kinds:
        path = tmp_path / "model.safetensors"
        large = torch.randn(100, 77) * (1e30 if kind in {torch.float32, torch.float64, torch.bfloat16} else 10)
        save_file({"good": large.to(kind)}, path)
        assert audited(path, values=True).problem == ""
        for bad in (float("nan"), float("inf")):
            if bad == float("inf") and kind is torch.float8_e4m3fn:  # it has none
                continue
            wrong = torch.randn(100, 77)
            wrong[71, 3] = bad
            save_file({"good": large.to(kind), "wrong": wrong.to(kind)}, path)
            assert audited(path, values=True).problem == "model.safetensors: the tensor wrong has NaN or infinities"
            assert audited(path).problem == ""


def test_files_of_the_checkpoint_before_have_to_be_there_again(tmp_path: Path) -> None:
    first, second = as_transformers(tmp_path, 10), as_transformers(tmp_path, 20)
    before = audited(first)
    (second / "scheduler.pt").unlink()
    found = audited(second, previous=before)
    assert (found.file, found.problem) == ("scheduler.pt", "scheduler.pt is missing: the checkpoint before has it")
    for name, folder in (("a", "global_step10"), ("b", "global_step20")):  # DeepSpeed's, with the step in the names
        (tmp_path / name / folder).mkdir(parents=True)
        torch.save({"a": 1}, tmp_path / name / folder / "mp_rank_00_model_states.pt")
    assert audited(tmp_path / "b", previous=audited(tmp_path / "a")).problem == ""


def test_saves_of_the_helper_are_recognized_and_each_flip_is_found_at_once(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path).save({"w": torch.randn(200, 100)}, 3)
    assert path is not None
    assert (audited(path).format, audited(path).problem) == ("trackside", "")
    (path / "state.pt").write_bytes((path / "state.pt").read_bytes()[:-1])
    assert audited(path).problem.startswith("state.pt: it ends within an archive")
    (path / "checkpoint.json").unlink()
    assert "state.pt" in audited(path).problem


def test_a_whole_file_of_another_size_than_in_the_manifest_is_found(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    path, larger = (checkpoints.save({"w": torch.randn(size)}, size) for size in (100, 200))
    assert path is not None
    assert larger is not None
    (larger / "state.pt").replace(path / "state.pt")
    assert re.fullmatch(r"state.pt: it has [\d,]+ bytes instead of [\d,]+", audited(path).problem)


def test_the_last_shard_has_to_be_there(tmp_path: Path) -> None:
    save_file({"a": torch.randn(10)}, tmp_path / "model-00001-of-00002.safetensors")
    why = "model-00001-of-00002.safetensors is there"
    assert audited(tmp_path).problem == f"model-00002-of-00002.safetensors is missing: {why}"


def test_the_metadata_of_dcp_names_what_must_be_there(tmp_path: Path) -> None:
    path = as_dcp(tmp_path, 1)
    (path / "__0_1.distcp").rename(path / "__0_7.distcp")
    assert audited(path).problem == "__0_1.distcp is missing: .metadata names it"
    (path / ".metadata").unlink()
    assert audited(path).problem == ".metadata is missing: the checkpoint was never completed"


def test_what_others_put_there_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "step-1"
    folder.mkdir()
    os.mkfifo(folder / "model.pt")
    assert audited(folder).problem == "it has no files"  # an open would wait for ever
    (folder / "model.pt").unlink()
    as_torch(folder, 1)
    assert "belongs to another user" in audit(AuditRequest(str(folder), uid=12345)).unread
    (folder / "index.json").symlink_to("/nowhere")
    assert audited(folder).problem == "index.json: it is empty"
    assert audited(tmp_path / "never").gone
    os.mkfifo(folder / "pipe")
    with pytest.raises(OSError, match="not a regular file"), FileReader().open(folder / "pipe"):
        pass


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"[" * 100_000,
        b"\xff" * 100,
        b"",
        json.dumps({"weight_map": [1, 2]}).encode(),
        b'{"weight_map": {"a": 7}}',
    ],
)
def test_an_index_may_be_anything(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(text)
    (tmp_path / "model.safetensors").write_bytes(text)
    (tmp_path / ".metadata").write_bytes(text)
    (tmp_path / "checkpoint.json").write_bytes(text)
    assert audited(tmp_path).problem


def test_a_scan_lists_directories_and_sums_checkpoints_up(tmp_path: Path) -> None:
    path = as_transformers(tmp_path, 5)
    (tmp_path / "latest").symlink_to(path)
    (tmp_path / ".writing").mkdir()
    found = scan(ScanRequest((str(tmp_path), "/nowhere"), (str(path), str(tmp_path / "gone"))))
    assert [(entry.name, entry.folder) for entry in found.places[str(tmp_path)]] == [("checkpoint-5", True)]
    assert found.places["/nowhere"] == []
    listing = found.paths[str(path)]
    assert listing is not None
    assert (listing.format, listing.declared) == ("transformers", True)
    assert listing.bytes == sum(file.stat().st_size for file in path.iterdir())
    assert found.paths[str(tmp_path / "gone")] is None
    assert found.free[str(tmp_path)] > 0


def test_pieces_are_the_same_past_the_page_cache_and_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(3 * PIECE + 4097)
    path = tmp_path / "file"
    path.write_bytes(content)
    ranges = [(0, len(content)), (4095, 2 * PIECE + 1), (PIECE, PIECE + SMALL), (len(content) - 5, len(content) + 9)]

    def failing(*_: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    for fails in (False, True):
        if fails:
            monkeypatch.setattr(os, "preadv", failing)  # as of a file system that cannot do so
        with FileReader().open(path) as file:
            for begin, end in ranges:
                assert b"".join(FileReader().pieces(file, begin, end)) == content[begin:end]
            file.seek(7)
            assert file.read() == content[7:]

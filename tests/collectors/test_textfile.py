"""Text files are served, and refused, as by node_exporter; its test cases are written anew here."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from trackside_daemon.collectors import foreign, textfile
from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.foreign import ForeignFamilies
from trackside_daemon.collectors.textfile import TextfileCollector, parse
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.state import State
from trackside_daemon.web.exposition import render

if TYPE_CHECKING:
    from pathlib import Path

HISTOGRAM = """# HELP event_duration_seconds_total Query timings
# TYPE event_duration_seconds_total histogram
event_duration_seconds_total_bucket{baz="inner_eval",le="1"} 1.0
event_duration_seconds_total_bucket{baz="inner_eval",le="+Inf"} 2.0
event_duration_seconds_total_sum{baz="inner_eval"} 1.7
event_duration_seconds_total_count{baz="inner_eval"} 2.0
"""
SUMMARY = """# TYPE rpc summary
rpc{quantile="0.9"} 2.5
rpc_sum 5.0
rpc_count 3.0
"""


def page(directory: Path, files: dict[str, str], *, openmetrics: bool = False) -> list[str]:
    """Return the lines that are served of some files, without their times."""
    for name, text in files.items():
        (directory / name).write_text(text)
    state = State()
    state.update(Batch("textfile", TextfileCollector(str(directory), ForeignFamilies()).collect()))
    lines = render(state.snapshot(0.0), openmetrics=openmetrics).decode().replace(f"{directory}/", "").splitlines()
    return [line for line in lines if "trackside_textfile_mtime" not in line]


def values(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith("#") and "trackside_" not in line]


@pytest.mark.parametrize("text", [HISTOGRAM, SUMMARY], ids=["histogram", "summary"])
def test_the_series_of_histograms_and_summaries_are_served(tmp_path: Path, text: str) -> None:
    wanted = [line for line in text.splitlines() if not line.startswith("#")]
    assert sorted(values(page(tmp_path, {"a.prom": text}))) == sorted(wanted)


def test_files_are_merged_and_labels_that_a_series_lacks_are_empty(tmp_path: Path) -> None:
    lines = page(tmp_path, {"a.prom": 'events_total{foo="bar"} 10\n', "b.prom": 'events_total{baz="x"} 20\n'})
    assert lines[:4] == [
        "# HELP events_total Metric read from a.prom, b.prom",
        "# TYPE events_total untyped",
        'events_total{baz="",foo="bar"} 10.0',
        'events_total{baz="x",foo=""} 20.0',
    ]


@pytest.mark.parametrize(
    ("first", "second", "error", "text"),
    [("A help.", "A help.", 0, "A help."), ("A help.", "Other.", 1, "A help."), ("", "A help.", 0, "A help.")],
    ids=["same", "different", "missing"],
)
def test_the_first_help_text_counts(tmp_path: Path, first: str, second: str, error: int, text: str) -> None:
    files = {
        name: (f"# HELP m {about}\n" if about else "") + f'm{{file="{name}"}} 1\n'
        for name, about in (("a.prom", first), ("b.prom", second))
    }
    lines = page(tmp_path, files)
    assert f"# HELP m {text}" in lines
    assert len(values(lines)) == 2
    assert f"trackside_textfile_scrape_error {error}.0" in lines


@pytest.mark.parametrize(
    "bad",
    [
        "m 1 1395066363000\n",
        "m 1",
        "m one\n",
        "m 1_0\n",
        "m{a=1} 1\n",
        'm{a="1",a="2"} 1\n',
        'm{a="\\x"} 1\n',
        "m 1\nm 2\n",
        "m 1\n# TYPE m gauge\n",
        "# TYPE m gauge\n# TYPE m gauge\nm 1\n",
        "# HELP m a\n# HELP m b\nm 1\n",
        "# TYPE m counters\nm 1\n",
        "m 1\r\n",
        "m1.5\n",
        "# TYPE good counter\ngood 3\n",
        'good{a="1"} 3\n',
        "trackside_build_info 1\n",
        f'm{{a="{"x" * 1025}"}} 1\n',
        # A pattern that matches in two ways would need minutes for these.
        f"m{' ' * 200_000}{{\n",
        f"m {'1' * 200_000}x\n",
        f"m{{{'}1 ' * 60_000} x y z\n",
        "m{" + ",".join(f'a{number}="1"' for number in range(65)) + "} 1\n",
        "".join([f'm{{a="{number}"}} 1\n' for number in range(20_001)]),
        "".join([f'm{{a{number}="1"}} 1\n' for number in range(65)]),
        f'm{{{"a" * 1025}="1"}} 1\n',
    ],
)
def test_a_bad_file_costs_only_itself_and_is_named_once(
    tmp_path: Path, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.prom").write_text('# TYPE good gauge\ngood{a="1"} 1\n')
    (tmp_path / "z.prom").write_bytes(bad.encode())
    collector = TextfileCollector(str(tmp_path), ForeignFamilies())
    for _ in range(3):
        found = {sample.metric.name: sample.value for sample in collector.collect()}
    assert found.keys() == {"good", "trackside_textfile_scrape_error", "trackside_textfile_mtime_seconds"}
    assert found["good"] == found["trackside_textfile_scrape_error"] == 1.0
    assert [record.message.count("z.prom") for record in caplog.records if record.levelno >= logging.WARNING] == [1]
    assert "z.prom" in collector.left_out
    (tmp_path / "z.prom").write_text("m 1\n")
    assert {sample.metric.name for sample in collector.collect()} > {"good", "m"}
    assert collector.left_out == ""


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.prom")
    (tmp_path / "dir.prom").mkdir()
    (tmp_path / "link.prom").symlink_to(tmp_path / "other.txt")
    (tmp_path / "other.txt").write_text("m 1\n")  # as Kubernetes links the files of a volume
    assert values(page(tmp_path, {})) == ["m 1.0"]


def test_a_name_that_is_not_utf8_costs_only_its_file(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.prom")).write_text("m 1\n")
    assert values(page(tmp_path, {"a.prom": "a 1\n"})) == ["a 1.0"]


def test_a_hard_link_does_not_show_what_only_the_daemon_may_read(tmp_path: Path) -> None:
    directory = tmp_path / "files"
    directory.mkdir()
    for name, text, mode in (("api.token", "secret\n", 0o600), ("open.txt", "m 1\n", 0o644)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
        (directory / f"{name}.prom").hardlink_to(tmp_path / name)
    collector = TextfileCollector(str(directory), ForeignFamilies())
    assert "m" in {sample.metric.name for sample in collector.collect()}
    assert "api.token.prom" in collector.left_out
    assert "secret" not in collector.left_out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make links of other users")
def test_a_link_of_another_user_does_not_show_what_only_the_daemon_may_read(tmp_path: Path) -> None:
    directory = tmp_path / "files"
    directory.mkdir()
    for name, text in (("api.token", "secret\n"), ("open.txt", "m 1\n")):
        (tmp_path / name).write_text(text)
        (directory / f"{name}.prom").symlink_to(tmp_path / name)
        os.lchown(directory / f"{name}.prom", 65534, 65534)
    os.chown(tmp_path / "open.txt", 65534, 65534)
    collector = TextfileCollector(str(directory), ForeignFamilies())
    assert "m" in {sample.metric.name for sample in collector.collect()}
    assert "api.token.prom" in collector.left_out
    assert "secret" not in collector.left_out


def test_a_directory_without_files_has_nothing_and_a_missing_one_fails(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("m 1\n")
    with pytest.raises(NothingToCollect):
        TextfileCollector(str(tmp_path), ForeignFamilies()).collect()
    with pytest.raises(FileNotFoundError):
        TextfileCollector(str(tmp_path / "none"), ForeignFamilies()).collect()


def test_a_place_of_a_pattern_that_cannot_be_listed_costs_only_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "bad").write_text("no directory")
    (tmp_path / "good" / "a.prom").write_text("a 1\n")
    collector = TextfileCollector(f"{tmp_path}/*", ForeignFamilies())
    for _ in range(2):
        assert [sample.value for sample in collector.collect() if sample.metric.name == "a"] == [1.0]
        assert collector.left_out == f"{tmp_path}/bad: not a directory"
    assert len(caplog.messages) == 1
    (tmp_path / "bad").unlink()
    collector.collect()
    assert not collector.left_out


def test_what_is_too_large_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textfile, "FILE_BYTES", 20)
    monkeypatch.setattr(foreign, "SERIES", 2)
    files = {"a.prom": "a 1\nb 1\n", "b.prom": "c 1\n", "c.prom": "d" * 30 + " 1\n"}
    assert values(page(tmp_path, files)) == ["a 1.0", "b 1.0"]


def test_a_file_without_room_is_served_once_another_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textfile, "FILE_BYTES", 6)
    for name in "ab":
        (tmp_path / f"{name}.prom").write_text(f"{name} 1\n")
    collector = TextfileCollector(str(tmp_path), ForeignFamilies())
    for name in "ab":
        found = [sample.metric.name for sample in collector.collect()]
        assert found == ["trackside_textfile_scrape_error", "trackside_textfile_mtime_seconds", name]
        (tmp_path / "a.prom").unlink(missing_ok=True)


def test_files_beyond_the_limit_are_left_out_with_one_line_whatever_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(textfile, "FILES", 2)
    collector = TextfileCollector(str(tmp_path), ForeignFamilies())
    for name in "edcba":
        (tmp_path / f"{name}.prom").write_text(f"{name} 1\n")
        found = {sample.metric.name: sample.value for sample in collector.collect()}
    assert found.keys() >= {"a", "b"}
    assert found["trackside_textfile_scrape_error"] == 1.0
    lines = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines == [f"collector textfile: {tmp_path} beyond its first 2 files is left out: there are too many"]


@pytest.mark.parametrize("openmetrics", [False, True])
def test_the_page_is_one_that_prometheus_reads(tmp_path: Path, openmetrics: bool) -> None:
    from prometheus_client.openmetrics import parser

    files = {"a.prom": HISTOGRAM, "b.prom": SUMMARY, "c.prom": '# TYPE ended counter\nended{a="\\"\\\\\\n"} +Inf\n'}
    text = "\n".join(page(tmp_path, files, openmetrics=openmetrics)) + "\n"
    read = parser.text_string_to_metric_families if openmetrics else text_string_to_metric_families
    labels = [sample.labels for family in read(text) for sample in family.samples]
    assert {"a": '"\\\n'} in labels


@given(st.text(alphabet='ab_:{}="\\,#HELPTY \n\t1.e+-gaunfté', max_size=60))
def test_no_text_breaks_the_parser(text: str) -> None:
    with suppress(ValueError):
        found = parse(text)
        assert all(isinstance(value, float) for family in found.values() for value in family.series.values())

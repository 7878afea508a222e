"""The variables of NCCL's Inspector are set when its library is found and the daemon has a way in for its numbers."""

from pathlib import Path

import pytest

from trackside_daemon.cli.run.nccl_inspector import LIBRARY, library, variables


def test_its_library_is_found_beside_nccl_or_at_the_path_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "lib" / LIBRARY
    path.parent.mkdir()
    path.touch()
    home = {"NCCL_HOME": str(tmp_path)}
    assert library("auto", ["true"], home) == library(str(path), ["true"], {}) == str(path)
    assert library("off", ["true"], home) == ""
    assert library("auto", ["true"], {**home, "NCCL_PROFILER_PLUGIN": "mine"}) == ""
    with pytest.raises(ValueError, match="is no file"):
        library(str(tmp_path / "none.so"), ["true"], {})


def test_otlp_comes_before_text_files_and_without_either_nothing_is_set(tmp_path: Path) -> None:
    both = {"otlp_endpoint": "127.0.0.1:4318", "textfile_directory": str(tmp_path)}
    found = variables("/lib.so", both)
    assert found["OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"] == "http://127.0.0.1:4318/v1/metrics"
    assert "NCCL_INSPECTOR_PROM_DUMP" not in found
    found = variables("/lib.so", {**both, "otlp_endpoint": None})
    assert (found["NCCL_INSPECTOR_PROM_DUMP"], found["NCCL_INSPECTOR_DUMP_DIR"]) == ("1", str(tmp_path))
    assert variables("/lib.so", {"textfile_directory": "/var/lib/*/texts"}) == variables("/lib.so", {}) == {}
    assert variables("", both) == {}

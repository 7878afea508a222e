"""`trackside dashboards`: Grafana's provisioning accepts the files, and a user's files are kept."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from processes import ROOT, clean_environ, command, run_here

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OURS = {f"dashboards/trackside/{file.name}": file for file in (ROOT / "grafana" / "dashboards").glob("*.json")}
PROVIDER = "provisioning/dashboards/trackside.yml"
SOURCE = "provisioning/datasources/trackside.yml"


def run(*arguments: str | Path, before: Callable[[], None] | None = None) -> tuple[int, str, str]:
    asked = ("dashboards", *map(str, arguments))
    if before is None:
        done = run_here(*asked)
    else:
        done = subprocess.run(
            command(*asked), capture_output=True, text=True, check=False, env=clean_environ(), preexec_fn=before
        )
    return done.returncode, done.stdout, done.stderr


def written(directory: Path) -> set[str]:
    return {str(file.relative_to(directory)) for file in directory.rglob("*") if not file.is_dir()}


def read(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def test_all_files_are_written_and_printed(tmp_path: Path) -> None:
    status, printed, complaints = run(tmp_path / "new" / "grafana")
    assert (status, complaints) == (0, "")
    directory = tmp_path / "new" / "grafana"
    assert len(OURS) == 4
    assert written(directory) == {*OURS, PROVIDER, SOURCE}
    assert printed.splitlines() == [f"wrote {directory / name}" for name in (*sorted(OURS), PROVIDER, SOURCE)]
    assert all((directory / name).read_bytes() == file.read_bytes() for name, file in OURS.items())


def test_grafana_gets_the_places_of_the_dashboards_and_of_prometheus(tmp_path: Path) -> None:
    directory = tmp_path / 'a "b" $HOME: #c'
    assert run(directory, "--prometheus-url=https://user@prometheus.example:9090/a?b=$c")[0] == 0
    (provider,) = read(directory / PROVIDER)["providers"]
    assert provider["options"]["path"].replace("$$", "$") == f"{directory}/dashboards/trackside"
    (source,) = read(directory / SOURCE)["datasources"]
    assert source["url"] == "https://user@prometheus.example:9090/a?b=$$c", "Grafana reads $c as a variable"


def test_grafana_may_read_them_whatever_the_umask_is(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "grafana"

    def closed() -> None:
        os.umask(0o077)

    assert run(directory, before=closed)[0] == 0
    modes = {file: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "new", *(tmp_path / "new").rglob("*"))}
    assert modes == {file: 0o755 if file.is_dir() else 0o644 for file in modes}


def test_an_existing_directory_retains_its_mode(tmp_path: Path) -> None:
    (tmp_path / "dashboards").mkdir(mode=0o700)
    assert run(tmp_path)[0] == 0
    assert stat.S_IMODE((tmp_path / "dashboards").stat().st_mode) == 0o700


def test_a_second_time_nothing_changes(tmp_path: Path) -> None:
    run(tmp_path)
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in written(tmp_path)}
    status, printed, complaints = run(tmp_path)
    assert (status, complaints) == (0, "")
    assert [line.split()[0] for line in printed.splitlines()] == ["kept"] * len(before)
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in written(tmp_path)} == before


def test_an_upgrade_replaces_dashboards_and_retains_provisioning_unless_forced(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / SOURCE).write_text("mine")
    (tmp_path / PROVIDER).unlink()
    old, own = tmp_path / min(OURS), tmp_path / "dashboards/trackside/own.json"
    old.write_text("of a version before")
    own.write_text("{}")
    status, printed, complaints = run(tmp_path)
    assert (status, complaints) == (0, "")
    assert f"wrote {old}\n" in printed
    assert f"kept {tmp_path / max(OURS)}\n" in printed
    assert printed.endswith(
        f"wrote {tmp_path / PROVIDER}\nkept {tmp_path / SOURCE}, which differs; --force overwrites it\n"
    )
    assert old.read_bytes() == OURS[min(OURS)].read_bytes()
    assert ((tmp_path / SOURCE).read_text(), own.read_text()) == ("mine", "{}")
    assert run(tmp_path, "--force")[0] == 0
    assert "mine" not in (tmp_path / SOURCE).read_text()


def test_without_a_data_source_that_file_is_neither_made_nor_touched(tmp_path: Path) -> None:
    status, printed, _ = run(tmp_path, "--no-datasource")
    assert (status, written(tmp_path)) == (0, {*OURS, PROVIDER})
    assert SOURCE not in printed
    (tmp_path / SOURCE).parent.mkdir()
    (tmp_path / SOURCE).write_text("mine")
    assert run(tmp_path, "--no-datasource", "--force")[0] == 0
    assert (tmp_path / SOURCE).read_text() == "mine"


@pytest.mark.parametrize("url", ["prometheus:9090", "http://", "ftp://a", "http://a b", "http://a:port", "http://a\n"])
def test_a_url_that_is_none_is_refused(tmp_path: Path, url: str) -> None:
    status, printed, complaints = run(tmp_path, f"--prometheus-url={url}")
    assert (status, printed, complaints.count("\n")) == (2, "", 1)
    assert complaints.endswith("give an address such as http://127.0.0.1:9090\n")
    assert written(tmp_path) == set()


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    reported = f"trackside: {tmp_path}/file: it is no directory; give one, which is created if missing\n"
    assert run(tmp_path / "file") == (2, "", reported)


def test_no_name_is_not_the_working_directory() -> None:
    reported = "trackside: DIR is empty; give a directory, which is created if missing\n"
    assert run("") == (2, "", reported)


def test_a_link_to_nothing_is_reported(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    reported = f"it is a link to {tmp_path}/nothing, which does not exist; create that, or give another"
    assert run(tmp_path / "link") == (2, "", f"trackside: {tmp_path}/link: {reported}\n")


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "dashboards").write_text("")
    status, printed, complaints = run(tmp_path)
    assert (status, printed) == (1, "")
    assert complaints == f"trackside: {tmp_path}/{min(OURS)}: not a directory\n"


def test_a_full_disk_is_one_line_and_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    status, printed, complaints = run(tmp_path, before=full)
    assert (status, printed) == (1, "")
    assert complaints == f"trackside: {tmp_path}/{min(OURS)}: file too large\n"
    assert written(tmp_path) == set()

"""The Export page: downloaded files contain the API's samples."""

from __future__ import annotations

import csv
import json
import re
from math import isnan
from typing import TYPE_CHECKING, Any

import pytest
from end_to_end.dashboard.conftest import train
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Page
    from processes import Daemon

TRAINING = """
import time, trackside
run = trackside.init("näme / <b>", id="run")
for step in range(60):
    time.sleep(0.002)  # so that no two have the same time
    run.push({"loss": float("nan") if step == 20 else 1 / (step + 1), "lr": 0.1, "x,y": step / 3}, step=step)
"""
Samples = dict[tuple[int, str], list[tuple[int, float, float]]]


@pytest.fixture(scope="module")
def trained(shared_daemon: Daemon) -> Daemon:
    """Return a daemon with a run of two ranks."""
    for rank in ("0", "1"):
        train(shared_daemon, "-c", TRAINING, RANK=rank, WORLD_SIZE="2")
    return shared_daemon


def api(daemon: Daemon, asked: str) -> Samples:
    """Return every sample from the API."""
    found = daemon.api(f"series?run=run&points=0&{asked}").json()["series"]
    return {
        (one["rank"], one["key"]): [(step, time, float(value)) for step, time, value in one["points"]] for one in found
    }


def read(path: Path) -> Samples:
    """Return every sample of a file."""
    text = path.read_text()
    found: Samples = {}
    if path.suffix == ".json":
        for one in json.loads(text)["series"]:
            found[one["rank"], one["key"]] = [(step, time, float(value)) for step, time, value in one["points"]]
        return found
    if path.suffix == ".csv":
        rows = [(line, dict(list(line.items())[4:])) for line in csv.DictReader(text.splitlines())]
    else:
        lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
        rows = [(line, line["values"]) for line in lines if line["kind"] == "samples"]
    for line, values in rows:
        for key, value in values.items():
            if value != "":
                sample = int(line["step"]), float(line["time"]), float(value)
                found.setdefault((int(line["rank"]), key), []).append(sample)
    return found


def same(one: Samples, other: Samples) -> bool:
    return repr(sorted(one.items())) == repr(sorted(other.items()))  # by which NaN is NaN


def download(page: Page, to: Path) -> Path:
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download", exact=True).click()
    path = to / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def test_each_file_has_every_sample_of_what_was_chosen(
    trained: Daemon, open_page: Callable[..., Page], tmp_path: Path, violations: Callable[[Page], list[str]]
) -> None:
    page = open_page(trained, "/export")
    page.get_by_role("checkbox", name="näme").check()
    expect(page.get_by_text("360 samples")).to_be_visible()
    whole = download(page, tmp_path)
    assert whole.name == "näme-b.csv"
    assert same(read(whole), api(trained, "rank=all"))
    expect(page.get_by_text(re.compile("^Done: "))).to_be_visible()
    assert violations(page) == []

    page.get_by_role("checkbox", name="loss").check()
    page.get_by_role("checkbox", name="rank 1").check()
    page.get_by_label("From").fill("15")
    page.get_by_label("To").fill("24")
    page.get_by_label("To").press("Tab")
    expect(page.get_by_text("10 samples")).to_be_visible()
    expect(page).to_have_url(re.compile(r"\?run=run&key=loss&rank=1&from=15&to=24$"))
    chosen = api(trained, "rank=1&key=loss&from=15&to=24")
    for form in ("CSV", "JSON", "JSONL"):
        page.get_by_role("radio", name=re.compile(f"^{form} ")).check()
        expect(page.get_by_text(re.compile(rf"as näme-b-loss\.{form.lower()}\."))).to_be_visible()
        found = read(download(page, tmp_path))
        assert same(found, chosen)
        assert isnan(found[1, "loss"][5][2])

    page.get_by_role("radio", name=re.compile("^JSON ")).check()
    page.get_by_role("checkbox", name="Also the GPU, host").check()
    expect(page).to_have_url(re.compile(r"&resources=true$"))
    assert '"resources"' in download(page, tmp_path).read_text("utf-8")
    page.get_by_role("checkbox", name="Also the GPU, host").uncheck()

    page.get_by_label("From").fill("100")
    page.get_by_label("To").fill("")
    page.get_by_label("To").press("Tab")
    expect(page.get_by_text("The selection has no samples.")).to_be_visible()
    expect(page.get_by_role("button", name="Download", exact=True)).to_be_disabled()


def test_what_another_page_hands_over_is_chosen_and_left_to_the_command_when_it_is_too_large(
    trained: Daemon, open_page: Callable[..., Page], tmp_path: Path
) -> None:
    times = [time for _, time, _ in api(trained, "key=loss")[0, "loss"]]
    window = f"by=time&from={times[10]}&to={times[19]}"
    page = open_page(trained, f"/export?run=run&key=loss&key=x,y&rank=0&{window}&format=jsonl")
    expect(page.get_by_text("20 samples")).to_be_visible()
    assert same(read(download(page, tmp_path)), api(trained, f"key=loss&key=x,y&rank=0&{window}"))
    page.route(
        re.compile(r"/runs/run/export\?"), lambda route: route.fulfill(headers={"X-Trackside-Samples": "1000000000"})
    )
    page.reload()
    expect(page.get_by_text("1,000,000,000 samples")).to_be_visible()
    expect(page.get_by_text("trackside export run --format jsonl --output FILE")).to_be_visible()
    expect(page.get_by_role("button", name="Download", exact=True)).to_be_hidden()

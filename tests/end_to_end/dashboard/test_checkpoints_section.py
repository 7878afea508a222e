"""The checkpoints of a run, the verdict on its resume and its model, on its page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect
from processes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Page
    from processes import Daemon

TRAINING = """
import os, sys, zipfile, trackside
folder, first, last, end = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
run = trackside.init("saved", id="saved-1")
layers = [["embed", "Embedding", 4096, "float32", "cpu"], ["head", "Linear", 64, "bfloat16", "cpu"]]
run.event("model", **{"class": "Gpt", "parameters": 4160, "trainable": 64, "bytes": 16512, "modules": layers})
for step in range(first, last):
    run.push(step=step, loss=4 / step)
    if step % 10 == 0:
        path = f"{folder}/step-{step}.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data/0", os.urandom(5000))
        if end and step == 20:
            os.truncate(path, 3000)
        run.event("checkpoint", path=path)
run.finish()
"""


def test_checkpoints_the_verdict_and_the_model_are_shown(
    shared_daemon: Daemon,
    run_training: Callable[..., str],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
    tmp_path: Path,
) -> None:
    for first, last, end in ((1, 26, 1), (11, 20, 0)):
        run_training(shared_daemon, "-c", TRAINING, str(tmp_path), str(first), str(last), str(end))
    path = "runs/saved-1/checkpoints"
    eventually(
        lambda: [one["state"] for one in shared_daemon.api(path).json()["checkpoints"]] == ["complete", "damaged"]
    )
    eventually(lambda: shared_daemon.api("runs/saved-1").json()["resumes"])
    page = open_page(shared_daemon, "/runs/saved-1?tab=checkpoints")
    section = page.locator("details").filter(has=page.get_by_role("heading", name="Checkpoints", exact=True))
    expect(section.locator("summary")).to_contain_text(
        "2 checkpoints on disk, 1 damaged, the last intact one is of step 10"
    )
    expect(section.locator("tbody tr").nth(0)).to_contain_text("step-20.pt")
    expect(section.locator("tbody tr").nth(0)).to_contain_text("damagedstep-20.pt: ")
    expect(section.locator("tbody tr").nth(1)).to_contain_text("complete")
    assert violations(page) == []
    page.get_by_role("tab", name="Model").click()
    model = page.locator("details").filter(has=page.get_by_role("heading", name="Model", exact=True))
    expect(model.locator("summary")).to_contain_text("Gpt, 4.16k parameters, 16.1 KiB")
    expect(model.locator("tbody tr").nth(1)).to_have_text("headLinear64bfloat16cpu")
    page.get_by_role("tab", name="Details").click()
    attempts = page.locator("details").filter(has=page.get_by_role("heading", name="Attempts", exact=True))
    expect(attempts.locator(".run-verdict")).to_contain_text("attempt 1 goes on after step 10 of 25, ")
    assert violations(page) == []

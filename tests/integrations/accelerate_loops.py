"""Small loops with Accelerate, one after the other; prints the values that Accelerate has reported, as JSON.

python tests/integrations/accelerate_loops.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

import trackside
from trackside.integrations.accelerate import TracksideTracker

FOLDER = sys.argv[1]


def plain() -> dict[str, Any]:
    """Train with the tracker and use all of its methods; return the values to compare."""
    accelerator = Accelerator(cpu=True, log_with=TracksideTracker(tags=["small"], config={"author": "me"}))
    accelerator.init_trackers("plain", config={"width": 3})
    model, optimizer = accelerator.prepare(*made())
    trackside.observe(model, optimizer, every=1)
    losses = []
    for step in range(5):
        loss = model(torch.ones(4, 3)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        accelerator.log({"loss": loss, "note": "a text"}, step=step)
    folder = str(accelerator.save_state(f"{FOLDER}/plain"))
    tracker = accelerator.get_tracker("trackside", unwrap=True)
    tracker.push(by_hand=1.0)
    accelerator.end_training()
    return {"losses": losses, "folder": folder, "open": tracker.is_open}


def carried() -> str:
    """Train, and resume from the saved state with other accelerators; at last after the run is opened."""
    folder = ""
    for part in range(4):
        accelerator = Accelerator(cpu=True, log_with=TracksideTracker("carried" if part < 3 else "late"))
        accelerator.prepare(*made())
        if part == 1:
            accelerator.load_state(folder)
        accelerator.init_trackers("project")
        if part == 2:
            accelerator.load_state(folder)
        accelerator.log({"loss": 1.0}, step=part)
        if part == 3:
            accelerator.load_state(folder)
        folder = str(accelerator.save_state(f"{FOLDER}/carried{part}"))
        accelerator.end_training()
    state = Path(folder, "trackside.json")
    written = state.read_text()
    for hostile in ("[" * 2000, '{"run": "' + "x" * 5000):
        state.write_text(hostile)
        Accelerator(cpu=True, log_with=TracksideTracker("hostile")).load_state(folder)
    return written


def given() -> bool:
    """Log to a run that the training code has opened itself, and return whether it is open after the training."""
    run = trackside.init("given")
    accelerator = Accelerator(cpu=True, log_with=TracksideTracker("mine"))
    accelerator.init_trackers("project")
    accelerator.log({"loss": 1.0}, step=1)
    accelerator.end_training()
    goes_on = run.is_open
    run.finish("stopped")
    return goes_on


def others() -> str:
    """Run an accelerator without our tracker, and return the path of its saved state."""
    accelerator = Accelerator(cpu=True)
    accelerator.init_trackers("others")
    accelerator.log({"loss": 1.0}, step=1)
    return str(accelerator.save_state(f"{FOLDER}/others"))


def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


if __name__ == "__main__":
    torch.manual_seed(0)
    print(json.dumps({"plain": plain(), "given": given(), "others": others(), "carried": carried()}))  # noqa: T201
    failing = Accelerator(cpu=True, log_with=TracksideTracker("failing"))
    failing.init_trackers("unused")
    raise KeyError("wanted")

"""Accelerate with its tracker, as real loops: /metrics and the history have the logged values of every rank."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from diffs import added, changed, shown
from integrations.trainings import TORCHRUN, Trained, in_turn, trained
from processes import eventually, require

if TYPE_CHECKING:
    from collections.abc import Iterator

require("accelerate")

RANKS, STEPS, NAN = 2, 100, 7
EXAMPLE = (
    *TORCHRUN,
    *("{root}/examples/accelerate_loop.py", f"--steps={STEPS}", f"--nan-at={NAN}", "--folder={folder}/out"),
)
PUBLIC = "accelerate_example.py"
ARGUMENTS = (
    *(
        "--cpu",
        "--mixed_precision=bf16",
        "--with_tracking",
        "--checkpointing_steps=epoch",
        "--output_dir={folder}/states",
    ),
)
LOOPS = ("{root}/tests/integrations/accelerate_loops.py", "{folder}/loops")


@pytest.fixture(scope="module")
def looped() -> Iterator[Trained]:
    """The example on two ranks, small loops, and a public script without and with the lines that the page adds."""
    scripts = (
        (f"{{root}}/tests/public/{PUBLIC}", "--cpu", "--mixed_precision=bf16"),
        ("{folder}/changed.py", *ARGUMENTS),
    )
    texts = {"changed.py": changed(PUBLIC, shown("Accelerate"))}
    with trained(EXAMPLE, in_turn(*scripts, LOOPS), status=(0, 1), changed=texts) as found:
        yield found


@pytest.fixture(scope="module")
def printed_values(looped: Trained) -> dict[str, Any]:
    """The values that the small loops have printed."""
    return dict(json.loads(looped.printed[3].splitlines()[-1]))


def test_every_rank_pushes_what_it_logs(looped: Trained) -> None:
    [(step, loss)] = re.findall(r"step (\d+)  loss (\S+)", looped.printed[0])
    page = looped.daemon.series()
    losses = []
    for rank in range(RANKS):
        of = f'rank="{rank}",run="characters"'
        losses.append(page[f"trackside_training_loss{{{of}}}"])
        assert page[f"trackside_training_steps_total{{{of}}}"] == STEPS
        assert page[f"trackside_training_samples_total{{{of}}}"] == STEPS * 256
        assert page[f"trackside_training_progress_ratio{{{of}}}"] == 1.0
        assert page[f'trackside_training_nonfinite_total{{key="loss",{of}}}'] == 1.0
        assert page[f'trackside_training_rank_state{{{of},state="finished"}}'] == 1.0
        assert page[f'trackside_training_phase_seconds_total{{phase="checkpoint",{of}}}'] > 0
    assert int(step) == STEPS
    assert losses[0] == pytest.approx(float(loss), abs=1e-6)
    assert losses[0] != losses[1]
    assert len({page[f'trackside_training_grad_norm{{rank="{rank}",run="characters"}}'] for rank in range(RANKS)}) == 1
    assert page['trackside_alerts_total{alert="NonFinite",run="characters",severity="critical"}'] >= 1.0
    assert looped.run("characters")["world_size"] == RANKS
    assert looped.config("characters")["nan_at"] == NAN


def test_observe_acts_on_the_run_of_the_tracker(looped: Trained) -> None:
    assert looped.layers("plain") == {kind: ["weight", "bias"] for kind in ("weights", "gradients")}


def test_a_saved_state_is_a_checkpoint_that_one_rank_reports(looped: Trained, printed_values: dict[str, Any]) -> None:
    for name, step, folder in (
        ("characters", STEPS, str(looped.folder / "out")),
        ("plain", 4, printed_values["plain"]["folder"]),
    ):
        [event] = looped.events(name, "checkpoint")
        assert (event["rank"], event["step"], event["fields"]["path"]) == (0, step, folder)
        sizes = {path.name: path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()}
        whole, others = sum(sizes.values()), sizes.get("random_states_1.pkl", 0)  # which rank 1 writes when it will
        assert whole - others <= event["fields"]["bytes"] <= whole
        assert event["fields"]["seconds"] > 0
    assert Path(printed_values["others"]).is_dir()


def test_the_run_is_named_as_the_project_and_ends_with_the_training(
    looped: Trained, printed_values: dict[str, Any]
) -> None:
    plain = looped.run("plain")
    assert (plain["state"], plain["tags"], printed_values["plain"]["open"]) == ("finished", ["small"], False)
    assert looped.points("plain", "loss") == dict(enumerate(printed_values["plain"]["losses"]))
    assert looped.points("plain", "by_hand") == {4: 1.0}
    assert looped.config("plain") == {"author": "me", "width": 3}


def test_a_state_that_is_loaded_before_the_run_is_opened_continues_its_run(
    looped: Trained, printed_values: dict[str, Any]
) -> None:
    assert [one["attempt"] for one in looped.page("carried")["attempt_list"]] == [0, 1, 2]
    assert looped.points("carried", "loss") == {0: 1.0, 1: 1.0, 2: 1.0}
    late = looped.run("late")
    assert json.loads(printed_values["carried"]) == {"run": late["id"]}
    assert len(looped.page("late")["attempt_list"]) == 1


def test_a_run_that_the_user_has_opened_is_the_users(looped: Trained, printed_values: dict[str, Any]) -> None:
    assert printed_values["given"]
    assert looped.points("given", "loss") == {1: 1.0}
    assert looped.run("given")["state"] == "stopped"


def test_what_breaks_the_script_ends_the_run(looped: Trained) -> None:
    failing = eventually(lambda: (run := looped.run("failing"))["cause"] and run)
    assert (failing["state"], failing["cause"]) == ("failed", "KeyError: 'wanted'")


def test_a_script_like_accelerates_own_needs_two_lines(looped: Trained) -> None:
    assert len(added(shown("Accelerate"))) <= 3
    _, plain, changed, _ = looped.printed
    assert plain == changed
    accuracy, loss = looped.points("changed", "accuracy"), looped.points("changed", "train_loss")
    steps = enumerate((8, 16, 24))
    assert [f"epoch {epoch}: {accuracy[step]:.2f} {loss[step]:.6f}" for epoch, step in steps] == changed.splitlines()
    page = looped.daemon.series()
    assert page['trackside_training_steps_total{rank="0",run="changed"}'] == 24
    assert looped.alarms("changed") == {}
    assert [Path(one["fields"]["path"]).name for one in looped.events("changed", "checkpoint")] == [
        f"epoch_{epoch}" for epoch in range(3)
    ]
    assert looped.intact("changed") == {f"epoch_{epoch}": "accelerate" for epoch in range(3)}
    assert looped.config("changed")["batch_size"] == 64


def test_nothing_of_the_integration_has_failed(looped: Trained) -> None:
    warned = [line for text in looped.errors for line in text.splitlines() if line.startswith("trackside:")]
    way = "load the checkpoint before the run is opened, or set TRACKSIDE_RUN_ID"
    ids = [looped.run(name)["id"] for name in ("carried", "late")]
    assert warned.pop().startswith("trackside: Accelerate: the run of a checkpoint: ")
    assert warned == [
        "trackside: note: a value of type str is not a number; it is dropped, and so are further ones",
        f"trackside: the checkpoint is of run {ids[0]}, but run {ids[1]} is open; to continue the former, {way}",
    ]

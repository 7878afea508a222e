"""The quantities of reinforcement learning on the page of a run, and what its ranks did."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect
from processes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.conftest import Process
    from playwright.sync_api import Page
    from processes import Daemon

TRAINING = """
import trackside
run = trackside.init("policy", id="policy-1")
for step in range(20):
    values = {"critic/rewards/mean": step / 20, "critic/score/mean": 5.0, "train/entropy_loss": -1.5}
    run.push(step=step, **values, **{"frac_reward_zero_std": 0.25, "timing_s/gen": 3.0, "timing_s/update_actor": 1.0})
run.finish()
"""


def test_each_quantity_has_a_chart_under_one_name_and_the_roles_have_shares(
    shared_daemon: Daemon,
    start_training: Callable[..., Process],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
) -> None:
    start_training(shared_daemon, "-c", TRAINING).wait()
    eventually(lambda: shared_daemon.api("runs/policy-1").json().get("state") == "finished")
    page = open_page(shared_daemon, "/runs/policy-1?tab=learning")
    section = page.locator("details.run-section").filter(has=page.get_by_role("heading", name="Reinforcement learning"))
    expect(section.locator("summary .quiet")).to_have_text("75.0 % of the time is generation")
    expect(section.locator(".chart h3")).to_have_text(["Reward", "Entropy", "Groups with equal rewards"])
    lasts = ["critic/rewards/mean 0.95", "train/entropy_loss 1.5", "frac_reward_zero_std 25.0 %"]
    for place, last in enumerate(lasts):
        section.locator(".plot").nth(place).scroll_into_view_if_needed()
        label = re.compile(f"Last: {last} at step 19")
        expect(section.locator(".plot").nth(place)).to_have_attribute("aria-label", label)
    expect(section.locator("tbody tr")).to_have_text(
        [re.compile("^generation.*75.0 %$"), re.compile("^updates.*25.0 %$")]
    )
    assert violations(page) == []

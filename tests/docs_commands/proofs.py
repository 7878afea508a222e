"""Proofs of the commands on the pages: each command needs an entry in `PROOFS` that matches it."""

from __future__ import annotations

import re
from typing import NamedTuple


class Runs(NamedTuple):
    """A command that exits with status 0 in the sandbox, for harmless commands that need no network.

    Attributes:
        prints: A regular expression of the output.
    """

    prints: str = ""


class Serves(NamedTuple):
    """A daemon that starts and serves in the sandbox."""


class Elsewhere(NamedTuple):
    """A command that another test proves.

    Attributes:
        by: The file of the test, and ``::`` and its name where it is not the whole file.
    """

    by: str


class Needs(NamedTuple):
    """A requirement that the sandbox lacks; the page states "needs WHAT" near the command, or at its beginning.

    Attributes:
        what: A regular expression.
    """

    what: str

    def is_stated(self, near: str) -> bool:
        """Return whether the words near a command state the requirement."""
        return re.search(rf"(\b[Nn]eeds? (?!no )[^.:]*|\b[Aa]s )(?:{self.what})\b", near) is not None


Proof = Runs | Serves | Elsewhere | Needs

RUN = "tests/end_to_end/test_run_command.py"
README = "tests/documentation/test_pages.py::test_the_alert_in_the_readme_is_what_such_a_training_makes"
WHEEL = "tests/end_to_end/test_packaging.py"
SYSTEMD = "tests/deploy/test_systemd.py"
DEMO = "tests/end_to_end/test_demo.py::test_a_web_configuration_is_the_other_daemons_and_a_flag_sets_how_many_gpus_have_faults"
WEB = "tests/web/test_web_docs.py"
KUSTOMIZE = "tests/deploy/test_kubernetes.py::test_our_reader_of_kustomizations_agrees_with_kubectl"
SECRET = "tests/security/test_kubernetes.py::test_the_commands_of_the_page_make_a_secret_that_closes_metrics"
RULE_TESTS = "tests/deploy/test_rules.py::test_every_rule_fires_when_it_should_and_not_when_it_should_not"
TORCHRUN = "tests/end_to_end/test_torchrun.py::test_what_torchrun_restarts_after_a_rank_was_killed_is_the_same_run"
PLOTS = "tests/cli/test_runs.py::test_the_plots_of_a_report_are_files_of_their_own"
MAKE = "tests/documentation/test_pages.py::test_every_make_target_in_the_readme_exists"

PROOFS: list[tuple[str, Proof]] = [
    (r"python examples/language_model\.py |trackside benchmark ", Elsewhere("tests/benchmark/test_page.py")),
    (r"sudo ", Needs("root|a cluster")),
    (r"(install|systemd-sysusers|systemd-tmpfiles|cd /opt/trackside/share)\b.*trackside", Elsewhere(SYSTEMD)),
    (r"systemctl .*grafana", Needs("Grafana")),
    (r"(systemctl|usermod|userdel|rm) ", Needs("root")),
    (r"make deb", Elsewhere("tests/deploy/test_deb.py")),
    (r"python3 -c .import sqlite3", Elsewhere("tests/history/test_backup.py")),
    (r"make ", Elsewhere(MAKE)),
    (r"(\S+/)?pip (install|wheel) |python3 -m venv ", Elsewhere(WHEEL)),
    (r"export PATH=", Runs()),
    (r"ln -s ", Needs("root")),
    (r"(openssl|printf) ", Elsewhere(SECRET)),
    (r"jq ", Elsewhere("tests/history/test_jsonl.py")),
    (r"kubectl kustomize ", Elsewhere(KUSTOMIZE)),
    (r"(.*\| )?kubectl ", Needs("a cluster")),
    (r"helm ", Elsewhere("tests/deploy/test_helm.py")),
    (r"(TROUBLE=nan )?docker ", Needs("Docker|a cluster")),
    (
        r"sinfo |ssh -n |done$|sbatch|srun|export TRACKSIDE_ENDPOINT=ipc:|.* --storage\.path=trackside/",
        Needs("a cluster"),
    ),
    (r".*bcrypt|trackside \w+ --web\.", Elsewhere(WEB)),
    (r"trackside (delete|compare|export) --query |trackside runs '", Elsewhere("tests/cli/test_runs.py")),
    (r"trackside dashboards ", Elsewhere("tests/cli/test_dashboards.py")),
    (r"(COLUMNS=100 |watch --interval 5 )?trackside top\b", Elsewhere("tests/end_to_end/test_top.py")),
    (r"trackside daemon --push\.group=", Elsewhere("tests/end_to_end/test_two_users.py")),
    (r"trackside daemon .*--web\.config\.file=", Elsewhere(WEB)),
    (r"(~/trackside/bin/)?trackside daemon\b", Serves()),
    (r"trackside run --auto ", Elsewhere("tests/auto/test_public_scripts.py")),
    (r"trackside (run|import) --follow ", Elsewhere("tests/end_to_end/test_follow.py")),
    (r"trackside run ", Elsewhere(RUN)),
    (r"trackside layers train", Elsewhere("tests/cli/test_layers.py")),
    (r"trackside capture .*--layers", Elsewhere("tests/end_to_end/test_watch.py")),
    (r"trackside captures? ", Elsewhere("tests/end_to_end/test_captures.py")),
    (r"eval .*python -m trackside\.captures", Elsewhere("tests/captures/kineto/test_environment.py")),
    (r"trackside attach ", Elsewhere("tests/cli/test_attach.py")),
    (r"trackside demo\b", Elsewhere("tests/end_to_end/test_troubles.py")),
    (r"TRACKSIDE_COLLECTOR__GPU__TROUBLE=", Elsewhere(DEMO)),
    (r"trackside alerts show ", Elsewhere(README)),
    (r"trackside test-alert$", Elsewhere("tests/cli/test_alerts.py")),
    (r"trackside silence --end ", Elsewhere("tests/cli/test_alerts.py")),
    (r"export TRACKSIDE_ENDPOINT=tcp:.*|python train\.py$", Elsewhere("tests/end_to_end/test_other_machines.py")),
    (r"(TORCH_\w+=1 )?torchrun .* examples/ddp_torchrun\.py ", Elsewhere(TORCHRUN)),
    (r"promtool query instant ", Runs(r'up\{instance="127\.0\.0\.1:\d+", job="trackside".*\} => 1 @')),
    (r"curl .*-/reload$|curl (-s )?http://127.0.0.1:21790/metrics", Runs()),
    (r"curl -H .*/(stacks$|series\?|processes$)", Runs(r'^\{(?!"error")')),
    (r"echo .* \| trackside mcp$|curl -s -H .*/api/v1/mcp$", Runs(r'(?s)"result": ?\{"(tools|content)":')),
    (r"trackside checkpoints ", Elsewhere("tests/cli/test_checkpoints.py")),
    (r"export TRACKSIDE_RUN_ID=|until python train\.py ", Elsewhere("tests/end_to_end/test_checkpoints.py")),
    (r"trackside archive archive$", Runs(r"written: \d+ runs with [\d,]+ samples")),
    (r"trackside archive archive --verify$", Runs(r"verified: \d+ runs with [\d,]+ samples in \d+ files; 0 are wrong")),
    (r"trackside fleet$", Runs(r"worst 20 runs by lost GPU hours\n")),
    (r'trackside fleet "worst 20 ', Runs(r"lost_gpu_hours .*\n.*gpt-")),
    (r"trackside fleet ", Runs(r"cause|run ")),
    (r"trackside (alerts dismiss|tune|replay .*--explain)\b", Elsewhere("tests/cli/test_tune.py")),
    (r"trackside why gpt-small$", Runs(r"(?s)time: .*cost: GPUs .* EUR, .*try: .*trend per 1,000 steps: loss ")),
    (r"trackside compare .* --code$", Elsewhere("tests/client/test_code.py")),
    (r"trackside compare .* --first-difference$", Elsewhere("tests/cli/test_compare.py")),
    (r"trackside compare gpt-small gpt-wide$", Runs(r"against the baseline:\n.* step_time .*%")),
    (r"trackside show gpt-small --resources$", Runs(r"gpu utilization .* %")),
    (r"trackside report gpt-small .*--plots plots", Elsewhere(PLOTS)),
    (
        r"(?:TRACKSIDE_\w+=\S+ )?trackside (keys|rules|replay|runs|show|why|report|compare|export|import|silence) ?",
        Runs(),
    ),
    (r"/opt/trackside/bin/trackside doctor$", Elsewhere("tests/cli/test_doctor.py")),
    (r"promtool test rules \*\.test\.yml$", Elsewhere(RULE_TESTS)),
    (r"(promtool (check|test)|mkdir -p|cp) ", Runs()),
    (r"(victoria-metrics|vmagent|vmalert) .*-dryRun$", Runs()),
]
"""The first that a command begins with counts."""


def proof(text: str) -> Proof | None:
    """Return the proof of a command, or None if `PROOFS` has none."""
    return next((how for pattern, how in PROOFS if re.match(pattern, text)), None)

"""The documents are up to date: generated pages are as generated, and everything that README names exists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import processes
import pytest
from diffs import section
from documents import NEW_TYPER, generator
from processes import ROOT, clean_environ, eventually
from web.documented import DOCUMENT, differences

from trackside_daemon.nvml.reader_groups import GROUPS
from trackside_daemon.web.dashboard import STATIC

if TYPE_CHECKING:
    from pathlib import Path

    from processes import Daemon

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def generate() -> Any:
    return generator()


@pytest.mark.filterwarnings("ignore:The 'is_flag' and 'flag_value' parameters:DeprecationWarning")
@pytest.mark.parametrize("page", ["metrics", "configuration", "http-api", "commands", "client"])
def test_a_generated_page_is_as_its_generator_writes_it(generate: Any, page: str) -> None:
    if page == "commands" and not NEW_TYPER:
        pytest.skip("typer is older than the help on the page")
    written = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert written == getattr(generate, f"{page.replace('-', '_')}_page")(), "run: python docs/generate.py"


def test_the_reference_of_the_history_in_python_is_as_its_generator_writes_it(generate: Any) -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert page == generate.python_page(page), "run: python docs/generate.py"


def test_the_examples_of_the_api_have_their_types(generate: Any) -> None:
    answers = generate.read_answers()["answers"]
    for operation, example in generate.EXAMPLES.items():
        schema = next(
            one["responses"]["200"]["content"]["application/json"]["schema"]
            for methods in DOCUMENT["paths"].values()
            for one in methods.values()
            if one["operationId"] == operation
        )
        assert list(differences(example, schema, operation)) == []
        assert operation in answers


def test_the_vocabulary_of_the_dashboard_is_as_its_generator_writes_it(generate: Any) -> None:
    assert (STATIC / "vocabulary.js").read_text(encoding="utf-8") == generate.vocabulary(), (
        "run: python docs/generate.py"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_family_that_a_page_names_is_exported(generate: Any, page: Any) -> None:
    families = {metric.name for members in generate.sections().values() for metric in members}
    named = set(
        re.findall(
            r"(?<!:)trackside_(?:training|gpu|host|collector|ingest|series|pipeline|history|config|build)_\w+",
            page.read_text(),
        )
    )
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in named - families} <= families


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_within_the_project_leads_somewhere(page: Any) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", page.read_text())
    assert all((page.parent / link).exists() for link in links), links


@cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors of a page: those of its headings, as GitHub and the site make them, and those that it states."""
    text = re.sub(r"(?ms)^```.*?^```$", "", path.read_text(encoding="utf-8"))
    heads = [re.sub(r"<[^>]+>|`|\]\([^)]*\)", "", head) for head in re.findall(r"(?m)^#+ (.*)$", text)]
    made = [re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads]
    return frozenset((*made, *re.findall(r'<a id="([^"]+)"', text)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_section_leads_to_one(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8"))
    targets = [(page.parent / target if target else page, anchor) for target, anchor in links]
    assert [
        (path.name, anchor) for path, anchor in targets if path.suffix == ".md" and anchor not in anchors(path)
    ] == []


def test_the_page_of_commands_has_every_command_and_readme_names_no_other() -> None:
    shown = processes.run_here("--help").stdout
    commands = set(re.findall(r"^  ([a-z][a-z-]+)  ", shown, re.MULTILINE))
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^### ([a-z-]+)$", page, re.MULTILINE)) == commands
    assert set(re.findall(r"(?:^|`|\$ )trackside ([a-z-]+)", README, re.MULTILINE)) <= commands


def test_every_flag_in_the_readme_is_one() -> None:
    helps = "".join(processes.run_here(name, "--help").stdout for name in ("daemon", "demo", "check-config", "run"))
    flags = re.findall(r"trackside \S+ (--[\w.-]+)", README)
    assert flags
    assert all(flag in helps for flag in flags)


def test_every_python_example_runs() -> None:
    names = ("README.md", "docs/training.md", "docs/tutorial.md", "docs/watching.md", "docs/goodput.md")
    texts = [*((ROOT / name).read_text(encoding="utf-8") for name in names), section("Any loop")]
    examples = [one for text in texts for one in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
    assert len(examples) >= 7
    two_lines = examples[0].replace("...\n", "for step, loss, norm, n in [(0, 2.5, 0.1, 512)]:\n")
    given = """
import trackside
class Model:
    parameters = list
    def __call__(self, batch): return 0.5
    def numel(self): return 3
run, loader, model, train = trackside.init(), [[1], [2]], Model(), len
batch, epochs, evaluate, save, step, loss = [1], 2, float, str, 1, 0.5
"""
    programs = (two_lines, *(given + one for one in examples[1:]))
    script = "".join(f"exec({one!r}, {{}})\n" for one in programs)
    done = processes.run([sys.executable, "-W", "error", "-c", script], env=clean_environ({"TRACKSIDE_DISABLED": "1"}))
    assert (done.returncode, done.stderr) == (0, "")


def test_each_boundary_of_the_policy_names_its_tests_and_no_test_of_security_is_left_out() -> None:
    policy = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!who|---).*\|$", policy, re.MULTILINE)
    assert rows
    assert all("test_" in row.rpartition(" | ")[2] or "sinks" in row.rpartition(" | ")[2] for row in rows)
    named = {
        ROOT / ("" if name.startswith("bench") else "tests") / name for name in re.findall(r"`([\w/]+\.py)`", policy)
    }
    assert not [path for path in named if not path.exists()]
    assert {*(ROOT / "tests" / "security").glob("test_*.py")} <= named


def test_every_make_target_in_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+)", README)) <= targets
    assert {"demo", "test", "soak", "bench"} <= targets


def test_the_scrape_configuration_is_one(tmp_path: Any) -> None:
    assert 'targets: ["127.0.0.1:21790"]' in README
    done = subprocess.run(
        ["promtool", "check", "config", str(ROOT / "deploy/prometheus/prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


TRAINING = """
import math, random, sys, trackside
random.seed(1)
for step in range(1, 414):
    loss, norm = 1.8 + random.random() / 50, 0.78 + random.random() / 20
    trackside.push(step=step, loss=math.nan if step == 413 else loss, grad_norm=norm, tokens=512)
sys.stdin.read()
"""


def test_the_alert_in_the_readme_is_what_such_a_training_makes(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    environ = clean_environ({"TRACKSIDE_ENDPOINT": daemon.endpoint})
    training = processes.start([sys.executable, str(tmp_path / "train.py")], env=environ, stdin=subprocess.PIPE)
    asked, *promised = re.findall(r"```console\n\$ trackside (.*?)```", README, re.DOTALL)[0].splitlines()
    assert promised

    def missing() -> list[str]:
        done = processes.run_here(*asked.split(), f"--storage.path={daemon.history}", environ={"COLUMNS": "80"})
        return [line for line in promised if line not in ("…", *done.stdout.splitlines())]

    eventually(lambda: not missing())
    training.communicate()


BLOCKS = [
    (page, block)
    for page in (*PAGES, *sorted((ROOT / "deploy").glob("*/*.md")))
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
]
OTHERS = (
    "scrape_configs:",
    "env:",
    "services:",
    "tls_server_config:",
    "basic_auth:",
    "resources:",
    "components:",
    "metric_logger:",
    "patches:",
    "trainer:",
    "training:",
)
"""Prometheus', Kubernetes', Compose's, and those of web.md, which has tests of its own."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what Apprise imports
@pytest.mark.parametrize(
    "block",
    [pytest.param(block, id=page.name) for page, block in BLOCKS if not block.startswith(OTHERS)],
)
def test_check_config_accepts_what_the_pages_show_of_a_configuration(block: str, tmp_path: Path) -> None:
    for name in re.findall(r"/etc/trackside/([\w-]+)", block):
        (tmp_path / name).write_text("json://127.0.0.1:9/\n" if "apprise" in name else "http://127.0.0.1:9/\n")
        (tmp_path / name).chmod(0o600)
    file = tmp_path / "trackside.yml"
    file.write_text(block.replace("/etc/trackside", str(tmp_path)), encoding="utf-8")
    done = processes.run_here("check-config", str(file))
    assert (done.returncode, done.stderr) == (0, "")


def test_every_group_of_gpu_readings_is_on_the_page_of_gpus() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert [
        name for name, group in GROUPS.items() if (f"| `{name}` |" if group.extra else f"`{name}`") not in page
    ] == []


def test_prometheus_can_read_every_expression_of_the_host_s_page(tmp_path: Path) -> None:
    blocks = re.findall(r"```promql\n(.*?)```", (ROOT / "docs" / "host.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in re.sub("#.*", "", block).splitlines() if line.strip()]
    expressions = re.split(r"\n(?![ )])", "\n".join(lines))
    assert len(expressions) > 10
    rules = [{"alert": "Any", "expr": one} for one in expressions]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "host", "rules": rules}]}))
    check = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stderr

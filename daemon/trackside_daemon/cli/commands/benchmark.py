"""`trackside benchmark`: inference latency, throughput, memory and agreement, with intervals."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trackside_daemon.cli.errors import CommandError, errors_reported, fail
from trackside_daemon.cli.options import Form, Json, Url, argument, from_fields, option
from trackside_daemon.cli.output import form_of, print_answer
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    from trackside.benchmark.messages import ProcessRequest, Requests, Spec
    from trackside_daemon.cli.sources.api_source import ApiSource

CANCELLED, FAILED = 130, 1  # exit statuses
ORIGINAL = "original"  # name of the only variant

_of_model = partial(option, rich_help_panel="Models and functions")
_of_endpoint = partial(option, rich_help_panel="Endpoints")
_of_time = partial(option, rich_help_panel="Duration")

TARGETS = argument(
    "TARGET...",
    "MODULE:FACTORY, or the address of an OpenAI-compatible endpoint, up to /v1. The first is the reference.",
)
VARIANT = _of_model(
    "NAME",
    "fp32, bf16, fp16 (autocast), bf16-weights, int8-dynamic or pruned-PERCENT, each also with +compile, or a value of"
    " the factory's parameter variant; may be repeated.",
)
BATCH_SIZE = _of_model("N", "Inputs in a call; may be repeated.", min=1)
LENGTH = _of_model("N", "Length of each input; may be repeated.", min=1)
PYTHON = _of_model("FILE", "Python with the target's packages. [default: that of trackside]")
SECONDS = _of_time("SECONDS", "Seconds for each load, in each process.", min=0.1)
REPEATS = _of_time("N", "Processes that measure, for the variance between runs.", min=1)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    target: Annotated[list[str], TARGETS]
    variant: Annotated[list[str] | None, VARIANT] = None
    checkpoint: Annotated[str, _of_model("PATH", "The factory's parameter checkpoint.")] = ""
    batch_size: Annotated[list[int] | None, BATCH_SIZE] = None
    length: Annotated[list[int] | None, LENGTH] = None
    device: Annotated[str, _of_model("DEVICE", "Device of PyTorch. [default: the GPU if there is one]")] = ""
    python: Annotated[str, PYTHON] = sys.executable
    concurrency: Annotated[list[int] | None, _of_endpoint("N", "Requests in flight; may be repeated.", min=1)] = None
    model: Annotated[str, _of_endpoint("NAME", "Name of the endpoint's model.")] = ""
    prompts: Annotated[Path | None, _of_endpoint("FILE", "File with a prompt a line.")] = None
    tokens: Annotated[int, _of_endpoint("N", "Most tokens of an answer.", min=1)] = 64
    header: Annotated[list[str] | None, _of_endpoint("NAME:VALUE", "Header of requests; may be repeated.")] = None
    seconds: Annotated[float, SECONDS] = 10.0
    repeats: Annotated[int, REPEATS] = 3
    name: Annotated[str, option("NAME", "Name of the run that keeps the results.")] = "benchmark"
    form: Form = "text"
    as_json: Json = False
    url: Url = ""


@from_fields(Options)
def benchmark(options: Options) -> None:
    """Measure latency, throughput, memory and quality of models, functions and endpoints, with 95 % intervals.

    Variants are measured in turns in random order, so that other work affects all alike. A percentile with too few
    samples has no number. The results become a run. Ctrl-C keeps what was measured. The exit status is 1 if a variant
    failed, and 130 after Ctrl-C.
    """
    with errors_reported():
        from trackside_daemon.documents.benchmark import document

        form = form_of(options.form, as_json=options.as_json)
        contents = _measured(options, _request(options))
        print_answer(contents, form, lambda: document(contents))
    if contents["ended"]:
        raise typer.Exit(CANCELLED)
    raise typer.Exit(FAILED if contents["failures"] else 0)


def _measured(options: Options, request: ProcessRequest) -> dict[str, Any]:
    """Measure, keep the results as a run, and return them."""
    import msgspec

    import trackside
    from trackside.benchmark.results import publish, results
    from trackside_daemon.cli.commands import benchmark_processes as processes

    daemon, begun = _daemon(options.url), time.time()
    config = msgspec.to_builtins(request)
    config["requests"].pop("headers", None)  # they may have secrets
    run = trackside.init(options.name, config=config, tags=("benchmark",))
    measured, ended = processes.run(options.python, options.repeats, _progress, request)
    _progress("")
    if not measured.loads:
        run.finish("stopped" if ended else "failed")
        failures = "; ".join(f"{one.variant}: {one.reason}" for one in measured.failures)
        fail(failures or "cancelled before the first call", FAILED if failures else CANCELLED)
    # A model in PyTorch has its weights, and on a GPU its device's memory; a function or an endpoint may be on either.
    facts = measured.facts.values()
    gpus = not facts or not all("device_memory_bytes" not in one and "weights_bytes" in one for one in facts)
    found = None if daemon is None else processes.disturbances(daemon, run.id, begun, time.time(), gpus=gpus)
    if found is None:
        measured.notes.append("no daemon watched the machine: whether something disturbed it is unknown")
    contents = {**results(measured), "ended": ended, "unfit": "; ".join(found or ()), "run": run.id}
    publish(run, contents)
    run.finish("stopped" if ended else "finished")
    where = f"run {options.name}, id {run.id}"
    contents["notes"].append(f"kept as {where}" if daemon else f"{where} waits in the spool for the next daemon")
    return contents


def _daemon(url: str) -> ApiSource | None:
    from trackside_daemon.cli.sources.daemon_lookup import find_daemon
    from trackside_daemon.cli.sources.source import SourceError

    with nullcontext() if url else suppress(SourceError):
        return find_daemon(url)
    return None


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{shown(text)}")
        sys.stderr.flush()


def _request(options: Options) -> ProcessRequest:
    """Return what to measure.

    Raises:
        CommandError: The options do not belong to the target.
    """
    from trackside.benchmark.messages import Load, ProcessRequest

    calls, requests = options.batch_size or options.length or options.variant, options.concurrency
    specs = _specs(options)
    if len({spec.is_endpoint for spec in specs}) > 1:
        raise CommandError("endpoints and other targets cannot be compared")
    if specs[0].is_endpoint and calls:
        raise CommandError("--batch-size, --length and --variant are for models; an endpoint has --concurrency")
    if requests and not specs[0].is_endpoint:
        raise CommandError(f"--concurrency needs an endpoint; {specs[0].target} is no http address")
    sizes = product(options.batch_size or [0], options.length or [0], options.concurrency or [0])
    loads = [Load(*each) for each in sizes]
    return ProcessRequest("measure", specs, loads, options.seconds, options.device, _requests(options))


def _specs(options: Options) -> list[Spec]:
    from trackside.benchmark.messages import Spec

    found = []
    for target, variant in product(options.target, options.variant or [""]):
        parts = [target if len(options.target) > 1 else "", variant]
        found.append(Spec(" ".join(filter(None, parts)) or ORIGINAL, target, variant, options.checkpoint))
    if len({spec.name for spec in found}) < len(found):
        raise CommandError("a target or a --variant is given twice; to compare one with itself, give it another name")
    return found


def _requests(options: Options) -> Requests:
    from trackside.benchmark.messages import Requests

    headers = dict(map(_header, options.header or ()))
    if options.prompts is None:
        return Requests(model=options.model, tokens=options.tokens, headers=headers)
    prompts = tuple(filter(None, options.prompts.read_text(encoding="utf-8").splitlines()))
    if not prompts:
        raise CommandError(f"--prompts={options.prompts}: the file has no prompt")
    return Requests(options.model, prompts, options.tokens, headers=headers)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise CommandError("--header: write NAME:VALUE, such as 'Authorization: Bearer TOKEN'")
    return name.strip(), value.strip()

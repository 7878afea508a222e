"""`trackside benchmark`: inference latency, throughput, memory and agreement, with intervals."""

from __future__ import annotations

import sys
import time
from functools import partial
from itertools import product
from pathlib import Path  # noqa: TC003  typer reads it
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trackside_daemon.cli.errors import CommandError, errors_reported, fail
from trackside_daemon.cli.options import DaemonUrl, Json
from trackside_daemon.cli.output import print_answer, print_lines
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside.benchmark.messages import Request, Spec
    from trackside_daemon.cli.sources.api_source import ApiSource

CANCELLED, FAILED = 130, 1  # exit statuses
DEFAULT = "benchmark"  # name of the run
ORIGINAL = "original"  # name of the only variant


def _option(help: str, metavar: str, *, show_default: bool = False, **more: Any) -> Any:  # noqa: A002  as in typer
    return typer.Option(help=help, metavar=metavar, show_default=show_default, **more)


def _repeated(help: str, metavar: str, **more: Any) -> Any:  # noqa: A002  the same
    return _option(f"{help}; may be repeated.", metavar, **more)


_value = partial(_option, show_default=True)

TARGETS = typer.Argument(
    metavar="TARGET...",
    help="MODULE:FACTORY, the path of a model, or the address of an OpenAI-compatible endpoint, up to /v1. "
    "Several are compared with the first.",
    show_default=False,
)
VARIANT = _repeated(
    "fp32, bf16, fp16 (autocast), bf16-weights, int8-dynamic, torchao-int8, pruned-PERCENT, …, each also with "
    "+compile behind it, or a value of the factory's parameter variant. The first is the reference",
    "NAME",
)
WATCH = _option(
    "Measure each good checkpoint of this run, at low priority, until it ends; what is slower or agrees less than the "
    "first raises the alert ModelRegression.",
    "RUN",
)
LIMIT = _repeated("Limit of ttft, tpot or latency within which a request counts for goodput", "MEASURE=SECONDS")
RATE = _repeated("Requests that arrive in a second, at random", "N", min=0.001)
PRECISION = _value("Stop earlier if the intervals are within ± this share.", "SHARE", min=0.0001, max=1.0)
REPEATS = _value("Processes that measure, for the variance between runs.", "N", min=1)


def benchmark(
    target: Annotated[list[str], TARGETS],
    *,
    variant: Annotated[list[str] | None, VARIANT] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Also measure the first variant with torch.compile.")
    ] = False,
    checkpoint: Annotated[str, _option("Weights for what the factory returns.", "PATH")] = "",
    batch_size: Annotated[list[int] | None, _repeated("Inputs in a call", "N", min=1)] = None,
    length: Annotated[list[int] | None, _repeated("Length of each input", "N", min=1)] = None,
    concurrency: Annotated[list[int] | None, _repeated("Requests in flight", "N", min=1)] = None,
    rate: Annotated[list[float] | None, RATE] = None,
    model: Annotated[str, _option("Name of the endpoint's model.", "NAME")] = "",
    prompts: Annotated[Path | None, _option("File with a prompt a line.", "FILE")] = None,
    tokens: Annotated[int, _value("Most tokens of an answer.", "N", min=1)] = 64,
    limit: Annotated[list[str] | None, LIMIT] = None,
    header: Annotated[list[str] | None, _repeated("HTTP header of each request", "NAME:VALUE")] = None,
    seconds: Annotated[float, _value("Most seconds for each load, in each process.", "SECONDS", min=0.1)] = 10.0,
    precision: Annotated[float, PRECISION] = 0.01,
    repeats: Annotated[int, REPEATS] = 3,
    device: Annotated[str, _option("Device of PyTorch. [default: the GPU if there is one]", "DEVICE")] = "",
    python: Annotated[
        str, _option("Python with the target's packages. [default: that of trackside]", "FILE")
    ] = sys.executable,
    name: Annotated[str, _value("Name of the run that keeps the results.", "NAME")] = DEFAULT,
    watch: Annotated[str, WATCH] = "",
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    as_json: Json = False,
    url: DaemonUrl = "",
) -> None:
    """Measure latency, throughput, memory and quality of models, functions and endpoints, with 95 % intervals.

    Variants are measured in turns in random order, so that other work on the machine affects all alike. A percentile with
    too few samples has no number. The results become a run, for `trackside compare`, `report` and `show`. Ctrl-C ends the
    measurement and keeps what was measured. The exit status is 1 if a variant failed, and 130 after Ctrl-C.
    """
    with errors_reported():
        import msgspec

        from trackside.benchmark.messages import Load, Plan, Request, Requests
        from trackside_daemon.documents.benchmark import document

        requests = Requests(
            model=model, tokens=tokens, limits=dict(map(_limit, limit or ())), headers=dict(map(_header, header or ()))
        )
        if prompts is not None:
            found = tuple(filter(None, prompts.read_text(encoding="utf-8").splitlines()))
            requests = msgspec.structs.replace(requests, prompts=found or requests.prompts)
        specs = _specs(target, variant or [], checkpoint, compiled=compiled)
        loads = [*(Load(concurrency=one) for one in concurrency or ()), *(Load(rate=one) for one in rate or ())]
        if not loads or batch_size or length:
            loads += [Load(*pair) for pair in product(batch_size or [0], length or [0])]
        request = Request("measure", specs, loads, Plan(seconds, precision), device, requests)
        _check(request)
        if watch:
            _watch(watch, python, request, name, url)
            return
        contents = _measured(python, request, repeats, name, url)
        form = "json" if as_json else "markdown" if as_markdown else "text"
        print_answer(contents, form, lambda: document(contents))
    if contents["ended"] == "cancelled":
        raise typer.Exit(CANCELLED)
    raise typer.Exit(FAILED if contents["failures"] else 0)


def _measured(python: str, request: Request, repeats: int, name: str, url: str) -> dict[str, Any]:
    """Measure, keep the results as a run, and return them."""
    import msgspec

    import trackside
    from trackside.benchmark.results import publish, results
    from trackside_daemon.cli.benchmark import measuring

    daemon, begun = _daemon(url), time.time()
    config = msgspec.to_builtins(request)
    config["requests"].pop("headers", None)  # they may have secrets
    run = trackside.init(name, config=config, tags=("benchmark",))
    measured, ended = measuring.run(python, repeats, _progress, request)
    _progress("")
    if not measured.loads:
        run.finish("stopped" if ended else "failed")
        failures = "; ".join(f"{one.variant}: {one.reason}" for one in measured.failures)
        fail(failures or "cancelled before the first call", FAILED if failures else CANCELLED)
    # A model in PyTorch has its weights, and on a GPU its device's memory; a function or an endpoint may be on either.
    gpus = not all("device_memory_bytes" not in one and "weights_bytes" in one for one in measured.facts.values())
    found = (
        None
        if daemon is None
        else measuring.disturbances(daemon, run.id, begun, time.time(), gpus=gpus or not measured.facts)
    )
    if found is None:
        measured.notes.append("no daemon watched the machine: whether something disturbed it is unknown")
    contents = {**results(measured), "ended": ended, "unfit": "; ".join(found or ()), "run": run.id}
    publish(run, contents)
    run.finish("stopped" if ended else "finished")
    where = f"run {name}, id {run.id}"
    contents["notes"].append(f"kept as {where}" if daemon else f"{where} waits in the spool for the next daemon")
    return contents


def _watch(watched: str, python: str, request: Request, name: str, url: str) -> None:
    import trackside
    from trackside_daemon.cli.benchmark import measuring
    from trackside_daemon.cli.benchmark.watching import watch
    from trackside_daemon.cli.sources.daemon_lookup import find_daemon
    from trackside_daemon.questions.runs import Run

    if request.is_endpoint or request.specs[0].checkpoint:
        raise CommandError("--watch measures the checkpoints of a run: give a factory, and no --checkpoint")
    daemon, measure = find_daemon(url), partial(measuring.run, python, 1, _progress)
    shown_name = daemon.ask(Run(id=watched, limit=0))["name"]
    with trackside.init(f"{shown_name}-benchmark" if name == DEFAULT else name, tags=("benchmark",)) as run:
        try:
            for line in watch(daemon, watched, request, run, measure):
                _progress("")
                print_lines([shown(line)])
        except KeyboardInterrupt:
            run.finish("stopped")
            raise typer.Exit(CANCELLED) from None


def _daemon(url: str) -> ApiSource | None:
    from trackside_daemon.cli.sources.daemon_lookup import find_daemon
    from trackside_daemon.cli.sources.errors import SourceError

    try:
        return find_daemon(url)
    except SourceError:
        if url:
            raise
        return None


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{shown(text)}")
        sys.stderr.flush()


def _specs(targets: Sequence[str], variants: Sequence[str], checkpoint: str, *, compiled: bool) -> list[Spec]:
    from trackside.benchmark.messages import Spec

    names = list(variants) or [""]
    if compiled:
        names.append(f"{names[0]}+compile" if names[0] else "compile")
    found = []
    for target, variant in product(targets, names):
        parts = [target if len(targets) > 1 else "", variant]
        found.append(Spec(" ".join(filter(None, parts)) or ORIGINAL, target, variant, checkpoint))
    if len({spec.name for spec in found}) < len(found):
        raise CommandError(
            "a target or a --variant is given twice; to compare a target with itself, give it another name"
        )
    return found


def _check(request: Request) -> None:
    """Check that the options belong to the target.

    Raises:
        CommandError: They do not.
    """
    calls = any(load.batch or load.length for load in request.loads) or any(spec.variant for spec in request.specs)
    if request.is_endpoint and calls:
        raise CommandError(
            "--batch-size, --length, --variant and --compile are for models; an endpoint has --concurrency and --rate"
        )
    if not request.is_endpoint and any(load.concurrency or load.rate for load in request.loads):
        raise CommandError(f"--concurrency and --rate need an endpoint; {request.specs[0].target} is no http address")
    if len({spec.is_endpoint for spec in request.specs}) > 1:
        raise CommandError("endpoints and other targets cannot be compared")


def _limit(text: str) -> tuple[str, float]:
    measure, _, number = text.partition("=")
    try:
        if measure in {"ttft", "tpot", "itl", "latency"}:
            return f"{measure}_seconds", float(number)
    except ValueError:
        pass
    raise CommandError(f"--limit {text}: write ttft=0.5, tpot=0.05, itl=0.1 or latency=10")


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise CommandError("--header: write NAME:VALUE, such as 'Authorization: Bearer TOKEN'")
    return name.strip(), value.strip()

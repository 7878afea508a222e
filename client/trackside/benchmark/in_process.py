"""Measure in this process what a request asks for, by what `MODULE:FACTORY` returns, or what a notebook has.

An OpenAI-compatible endpoint streams its answers. The measures of their tokens are those of the field: TTFT, from the request
to the first token; TPOT, from the first token to the last one divided by the tokens after the first; end to end, which is
`LATENCY`. What fails is counted by its kind and has no times.
"""

import copy
import importlib
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from inspect import signature
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from trackside.benchmark.messages import (
    LATENCY,
    OUTCOMES,
    REQUESTS,
    TOKENS,
    Failure,
    Load,
    ProcessAnswer,
    ProcessRequest,
    Requests,
    Samples,
    Spec,
)
from trackside.benchmark.results import Measurements, publish, results, sentence
from trackside.benchmark.rounds import Function, Sampling, TargetError, measure, reason, timed

SEED = 0  # so that a factory returns the same weights and the same inputs for each variant


def build(spec: Spec, device: str = "") -> Function:
    """Return the target of a variant.

    Raises:
        TargetError: There is nothing to measure. The user's code may raise anything else.
    """
    factory = _factory(spec.target)
    given = {"variant": spec.variant, "checkpoint": spec.checkpoint}
    taken = {name: value for name, value in given.items() if value and name in signature(factory).parameters}
    if spec.checkpoint and "checkpoint" not in taken:
        raise TargetError(f"--checkpoint needs a factory with a parameter checkpoint; {spec.target} has none")
    was_loaded, made = _seed(), factory(**taken)
    if _seed() and not was_loaded:
        made = factory(**taken)  # the first one has imported PyTorch, whose seed was another
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    variant = "" if "variant" in taken else spec.variant
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from trackside.benchmark.torch_model import EvaluatedModel, is_known

        # A factory that takes any word may do nothing for ours.
        return EvaluatedModel(model, inputs, spec.variant if is_known(spec.variant) else variant, device)
    if not callable(model):
        raise TargetError(
            f"{spec.target} returned {type(model).__name__}; return a function, a torch module, or (either, inputs)"
        )
    if variant:
        raise TargetError(f"{spec.target} returned a function, so its factory needs a parameter variant for {variant}")
    return Function(model, inputs)


def alone(spec: Spec, load: Load, device: str = "") -> dict[str, float]:
    """Return the facts of a variant that this process has not loaded yet, by measure: times in seconds, sizes in bytes."""
    _factory(spec.target)  # to import its packages is no part of the load
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # begins a new peak
    before, begun = _peak_memory(), perf_counter()
    target = build(spec, device)
    loaded = perf_counter()
    call = target.prepare(load)
    prepared = perf_counter()
    call()
    first = perf_counter() - prepared
    memory = {"memory_bytes": _peak_memory() - before} if before else {}
    return {"load_seconds": loaded - begun, "first_call_seconds": first, **memory, **target.facts()}


def _peak_memory() -> float:
    """Return the most bytes that this process had in memory; 0 on systems without /proc."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) * 1024
    return 0.0


def _factory(target: str) -> Callable[..., Any]:
    module, _, attribute = target.partition(":")
    if not module or not attribute:
        raise TargetError(f"{target}: write MODULE:FACTORY, or the address of an endpoint")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and not f"{module}.".startswith(f"{error.name}."):
            raise
        raise TargetError(
            f"{target}: no module {module} in {Path.cwd()} or the environment of {sys.executable}"
        ) from None
    factory: Callable[..., Any] | None = getattr(found, attribute, None)
    if not callable(factory):
        raise TargetError(f"{target}: module {module} has no function {attribute} that returns what to measure")
    return factory


def _seed() -> bool:
    """Seed Python and, if it is loaded, PyTorch; return whether it is."""
    random.seed(SEED)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(SEED)
    return torch is not None


def findings(request: ProcessRequest) -> Iterator[ProcessAnswer]:
    """Do the work of a request."""
    if request.specs[0].is_endpoint:
        endpoints = {spec.name: ModelEndpoint(spec.target, request.requests).begin for spec in request.specs}
        yield from measure(endpoints, request.loads, request.seconds)
        return
    targets = {}
    for spec in request.specs:
        try:
            if request.mode == "alone":
                yield ProcessAnswer(facts={spec.name: alone(spec, request.loads[0], request.device)})
            else:
                targets[spec.name] = build(spec, request.device)
        except (Exception, SystemExit) as error:  # noqa: BLE001  the user's code may raise anything
            yield ProcessAnswer(failed=Failure(spec.name, None, reason(error)))
    is_compared = request.mode == "compare" and request.specs[0].name in targets
    yield from _findings(targets, request.loads, request.seconds, is_compared=is_compared)


def benchmark(
    run: Any, model: Any, inputs: Any, loads: Sequence[Load], *, variants: Sequence[str], seconds: float
) -> dict[str, Any]:
    """See `trackside.Run.benchmark`."""
    targets = dict(_variants(model, inputs, variants))
    measured, ended = Measurements(list(targets)), ""
    measured.begin()
    try:
        measured.add(ProcessAnswer(facts={name: target.facts() for name, target in targets.items()}))
        for finding in _findings(targets, loads, seconds):
            measured.add(finding)
    except KeyboardInterrupt:
        ended = "cancelled"
    contents: dict[str, Any] = {**results(measured), "ended": ended}
    contents["sentences"] = [sentence(one) for one in contents["comparisons"]]
    publish(run, contents)
    return contents


def _findings(
    targets: Mapping[str, Any], loads: Sequence[Load], seconds: float, *, is_compared: bool = True
) -> Iterator[ProcessAnswer]:
    if is_compared and len(targets) > 1 and not any(type(one) is Function for one in targets.values()):
        from trackside.benchmark.torch_model import agreements

        yield from agreements(targets, max(load.length for load in loads))
    yield from measure({name: timed(target.prepare) for name, target in targets.items()}, loads, seconds)


def _variants(model: Any, inputs: Any, variants: Sequence[str]) -> Iterator[tuple[str, Any]]:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        if variants:
            raise TypeError(f"variants are those of a torch module, not of a {type(model).__name__}")
        yield "original", Function(model, inputs)
        return
    from trackside.benchmark.torch_model import EvaluatedModel

    for variant in variants or ("",):
        # A variant changes the model, and the training goes on with it.
        yield (
            variant or "original",
            EvaluatedModel(copy.deepcopy(model), inputs, variant, str(next(model.parameters()).device)),
        )


TTFT, TPOT = "ttft_seconds", "tpot_seconds"
EACH = 4  # requests of each connection in a round
FAILED_ROUNDS = 3  # rounds without an answer after which an endpoint is given up


class RequestOutcome(NamedTuple):
    """The outcome of a request, and if it completed, its times by measure; *tokens* counts what was generated."""

    outcome: str
    times: dict[str, float] = {}  # noqa: RUF012  of a tuple, which nobody changes
    tokens: int = 0
    reason: str = ""


class ModelEndpoint:
    """An endpoint that requests are sent to.

    Args:
        url: Address up to ``/v1``.
        requests: What to send.
    """

    def __init__(self, url: str, requests: Requests) -> None:
        self._url = urlsplit(url)
        self._path = f"{self._url.path.rstrip('/') or '/v1'}/chat/completions"
        self._requests = requests
        self._numbers = count()
        self._workers = 1
        self._failed = 0

    def begin(self, load: Load) -> Callable[[Sampling], Samples]:
        """Send one request, which shows whether the endpoint works; return `measure`.

        Raises:
            TargetError: It does not.
        """
        self._workers = max(1, load.concurrency)
        answer = self._send()
        if answer.outcome != "completed":
            raise TargetError(f"{self._url.geturl()}: {answer.reason}")
        return self.measure

    def measure(self, sampling: Sampling) -> Samples:  # noqa: ARG002  a round has requests enough
        """Send the requests of one round; return their times, rates, and the number of each outcome.

        Raises:
            TargetError: The endpoint works no more.
        """
        begun = perf_counter()
        with ThreadPoolExecutor(self._workers) as pool:
            lists = pool.map(lambda _: [self._send() for _ in range(EACH)], range(self._workers))
            answers = [answer for answers in lists for answer in answers]
        self._failed = 0 if any(answer.outcome == "completed" for answer in answers) else self._failed + 1
        if self._failed == FAILED_ROUNDS:
            raise TargetError(f"{self._url.geturl()}: {answers[-1].reason}")
        return self._samples(answers, perf_counter() - begun)

    def _samples(self, answers: Sequence[RequestOutcome], seconds: float) -> Samples:
        completed = [answer for answer in answers if answer.outcome == "completed"]
        samples = {name: [one.times[name] for one in completed if name in one.times] for name in (LATENCY, TTFT, TPOT)}
        samples[TOKENS] = [sum(answer.tokens for answer in completed) / seconds]
        samples[REQUESTS] = [len(completed) / seconds]
        return samples | {name: [float(sum(one.outcome == name for one in answers))] for name in OUTCOMES}

    def _send(self) -> RequestOutcome:
        """Send one request on a new connection, whose making is no part of its times; read its answer."""
        kind = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        connection = kind(self._url.hostname or "", self._url.port, timeout=self._requests.timeout)
        times: list[float] = []
        try:
            connection.connect()
            begun = perf_counter()
            headers = {"Content-Type": "application/json", **self._requests.headers}
            connection.request("POST", self._path, self._body(), headers)
            return self._read(connection.getresponse(), begun, times)
        except TimeoutError:
            return RequestOutcome("timeout", reason=f"no complete answer within {self._requests.timeout:g} s")
        except (OSError, HTTPException, ValueError, AttributeError, TypeError) as error:
            outcome = "cut" if times or isinstance(error, IncompleteRead) else "error"
            return RequestOutcome(outcome, reason=f"{type(error).__name__}: {error}")
        finally:
            connection.close()

    def _read(self, response: HTTPResponse, begun: float, times: list[float]) -> RequestOutcome:
        """Read an answer; *times* receives the time of each part of its text.

        Raises:
            TimeoutError: It lasts too long.
        """
        if response.status != 200:
            return RequestOutcome("error", reason=f"HTTP {response.status}: {_first_line(response.read(500))}")
        finished, stated = False, 0
        for event in _events(response):
            if perf_counter() - begun > self._requests.timeout:
                raise TimeoutError
            if "error" in event:
                return RequestOutcome("error", reason=_first_line(json.dumps(event["error"]).encode()))
            stated = (event.get("usage") or {}).get("completion_tokens") or stated
            choice = (event.get("choices") or [{}])[0]
            if (choice.get("delta") or {}).get("content"):
                times.append(perf_counter())
            finished = finished or bool(choice.get("finish_reason"))
        if not finished:
            return RequestOutcome("cut", reason="the stream ended without finish_reason")
        return _completed(begun, times, stated) if times else RequestOutcome("error", reason="the answer has no text")

    def _body(self) -> bytes:
        prompt = self._requests.prompts[next(self._numbers) % len(self._requests.prompts)]
        fields = {"model": self._requests.model, "max_tokens": self._requests.tokens, "temperature": 0, "stream": True}
        messages = [{"role": "user", "content": prompt}]
        return json.dumps({**fields, "stream_options": {"include_usage": True}, "messages": messages}).encode()


def _completed(begun: float, times: Sequence[float], stated: int) -> RequestOutcome:
    """Return a complete answer; without a *stated* number of tokens, each part is one. A single part has no TPOT."""
    tokens = max(stated, len(times))
    measured = {LATENCY: times[-1] - begun, TTFT: times[0] - begun}
    if len(times) > 1:
        measured[TPOT] = (times[-1] - times[0]) / (tokens - 1)
    return RequestOutcome("completed", measured, tokens)


def _events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the objects of a stream of server-sent events up to ``[DONE]``."""
    while line := response.readline():
        data = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and data == b"[DONE]":
            return
        if line.startswith(b"data:") and data:
            yield json.loads(data)


def _first_line(data: bytes) -> str:
    return " ".join(data.decode(errors="replace").split())[:200]

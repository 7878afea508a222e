"""The request of a benchmark to its worker process, a line of JSON."""

from __future__ import annotations

import msgspec

from trackside.benchmark.rounds import Load, Plan


class Spec(msgspec.Struct, frozen=True):
    """A variant to measure.

    Attributes:
        name: Its name in the results.
        target: ``MODULE:FACTORY``, the path of a model, or the address of an endpoint.
        variant: A name of `trackside.benchmark.variants`; empty for the target as it is.
        checkpoint: Path of weights for what the factory returns; empty for none.
    """

    name: str
    target: str
    variant: str = ""
    checkpoint: str = ""


class Requests(msgspec.Struct, frozen=True):
    """Requests to an endpoint.

    Attributes:
        model: Name of the model, as the server knows it.
        prompts: Prompts, used in turn.
        tokens: Most tokens of an answer.
        timeout: Seconds from which a request has failed.
        limits: Upper limits in seconds, by measure, within which a request counts for goodput.
        headers: HTTP headers, such as ``Authorization``.
    """

    model: str = ""
    prompts: tuple[str, ...] = ("Count from one to one thousand, in words.",)
    tokens: int = 64
    timeout: float = 60.0
    limits: dict[str, float] = {}
    headers: dict[str, str] = {}


class Request(msgspec.Struct, frozen=True):
    """Work of a process.

    Attributes:
        mode: ``alone`` reads the facts of a single variant; ``measure`` measures all; ``compare`` compares their outputs
            first.
        specs: The variants; the first one is the reference.
        loads: The loads.
        plan: When to end.
        device: A device of PyTorch; empty for the GPU if there is one.
        rows: Inputs whose outputs are compared.
        tokens: Tokens that are generated to compare them.
        requests: Requests to an endpoint.
        polite: Use processors and disks only when nothing else does.
    """

    mode: str
    specs: list[Spec]
    loads: list[Load]
    plan: Plan = Plan()
    device: str = ""
    rows: int = 64
    tokens: int = 8
    requests: Requests = Requests()
    polite: bool = False

    @property
    def is_endpoint(self) -> bool:
        """True if the targets are addresses of endpoints."""
        return self.specs[0].target.startswith(("http://", "https://"))

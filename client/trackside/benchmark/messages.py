"""The request to the process that measures, and its findings: a line of JSON each."""

from typing import Any

import msgspec

LATENCY = "latency_seconds"
"""The measure that every target has."""

TOKENS, REQUESTS = "tokens_per_second", "requests_per_second"  # of an endpoint, in each round
OUTCOMES = ("completed", "error", "timeout", "cut")  # of its requests
PERCENTILES = (0.5, 0.9, 0.99)

Samples = dict[str, list[float]]  # the samples of one variant in one round, by measure
Round = dict[str, Samples]  # those of each variant


class Load(msgspec.Struct, frozen=True, omit_defaults=True):
    """Conditions of a measurement; 0 for those that do not apply."""

    batch: int = 0  # inputs in a call
    length: int = 0  # length of each input
    concurrency: int = 0  # requests in flight

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in msgspec.structs.asdict(self).items() if value)

    @property
    def key(self) -> str:
        """The load as a part of a key, such as ``batch8_length128``."""
        return str(self).replace("=", "").replace(" ", "_")

    @property
    def items(self) -> int:
        """Inputs in a call, or with a length the tokens in them."""
        return max(1, self.batch) * max(1, self.length)


class Spec(msgspec.Struct, frozen=True):
    """A variant to measure."""

    name: str  # its name in the results
    target: str  # ``MODULE:FACTORY``, or the address of an endpoint
    # A name of `trackside.benchmark.torch_model.NAMES`, or what the factory makes of it; empty for the target as it is.
    variant: str = ""
    checkpoint: str = ""  # path that the factory receives; empty for none

    @property
    def is_endpoint(self) -> bool:
        """True if the target is the address of an endpoint."""
        return self.target.startswith(("http://", "https://"))


class Requests(msgspec.Struct, frozen=True):
    """Requests to an endpoint."""

    model: str = ""  # name of the model, as the server knows it
    prompts: tuple[str, ...] = ("Count from one to one thousand, in words.",)  # prompts, used in turn
    tokens: int = 64  # most tokens of an answer
    timeout: float = 60.0  # seconds from which a request has failed
    headers: dict[str, str] = {}  # HTTP headers, such as ``Authorization``


class ProcessRequest(msgspec.Struct, frozen=True):
    """Work of a process."""

    # ``alone`` reads the facts of a single variant; ``measure`` measures all; ``compare`` compares their outputs first.
    mode: str
    specs: list[Spec]  # the variants; the first one is the reference
    loads: list[Load]
    seconds: float = 10.0  # time for each load
    device: str = ""  # a device of PyTorch; empty for the GPU if there is one
    requests: Requests = Requests()  # requests to an endpoint


class Failure(msgspec.Struct, frozen=True):
    """Why a variant cannot be measured under a load; None for no load at all."""

    variant: str
    load: Load | None
    reason: str


class ProcessAnswer(msgspec.Struct, omit_defaults=True):
    """An answer; the last one is the *end*."""

    load: Load | None = None  # the load of the rounds
    rounds: list[Round] = []  # what was measured
    facts: dict[str, dict[str, float]] = {}  # sizes in bytes and times in seconds, by variant and measure
    agreement: dict[str, dict[str, dict[str, Any]]] = {}  # fields of an interval, by variant and measure
    failed: Failure | None = None  # why a variant cannot be measured
    note: str = ""  # what else is to be known
    end: bool = False  # nothing follows

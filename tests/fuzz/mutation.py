"""Random changes of valid inputs, for the short runs."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TOKENS = (
    *(
        b"\0",
        b"\n",
        b'"',
        b"'",
        b"\\",
        b"{",
        b"]",
        b",",
        b": ",
        b"&a ",
        b"*a",
        b"!!str ",
        b"\x7f",
        b"\x80",
        b"\xff",
        b"\xe2\x80\xa8",
    ),
    *(
        b"9223372036854775808",
        b"9007199254740993",
        b"-9223372036854775808",
        b"1e999",
        b"-0.0",
        b"1e-320",
        b"nan",
        b"-inf",
        b"NaN",
    ),
    *(b"null", b"true", b"[]", b"{}", b'""', b'"\\ud800"', b"\\x85", b"\\u2028", b"[[[[[[[["),
)
"""What is likely to be read in some other way: also the dictionary of the fuzzer."""


def mutants(seeds: Sequence[bytes], number: int) -> Iterator[bytes]:
    """Yield the seeds and as many random changes of them, the same ones each time."""
    yield from seeds
    chance = random.Random(7)
    for _ in range(number):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randrange(1, 5)):
            at, end = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
            way = chance.randrange(4)
            if way == 0:
                data[at:end] = b""
            elif way == 1:
                data[at:at] = chance.choice(TOKENS)
            elif way == 2:
                data[at : at + 1] = chance.randbytes(1)
            else:
                other = chance.choice(seeds)
                data[at:at] = other[chance.randrange(len(other) + 1) :][: chance.randrange(64)]
        yield bytes(data)

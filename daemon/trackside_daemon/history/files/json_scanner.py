"""Reads a JSON document of any length, however it is laid out, a value at a time."""

from __future__ import annotations

import codecs
import json
import re
from typing import TYPE_CHECKING, Any, BinaryIO

from trackside_daemon.history.files.items import LINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_BYTES = 64 * 1024
_SPACE = re.compile(r"[ \t\r\n]*")
_decode = json.JSONDecoder().raw_decode


class Scanner:
    """A JSON text, walked through from its beginning.

    Args:
        stream: UTF-8.

    Attributes:
        line: Where it is, from 1.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.line = 1
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = 0
        self._ended = False

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            behind = _SPACE.match(self._text, self._at)
            end = behind.end() if behind else self._at
            self.line += self._text.count("\n", self._at, end)
            self._at = end
            if end < len(self._text) or not self._more():
                return self._text[end : end + 1]

    def expect(self, character: str) -> None:
        """Go past a character that has to come.

        Raises:
            ValueError: Another comes.
        """
        found = self.peek()
        if found != character:
            raise ValueError(f"{character} is expected, not {found or 'the end of the file'}")
        self._at += 1

    def value(self) -> Any:
        """The next value, whole; what is read on for is no larger than it.

        Raises:
            ValueError: There is none.
        """
        self.peek()
        while True:
            try:
                value, end = _decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._more():
                    raise ValueError(f"JSON is expected: {error.msg}") from None
                continue
            if end + 3 > len(self._text) and self._more():  # a number may go on, with .5 or e-7
                continue
            self.line += self._text.count("\n", self._at, end)
            self._at = end
            return value

    def members(self) -> Iterator[str]:
        """The names in an object; each one's value is to be read before the next is asked for."""
        self.expect("{")
        while self.peek() != "}":
            name = self.value()
            self.expect(":")
            yield str(name)
            if self.peek() != "}":
                self.expect(",")
        self.expect("}")

    def elements(self) -> Iterator[None]:
        """A turn for each value in an array, in which it is to be read."""
        self.expect("[")
        while self.peek() != "]":
            yield
            if self.peek() != "]":
                self.expect(",")
        self.expect("]")

    def _more(self) -> bool:
        """Read on: at least as much as is there already, so that a long value is not tried again and again."""
        if self._ended:
            return False
        if len(self._text) - self._at > LINE_BYTES:
            raise ValueError(f"a value longer than {LINE_BYTES >> 20} MiB, which none of a run is")
        self._text = self._text[self._at :]
        self._at = 0
        data = self._stream.read(max(CHUNK_BYTES, len(self._text)))
        self._ended = not data
        try:
            self._text += self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            raise ValueError(f"UTF-8 is expected: {error.reason}") from error
        return True

"""The text to learn, and the batches cut from it."""

from __future__ import annotations

from random import Random

import pytest

from trackside_daemon.demo import training_text


def test_the_text_is_real_english_of_some_size() -> None:
    corpus = training_text.load()
    words = "".join(corpus.vocabulary[code] for code in corpus.train).split()
    assert len(corpus.train) > 200_000
    assert words.count("the") > 1_000


def test_every_code_is_in_the_vocabulary() -> None:
    corpus = training_text.load()
    assert set(corpus.train) | set(corpus.validation) <= set(range(len(corpus.vocabulary)))
    assert 40 < len(corpus.vocabulary) < 100
    assert corpus.vocabulary == "".join(sorted(set(corpus.vocabulary.lower())))


def test_a_tenth_is_held_out() -> None:
    corpus = training_text.load()
    assert len(corpus.validation) / (len(corpus.train) + len(corpus.validation)) == pytest.approx(0.1, abs=0.001)


def test_windows_are_pieces_of_the_text_the_same_for_the_same_seed() -> None:
    codes = bytes(range(100))
    pieces = training_text.windows(codes, count=50, length=7, random=Random(3))
    assert len(pieces) == 50
    assert all(len(piece) == 7 and piece in codes for piece in pieces)
    assert pieces == training_text.windows(codes, count=50, length=7, random=Random(3))


def test_windows_reach_the_first_and_the_last_character() -> None:
    pieces = training_text.windows(b"abc", count=50, length=2, random=Random(0))
    assert set(pieces) == {b"ab", b"bc"}

"""The dictionary that forgets."""

from trackside_daemon.model.recent import Recent


def test_the_entries_that_were_set_last_are_kept() -> None:
    kept = Recent[str, int](2)
    for name, number in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        kept[name] = number
    assert list(kept.items()) == [("a", 3), ("c", 4)]

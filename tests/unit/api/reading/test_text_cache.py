"""What was made of texts is kept by their length."""

import yaml

from rljob_api.reading import manifest
from rljob_api.reading.manifest import parse
from rljob_api.reading.text_cache import TextCache


def test_the_texts_that_were_asked_for_last_are_kept() -> None:
    kept: TextCache[int] = TextCache(10)
    for number, text in enumerate(["aaaa", "bbbb", "cc"]):
        kept.put(text, number)
    assert kept.get("aaaa") == 0
    kept.put("dd", 3)
    assert [kept.get(text) for text in ("aaaa", "bbbb", "cc", "dd")] == [0, None, 2, 3]
    assert kept.characters == 8


def test_a_text_that_is_longer_than_all_that_may_be_kept_is_not() -> None:
    kept: TextCache[int] = TextCache(10)
    kept.put("a", 0)
    kept.put("b" * 11, 1)
    assert (kept.get("a"), kept.get("b" * 11), kept.characters) == (None, None, 0)


def test_a_text_that_is_put_again_is_counted_once() -> None:
    kept: TextCache[int] = TextCache(10)
    kept.put("aaaa", 0)
    kept.put("aaaa", 1)
    assert (kept.get("aaaa"), kept.characters) == (1, 4)


def test_edits_of_one_large_manifest_do_not_fill_the_memory(good: str) -> None:
    wanted = yaml.safe_load(good)
    for number in range(20):
        wanted["spec"]["runtime"] = {"env": {"LARGE": f"{number}" + "x" * 1_000_000}}
        parse(wanted)
    assert manifest._kept.characters <= manifest.MOST_KEPT
    assert parse(wanted) is parse(wanted)

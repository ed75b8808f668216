"""JSON of an API server, with whatever somebody has written into one object of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.reading.depth import too_deep
from rljob_operator import api_json
from rljob_operator.api_json import decoded, lines


def brackets(depth: int) -> str:
    return "[" * depth + "1" + "]" * depth


@pytest.mark.parametrize("depth", [10, 90, 1_200, 9_990])
@pytest.mark.parametrize("before", ["", '\\"]]}', "\\\\", "[[["])
def test_what_stands_beside_a_value_that_is_nested_too_deep_is_read(depth: int, before: str) -> None:
    text = f'{{"items": [{{"a": "{before}", "b": {brackets(depth)}, "c": {{"d": 5}}}}, {{"e": 6}}]}}'
    first, second = decoded(text.encode())["items"]
    assert (first["c"], second) == ({"d": 5}, {"e": 6})
    assert first["a"] == json.loads(f'"{before}"')


def test_what_is_cut_is_still_deeper_than_any_manifest_may_be() -> None:
    found = decoded(f'{{"type": "ADDED", "object": {{"spec": {brackets(5_000)}}}}}'.encode())
    assert too_deep(found["object"], 99) is not None
    assert too_deep(found, 110) is None


def test_a_number_with_more_digits_than_python_reads_is_infinite() -> None:
    assert decoded(b'{"a": %s, "b": 7}' % (b"9" * 5_000)) == {"a": float("inf"), "b": 7}


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert decoded(b'{"a": "x\xff", "b": 7}') == {"a": "x\ufffd", "b": 7}


@pytest.mark.parametrize("content", [b"", b"{", b"[1", b"no", b"[" * 5_000])
def test_what_is_no_json_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        decoded(content)


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda each: st.lists(each) | st.dictionaries(st.text(), each))
)
def test_every_other_value_is_what_it_was(value: object) -> None:
    assert decoded(json.dumps(value).encode()) == value


def lines_of(*chunks: bytes) -> Sequence[bytes]:
    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def scenario() -> list[bytes]:
        return [line async for line in lines(stream())]

    return asyncio.run(scenario())


@given(st.lists(st.binary(min_size=1).map(lambda each: each.replace(b"\n", b"")).filter(bool)), st.integers(1, 7))
def test_lines_are_those_of_the_stream_however_it_is_cut(wanted: list[bytes], size: int) -> None:
    text = b"".join(each + b"\n" for each in wanted)
    assert lines_of(*(text[at : at + size] for at in range(0, len(text), size))) == wanted


def test_a_line_may_be_as_long_as_any_object_and_not_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines_of(b"x" * 3_000_000, b"y\n", b"z") == [b"x" * 3_000_000 + b"y", b"z"]
    monkeypatch.setattr(api_json, "LONGEST_LINE", 10)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        lines_of(b"x" * 11)

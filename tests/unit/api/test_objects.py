"""References to object stores as texts."""

import pytest

from rljob_api.objects import form_of, is_reference


@pytest.mark.parametrize(
    "text",
    ["s3://bucket/key", "s3://bucket/models/qwen3/", "gs://b/a b.jsonl", "https://host:8443/a.parquet"],
)
def test_a_reference_has_a_place_and_a_key(text: str) -> None:
    assert is_reference(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket",
        "s3://bucket/",
        "s3:///key",
        "http://host/a.jsonl",
        "https://user:password@host/a.jsonl",
        "https://host/a.jsonl?signature=1",
        "az://container/key",
        "hf://org/name",
        "bucket/key",
    ],
)
def test_anything_else_is_no_reference(text: str) -> None:
    assert not is_reference(text)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("s3://bucket", "s3://BUCKET/FILE"),
        ("GS://bucket", "gs://BUCKET/FILE"),
        ("http://host/a", "https://HOST/FILE"),
        ("ftp://host/a", None),
        ("data/train.jsonl", None),
    ],
)
def test_the_form_that_a_text_resembles_is_known(text: str, form: str | None) -> None:
    assert form_of(text, "FILE") == form

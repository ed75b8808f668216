"""References to the hub as texts."""

import pytest

from rljob_api.hub import Reference, file, meant, model, of_page


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("hf://Qwen/Qwen3-0.6B", Reference("Qwen/Qwen3-0.6B", "model")),
        ("hf://org/a.b_c@v1.0", Reference("org/a.b_c", "model", "v1.0")),
        ("hf://org/name@refs/pr/3", Reference("org/name", "model", "refs/pr/3")),
    ],
)
def test_a_model_is_an_organisation_a_name_and_a_revision(text: str, reference: Reference) -> None:
    assert model(text) == reference
    assert str(reference) == text


@pytest.mark.parametrize("text", ["hf://Qwen3-0.6B", "hf://a/b/c", "hf://a/b@", "hf://a b/c", "s3://a/b", "a/b"])
def test_anything_else_is_no_model(text: str) -> None:
    assert model(text) is None


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("hf://datasets/a/b/train.jsonl", Reference("a/b", "dataset", path="train.jsonl")),
        ("hf://datasets/a/b@v1/main/t.parquet", Reference("a/b", "dataset", "v1", "main/t.parquet")),
    ],
)
def test_a_file_of_a_data_set_has_a_path(text: str, reference: Reference) -> None:
    assert file(text) == reference
    assert str(reference) == text


@pytest.mark.parametrize("text", ["hf://a/b/train.jsonl", "hf://datasets/a/b", "hf://datasets/a/b/", "train.jsonl"])
def test_anything_else_is_no_file(text: str) -> None:
    assert file(text) is None


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("Qwen/Qwen3-4B", "hf://Qwen/Qwen3-4B"),
        ("meta-llama/Llama-3.1-8B", "hf://meta-llama/Llama-3.1-8B"),
        ("models/qwen3-0.6b", None),
        ("Checkpoints/last", None),
        ("/root/Qwen3-4B", None),
        ("./Qwen/Qwen3-4B", None),
        ("a/b/c", None),
        ("Qwen3-4B", None),
        ("hf://Qwen/Qwen3-4B", None),
    ],
)
def test_the_name_of_a_model_alone_is_no_path(text, reference):
    assert meant(text, is_model=True) == reference


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("openai/gsm8k", "hf://datasets/openai/gsm8k/FILE"),
        ("mine/train.jsonl", None),
        ("data/train", None),
        ("train.jsonl", None),
    ],
)
def test_the_name_of_a_data_set_alone_is_no_path(text, reference):
    assert meant(text, is_model=False) == reference


@pytest.mark.parametrize(
    ("address", "reference"),
    [
        ("https://huggingface.co/Qwen/Qwen3-0.6B", "hf://Qwen/Qwen3-0.6B"),
        ("huggingface.co/Qwen/Qwen3-0.6B/", "hf://Qwen/Qwen3-0.6B"),
        ("https://huggingface.co/Qwen/Qwen3-0.6B/tree/v2", "hf://Qwen/Qwen3-0.6B@v2"),
        ("https://huggingface.co/datasets/openai/gsm8k", "hf://datasets/openai/gsm8k/FILE"),
        (
            "https://huggingface.co/datasets/openai/gsm8k/resolve/main/main/a.parquet?download=true",
            "hf://datasets/openai/gsm8k/main/a.parquet",
        ),
        ("https://huggingface.co/datasets/a/b/blob/v1/c.jsonl", "hf://datasets/a/b@v1/c.jsonl"),
        ("https://huggingface.co/Qwen", None),
        ("https://example.com/Qwen/Qwen3-0.6B", None),
        ("s3://bucket/key", None),
    ],
)
def test_the_address_of_a_page_is_the_reference_to_what_it_shows(address, reference):
    assert of_page(address) == reference

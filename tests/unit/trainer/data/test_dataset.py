"""All sets of questions as prompts."""

import json

import pytest

from rljob_api.sections import Data, EvaluationSet, Source
from rljob_trainer.data.dataset import dataset
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.tokenizer import load_tokenizer


@pytest.fixture
def data(tmp_path):
    rows = [{"question": "1 + " * length + "1", "answer": ""} for length in range(1, 9)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = Source(jsonl=str(tmp_path / "q.jsonl"))
    return Data(train=source, held_out=source.model_copy(update={"limit": 2}), chat_template=False)


def test_train_and_held_out_prompts_have_uids_of_their_own(data, tiny_llama_dir):
    made = dataset(data, load_tokenizer(tiny_llama_dir), max_prompt_tokens=100)
    assert [prompt.uid for prompt in made.train] == ["0", "1", "2", "3", "4", "5"]
    assert [prompt.uid for prompt in made.held_out] == ["heldOut:0", "heldOut:1"]


def test_each_evaluation_set_has_prompts_of_its_own(data, tiny_llama_dir):
    short = EvaluationSet(name="short", jsonl=data.train.jsonl, limit=3)
    made = dataset(data.model_copy(update={"evaluation_sets": (short,)}), load_tokenizer(tiny_llama_dir), 100)
    assert [prompt.uid for prompt in made.evaluation_sets["short"]] == [f"evaluationSets/short:{n}" for n in range(3)]
    assert len(made.train) == 5


def test_an_evaluation_set_s_prompts_need_room_too(data, tiny_llama_dir, tmp_path):
    tokenizer = load_tokenizer(tiny_llama_dir)
    room = len(tokenizer.encode("1 + " * 8 + "1"))
    (tmp_path / "long.jsonl").write_text(json.dumps({"question": "1 + " * 9 + "1", "answer": ""}))
    long = EvaluationSet(name="long", jsonl=str(tmp_path / "long.jsonl"))
    given = data.model_copy(update={"evaluation_sets": (long,)})
    with pytest.raises(DataError, match=r"1 of 1 prompts .*long\.jsonl:1 "):
        dataset(given, tokenizer, max_prompt_tokens=room)


def test_prompts_without_room_for_a_response_are_refused_by_row(data, tiny_llama_dir):
    tokenizer = load_tokenizer(tiny_llama_dir)
    longest = len(tokenizer.encode("1 + " * 8 + "1"))
    with pytest.raises(
        DataError, match=rf"1 of 6 prompts are longer than {longest - 1} tokens.*q\.jsonl:8 \({longest} tok"
    ):
        dataset(data, tokenizer, max_prompt_tokens=longest - 1)


def test_a_prompt_of_just_the_right_length_is_taken(data, tiny_llama_dir):
    tokenizer = load_tokenizer(tiny_llama_dir)
    assert len(dataset(data, tokenizer, len(tokenizer.encode("1 + " * 8 + "1"))).train) == 6


def test_a_long_list_of_long_prompts_is_cut(data, tiny_llama_dir):
    with pytest.raises(DataError, match=r"6 of 6 .*q\.jsonl:7 \(\d+ tokens\), …\. Shorten"):
        dataset(data, load_tokenizer(tiny_llama_dir), max_prompt_tokens=1)

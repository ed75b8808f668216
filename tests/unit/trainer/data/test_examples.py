"""The examples in the documentation load, and their questions look as their comments say."""

from pathlib import Path

import pytest

from rljob_api.manifest import load
from rljob_trainer.data.dataset import Dataset, dataset
from rljob_trainer.data.render import load_tokenizer
from rljob_trainer.rewards.choose import rewards
from rljob_trainer.samples import Group, Prompt, Sample

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "docs" / "examples"


@pytest.fixture(autouse=True)
def as_a_reader_would(monkeypatch):
    """Run where the commands in the examples are meant to be run."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(EXAMPLES / "rewards")


def questions_of(name: str, model: Path) -> Dataset:
    spec = load((EXAMPLES / name).read_text()).spec
    room = (spec.rollout.context_length or 0) - spec.rollout.sampling.max_new_tokens
    return dataset(spec.data, load_tokenizer(model), room)


@pytest.mark.parametrize(
    ("name", "train", "held_out"),
    [
        ("quickstart.yaml", 2892, 100),
        ("chain-sum-tiny.yaml", 149, 50),
        ("arithmetic-products.yaml", 80, 20),
        ("own-data.yaml", 180, 20),
    ],
)
def test_an_example_has_the_questions_that_it_promises(tiny_llama_dir, name, train, held_out):
    read = questions_of(name, tiny_llama_dir)
    assert (len(read.train), len(read.held_out)) == (train, held_out)


def test_every_example_is_tested():
    assert len(list(EXAMPLES.glob("*.yaml"))) == 4


def test_the_quickstart_asks_for_the_rest_of_an_equation(tiny_llama_dir):
    first = questions_of("quickstart.yaml", tiny_llama_dir).train[0]
    assert first.text == "<|im_start|>user\n15 - 43 =<|im_end|>\n<|im_start|>assistant\n15 - 43 ="
    assert first.label == "-28"


@pytest.mark.parametrize(
    ("text", "reward"), [(" -28", 1.0), (" -28.\nmore", 1.0), (" -27", 0.0), ("", 0.0), (" = -28", 0.0)]
)
def test_the_quickstart_rewards_the_right_number_only(tiny_llama_dir, text, reward):
    prompt = questions_of("quickstart.yaml", tiny_llama_dir).train[0]
    judge = rewards(load((EXAMPLES / "quickstart.yaml").read_text()).spec.reward)
    sample = Sample((1,), (0.0,), text, 0, "stop", "engine-0")
    assert judge.score([Group(prompt, (sample,))])[0].rewards_G == (reward,)


@pytest.mark.parametrize(("text", "reward"), [(" 11", 1.0), (" 13", 1 / 3), (" 7.", 1 / 5), ("eleven", 0.0)])
def test_the_example_reward_grows_with_closeness(text, reward):
    judge = rewards(load((EXAMPLES / "own-data.yaml").read_text()).spec.reward)
    prompt = Prompt("0:0", "7 + 4 =", "7 + 4 =", (1,), "11", {})
    sample = Sample((1,), (0.0,), text, 0, "stop", "engine-0")
    assert judge.score([Group(prompt, (sample,))])[0].rewards_G == (reward,)

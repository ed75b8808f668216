"""The examples in the documentation load, and their questions look as their comments say."""

import importlib
from contextlib import ExitStack
from pathlib import Path

import pytest
from aiohttp import web

from rljob_api.algorithms import KNOWN
from rljob_api.reading.manifest import load
from rljob_api.sections import Judging, Remote, RewardKind
from rljob_trainer.data.dataset import Dataset, dataset
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.processes.background import Background
from rljob_trainer.rewards.factory import RewardContext, rewards
from rljob_trainer.rewards.function import Response
from rljob_trainer.rewards.remote import remote_reward
from rljob_trainer.samples import Group, Prompt, Sample

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "docs" / "examples"


@pytest.fixture(autouse=True)
def as_a_reader_would(monkeypatch):
    """Run where the commands in the examples are meant to be run."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(EXAMPLES / "rewards")


@pytest.fixture
def rewards_of(tmp_path):
    with ExitStack() as stack:
        around = RewardContext(tmp_path / "reward.log", environ={})
        yield lambda name: rewards(load((EXAMPLES / name).read_text()).spec.reward, around, stack)


def group(prompt: Prompt, *texts: str) -> Group:
    return Group(prompt, tuple(Sample((1,), (0.0,), text, 0, "stop", "engine-0") for text in texts))


def questions_of(name: str, model: Path) -> Dataset:
    spec = load((EXAMPLES / name).read_text()).spec
    room = (spec.rollout.context_length or 0) - spec.rollout.sampling.max_new_tokens
    return dataset(spec.data, load_tokenizer(model), room)


@pytest.mark.parametrize(
    ("name", "train", "held_out"),
    [
        ("quickstart.yaml", 2630, 100),
        ("gpu-sums.yaml", 24445, 500),
        ("chain-sum-tiny.yaml", 149, 50),
        ("async.yaml", 149, 50),
        ("arithmetic-products.yaml", 80, 20),
        ("own-data.yaml", 180, 20),
        ("several-rewards.yaml", 180, 20),
        ("algorithms/grpo.yaml", 160, 40),
        ("calculator.yaml", 936, 40),
        ("agent-products.yaml", 936, 40),
        ("agent-program.yaml", 936, 40),
    ],
)
def test_an_example_has_the_questions_that_it_promises(tiny_llama_dir, name, train, held_out):
    read = questions_of(name, tiny_llama_dir)
    assert (len(read.train), len(read.held_out)) == (train, held_out)


@pytest.mark.parametrize("path", sorted((EXAMPLES / "algorithms").glob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_of_an_algorithm_is_a_valid_manifest_that_is_named_like_its_file(path):
    assert load(path.read_text()).metadata.name == path.stem


def test_every_algorithm_has_an_example():
    named = {load(path.read_text()).spec.algorithm.name for path in (EXAMPLES / "algorithms").glob("*.yaml")}
    assert named == set(KNOWN)


def test_every_example_is_tested():
    assert len(list(EXAMPLES.glob("*.yaml"))) == 10


def test_the_quickstart_asks_for_the_rest_of_an_equation(tiny_llama_dir):
    first = questions_of("quickstart.yaml", tiny_llama_dir).train[0]
    assert first.text == "<|im_start|>user\n5 + 33 =<|im_end|>\n<|im_start|>assistant\n5 + 33 ="
    assert first.label == "38"


@pytest.mark.parametrize(
    ("text", "reward"), [(" 38", 1.0), (" 38.\nmore", 1.0), (" 37", 0.0), ("", 0.0), (" = 38", 0.0)]
)
def test_the_quickstart_rewards_the_right_number_only(rewards_of, tiny_llama_dir, text, reward):
    prompt = questions_of("quickstart.yaml", tiny_llama_dir).train[0]
    assert rewards_of("quickstart.yaml").score([group(prompt, text)])[0].rewards_G == (reward,)


SUM = Prompt("0:0", "7 + 4 =", "7 + 4 =", (1,), "11", {})


def test_the_example_reward_grows_with_closeness(rewards_of):
    (scored,) = rewards_of("own-data.yaml").score([group(SUM, " 11", " 13", " 7.", "eleven")])
    assert scored.rewards_G == (1.0, 1 / 3, 1 / 5, 0.0)


def test_the_example_of_several_rewards_adds_them_up(rewards_of):
    (scored,) = rewards_of("several-rewards.yaml").score([group(SUM, " 11", " 13", "?")])
    assert scored.parts_G == {"right": (1.0, 0.0, 0.0), "close": (1.0, 1 / 3, 0.0), "short": (0.0, 0.0, 1.0)}
    assert scored.rewards_G == pytest.approx((1.2, 0.2 / 3, 0.1))


def test_the_example_service_answers():
    example = importlib.import_module("service")
    with Background() as background:
        runner = web.AppRunner(example.service())
        background.run(runner.setup(), timeout_s=10)
        background.run(web.TCPSite(runner, "127.0.0.1", 0).start(), timeout_s=10)
        judge = Remote(url=f"http://127.0.0.1:{runner.addresses[0][1]}/score")
        spec = Judging(kind=RewardKind.REMOTE, remote=judge)
        scores = list(remote_reward(spec, False, {}, lambda: None)([Response(SUM, "It is 11."), Response(SUM, "12")]))
        background.run(runner.cleanup(), timeout_s=10)
    assert scores == [1.0, 0.0]

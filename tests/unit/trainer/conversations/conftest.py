"""What tests of conversations share."""

import asyncio

import pytest
from transformers import PreTrainedTokenizerBase

from rljob_api.sections import Sampling
from rljob_trainer.conversations.conversation import Limits
from rljob_trainer.conversations.function import Function
from rljob_trainer.conversations.generator import Engines, FunctionGenerator
from rljob_trainer.conversations.turns import Turns
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.processes.background import Background
from rljob_trainer.samples import Prompt
from support.trainer.scripted_model import ScriptedRouter
from support.trainer.tiny_models import tiny_tokenizer

OPENED = "<|im_start|>user\n1 + 1 =<|im_end|>\n<|im_start|>assistant\n"
SAMPLING = Sampling(temperature=0.7, max_new_tokens=64, stop=("\n\n",))


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    return load_tokenizer(tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


async def no_pause(seconds: float) -> None:
    """Let nobody wait."""


@pytest.fixture
def made(tokenizer):
    """Return a function that makes samples with a script, and what was asked meanwhile."""
    with Background() as apart:

        def make(
            function,
            script,
            num_samples=1,
            greedy=False,
            own_time_s=30.0,
            patience_s=30.0,
            sampling=SAMPLING,
            clock=lambda: 0.0,
            outage=None,
        ):
            router = ScriptedRouter(tokenizer, script)
            generator = FunctionGenerator(
                function=Function("own:function", function),
                own_time_s=own_time_s,
                engines=Engines(router, 1.0, patience_s, alive=lambda: None),
                tokenizer=tokenizer,
                turns=Turns(tokenizer, True),
                limits=Limits(1024, sampling.max_new_tokens),
                apart=apart,
                clock=clock,
                outage=outage,
                pause=no_pause,
            )
            tokens = tuple(tokenizer.encode(OPENED, add_special_tokens=False))
            prompt = Prompt("0:0", "1 + 1 =", OPENED, tokens, "2", {})
            return asyncio.run(generator.generate(prompt, sampling, num_samples, greedy)), router.asked

        yield make

"""Unmodified clients of the registry at the gateway, with a scripted model that solves their tasks.

What they do, which answers continue each other, and what is trained on.
"""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from rljob_api.sections import Branches
from rljob_trainer.agents.outcome import Returned
from rljob_trainer.agents.trajectory import Counting, trajectory
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.gateway.parsing import Parsers
from support.trainer.client_environment import CLIENTS, PROGRAMS, client_python, session_variables
from support.trainer.scripted_gateway import SETTINGS, ScriptedGateway, scripted_gateway
from support.trainer.scripted_model import LOGPROB, Says
from support.trainer.tiny_models import tiny_tokenizer

pytestmark = pytest.mark.timeout(900)

CLIENT_S = 240.0
ROOM = replace(SETTINGS, context=8192, new_tokens=4096, turns=16)
COUNTING = Counting(Branches.ALL, drop_outgrown=False, judged=False)
END = "<|im_end|>"


def calling(name: str, **arguments: Any) -> str:
    return f"See.\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


ADDS = calling("add", a=2, b=3)
REPAIRS = calling("bash", command="sed -i s/a.-.b/a+b/ calc.py")
LOOKS = calling("bash", command="grep -c a+b calc.py")
SUBMITS = calling("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
SOLVED: dict[str, tuple[list[str], list[int | None], dict[str, Any]]] = {
    "anthropic_messages": ([ADDS, "5"], [None, 0], {"text": "5"}),
    "mini_swe_agent": (
        # it drops an answer without a call from its history: what follows is a branch
        [REPAIRS, "No call.", LOOKS, SUBMITS],
        [None, 0, 0, 2],
        {"ended": "Submitted", "passed": True},
    ),
    "openai_agents": ([ADDS, "5", "five"], [None, 0, 1], {"text": "5", "again": "five"}),
    "openai_chat": ([ADDS, "5", "five"], [None, 0, None], {"text": "five"}),
    "openai_responses": ([ADDS, "5", "five"], [None, 0, None], {"text": "5", "again": "five"}),
    "openenv_environment": (["3", "7", "5"], [None, 0, 1], {"reward": 1.0, "turns": 3}),
    "verifiers_environment": ([ADDS, "It is 5"], [None, 0], {"reward": 1.0, "error": ""}),
}
"""what the model says, the turn that each answer continues, and what the program prints at its end"""


@pytest.fixture(scope="module")
def python() -> Path:
    return client_python()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    return load_tokenizer(tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def used(served: ScriptedGateway, python: Path, client: str, home: Path) -> Any:
    """Run a client's program with the session, and return what it prints at its end."""
    variables = session_variables(served.base_url, served.session.key, "2 + 3 =", 512, home)
    done = subprocess.run(
        [python, PROGRAMS / f"{client}.py"],
        env=variables,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=CLIENT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_each_program_has_a_script() -> None:
    assert set(SOLVED) == set(CLIENTS)


@pytest.mark.parametrize("client", SOLVED)
def test_a_client_does_its_task_and_each_answer_is_trained_on_once(
    python: Path, tokenizer: PreTrainedTokenizerBase, client: str, tmp_path: Path
) -> None:
    script, parents, printed = SOLVED[client]
    with scripted_gateway(tokenizer, [Says(text) for text in script], ROOM, Parsers("qwen25")) as served:
        assert used(served, python, client, tmp_path) == printed
    assert [turn.parent for turn in served.turns] == parents
    sample = trajectory(Returned(reward=1.0), served.session.record, COUNTING)
    ends, tokens, logprobs = 0, [], []
    for part in sample.segments:
        begin, ends = ends, ends + part.length
        if part.by_model:
            tokens += sample.tokens_T[begin:ends]
            logprobs += sample.logprobs_T[begin:ends]
        else:
            assert set(sample.logprobs_T[begin:ends]) == {0.0}
    assert tokenizer.decode(tokens) == "".join(text + END for text in script)
    assert logprobs == [LOGPROB] * len(tokens)
    assert len(sample.branches) == len(parents) - len({parent for parent in parents if parent is not None})


def test_the_mask_of_a_case_by_hand(python: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    script = [Says(text) for text in SOLVED["openai_chat"][0]]
    with scripted_gateway(tokenizer, script, ROOM, Parsers("qwen25")) as served:
        used(served, python, "openai_chat", tmp_path)
    sample = trajectory(Returned(reward=1.0), served.session.record, COUNTING)
    opens = "<|im_start|>assistant\n"
    assert [branch.text for branch in sample.branches] == [
        f"<|im_start|>system\nAdd.{END}\n<|im_start|>user\n2 + 3 ={END}\n{opens}",
        f"<|im_start|>user\n2 + 3 = So far: 5{END}\n{opens}",
    ]
    assert [(part.text, part.by_model) for part in sample.segments] == [
        (f"{ADDS}{END}", True),
        (f"\n<|im_start|>tool\n5{END}\n{opens}", False),
        (f"5{END}", True),
        (f"five{END}", True),
    ]

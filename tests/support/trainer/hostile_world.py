"""A whole run of real parts in a world that fails again and again, in a time that passes on request.

    prompts ─► environments, 1 % of whose calls fail ─► a judge that is away for a while ─► batches ─► a learner
    journal, checkpoints, events on a volume that fails once in every minute

Only engines and learner are fakes. Files and HTTP fail where they are used: in `os`, `pathlib` and the request.
"""

import errno
import itertools
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from rljob_api import control
from rljob_api.sections import Checkpoint as Wish
from rljob_api.sections import NormalizeBy, Remote, Sampling
from rljob_trainer.algorithms.grpo import GroupRelative
from rljob_trainer.batches.batches import Batches, StepBatch
from rljob_trainer.batches.loss_weights import by_token
from rljob_trainer.batches.packing import Packing
from rljob_trainer.batches.penalties import no_penalties
from rljob_trainer.cadence import Cadence
from rljob_trainer.control.status_store import StatusStore
from rljob_trainer.control.status_updates import StatusUpdater
from rljob_trainer.conversations.conversation import Conversation, Limits
from rljob_trainer.conversations.function import Function
from rljob_trainer.conversations.generator import Engines, FunctionGenerator
from rljob_trainer.conversations.turns import Turns
from rljob_trainer.data.prompt_scheduler import Lead, PromptScheduler
from rljob_trainer.data.prompts import PromptStream
from rljob_trainer.data.read_ahead import Held
from rljob_trainer.engines.client import Continuation, TokenRequest
from rljob_trainer.loop import train
from rljob_trainer.metrics import LearnerMetrics, Publication
from rljob_trainer.parts import Parts
from rljob_trainer.processes.background import Background
from rljob_trainer.reporting.losses import Losses, Outage
from rljob_trainer.reporting.phases import Phases
from rljob_trainer.reporting.report import open_report
from rljob_trainer.rewards.factory import PartReward, Rewards
from rljob_trainer.rewards.remote import RemoteReward
from rljob_trainer.rollouts.evaluation import NoHeldOut
from rljob_trainer.rollouts.lost_samples import LeavingOut
from rljob_trainer.rollouts.sampler import Sampler
from rljob_trainer.rollouts.synchronous import SyncRollouts
from rljob_trainer.rundir.checkpoints import Checkpoints
from rljob_trainer.rundir.fence import Fence, Name
from rljob_trainer.rundir.journal import Journal
from rljob_trainer.rundir.resume import begin
from rljob_trainer.rundir.retries import Patience
from rljob_trainer.samples import Prompt
from support.trainer.synthetic_run import Clock, job

PROMPTS, SAMPLES, ROWS = 2, 4, 61
STEP_S = 600.0
DOOMED = 60
"""row whose environment always fails"""
POISON = 53
"""row with one response in each epoch that the judge breaks on"""


@dataclass
class World:
    """What fails, and when."""

    clock: Clock = field(default_factory=Clock)
    judge_away: tuple[float, float] = (80_000.0, 600.0)
    """after this time the judge is away for so long from its next question on [s]"""
    _away_since: float | None = None
    _failed_at: float = 0.0
    _calls: Any = field(default_factory=itertools.count)
    _random: Random = field(default_factory=lambda: Random(5))
    _spared: int = 0
    hiccups: int = 0

    def call_fails(self) -> bool:
        return next(self._calls) % 100 == 37

    def judge_is_away(self) -> bool:
        after, lasts_s = self.judge_away
        if self._away_since is None and self.clock.now > after:
            self._away_since = self.clock.now
        return self._away_since is not None and self.clock.now < self._away_since + lasts_s

    def volume_fails(self) -> bool:
        if self.clock.now < self._failed_at + 60.0:
            return False
        if self._spared:  # not always the first operation
            self._spared -= 1
            return False
        self._failed_at, self._spared = self.clock.now, self._random.randrange(8)
        self.hiccups += 1
        return True

    def break_files(self, patch: pytest.MonkeyPatch) -> None:
        """Let operations on files fail, the first one of every minute."""
        for owner, name in (
            *((os, name) for name in ("fsync", "ftruncate")),
            *((Path, name) for name in ("rename", "iterdir", "read_bytes", "read_text", "mkdir")),
            (shutil, "rmtree"),
        ):
            patch.setattr(owner, name, self._failing(getattr(owner, name)))

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        errors = itertools.cycle((errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.ENOTCONN))

        def call(*arguments: Any, **options: Any) -> Any:
            if self.volume_fails():
                number = next(errors)
                raise OSError(number, os.strerror(number))
            return real(*arguments, **options)

        return call


class Tokenizer:
    """Words are numbers."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        return ""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [1]

    def decode(self, token_ids: list[int]) -> str:
        return " ".join(map(str, token_ids))


@dataclass
class Engine:
    """Answers with the weights of the last publication."""

    version: int = 0
    answers: Any = field(default_factory=itertools.count)

    async def generate(self, request: TokenRequest, deadline_s: float) -> tuple[Continuation, ...]:
        number = next(self.answers)
        return (Continuation((5, 6 + number % 3), (-0.1, -0.2), str(number % 7), self.version, "engine-0", "stop"),)

    def publish(self, version: int) -> Publication:
        self.version = version
        return Publication(version, 1.0, ("engine-0",), {})


@dataclass
class Learner:
    """Takes its time, and remembers what it was given."""

    clock: Clock
    samples: int = 0
    smallest: int = 10**9

    def train(self, batches: tuple[StepBatch, ...]) -> LearnerMetrics:
        self.clock.now += STEP_S
        self.samples += sum(batch.samples for batch in batches)
        self.smallest = min([self.smallest, *(batch.samples for batch in batches)])
        return LearnerMetrics(loss=0.0, grad_norm=1.0, learning_rate=0.1)

    def stage(self, directory: Path) -> None:
        self.staged = directory / "__0_0.distcp", str(self.samples).encode()

    def write(self) -> dict[str, str]:
        path, content = self.staged
        path.write_bytes(content)
        return {}

    def training(self) -> AbstractContextManager[None]:
        return nullcontext()

    saving = training


class Judge(RemoteReward):
    """A service over HTTP, whose requests fail as the world has it."""

    __slots__ = ("world",)
    world: World

    async def _post(self, session: aiohttp.ClientSession, body: bytes) -> tuple[int, str]:
        if self.world.judge_is_away():
            raise aiohttp.ServerDisconnectedError
        if b'"label": "poison"' in body and b'"response": "3"' in body:
            return 500, "stack overflow"
        return 200, str(int(body.split(b'"response": "')[1].split(b'"')[0]) % 2)


class Nobody:
    """Orders nothing."""

    requested = False


@dataclass
class Ended:
    """What is left of a run."""

    finished: bool
    status: control.Status
    learner: Learner
    waits: set[str]
    asked: int
    stream: PromptStream


def prompt(row: int) -> Prompt:
    return Prompt(str(row), str(row), str(row), (row,), "poison" if row == POISON else "x", {})


@dataclass
class Stage:
    """What the parts of a run stand on."""

    directory: Path
    steps: int
    world: World
    waits: set[str] = field(default_factory=set)
    """what the status said that the run waits for"""

    def __post_init__(self) -> None:
        self.clock = self.world.clock
        self.losses = Losses(self.clock)
        self.patience = Patience(1800.0, self.losses, pause=self.sleep, clock=self.clock)
        self.fence = Fence(self.directory, Name("uid", 1), self.patience)
        self.fence.claim()
        assert begin(self.directory, Wish(), "uid", self.patience).step == 0
        self.phases = Phases(self.clock)
        self.report = open_report(self.directory, job(self.steps), self.phases, self.clock.unix, 1, 0)
        self.report.with_losses(self.losses.lost)
        self.store = StatusStore(control.Status(), self.clock)
        self.updater = StatusUpdater(
            self.store,
            self.report.progress,
            self.report.saved,
            self.report.findings,
            tuple,
            lambda states: None,
            self.losses,
        )
        self.stream = PromptStream(Held(map(prompt, range(ROWS))), seed=3, shuffle=True)
        self.journal = Journal(self.directory / "journal.jsonl", self.fence.check, self.patience)
        self.journal.rewind(0, "")
        self.engine, self.learner = Engine(), Learner(self.clock)

    def sleep(self, seconds: float) -> None:
        self.clock.now += seconds

    async def pause(self, seconds: float) -> None:
        self.sleep(seconds)

    def alive(self) -> None:
        self.updater.update()
        self.waits.update([self.store.status.waits_for] if self.store.status.waits_for else [])

    def outage(self, what: str, tries: int = 3) -> Outage:
        return Outage(what, self.losses, 1800.0, tries, alive=self.alive, clock=self.clock)

    async def environment(self, conversation: Conversation) -> None:
        await conversation.model()
        if self.world.call_fails() or conversation.prompt.question == str(DOOMED):
            raise ConnectionResetError("the sandbox service has reset the connection")

    def generator(self, apart: Background) -> FunctionGenerator:
        return FunctionGenerator(
            function=Function("rollout.generate my.env:run", self.environment),
            own_time_s=600.0,
            engines=Engines(self.engine, 600.0, 600.0, lambda: None),  # type: ignore[arg-type]
            tokenizer=Tokenizer(),
            turns=Turns(Tokenizer(), False),
            limits=Limits(1000, 50),
            apart=apart,
            clock=self.clock,
            outage=self.outage("the environment"),
            pause=self.pause,
        )

    def leaving(self, background: Background, apart: Background) -> LeavingOut:
        engine, answers = self.engine, self.outage("engines")
        made = self.generator(apart)
        sampler = Sampler(made, 1e9, lambda: engine.version, lambda: None, lambda: None, outage=answers)
        scheduler = PromptScheduler(self.stream, self.journal, Lead(self.steps), PROMPTS)
        rollouts = SyncRollouts(scheduler, sampler, Sampling(max_new_tokens=50), PROMPTS, SAMPLES, background)
        outage = self.outage("the judge", 10)
        judge = Judge(Remote(url="http://judge"), 60.0, 64, False, {}, self.alive, self.pause, outage=outage)
        object.__setattr__(judge, "world", self.world)
        rewards = Rewards((PartReward(judge),), self.losses)
        return LeavingOut(rollouts, rewards, PROMPTS, SAMPLES, 0.1, self.losses)

    def checkpoints(self) -> Checkpoints:
        return Checkpoints(
            directory=self.directory / "checkpoints",
            keep=2,
            layout="",
            model="",
            precision="fp32",
            learner=self.learner,
            stream=self.stream,
            journal=self.journal,
            copied=lambda step: None,
            beside=at_once,
            saved=lambda step, path, seconds: self.report.checkpoint(step, path),
            may_write=self.fence.check,
            patience=self.patience,
        )

    def parts(self, leaving: LeavingOut) -> Parts:
        return Parts(
            rollouts=leaving,
            rewards=leaving,
            batches=Batches(GroupRelative(NormalizeBy.GROUP), no_penalties, by_token, True, 4, Packing(1, 1000)),
            learner=self.learner,
            gpu_sharing=self.learner,
            weights=self.engine,
            evaluation=NoHeldOut(),
            checkpoints=self.checkpoints(),
            report=self.report,
            phases=self.phases,
            cadence=Cadence(self.steps, save_interval=20, evaluation_interval=10_000),
            orders=Nobody(),
        )


def run(directory: Path, steps: int, world: World) -> Ended:
    """Take a run to its end."""
    stage = Stage(directory, steps, world)
    with Background() as background, Background() as apart:
        finished = train(stage.parts(stage.leaving(background, apart)), 0, steps)
    stage.journal.close()
    stage.report.end("finished")
    stage.updater.update()
    asked = steps * PROMPTS * SAMPLES
    return Ended(finished, stage.store.status, stage.learner, stage.waits, asked, stage.stream)


def at_once(work: Callable[[], None]) -> "Future[None]":
    """Do a work that others do in a thread: virtual time has one."""
    future: Future[None] = Future()
    try:
        work()
        future.set_result(None)
    except Exception as error:  # noqa: BLE001 - who waits for the future gets it
        future.set_exception(error)
    return future

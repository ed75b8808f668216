"""The driver's handle on all ranks of the learner, each in a separate Ray actor.

Ranks meet in collectives, so a call goes to all of them or to none: one lock, one submission, one wait with a deadline.
When a rank fails the wait ends at once, although the others may hang in a collective that it never joined.
"""

import asyncio
import logging
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Concatenate, ParamSpec, TypeVar, TypeVarTuple

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_trainer.batches.batches import StepBatch
from rljob_trainer.batches.packing import MicroBatch
from rljob_trainer.learners.config import Estimator
from rljob_trainer.learners.errors import (
    CheckpointFormatError,
    CriticMismatchError,
    DamagedCheckpointError,
    LearnerError,
    LearnerLostError,
    LearnerStalledError,
    LinkError,
    TrainingDivergedError,
    UnsupportedModelError,
)
from rljob_trainer.learners.rank_calls import Rank, Values_R
from rljob_trainer.learners.rank_host import RankHost
from rljob_trainer.learners.skips import Skips, after
from rljob_trainer.metrics import LearnerMetrics, OptimizerStep, over_steps, perplexity_of
from rljob_trainer.processes.actor_calls import ask
from rljob_trainer.processes.stacks import Stacks
from rljob_trainer.rundir.retries import StorageError

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

INTERRUPT_S = 30.0
STILL_S = 300.0
"""how long no byte of a checkpoint may move, although its volume answers [s]"""
LOOK_S = 5.0
"""between two looks at how many bytes have moved [s]"""
THREADS = 6
"""of a rank: `stay` never ends; a checkpoint is written, and looked at, beside a call; `interrupt` and `stacks` must
run while that hangs"""
GONE_WITHIN_S = 5.0
"""within which Ray reports that a process is gone"""
GUESSES = re.compile(r" (?:Some common causes include|There are some potential root causes)")
"""before what Ray lists for every process that has died"""
OUT_OF_MEMORY = ("OutOfMemoryError", "can't allocate memory")
"""what torch says of CUDA's memory and of the host's"""
REFUSALS = (
    UnsupportedModelError,
    CheckpointFormatError,
    CriticMismatchError,
    DamagedCheckpointError,
    StorageError,
    LinkError,
)
"""what a rank raises for the driver to judge"""


def _nothing() -> None:
    """Do nothing."""


class LearnerGroup:
    """All ranks. Methods block and may be called from any thread.

    They raise LearnerError, LearnerLostError or LearnerStalledError, and what a rank refuses as it is:
    UnsupportedModelError, CheckpointFormatError, CriticMismatchError, DamagedCheckpointError, StorageError, LinkError,
    MemoryError.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        actor_options: Sequence[Mapping[str, Any]],
        layout: ParallelLayout,
        timeout_s: float,
        max_skipped: int,
        still_s: float = STILL_S,
    ) -> None:
        """Place a host for each of `actor_options`; `make` constructs a rank in it when `start` is called.

        A checkpoint may take any time while bytes of it move: ranks that move none for `still_s` are given up.
        """
        self._make = make
        hosts = ray.remote(RankHost)
        options = [{"max_restarts": 0, "max_concurrency": THREADS, **each} for each in actor_options]
        self._hosts = [hosts.options(**each).remote() for each in options]
        self._layout = layout
        self._timeout_s = timeout_s
        self._max_skipped = max_skipped
        self._still_s = still_s
        self._skips: Skips = ()
        self._lost: LearnerLostError | None = None
        self._lock = threading.RLock()

    def start(self) -> None:
        """Make the ranks, which load the model."""
        with self._lock:
            address, port = self.address()
            world = len(self._hosts)
            self._wait(
                [
                    ask(host, RankHost.build, self._make, rank, world, address, port)
                    for rank, host in enumerate(self._hosts)
                ]
            )

    def address(self) -> tuple[str, int]:
        """Return the address of rank 0's machine and a port where it waits for others to meet it."""
        with self._lock:
            return self._wait([ask(self._hosts[0], RankHost.address)])[0]

    def train(self, batches: Sequence[StepBatch]) -> LearnerMetrics:
        """Take one optimizer step for each batch.

        With several, the probability ratio is taken against the log-probabilities before the first of them.
        Raises TrainingDivergedError when too many of the last steps had to be skipped.
        """
        with self._lock:
            full = [batch for batch in batches if any(batch.micro_batches_by_rank)]
            # The first step's are those of its own forward pass.
            old = [self._logprobs(batch.micro_batches_by_rank, n) if n else None for n, batch in enumerate(full)]
            steps = [self._train(batch, logprobs, n) for n, (batch, logprobs) in enumerate(zip(full, old, strict=True))]
        self._count_skipped(steps)
        return summary(steps, kl_in_rewards=next((batch.kl for batch in batches), None))

    def train_critic(self, batches: Sequence[StepBatch]) -> list[OptimizerStep]:
        """Take one optimizer step of the critic for each batch. Raises TrainingDivergedError, as `train` does."""
        with self._lock:
            shares = [batch.micro_batches_by_rank for batch in batches if any(batch.micro_batches_by_rank)]
            steps = [self._on_shares(Rank.train_critic, [(list(share),) for share in each])[0] for each in shares]
        self._count_skipped(steps)
        return steps

    def values(self, shares: Sequence[Sequence[MicroBatch]]) -> list[list[Values_R]]:
        """Return the critic's value before each of the micro-batches' targets, for each data-parallel share."""
        with self._lock:
            return self._outputs(self._on_shares(Rank.values, [(list(share),) for share in shares]))

    def kl(self, shares: Sequence[Sequence[MicroBatch]], estimator: Estimator, clamp: bool) -> list[list[Values_R]]:
        """Return the KL estimate against the reference of each micro-batch's targets, for each data-parallel share."""
        with self._lock:
            return self._outputs(self._on_shares(Rank.kl, [(list(share), estimator, clamp) for share in shares]))

    def divergence(self, shares: Sequence[Sequence[MicroBatch]]) -> list[list[Values_R]]:
        """Return policy less teacher log-probability of each micro-batch's targets, for each data-parallel share."""
        with self._lock:
            return self._outputs(self._on_shares(Rank.divergence, [(list(share),) for share in shares]))

    def logprobs(self, shares: Sequence[Sequence[MicroBatch]]) -> list[list[Values_R]]:
        """Return the log-probability of each of the micro-batches' targets, for each data-parallel share."""
        with self._lock:
            return self._logprobs(shares)

    def stage(self, directory: Path) -> None:
        """Copy all ranks' state for a checkpoint; training may go on at once."""
        self.call(Rank.stage, directory)

    def write(self) -> Mapping[str, str]:
        """Write the copies, beside what else the ranks do; return the digests of the files, by name."""
        written = self._moving("write a checkpoint", Rank.write_staged)
        self._wait([_call(self._hosts[0], Rank.finish_save, (written,), {})])
        return {name: digest for each in written for name, digest in each.digests.items()}

    def load(self, directory: Path, alive: Callable[[], None] = _nothing) -> int:
        """Continue from a checkpoint; return the optimizer steps that it holds. `alive` is called as it is read."""
        with self._lock:
            steps = self._moving(f"read {directory}", Rank.load, directory, alive=alive)[0]
            self.call(Rank.spread)
        self._skips = self.call(Rank.recent_skips)[0]
        return steps

    def write_hf(self, directory: Path) -> None:
        """Write the weights as a Hugging Face checkpoint."""
        self.call(Rank.write_hf, directory)

    def call(self, method: Callable[Concatenate[Any, P], R], *args: P.args, **kwargs: P.kwargs) -> list[R]:
        """Call a collective method on all ranks, such as `Rank.links`; return their answers in order of rank."""
        with self._lock:
            return self._wait([_call(host, method, args, kwargs) for host in self._hosts])

    def interrupt(self, method: Callable[[Any], object]) -> None:
        """Call a method of rank 0 that ends what another call hangs in."""
        self._wait([_call(self._hosts[0], method, (), {})], INTERRUPT_S)

    def stacks(self, timeout_s: float) -> list[Stacks | None]:
        """Return the stacks of each rank, while others wait for the ranks; None: it does not answer."""
        references = [ask(host, RankHost.stacks) for host in self._hosts]
        if not references:
            return []
        ready, _ = ray.wait(references, num_returns=len(references), timeout=timeout_s)
        return [_stacks_of(reference) if reference in ready else None for reference in references]

    async def watch(self) -> None:
        """Return when the process of a rank is gone; from then on `check` says so."""
        stays = [asyncio.ensure_future(_gone(host, rank)) for rank, host in enumerate(self._hosts)]
        try:
            (first, *_), _ = await asyncio.wait(stays, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for stay in stays:
                stay.cancel()
        self._lost = first.result()
        log.error("action=lost reason=%s", self._lost)

    def check(self) -> None:
        """Raise LearnerLostError if `watch` has seen a rank go: for those who wait for something else meanwhile."""
        if self._lost is not None:
            raise self._lost

    def lost(self, within_s: float) -> bool:
        """Return whether the process of a rank is gone, or is seen to be within a time [s]."""
        deadline = time.monotonic() + within_s
        while self._lost is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return self._lost is not None

    def stop(self) -> None:
        """End all ranks at once."""
        for host in self._hosts:
            ray.kill(host)

    def _count_skipped(self, steps: Sequence[OptimizerStep]) -> None:
        self._skips = after(self._skips, (step.skipped for step in steps))
        if sum(self._skips) > self._max_skipped:
            raise TrainingDivergedError(
                f"{sum(self._skips)} of the last {len(self._skips)} optimizer steps had a gradient that is not finite; "
                f"training.optimizer.maxSkippedSteps allows {self._max_skipped}"
            )

    def _logprobs(self, shares: Sequence[Sequence[MicroBatch]], number: int | None = None) -> list[list[Values_R]]:
        return self._outputs(self._on_shares(Rank.logprobs, [(list(share), number) for share in shares]))

    def _outputs(self, answers: list[R]) -> list[R]:
        """Return what the ranks that hold the output say, one for each data-parallel share."""
        return [answers[self._layout.output_rank(share)] for share in range(self._layout.data)]

    def _train(self, batch: StepBatch, old_logprobs: list[list[Values_R]] | None, number: int) -> OptimizerStep:
        old: Sequence[list[Values_R] | None] = old_logprobs or [None] * self._layout.data
        arguments = [(list(share), old[index], number) for index, share in enumerate(batch.micro_batches_by_rank)]
        return self._on_shares(Rank.train, arguments)[0]

    def _on_shares(self, method: Callable[[Any, *Ts], R], arguments: Sequence[tuple[*Ts]]) -> list[R]:
        """Call a method on all ranks, each with the arguments of its data-parallel share."""
        stored: list[Any] = [ray.put(share) for share in arguments]
        references = [
            _call(host, method, stored[self._layout.data_rank(rank)], {}) for rank, host in enumerate(self._hosts)
        ]
        return self._wait(references)

    def _moving(
        self,
        what: str,
        method: Callable[..., R],
        *arguments: object,
        alive: Callable[[], None] = _nothing,
    ) -> list[R]:
        """Call a method that moves bytes on all ranks; return their answers in order of rank.

        It may take as long as it moves any: `alive` is called then.
        """
        references = [_call(host, method, arguments, {}) for host in self._hosts]
        moved, since = -1, time.monotonic()
        answers: dict[int, R] = {}
        while pending := self._answers(references, answers, LOOK_S):
            now = sum(self._wait([_call(self._hosts[rank], Rank.bytes_done, (), {}) for rank in pending]))
            if now != moved:
                moved, since = now, time.monotonic()
                alive()
            elif time.monotonic() - since > self._still_s:
                raise LearnerStalledError(
                    f"learner ranks {pending} should {what}, and moved no byte for {self._still_s:.0f} s"
                )
        return [answers[rank] for rank in range(len(references))]

    def _wait(self, references: Sequence[Awaitable[R]], timeout_s: float | None = None) -> list[R]:
        answers: dict[int, R] = {}
        if late := self._answers(references, answers, self._timeout_s if timeout_s is None else timeout_s):
            raise LearnerStalledError(f"learner ranks {late} did not answer in time")
        return [answers[rank] for rank in range(len(references))]

    def _answers(self, references: Sequence[Awaitable[R]], answers: dict[int, R], within_s: float) -> list[int]:
        """Add the answers that come within a time; return the ranks whose answers are missing then.

        Raises what the first rank that failed raised: the others may hang in a collective that it never joined.
        """
        deadline = time.monotonic() + within_s
        pending = {reference: rank for rank, reference in enumerate(references) if rank not in answers}
        while pending:
            ready, _ = ray.wait(list(pending), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for reference in ready:
                rank = pending.pop(reference)
                try:
                    answers[rank] = _result(reference, rank)
                except LearnerError:
                    _raise_lost(pending)
                    raise
        return sorted(pending.values())


def _call(host: Any, method: Callable[..., R], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Awaitable[R]:
    """Call a method of the rank in a host. By its name: ranks have it from classes that the driver does not import."""
    return ask(host, RankHost.call, method.__name__, arguments, options)


def _stacks_of(reference: Any) -> Stacks | None:
    try:
        stacks: Stacks = ray.get(reference, timeout=1.0)
    except (RayActorError, RayTaskError, GetTimeoutError):
        return None
    return stacks


async def _gone(host: Any, rank: int) -> LearnerLostError:
    """Return that the process of a rank is gone, once it is."""
    try:
        await ask(host, RankHost.stay)
    except RayActorError as error:
        return lost(rank, error)
    raise AssertionError("stay never returns")


def lost(rank: int, error: RayActorError) -> LearnerLostError:
    """Return what a user needs of Ray's text: no indented lines, which are ids, and no guesses at the cause."""
    said = " ".join(line for line in str(error).splitlines() if not line[:1].isspace())
    return LearnerLostError(f"learner rank {rank}: its process is gone: {GUESSES.split(said)[0]}")


def _result(reference: Any, rank: int) -> Any:
    try:
        return ray.get(reference, timeout=60.0)
    except RayActorError as error:
        raise lost(rank, error) from error
    except RayTaskError as error:
        if isinstance(error.cause, MemoryError) or any(words in str(error) for words in OUT_OF_MEMORY):
            raise MemoryError(f"learner rank {rank}: {error}") from error
        if isinstance(error.cause, REFUSALS):
            raise error.cause from error
        raise LearnerError(f"learner rank {rank}: {error}") from error
    except GetTimeoutError as error:
        raise LearnerStalledError(f"learner rank {rank}: its answer could not be fetched") from error


def _raise_lost(pending: Mapping[Any, int]) -> None:
    """Raise LearnerLostError if a rank that has not answered is gone: the error of another may just be that it has lost
    this one, and its broken connection may be reported sooner than the end of the process.
    """
    failed, _ = ray.wait(list(pending), num_returns=len(pending), timeout=GONE_WITHIN_S) if pending else ([], [])
    for reference in failed:
        with suppress(LearnerError, MemoryError, ValueError):
            _result(reference, pending[reference])


def summary(steps: Sequence[OptimizerStep], kl_in_rewards: float | None) -> LearnerMetrics:
    """Return one rollout's optimizer steps as one; without any (no sample taught anything) what is known is zero."""
    if not steps:
        return LearnerMetrics(
            loss=0.0, grad_norm=0.0, learning_rate=0.0, clip_fraction=0.0, logprob_mismatch=0.0, kl=kl_in_rewards
        )
    reduced = over_steps(steps)
    surprises = [step.surprise for step in steps if step.surprise is not None]
    return replace(
        reduced,
        kl=reduced.kl if kl_in_rewards is None else kl_in_rewards,
        perplexity=perplexity_of(fmean(surprises)) if surprises else None,
    )

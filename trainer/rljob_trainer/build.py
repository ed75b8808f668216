"""Chooses every part of a run from its manifest, and starts them. The only place that knows all of them.

resume point ─► control server ─► Ray ─► data ─► engines, router, learner (at once) ─► first publication ─► Run
"""

import asyncio
import logging
import math
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray

from rljob_api import control
from rljob_api.batch import batch
from rljob_api.exits import Exit
from rljob_api.room import prompt_room
from rljob_api.sections import Device, Placement, RLJob, Spec
from rljob_api.topology import sizes, topology
from rljob_trainer import dumps, leftovers, parts, placement
from rljob_trainer.absent import NoBatches, NoCheckpoints, NoEngines, NoLearner, NoTurns, SameWeights
from rljob_trainer.aggregation import aggregation
from rljob_trainer.ahead import AheadRollouts
from rljob_trainer.algorithms.algorithm import Algorithm
from rljob_trainer.background import Background
from rljob_trainer.batches import Batches
from rljob_trainer.board import StatusBoard
from rljob_trainer.checkpoints import (
    DIRECTORY,
    Checkpoint,
    CheckpointError,
    Checkpoints,
    model_fingerprint,
)
from rljob_trainer.control import ControlServer
from rljob_trainer.conversations import choose as conversations
from rljob_trainer.cores import Threads, threads
from rljob_trainer.critic import ActorCritic
from rljob_trainer.data.dataset import Dataset, dataset
from rljob_trainer.data.issues import Issues
from rljob_trainer.data.journal import FILE_NAME as JOURNAL
from rljob_trainer.data.journal import Journal
from rljob_trainer.data.packages import cache_directory, checkpoint
from rljob_trainer.data.prompts import PromptStream
from rljob_trainer.data.references import references
from rljob_trainer.data.render import Reference, Renderer
from rljob_trainer.data.rows import Row
from rljob_trainer.data.tokenizer import import_in_background, load_config, load_tokenizer
from rljob_trainer.desired import Desired
from rljob_trainer.dumps import Dump, DumpError, Made
from rljob_trainer.dynamic import DynamicRollouts, TellsDropped
from rljob_trainer.engines.carrying import Carrying, Gated
from rljob_trainer.engines.client import Generates, open_session
from rljob_trainer.engines.command import engine_command
from rljob_trainer.engines.gate import Gate
from rljob_trainer.engines.generation import RouterGenerator
from rljob_trainer.engines.pool import EnginePool, Incident
from rljob_trainer.engines.process import LOG_FOLLOWS
from rljob_trainer.engines.router import Router
from rljob_trainer.engines.server import RayHost
from rljob_trainer.evaluation import HeldOut, NoHeldOut, WithSets, with_sets
from rljob_trainer.fence import Fence
from rljob_trainer.first_step import FirstStep
from rljob_trainer.imitation import FirstReferences, HeldOutReferences, References, answered
from rljob_trainer.learners.config import (
    Layout,
    layout,
)
from rljob_trainer.learners.group import LearnerGroup
from rljob_trainer.link import LearnerLink, checkpoint_files, publishing_rank
from rljob_trainer.measured import Measure, Measurement, Turns, Values, no_values
from rljob_trainer.parts import Parts, Sampled, Trained
from rljob_trainer.penalties import KlPenalties, Penalties, no_penalties
from rljob_trainer.placement import Slots
from rljob_trainer.replay import Dumping, Replay
from rljob_trainer.reporting.events import FILE_NAME, last_step
from rljob_trainer.reporting.html import write_report
from rljob_trainer.reporting.phases import Phases
from rljob_trainer.reporting.report import Report, open_report, weights_and_biases
from rljob_trainer.resume import Start, begin
from rljob_trainer.rewards.choose import Rewards, Surroundings, rewards
from rljob_trainer.rewards.overlong import Shaped, shaping
from rljob_trainer.rollouts import Generator, Sampler, SyncRollouts
from rljob_trainer.scrape import MetricsServer
from rljob_trainer.selfcare import SelfCare
from rljob_trainer.settings import (
    cadence,
    chosen_algorithm,
    first_round,
    layout_of,
    lead,
    learner_config,
    learner_environment,
    loss_settings,
    made_by,
    pool_settings,
    router_settings,
    sharding,
    updates,
)
from rljob_trainer.status import Watcher
from rljob_trainer.sync.gated import GatedWeights
from rljob_trainer.sync.publisher import Publisher, Transport
from rljob_trainer.sync.transport import Broadcast, Disk
from rljob_trainer.sync.weights import EngineWeights
from rljob_trainer.teacher import teacher_directory
from rljob_trainer.turns import InTurns

log = logging.getLogger(__name__)

PLACEMENT_S = 600.0
HEARD_S = 3.0
ANOTHER = "use another checkpoint.directory"
ANEW = f"{ANOTHER}, or begin anew with checkpoint.resume: Fresh"
RAY_ADDRESS = "RAY_ADDRESS"
"""environment variable of a driver that Ray has started: there is a Ray cluster, and perhaps more than one machine"""
LEARNER_S = 3600.0
"""longest wait for one call of the learner [s]; the supervisor notices a stalled phase much earlier"""


@dataclass(frozen=True)
class Run:
    """A run that is ready for its loop."""

    parts: Parts
    first: int
    steps: int
    desired: Desired
    finish: Callable[[bool], None]
    """tells whether all steps were taken, and writes what people read afterwards"""
    fail: Callable[[Exception], None]
    """tells which error ended the loop, while there is still somebody to be told"""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the driver listens."""

    host: str
    port: int
    """of the control protocol; 0: any free one"""
    metrics_port: int = 0
    """of the Prometheus endpoint, for a manifest that names none; 0: any free one"""


LOCAL = Address("127.0.0.1", 0)


def build(job: RLJob, fence: Fence, listen: Address, environ: Mapping[str, str], stack: ExitStack) -> Run:
    """Start everything that the job needs, in the directory of `fence`, which is claimed; `stack` ends it all.

    Raises whatever makes the run impossible. Attempts with the same origin go on from each other. The control protocol
    and the metrics are served at `listen`.
    """
    board = StatusBoard(control.Status(attempt=fence.mine.attempt))
    phases = Phases(time.monotonic, began=board.begin)
    with phases.measure("start"):
        return _Builder(job, fence, listen, environ, stack, board, phases).run()


class _Builder:
    """The parts in the order in which they come into being."""

    def __init__(
        self,
        job: RLJob,
        fence: Fence,
        listen: Address,
        environ: Mapping[str, str],
        stack: ExitStack,
        board: StatusBoard,
        phases: Phases,
    ) -> None:
        self._job = job
        self._spec = job.spec
        self._fence = fence
        self._directory = fence.directory
        self._attempt = fence.mine.attempt
        self._listen = listen
        self._environ = environ
        self._stack = stack
        self._board = board
        self._phases = phases
        self._run_id = leftovers.run_id(fence.directory)
        self._topology = topology(job.spec)
        self._background = stack.enter_context(Background())

    def run(self) -> Run:
        """Build everything; tell what went wrong before everything is taken down again."""
        self._desired = Desired(
            self._board,
            lambda name, generation, _: self._restart(name, generation),
            lambda engines: self._scale(engines),
        )
        try:
            start = begin(self._directory, self._spec.checkpoint, self._fence.mine.origin)
        except CheckpointError as error:
            self._open_report(last_step(self._directory / FILE_NAME))
            with self._heard():
                raise error
        self._open_report(start.step)
        self._tell_start(start)
        resume = (start.found.path, start.found.checkpoint) if start.found else None
        with self._heard() as server:
            self._track()
            return self._start(resume, start.step, server)

    def _open_report(self, first: int) -> None:
        self._report = open_report(self._directory, self._job, self._phases, time.time, self._attempt, first)

    @contextmanager
    def _heard(self) -> Iterator[ControlServer]:
        """Serve the control protocol; tell there, and in the report, of an error in the block."""
        server: ControlServer | None = None
        try:
            server = self._serve()
            yield server
        except Exception as error:
            self._fail(error)
            if server is not None:
                _let_be_heard(server)
            raise

    def _track(self) -> None:
        if self._spec.tracking.wandb is not None:
            self._report.also_to(weights_and_biases(self._directory, self._job, self._spec.tracking.wandb))

    def _tell_start(self, start: Start) -> None:
        log.info("action=begin start=%r", str(start))
        if start.found or start.aside:
            self._board.update(began=str(start))
        for finding in start.findings:
            self._report.found(finding, start.step)

    def _start(self, resume: tuple[Path, Checkpoint] | None, first: int, server: ControlServer) -> Run:
        spec = self._spec
        model = checkpoint(spec.model.checkpoint, cache_directory(self._environ))
        importing = import_in_background()  # 4 s of one core, as long as it takes a Ray to start
        self._connect()
        importing.join()
        fingerprint, data = model_fingerprint(model), self._data(model)
        responses = self._references(data.read.train, model) if spec.imitates else ()
        scoring = self._rewards() if spec.has_engines else None
        algorithm = chosen_algorithm(spec)
        tools_log = self._directory / "logs" / "tools.log"
        self._function = conversations.function(spec, tools_log, self._stack) if spec.has_engines else None
        self._teacher = teacher_directory(spec, model, cache_directory(self._environ))
        if resume and not spec.debug.learner:
            raise CheckpointError(f"{resume[0]}: spec.debug.rolloutOnly trains nothing that could go on; {ANEW}")
        if resume:
            check_resumable(*resume, fingerprint, spec.training.precision.value)
        stream, journal = self._stream(data, resume)

        self._board.beat()
        dump, made = self._dump(first, made_by(spec, fingerprint, stream.fingerprint))
        slots = placement.reserve(self._topology, spec.runtime.device, PLACEMENT_S)
        self._board.beat()
        pool_started = self._start_engines(slots, model) if spec.has_engines else None
        if spec.debug.learner:
            learner, link = self._start_learner(slots, model, algorithm)
        else:
            learner, link = self._start_files(slots, model)
        self._board.beat()
        if pool_started:
            pool_started.result(spec.recovery.start_timeout_seconds + 60)
        if resume:
            learner.load(resume[0])
            self._board.beat()
        self._watch(server)

        issues = Issues(stream, journal, lead(spec), first_round(spec))
        if scoring is not None:
            weights = EngineWeights(self._pool, self._publisher(learner, link, model), self._background)
            rollouts, published = self._rollouts(issues, weights, learner, model)
            kept = (
                Dumping(rollouts, scoring, dump, made, spec.rollout.prompts_per_step)
                if spec.debug.dump_rollouts
                else None
            )
            sampled = Sampled(
                rollouts=kept or rollouts,
                rewards=kept or scoring,
                turns=self._turns(weights),
                weights=self._weights(published, first),
                evaluation=self._evaluation(data, rollouts.sampler, scoring),
            )
        elif spec.imitates:
            source = References(issues, responses, spec.rollout.prompts_per_step)
            sampled = read(source, self._perplexity(data, model, learner))
        else:
            sampled = read(Replay(dump, made, issues, spec.rollout.prompts_per_step), NoHeldOut())
        dynamic, shape = dynamic_rollouts(spec, sampled), shaping(spec)
        trained = self._trained(learner, fingerprint, stream, journal, algorithm, sampled.turns, first)
        report: parts.Report = TellsDropped(self._report, dynamic, shape) if dynamic else self._report
        look = self._first_step(trained, learner, fingerprint, report) if first == 0 and not spec.imitates else None
        if first == 0 and spec.imitates:
            report = FirstReferences(report, self._report.first_step, fingerprint)
        loop_parts = Parts(
            rollouts=dynamic or sampled.rollouts,
            rewards=Shaped(dynamic or sampled.rewards, shape),
            batches=trained.batches,
            learner=look or trained.learner,
            turns=sampled.turns,
            weights=sampled.weights,
            evaluation=sampled.evaluation,
            checkpoints=trained.checkpoints,
            report=look or report,
            phases=self._phases,
            cadence=cadence(spec),
            orders=self._desired,
        )
        if not self._desired.requested:
            self._board.update(state=control.RunState.RUNNING, scale=self._scale_at_start())
        return Run(loop_parts, first, spec.training.steps, self._desired, partial(self._finish, learner), self._fail)

    def _dump(self, first: int, made: Made) -> tuple[Dump, Made]:
        """Return where rollouts are read or written, checked for what this run will do with it, and what makes them."""
        debug, own = self._spec.debug, self._directory / dumps.DIRECTORY
        if debug.replay is not None:
            dump = Dump(Path(debug.replay))
            if dump.directory.resolve() == own:
                raise DumpError(f"{own}: spec.debug.replay is of this run itself; {ANOTHER}")
            dump.require(range(first, self._spec.training.steps))
            if first < self._spec.training.steps:
                dump.read(first, made)
            return dump, made
        dump = Dump(own)
        return dump.rewind(first, made) if debug.dump_rollouts else dump, made

    def _trained(
        self,
        learner: LearnerGroup,
        fingerprint: str,
        stream: PromptStream,
        journal: Journal,
        algorithm: Algorithm,
        turns: Turns,
        first: int,
    ) -> Trained:
        spec = self._spec
        if not spec.debug.learner:
            return Trained(NoBatches(), NoLearner(), NoCheckpoints(self._directory))
        checkpoints = Checkpoints(
            directory=self._directory / DIRECTORY,
            keep=spec.checkpoint.keep,
            layout=layout_of(self._topology),
            model=fingerprint,
            precision=spec.training.precision.value,
            learner=learner,
            stream=stream,
            journal=journal,
            saved=self._report.checkpoint,
            may_write=self._fence.check,
        )
        batches = self._batches(algorithm, self._penalties(learner, turns), self._values(learner, turns))
        return Trained(batches, with_critic(learner, spec, first), checkpoints)

    def _first_step(self, trained: Trained, learner: LearnerGroup, fingerprint: str, report: parts.Report) -> FirstStep:
        return FirstStep(
            learner=trained.learner,
            logprobs=learner.logprobs,
            zeros=lambda: learner.call("zeros")[0],
            report=report,
            tell=self._report.first_step,
            fingerprint=fingerprint,
            precision=self._spec.training.precision,
            zero_kl=self._spec.algorithm.teacher is None and batch(self._spec).steps_per_rollout == 1,
            rewards_alone=self._spec.algorithm.teacher is None and self._spec.algorithm.critic is None,
        )

    def _rollouts(
        self, issues: Issues, weights: EngineWeights, learner: LearnerGroup, model: Path
    ) -> tuple[SyncRollouts | AheadRollouts, parts.Weights]:
        """Return what makes samples, now or ahead, and how weights reach the engines meanwhile."""
        spec, rollout = self._spec, self._spec.rollout
        assert self._router.client is not None, "the router has been started"
        if spec.ahead is None:
            sampler = self._sampler(self._router.client, weights.publisher, learner, model)
            return SyncRollouts(
                issues=issues,
                sampler=sampler,
                sampling=rollout.sampling,
                prompts_per_step=rollout.prompts_per_step,
                samples_per_prompt=rollout.samples_per_prompt,
                background=self._background,
            ), weights
        gate = Gate()
        router: Generates = Gated(self._router.client, gate)
        if spec.ahead.partial:
            router = Carrying(router, partial(load_tokenizer(model).decode, skip_special_tokens=True))
        gated = GatedWeights(
            weights=weights,
            gate=gate,
            due=updates(spec).due,
            cut=self._pool.cut if spec.ahead.partial else None,
        )
        rollouts = AheadRollouts(
            issues=issues,
            sampler=self._sampler(router, weights.publisher, learner, model),
            sampling=rollout.sampling,
            prompts_per_step=rollout.prompts_per_step,
            samples_per_prompt=rollout.samples_per_prompt,
            max_staleness=spec.ahead.max_staleness,
            background=self._background,
            waiting=gated.rescue,
        )
        self._stack.callback(rollouts.close)
        return rollouts, gated

    def _weights(self, weights: parts.Weights, first: int) -> parts.Weights:
        """Return the loop's weights; the engines hold those of version `first` then."""
        publication = weights.publish(first)
        return weights if self._spec.debug.learner else SameWeights(publication)

    def _serve(self) -> ControlServer:
        server = ControlServer(
            self._board, self._desired, self._report.render_metrics, self._environ.get(control.TOKEN_VARIABLE, "")
        )
        scrape = MetricsServer(self._report.render_metrics)
        address = self._listen
        self._background.run(server.start(self._directory, address.host, address.port), timeout_s=30)
        self._stack.callback(lambda: self._background.run(server.close(), timeout_s=10))
        url = self._background.run(scrape.start(address.host, metrics_port(self._spec, address)), timeout_s=30)
        self._stack.callback(lambda: self._background.run(scrape.close(), timeout_s=10))
        log.info("action=serve metrics=%s", url)
        return server

    def _data(self, model: Path) -> Dataset:
        room = prompt_room(self._spec, load_config(model).max_position_embeddings)
        tools = conversations.schemas(self._spec)
        return dataset(self._spec.data, load_tokenizer(model), room, tools, self._spec.imitates)

    def _rewards(self) -> Rewards:
        around = Surroundings(
            log=self._directory / control.REWARD_LOG,
            environ=self._environ,
            with_metadata=self._spec.data.metadata_key is not None,
            alive=self._board.beat,
        )
        return rewards(self._spec.reward, around, self._stack)

    def _references(self, rows: Sequence[Row], model: Path) -> tuple[Reference, ...]:
        renderer = Renderer(self._spec.data, load_tokenizer(model))
        return references(rows, renderer, self._spec.rollout.sampling.max_new_tokens)

    def _perplexity(self, data: Dataset, model: Path, learner: LearnerGroup) -> parts.Evaluation:
        if not data.held_out:
            return NoHeldOut()
        responses = self._references(data.read.held_out, model)
        return HeldOutReferences(
            groups=tuple(map(answered, data.held_out, responses)),
            logprobs=self._measurement(learner.logprobs, NoTurns()),
        )

    def _stream(self, data: Dataset, resume: tuple[Path, Checkpoint] | None) -> tuple[PromptStream, Journal]:
        stream = PromptStream(data.train, seed=self._spec.seed, shuffle=self._spec.data.shuffle)
        journal = Journal(self._directory / JOURNAL, self._fence.check)
        self._stack.callback(journal.close)
        if resume is None:
            journal.rewind(0, "")
            return stream, journal
        path, saved = resume
        if saved.data_fingerprint != stream.fingerprint:
            raise CheckpointError(f"{path}: the training questions are not those it was trained on; {ANEW}")
        stream.seek(saved.prompts)
        journal.rewind(saved.step, path.name)
        journal.check(stream.uids())
        now = layout_of(self._topology)
        log.info("action=resume checkpoint=%s step=%d saved_by=%r loaded_by=%r", path, saved.step, saved.layout, now)
        return stream, journal

    def _connect(self) -> None:
        scratch = leftovers.create_scratch(self._run_id)
        placement.connect(self._topology, self._spec.runtime.device, self._environ.get(RAY_ADDRESS), scratch / "ray")
        self._stack.callback(ray.shutdown)

    def _start_engines(self, slots: Slots, model: Path) -> "Future[None]":
        spec, logs = self._spec, self._directory / "logs"
        self._session = self._background.run(_in_loop(open_session), timeout_s=10)
        self._stack.callback(lambda: self._background.run(self._session.close(), timeout_s=10))
        host = ray.util.get_node_ip_address()
        self._router = Router(router_settings(spec), logs / "router.log", self._session, host)
        command = engine_command(spec, model, self._threads().engine, self._environ.get("PYTHONPATH", ""))
        reserved = {engine.name: slots.seat(engine.slots) for engine in self._topology.engines}

        def host_of(name: str) -> RayHost:
            seat = reserved.pop(name, None) or placement.engine_seat(self._topology, spec.runtime.device)
            return RayHost(name, self._directory / control.ENGINE_LOG.format(engine=name), None, seat)

        self._pool = EnginePool(
            names=tuple(reserved),
            host=host_of,
            command=command,
            routing=self._router,
            session=self._session,
            settings=pool_settings(spec),
            catch_up=lambda engines: self._published_by.catch_up(engines),
            on_incident=partial(_tell, self._report, self._board),
        )
        self._stack.callback(lambda: self._background.run(self._router.stop(), timeout_s=30))
        self._stack.callback(lambda: self._background.run(self._pool.stop(), timeout_s=60))
        return self._background.submit(_both(self._router.start(), self._pool.start()))

    def _start_learner(self, slots: Slots, model: Path, algorithm: Algorithm) -> tuple[LearnerGroup, LearnerLink]:
        config = learner_config(self._spec, algorithm, model, self._threads().rank, self._teacher)
        hf_config = load_config(model)
        environment = learner_environment(self._spec.runtime.device)
        learner = LearnerGroup(
            make=partial(publishing_rank, config=config, sharding=sharding(self._spec, hf_config)),
            actor_options=[slots.options(rank.slot) | environment for rank in self._topology.learner],
            layout=layout(config, len(self._topology.learner)),
            timeout_s=LEARNER_S,
            max_skipped=self._spec.training.optimizer.max_skipped_steps,
        )
        return self._started(learner)

    def _start_files(self, slots: Slots, model: Path) -> tuple[LearnerGroup, LearnerLink]:
        """Start, in the learner's place, what knows the weights of the checkpoint's files; beside the first engine."""
        hf_config = load_config(model)
        make = partial(
            checkpoint_files,
            checkpoint_dir=model,
            precision=self._spec.training.precision.value,
            device="cpu" if self._spec.runtime.device is Device.CPU else "cuda",
            num_threads=self._threads().rank,
            sharding=sharding(self._spec, hf_config),
        )
        options = slots.options(self._topology.engines[0].slots[0]) | learner_environment(self._spec.runtime.device)
        files = LearnerGroup(make, [options], Layout(1, 1, 1), timeout_s=LEARNER_S, max_skipped=0)
        return self._started(files)

    def _started(self, learner: LearnerGroup) -> tuple[LearnerGroup, LearnerLink]:
        self._stack.callback(learner.stop)
        learner.start()
        watching = self._background.submit(learner.watch())
        self._stack.callback(watching.cancel)
        return learner, LearnerLink(learner)

    def _publisher(self, learner: LearnerGroup, link: LearnerLink, model: Path) -> Publisher:
        transport = self._transport(learner, link) if self._spec.debug.learner else Disk(link, model)
        self._published_by = Publisher(transport, self._spec.weight_sync.timeout_seconds)
        return self._published_by

    def _transport(self, learner: LearnerGroup, link: LearnerLink) -> Transport:
        specs = learner.call("weight_specs")[0]
        if self._spec.transport == "Disk":
            return Disk(link, self._shared_directory(sum(spec.nbytes for spec in specs)))
        return Broadcast(
            learner=link,
            specs=specs,
            backend="gloo" if self._spec.runtime.device is Device.CPU else "nccl",
            ranks_per_engine=self._spec.rollout.gpus_per_engine,
            bucket_bytes=self._spec.weight_sync.bucket_mib * 2**20,
        )

    def _shared_directory(self, num_bytes: int) -> Path:
        """Return where to write weights of this size: in a directory of our own, for files are replaced there."""
        if self._spec.weight_sync.directory is not None:
            return Path(self._spec.weight_sync.directory) / f"rljob-{self._run_id}"
        memory = leftovers.shared_memory(self._run_id)
        on_one_machine = RAY_ADDRESS not in self._environ
        on_cpu = self._spec.runtime.device is Device.CPU
        if on_one_machine and on_cpu and shutil.disk_usage(memory.parent).free > 1.5 * num_bytes:
            return memory
        return self._directory / "weights"

    def _watch(self, server: ControlServer) -> None:
        engines = self._pool.snapshot if self._spec.has_engines else tuple
        self._watcher = Watcher(
            self._board, self._report.progress, self._report.findings, engines, self._report.engines
        )
        care = SelfCare(self._board, self._desired, server.attendance, self._spec.recovery, leave=_leave)
        router = [self._router.keep(self._pool.serving_urls)] if self._spec.has_engines else []
        for work in (self._watcher.run(), care.run(), *router):
            task = self._background.submit(_for_ever(work))
            self._stack.callback(task.cancel)

    def _sampler(self, router: Generates, publisher: Publisher, learner: LearnerGroup, model: Path) -> Sampler:
        spec = self._spec
        assert self._router.client is not None, "the router has been started"
        generator: Generator = RouterGenerator(router, spec.rollout.request_timeout_seconds)
        # A prompt may outlive an engine: time for two answers and a restart between them.
        patience_s = 2 * spec.rollout.request_timeout_seconds + spec.recovery.start_timeout_seconds
        if self._function is not None:
            url = self._router.client.url
            generator = conversations.function_generator(
                self._function, spec, model, url, patience_s, self._board.beat, self._stack
            )
            patience_s = math.inf  # a prompt takes as many answers as it takes: the generator watches the engines
        return Sampler(generator, patience_s, lambda: publisher.version, self._board.beat, learner.check)

    def _penalties(self, learner: LearnerGroup, turns: Turns) -> Penalties:
        kl = self._spec.algorithm.kl
        if self._spec.algorithm.teacher is not None:
            estimates: Measure = learner.divergence
            coefficient = 1.0
        elif kl is not None and kl.added_to == "reward":
            estimates, coefficient = partial(learner.kl, estimator=kl.estimator), kl.coefficient
        else:
            return no_penalties
        return KlPenalties(
            estimates=estimates,
            turns=turns,
            coefficient=coefficient,
            data_parallel=self._topology.data_parallel,
            max_tokens=self._spec.training.max_tokens_per_gpu,
        )

    def _values(self, learner: LearnerGroup, turns: Turns) -> Values:
        if self._spec.algorithm.critic is None:
            return no_values
        return self._measurement(learner.values, turns)

    def _measurement(self, measure: Measure, turns: Turns) -> Measurement:
        return Measurement(measure, turns, self._topology.data_parallel, self._spec.training.max_tokens_per_gpu)

    def _batches(self, algorithm: Algorithm, penalties: Penalties, values: Values) -> Batches:
        spec = self._spec
        loss = loss_settings(spec, algorithm)
        return Batches(
            advantage=algorithm.advantage,
            penalties=penalties,
            weights=aggregation(spec),
            keep_zero_advantage=loss.kl is not None or loss.entropy_coefficient > 0 or algorithm.returns is not None,
            global_batch_size=batch(spec).global_batch_size,
            data_parallel=self._topology.data_parallel,
            max_tokens=spec.training.max_tokens_per_gpu,
            values=values,
            returns=algorithm.returns,
        )

    def _turns(self, weights: EngineWeights) -> Turns:
        if not self._spec.debug.learner:
            return NoTurns()
        if self._spec.runtime.device is Device.GPU and self._spec.placement is Placement.COLOCATED:
            return InTurns(weights, self._pool, self._background)
        return weights

    def _evaluation(self, data: Dataset, sampler: Sampler, scoring: Rewards) -> WithSets | NoHeldOut:
        if not data.held_out:
            return NoHeldOut()
        held_out = HeldOut(
            prompts=data.held_out,
            sampler=sampler,
            sampling=self._spec.rollout.sampling,
            rewards=scoring,
            samples_per_prompt=self._spec.evaluation.samples_per_prompt,
            greedy=self._spec.evaluation.greedy,
            background=self._background,
        )
        return with_sets(held_out, self._spec.data.evaluation_sets, data.evaluation_sets)

    def _threads(self) -> Threads:
        cores = len(os.sched_getaffinity(0))
        # A replay has as many threads as the run that it repeats, and so the same sums to the bit.
        replays = self._spec.debug.replay is not None
        engines = sizes(self._spec).engines if replays else len(self._topology.engines)
        return threads(self._spec.placement, cores, len(self._topology.learner), engines)

    def _restart(self, name: str, generation: int) -> None:
        self._background.submit(_in_loop(partial(self._pool.restart, name, generation)))

    def _scale(self, engines: int) -> None:
        self._background.submit(_in_loop(partial(self._pool.scale, engines)))

    def _scale_at_start(self) -> control.Scale | None:
        if self._spec.placement is Placement.COLOCATED or not self._spec.has_engines:
            return None
        return control.Scale(generation=0, engines=self._spec.rollout.engines)

    def _fail(self, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}"
        self._board.update(state=control.RunState.FAILED, exit_reason=message)
        self._end_report("failed", message)

    def _end_report(self, outcome: str, message: str) -> None:
        try:
            self._report.end(outcome, message)
            write_report(self._directory)
        except Exception:  # a full disk, for example: how the run itself ended is what counts
            log.exception("action=report failed")

    def _finish(self, learner: LearnerGroup, finished: bool) -> None:
        with self._phases.measure("stop"):
            if finished and self._spec.checkpoint.hf_export:
                learner.write_hf(self._directory / "hf")
        self._end_report("finished" if finished else "stopped", "")
        self._watcher.look()  # the last step's news, before the end is told and nobody asks any more
        self._board.update(state=control.RunState.FINISHED, exit_reason="all steps done" if finished else "drained")


def read(source: Replay | References, evaluation: parts.Evaluation) -> Sampled:
    """Return the parts of a run without engines, whose responses are read."""
    return Sampled(source, source, NoTurns(), NoEngines(), evaluation)


def metrics_port(spec: Spec, listen: Address) -> int:
    """Return the port of the Prometheus endpoint: the manifest's, if it names one."""
    return spec.runtime.metrics_port or listen.metrics_port


def with_critic(learner: LearnerGroup, spec: Spec, first: int) -> LearnerGroup | ActorCritic:
    """Return what the loop trains, from step `first` on: the policy, and its critic if the algorithm has one."""
    critic = spec.algorithm.critic
    return learner if critic is None else ActorCritic(learner, critic_only=max(0, critic.warmup_steps - first))


def dynamic_rollouts(spec: Spec, sampled: Sampled) -> DynamicRollouts | None:
    """Return what chooses groups by their rewards, or None when all are trained on."""
    dynamic = spec.algorithm.dynamic_sampling
    if dynamic is None:
        return None
    return DynamicRollouts(
        source=sampled.rollouts,
        rewards=sampled.rewards,
        num_groups=spec.rollout.prompts_per_step,
        settings=dynamic,
    )


def check_resumable(path: Path, saved: Checkpoint, model: str, precision: str) -> None:
    """Raise CheckpointError when the checkpoint belongs to another model or precision; layouts may differ."""
    if saved.model != model:
        raise CheckpointError(f"{path}: training began with another model than model.checkpoint; {ANEW}")
    if saved.precision != precision:
        raise CheckpointError(f"{path}: written in {saved.precision}, and the manifest asks for {precision}; {ANEW}")


def _tell(report: Report, board: StatusBoard, incident: Incident) -> None:
    told = control.Incident(
        time=incident.at,
        engine=incident.engine,
        generation=incident.generation,
        error=incident.detail.partition(LOG_FOLLOWS)[0],
        detect_seconds=incident.detected_s,
        reroute_seconds=incident.rerouted_s,
        return_seconds=incident.returned_s,
    )
    board.report(told)
    report.incident(told, incident.cause)


def _let_be_heard(server: ControlServer) -> None:
    """Wait a moment until somebody has asked for the status: this run ends before most could ask at all."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < HEARD_S and server.attendance.absent_s >= waited:
        time.sleep(0.05)


def _leave(reason: str) -> None:
    """End this process at once: no engine is left, and whoever supervises the run starts it again."""
    log.error("action=leave reason=%r", reason)
    os._exit(Exit.LOST_PEER)


async def _for_ever(work: Awaitable[None]) -> None:
    """Do what must not end while the run lasts: without it the run would go on blind."""
    try:
        await work
    except Exception as error:
        log.exception("action=watch failed")
        _leave(f"a watcher has failed: {error!r}")


async def _both(first: Awaitable[None], second: Awaitable[None]) -> None:
    await asyncio.gather(first, second)


async def _in_loop(call: Callable[[], Any]) -> Any:
    return call()

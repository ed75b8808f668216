"""Chooses every part of a run from its manifest, and starts them, stage by stage. Only assembly knows all of them.

    foundation ─► resume point, control server ─► Ray ─► material ─► engines and learner (at once)
               ─► watchers ─► first publication ─► what is sampled, what is trained ─► decorators ─► Run

Each stage is a frozen value that later stages read. What differs between kinds of runs is chosen once, in `mode.py`.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import ray

from rljob_api import control
from rljob_api.control import RAY_ADDRESS
from rljob_api.sections import Placement, RLJob, Spec
from rljob_trainer.assembly.decorators import Core, decorated, decorators
from rljob_trainer.assembly.downloads import with_local_files
from rljob_trainer.assembly.engine_gpus import require_kept_weights
from rljob_trainer.assembly.foundation import Foundation, lay, report_start, track
from rljob_trainer.assembly.material import begun_again, gather
from rljob_trainer.assembly.mode import mode_of
from rljob_trainer.assembly.regrouping import Regrouping
from rljob_trainer.assembly.run import Run
from rljob_trainer.assembly.serving import Address, served
from rljob_trainer.assembly.settings import cadence, first_round, lead
from rljob_trainer.assembly.stages import Learning, Material, Sampling
from rljob_trainer.assembly.uploading import restore
from rljob_trainer.assembly.watchers import start_watchers, watch_learner
from rljob_trainer.control.server import ControlServer
from rljob_trainer.control.status_store import StatusStore
from rljob_trainer.data.hub import hub_of
from rljob_trainer.data.packages import cache_directory, checkpoint
from rljob_trainer.data.prompt_scheduler import PromptScheduler
from rljob_trainer.data.stored_objects import objects_of
from rljob_trainer.data.tokenizer import import_in_background
from rljob_trainer.engines import placement
from rljob_trainer.learners.errors import DamagedCheckpointError
from rljob_trainer.learners.rank_calls import Rank
from rljob_trainer.parts import Parts
from rljob_trainer.processes import leftovers
from rljob_trainer.remote.errors import RemoteError
from rljob_trainer.reporting.events import FILE_NAME, last_step
from rljob_trainer.reporting.losses import Losses
from rljob_trainer.reporting.phases import Phases
from rljob_trainer.rundir.checkpoints import (
    BEGIN_ANEW,
    CheckpointError,
    Found,
    complete,
    set_aside,
    step_of,
)
from rljob_trainer.rundir.fence import Fence
from rljob_trainer.rundir.resume import Start, begin, damaged
from rljob_trainer.rundir.retries import Patience, StorageError

Resume = Callable[[Learning], None]
"""lets a learner continue from the checkpoint of an earlier attempt, if there is one"""
Starting = Callable[
    [Callable[[], Sampling], Callable[[], Learning], Resume, Callable[[], None]], tuple[Sampling, Learning]
]
PLACEMENT_S = 600.0
"""longest wait for Ray to reserve the slots of engines and learner [s]"""


def build(job: RLJob, fence: Fence, listen: Address, environ: Mapping[str, str], stack: ExitStack) -> Run:
    """Start everything that the job needs, in the directory of `fence`, which is claimed; `stack` ends it all.

    Raises the error that makes the run impossible. Attempts with the same origin resume from each other. The control
    protocol and the metrics are served at `listen`.
    """
    status_store = StatusStore(control.Status(attempt=fence.mine.attempt))
    phases = Phases(time.monotonic, began=status_store.begin)
    losses = Losses()
    patience = Patience(job.spec.recovery.outage_seconds, losses, status_store.beat)
    lay_at = partial(lay, job, fence, environ, stack, status_store, phases, losses, patience)
    with phases.measure("start"):
        try:
            restore(fence.directory, job.spec.checkpoint, fence.mine.origin, environ, patience)
            start = begin(fence.directory, job.spec.checkpoint, fence.mine.origin, patience)
        except (CheckpointError, RemoteError, StorageError):
            with served(lay_at(last_step(fence.directory / FILE_NAME)), listen):
                raise
        foundation = lay_at(start.step)
        report_start(foundation, start)
        with served(foundation, listen) as server:
            track(foundation)
            return _run(_with_local_files(foundation, start.found), server, start.found)


def _with_local_files(foundation: Foundation, found: Found | None) -> Foundation:
    environ, beat = foundation.environ, foundation.status_store.beat
    cache = cache_directory(environ)
    sources = hub_of(environ, cache), objects_of(environ, cache)
    job = with_local_files(foundation.job, *sources, foundation.directory, found is not None, beat)
    return replace(foundation, job=job)


def _run(foundation: Foundation, server: ControlServer, found: Found | None) -> Run:
    spec, orders = foundation.spec, foundation.orders
    mode = mode_of(spec)
    model = _connect_ray(foundation)
    of_learner = replace(foundation, stack=ExitStack())
    foundation.stack.callback(of_learner.stack.close)  # of a start that fails
    material = gather(foundation, of_learner, mode.source, model, found)
    slots = placement.reserve(foundation.topology, spec.runtime.device, PLACEMENT_S)
    require_kept_weights(spec, foundation.topology, slots)
    foundation.status_store.beat()
    start = start_learner_first if spec.learner_leaves else start_at_once
    sampling, learning = start(
        partial(material.source.start, material, slots),
        partial(mode.start_learning, of_learner, material, slots),
        partial(_resumed, foundation, material),
        foundation.status_store.beat,
    )
    foundation.stack.callback(of_learner.stack.close)  # before engines end
    updater = start_watchers(foundation, sampling, server)

    def begin_again(at: Start) -> Run:
        again = begun_again(of_learner, material, at.found)
        learns = mode.start_learning(of_learner, again, slots)
        _resumed(foundation, again, learns)
        foundation.status_store.beat()
        return ready(again, learns)

    regrouping = Regrouping(of_learner, sampling, slots, begin_again)

    def ready(material: Material, learning: Learning) -> Run:
        watch_learner(of_learner, learning.group)
        parts = _parts(of_learner, material, sampling.of(of_learner, material), learning)
        return Run(parts, material.first, spec.training.steps, foundation, learning.group, updater, regrouping)

    run = ready(material, learning)
    if not orders.requested:
        foundation.status_store.update(state=control.RunState.RUNNING, scale=scale_at_start(spec))
    return run


def start_at_once(
    sampling: Callable[[], Sampling], learning: Callable[[], Learning], resume: Resume, beat: Callable[[], None]
) -> tuple[Sampling, Learning]:
    """Start engines and learner beside each other; return when both are ready and the learner has resumed."""
    samples, learns = sampling(), learning()
    beat()
    samples.wait_until_ready()
    resume(learns)
    beat()
    return samples, learns


def start_learner_first(
    sampling: Callable[[], Sampling], learning: Callable[[], Learning], resume: Resume, beat: Callable[[], None]
) -> tuple[Sampling, Learning]:
    """Start the engines when the learner has resumed and left the GPU: they measure what is free for their KV cache."""
    learns = learning()
    resume(learns)
    learns.group.call(Rank.leave, True)
    beat()
    samples = sampling()
    samples.wait_until_ready()
    beat()
    return samples, learns


def _resumed(foundation: Foundation, material: Material, learning: Learning) -> None:
    """Let the learner continue. A checkpoint that is damaged is set aside: the next attempt takes an older one.

    Raises CheckpointError if there is none.
    """
    if not material.resume:
        return
    path = material.resume.path
    try:
        learning.group.load(path, foundation.status_store.beat)
    except DamagedCheckpointError as error:
        older = [each for each in complete(path.parent, foundation.patience) if each != path]
        if not older:
            raise CheckpointError(f"no checkpoint can be read: {error}; {BEGIN_ANEW}") from error
        (kept,) = set_aside(path.parent, step_of(path) - 1, foundation.patience)
        finding = damaged(str(error), kept)
        foundation.report.found(finding, step_of(older[0]))  # where the next attempt begins, which forgets later ones
        raise DamagedCheckpointError(f"{finding.evidence}; {older[0].name} is the next to try") from error


def _connect_ray(foundation: Foundation) -> Path:
    """Connect to Ray, or start it; return the model's files, which are looked up first."""
    spec, environ = foundation.spec, foundation.environ
    model = checkpoint(spec.model.checkpoint, cache_directory(environ))
    importing = import_in_background()  # 4 s of one core, as long as it takes a Ray to start
    scratch = leftovers.create_scratch(foundation.run_id)
    placement.connect(foundation.topology, spec.runtime.device, environ.get(RAY_ADDRESS), scratch / "ray")
    foundation.stack.callback(ray.shutdown)
    importing.join()
    return model


def _parts(foundation: Foundation, material: Material, sampling: Sampling, learning: Learning) -> Parts:
    """Publish the first weights, and return what the loop works with."""
    spec = foundation.spec
    scheduler = PromptScheduler(material.stream, material.journal, lead(spec), first_round(spec))
    sampled = sampling.sampled(scheduler, learning)
    trained = learning.trained(sampled.gpu_sharing)
    core = Core(sampled.rollouts, sampled.rewards, trained.learner, foundation.report)
    core = decorated(core, decorators(spec, material.first), foundation, material, learning.group)
    return Parts(
        rollouts=core.rollouts,
        rewards=core.rewards,
        batches=trained.batches,
        learner=core.learner,
        gpu_sharing=sampled.gpu_sharing,
        weights=sampled.weights,
        evaluation=sampled.evaluation,
        checkpoints=trained.checkpoints,
        report=core.report,
        phases=foundation.phases,
        cadence=cadence(spec),
        orders=foundation.orders,
    )


def scale_at_start(spec: Spec) -> control.Scale | None:
    """Return the number of engines that orders may change; None: it cannot change."""
    if spec.placement is Placement.COLOCATED or not spec.has_engines:
        return None
    return control.Scale(generation=0, engines=spec.rollout.engines)

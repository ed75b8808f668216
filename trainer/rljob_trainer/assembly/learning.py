"""The third stage, its trained half: the processes that hold the weights, and the loop's parts that train them."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rljob_api.control import Finding
from rljob_api.sections import Device, Placement, Spec
from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_trainer import parts
from rljob_trainer.assembly.cpu_threads import cpu_threads
from rljob_trainer.assembly.engine_weights import quantised
from rljob_trainer.assembly.foundation import Foundation
from rljob_trainer.assembly.null_parts import NoBatches, NoCheckpoints, NoGpuSharing, NoLearner, SameWeights
from rljob_trainer.assembly.settings import learner_config, learner_environment, sharding
from rljob_trainer.assembly.stages import Material
from rljob_trainer.assembly.step_batches import step_batches
from rljob_trainer.assembly.uploading import WithUploads, uploads_of
from rljob_trainer.assembly.weight_transport import file_transport, weight_transport
from rljob_trainer.batches.token_values import SharedGpus
from rljob_trainer.data.tokenizer import load_config
from rljob_trainer.engines.placement import Slots
from rljob_trainer.engines.pool import EnginePool
from rljob_trainer.learners import copies, link_report
from rljob_trainer.learners.actor_critic import ActorCritic
from rljob_trainer.learners.config import layout
from rljob_trainer.learners.group import STILL_S, LearnerGroup
from rljob_trainer.learners.link_report import LinkReport
from rljob_trainer.learners.rank_calls import Rank
from rljob_trainer.parts import Trained, Weights
from rljob_trainer.rundir.checkpoints import DIRECTORY, Checkpoints
from rljob_trainer.rundir.uploads import Uploads
from rljob_trainer.sync.gpu_sharing import GpuSharing
from rljob_trainer.sync.publisher import Transport
from rljob_trainer.sync.rank_makers import checkpoint_files, publishing_rank
from rljob_trainer.sync.transport import Receiver
from rljob_trainer.sync.weights import EngineWeights

log = logging.getLogger(__name__)

LEARNER_S = 3600.0
"""longest wait for one call of the learner [s]; the supervisor notices a stalled phase much earlier"""


@dataclass(frozen=True, slots=True)
class Learner:
    """A learner that is trained."""

    foundation: Foundation
    material: Material
    group: LearnerGroup

    def transport(self, receivers: Mapping[str, Receiver]) -> Transport:
        """Return how its weights reach engines. Engines and learner on one machine may share files in memory."""
        return weight_transport(self.foundation, self.group, receivers)

    def gpu_sharing(self, weights: EngineWeights, pool: EnginePool) -> SharedGpus:
        """Return how it shares GPUs with engines; with separate GPUs, or on CPU, it only pauses catching up."""
        spec = self.foundation.spec
        if spec.runtime.device is Device.GPU and spec.placement is Placement.COLOCATED:
            return GpuSharing(weights, pool, self.foundation.background)
        return weights

    def published(self, weights: Weights, first: int) -> Weights:
        """Publish version `first`; later versions are published in the same way."""
        weights.publish(first)
        return weights

    def trained(self, gpu_sharing: SharedGpus) -> Trained:
        """Return batches, learner and checkpoints."""
        spec, material = self.foundation.spec, self.material
        fence, report = self.foundation.fence, self.foundation.report
        uploads = uploads_of(self.foundation.directory, spec.checkpoint, self.foundation.environ, fence.check)
        checkpoints: parts.Checkpoints = Checkpoints(
            directory=self.foundation.directory / DIRECTORY,
            keep=spec.checkpoint.keep,
            layout=str(self.foundation.topology.layout),
            model=material.fingerprint,
            precision=spec.training.precision.value,
            learner=self.group,
            stream=material.stream,
            journal=material.journal,
            copied=self._copied,
            saved=partial(self._saved, uploads),
            may_write=fence.check,
            patience=self.foundation.patience,
            uses=uploads.uses if uploads is not None else _unused,
        )
        if uploads is not None:
            self.foundation.stack.callback(uploads.close)
            if material.resume is not None:  # an earlier attempt may have ended before it was uploaded
                uploads.offer(material.resume.path)
            checkpoints = WithUploads(checkpoints, uploads, report, self.foundation.status_store.beat)
        batches = step_batches(self.foundation, material, self.group, gpu_sharing)
        return Trained(batches, with_critic(self.group, spec, material.first), checkpoints)

    def _copied(self, step: int) -> None:
        """Report copies of a parameter that are not equal: the checkpoint has the first of them."""
        unequal = self.group.call(Rank.unequal_copies)[0]
        if unequal and (finding := copies.finding(unequal, self.group.call(Rank.links)[0])):
            self.foundation.report.found(finding, step)

    def _saved(self, uploads: Uploads | None, step: int, path: Path, seconds: float) -> None:
        """Report a checkpoint, and have it uploaded."""
        if uploads is not None:
            uploads.offer(path)
        self.foundation.report.checkpoint(step, path)
        self.foundation.status_store.saved(seconds)


def _unused(_: Path) -> bool:
    """Return that no old checkpoint must stay."""
    return False


@dataclass(frozen=True, slots=True)
class CheckpointWeights:
    """Stands for the learner where nothing is trained: one process that knows the weights of `model.checkpoint`."""

    foundation: Foundation
    material: Material
    group: LearnerGroup

    def transport(self, receivers: Mapping[str, Receiver]) -> Transport:
        """Let engines read the checkpoint's own files, or quantised ones that are made of them."""
        return file_transport(self.foundation, self.group, self.material.model)

    def gpu_sharing(self, weights: EngineWeights, pool: EnginePool) -> SharedGpus:
        """Leave all GPUs to the engines."""
        return NoGpuSharing()

    def published(self, weights: Weights, first: int) -> Weights:
        """Publish the weights once; nothing changes them."""
        return SameWeights(weights.publish(first))

    def trained(self, gpu_sharing: SharedGpus) -> Trained:
        """Train nothing."""
        return Trained(NoBatches(), NoLearner(), NoCheckpoints(self.foundation.directory))


def start_learner(foundation: Foundation, material: Material, slots: Slots) -> Learner:
    """Start the learner's ranks, and load the weights that training began with."""
    spec, ranks = foundation.spec, foundation.topology.learner
    threads, directory = cpu_threads(foundation).rank, foundation.directory
    config = learner_config(spec, material.algorithm, material.model, threads, directory, material.teacher)
    environment = learner_environment(spec, directory)
    group = LearnerGroup(
        make=partial(
            publishing_rank,
            config=config,
            sharding=sharding(spec, load_config(material.model)),
            how=quantised(spec, material.model) if spec.has_engines else None,
        ),
        actor_options=[slots.options(rank.slot) | environment for rank in ranks],
        layout=layout(config, len(ranks)),
        timeout_s=LEARNER_S,
        max_skipped=config.optimizer.max_skipped_steps,
        still_s=STILL_S + config.longest_outage_s,  # while a rank waits for a volume, it moves nothing
    )
    learner = Learner(foundation, material, _started(foundation, group))
    report_links(group.call(Rank.links)[0], foundation.report.found, material.first)
    return learner


def report_links(links: LinkReport | None, found: Callable[[Finding, int], None], step: int) -> None:
    """Log what the ranks measured of their network, and report slow links; None: there is one rank."""
    if links is None:
        return
    log.info("action=measure_links %s", links)
    if finding := link_report.finding(links):
        found(finding, step)


def start_checkpoint_weights(foundation: Foundation, material: Material, slots: Slots) -> CheckpointWeights:
    """Start the process that knows the checkpoint's weights, beside the first engine."""
    spec = foundation.spec
    make = partial(
        checkpoint_files,
        checkpoint_dir=material.model,
        precision=spec.training.precision.value,
        device="cpu" if spec.runtime.device is Device.CPU else "cuda",
        num_threads=cpu_threads(foundation).rank,
        sharding=sharding(spec, load_config(material.model)),
        how=quantised(spec, material.model),
    )
    options = slots.options(foundation.topology.engines[0].slots[0]) | learner_environment(spec, foundation.directory)
    group = LearnerGroup(make, [options], ParallelLayout(), timeout_s=LEARNER_S, max_skipped=0)
    return CheckpointWeights(foundation, material, _started(foundation, group))


def with_critic(learner: LearnerGroup, spec: Spec, first: int) -> LearnerGroup | ActorCritic:
    """Return what the loop trains, from step `first` on: the policy, and its critic if the algorithm has one."""
    critic = spec.algorithm.critic
    return learner if critic is None else ActorCritic(learner, critic_only=max(0, critic.warmup_steps - first))


def _started(foundation: Foundation, group: LearnerGroup) -> LearnerGroup:
    foundation.stack.callback(group.stop)
    group.start()
    watching = foundation.background.submit(group.watch())
    foundation.stack.callback(watching.cancel)
    return group

"""How weights reach engines: over the network, by a GPU that both use, or in files."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from rljob_api.control import RAY_ADDRESS
from rljob_api.sections import Device
from rljob_api.sizing.topology import Topology
from rljob_trainer.assembly.foundation import Foundation
from rljob_trainer.learners.group import LearnerGroup
from rljob_trainer.processes import leftovers
from rljob_trainer.sync.learner_link import LearnerLink
from rljob_trainer.sync.publisher import Transport
from rljob_trainer.sync.rank_calls import WritingRank
from rljob_trainer.sync.transport import Broadcast, Delta, Disk, Ipc, Receiver


def weight_transport(foundation: Foundation, group: LearnerGroup, receivers: Mapping[str, Receiver]) -> Transport:
    """Return how the weights of a learner reach engines. Both may share files in memory on one machine."""
    spec, link = foundation.spec, LearnerLink(group)
    specs = group.call(WritingRank.weight_specs)[0]
    if spec.transport in ("Disk", "Delta"):
        directory = _shared_directory(foundation, sum(each.nbytes for each in specs))
        if spec.transport == "Disk":
            return Disk(link, directory)
        copy = leftovers.shared_memory(foundation.run_id) / "copy"
        return Delta(link, directory, copy, receivers)
    bucket_bytes = spec.weight_sync.bucket_mib * 2**20
    if spec.transport == "Ipc":
        return Ipc(link, specs, bucket_bytes, ranks_beside(foundation.topology))
    return Broadcast(
        learner=link,
        specs=specs,
        backend="gloo" if spec.runtime.device is Device.CPU else "nccl",
        ranks_per_engine=spec.rollout.gpus_per_engine,
        bucket_bytes=bucket_bytes,
    )


def file_transport(foundation: Foundation, group: LearnerGroup, model: Path) -> Transport:
    """Return how engines get the weights of the checkpoint in `model`: its files, or quantised ones made of them."""
    if foundation.spec.rollout.quantization is None:
        return Disk(LearnerLink(group), model)
    specs = group.call(WritingRank.weight_specs)[0]
    return Disk(LearnerLink(group), _shared_directory(foundation, sum(each.nbytes for each in specs)))


def ranks_beside(placed: Topology) -> dict[str, tuple[int, ...]]:
    """Return, for each engine, the learner's rank on each of its slots."""
    ranks = {rank.slot: rank.rank for rank in placed.learner}
    return {engine.name: tuple(ranks[slot] for slot in engine.slots) for engine in placed.engines}


def _shared_directory(foundation: Foundation, num_bytes: int) -> Path:
    """Return where to write weights of this size: in a separate directory, because files are replaced there."""
    spec = foundation.spec
    if spec.weight_sync.directory is not None:
        return Path(spec.weight_sync.directory) / f"rljob-{foundation.run_id}"
    memory = leftovers.shared_memory(foundation.run_id)
    on_one_machine = RAY_ADDRESS not in foundation.environ
    on_cpu = spec.runtime.device is Device.CPU
    if on_one_machine and on_cpu and shutil.disk_usage(memory.parent).free > 1.5 * num_bytes:
        return memory
    return foundation.directory / "weights"

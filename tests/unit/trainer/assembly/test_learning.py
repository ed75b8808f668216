"""What the loop trains, with and without a critic."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from rljob_api.control import Finding, Status
from rljob_api.reading.manifest import parse
from rljob_api.sections import Placement
from rljob_api.sizing.flops import Work
from rljob_api.sizing.known_models import ON_THE_HUB
from rljob_api.sizing.model_shape import shape
from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_api.sizing.topology import Sizes, lay_out, topology
from rljob_trainer.assembly.learning import (
    Learner,
    report_links,
    with_critic,
)
from rljob_trainer.assembly.settings import chosen_algorithm
from rljob_trainer.assembly.step_batches import measurement, step_batches
from rljob_trainer.assembly.weight_transport import ranks_beside
from rljob_trainer.control.status_store import StatusStore
from rljob_trainer.learners.copies import UnequalCopy
from rljob_trainer.learners.link_report import Link, LinkReport
from rljob_trainer.learners.rank_calls import Rank
from rljob_trainer.sync.layout import TensorSpec
from rljob_trainer.sync.learner_link import LearnerLink
from rljob_trainer.sync.rank_calls import WritingRank
from rljob_trainer.sync.transport import Delta, Disk
from support.trainer.whole_run import manifest

PPO = {"name": "ppo", "critic": {"learningRate": 4e-5, "clipGrad": 0.5, "valueClip": 0.3, "warmupSteps": 5}}


def spec_of_ppo(directory):
    optimizer = {"learningRate": 2e-5, "minLearningRate": 1e-6, "schedule": "Cosine", "warmupSteps": 3, "beta2": 0.9}
    training = {"steps": 20, "stepsPerRollout": 2, "precision": "fp32", "optimizer": optimizer}
    return parse(manifest(directory, directory, algorithm=PPO, training=training)).spec


@pytest.mark.parametrize(("first", "alone"), [(0, 5), (3, 2), (5, 0), (9, 0)])
def test_a_resumed_run_gives_the_critic_the_rest_of_its_rollouts_alone(tmp_path, first, alone):
    assert with_critic(None, spec_of_ppo(tmp_path), first).critic_only == alone


def test_without_a_critic_the_loop_trains_the_learner_itself(tmp_path):
    learner = object()
    assert with_critic(learner, parse(manifest(tmp_path, tmp_path)).spec, 0) is learner


@pytest.mark.parametrize(("chunks", "multiple"), [(1, 1), (3, 2)])
def test_all_that_the_learner_gets_is_packed_for_its_chunks(tmp_path, chunks, multiple):
    training = {"gpusPerNode": 2, "pipelineParallel": 2, "virtualPipeline": chunks}
    algorithm = {"kl": {"coefficient": 0.1, "addedTo": "Reward"}}
    spec = parse(manifest(tmp_path, tmp_path, algorithm=algorithm, training=training)).spec
    foundation = SimpleNamespace(spec=spec, topology=topology(spec))
    sizes = ON_THE_HUB["Qwen/Qwen3-0.6B"]
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    material = SimpleNamespace(algorithm=chosen_algorithm(spec), model=tmp_path)
    group = SimpleNamespace(kl=len)
    made = step_batches(foundation, material, group, None)
    made_of = (made, made.penalties.estimates, measurement(foundation, material, None, None))
    assert [each.packing.multiple for each in made_of] == [multiple] * 3
    assert [each.packing.work for each in made_of] == [Work.of(shape(sizes))] * 3


def test_every_slot_of_a_colocated_engine_has_its_rank_of_the_learner():
    placed = lay_out(Sizes(Placement.COLOCATED, 2, 4, ParallelLayout(2, 2, 2), engines=3, gpus_per_engine=2))
    assert ranks_beside(placed) == {"engine-0": (0, 1), "engine-1": (2, 3), "engine-2": (4, 5)}


def links(*bandwidths: float) -> LinkReport:
    made = tuple(Link(0, other, 1e-5, bandwidth) for other, bandwidth in enumerate(bandwidths, start=1))
    return LinkReport(tuple(f"pod-{rank}" for rank in range(len(made) + 1)), 1e-3, 2e9, made)


def test_slow_links_are_a_finding_that_names_both_pods():
    found: list[tuple[Finding, int]] = []
    report_links(links(8e9, 1e9), lambda finding, step: found.append((finding, step)), 7)
    ((finding, step),) = found
    assert (finding.name, step) == ("SlowLink", 7)
    assert finding.evidence == (
        "below 0.25 of the best pair: rank 0 on pod-0 and rank 2 on pod-2: 1 GB/s;"
        " all-reduce of 3 ranks: 1 ms, 2 GB/s; best of 2 pairs 8 GB/s"
    )


def test_even_links_and_a_single_rank_are_no_finding():
    found: list[tuple[Finding, int]] = []
    for each in (links(8e9, 7e9), None):
        report_links(each, lambda finding, step: found.append((finding, step)), 0)
    assert found == []


@dataclass
class Ranks:
    """Ranks that have the given copies, and how they were asked."""

    unequal: tuple[UnequalCopy, ...]

    def call(self, method):
        return [{Rank.unequal_copies: self.unequal, Rank.links: links(8e9, 7e9, 7e9)}[method]] * 4


@dataclass
class Saved:
    """A report that keeps checkpoints and findings, in order."""

    seen: list[object] = field(default_factory=list)

    def checkpoint(self, step, path):
        self.seen.append((step, path))

    def found(self, finding, step):
        self.seen.append((step, finding.name, finding.evidence))


def saved_with(directory, *unequal: UnequalCopy) -> list[object]:
    """Return what a checkpoint at step 7 leaves in the report, of a run whose ranks have these unequal copies."""
    spec = parse(manifest(directory, directory)).spec
    report = Saved()
    (directory / "config.json").write_text(json.dumps(ON_THE_HUB["Qwen/Qwen3-0.6B"]))
    foundation = SimpleNamespace(
        spec=spec,
        topology=topology(spec),
        directory=directory,
        report=report,
        status_store=StatusStore(Status()),
        fence=SimpleNamespace(check=None),
        patience=None,
        environ={},
    )
    material = SimpleNamespace(
        algorithm=chosen_algorithm(spec), model=directory, fingerprint="", stream=None, journal=None, first=0
    )
    trained = Learner(foundation, material, Ranks(unequal)).trained(None)
    trained.checkpoints.copied(7)
    trained.checkpoints.saved(7, directory, 3.0)
    return report.seen


def test_a_checkpoint_of_equal_copies_is_reported_alone(tmp_path):
    assert saved_with(tmp_path) == [(7, tmp_path)]


def test_unequal_copies_are_reported_with_their_checkpoint_by_parameter_and_rank(tmp_path):
    norm, router = (UnequalCopy(name, (0, 1, 3), others) for name, others in (("norm", (3,)), ("router", (1, 3))))
    evidence = (
        "norm: rank 3 on pod-3 differs from rank 0 on pod-0;"
        " router: rank 1 on pod-1, rank 3 on pod-3 differ from rank 0 on pod-0"
    )
    assert saved_with(tmp_path, norm, router) == [(7, "UnequalCopies", evidence), (7, tmp_path)]


def test_of_many_unequal_copies_the_first_are_named(tmp_path):
    (*_, evidence), _ = saved_with(tmp_path, *(UnequalCopy(f"w{number}", (0, 1), (1,)) for number in range(7)))
    assert (evidence.count("differs"), evidence.endswith("; and 3 more")) == (4, True)


@dataclass
class Exports:
    """A learner that only knows what it exports."""

    specs: tuple[TensorSpec, ...] = (TensorSpec("w", (10,), "float32"),)

    def call(self, method):
        assert method == WritingRank.weight_specs
        return [self.specs, self.specs]


@pytest.mark.parametrize("transport", ["Disk", "Delta"])
def test_files_are_in_the_shared_directory_and_the_copy_in_the_memory_of_each_machine(tmp_path, transport):
    sync = {"transport": transport, "directory": "/far"}
    foundation = SimpleNamespace(spec=parse(manifest(tmp_path, tmp_path, weightSync=sync)).spec, run_id="1a2b")
    receivers, group = {"engine-0": object()}, Exports()
    assert (
        Learner(foundation, None, group).transport(receivers)
        == {
            "Disk": Disk(LearnerLink(group), Path("/far/rljob-1a2b")),
            "Delta": Delta(LearnerLink(group), Path("/far/rljob-1a2b"), Path("/dev/shm/rljob-1a2b/copy"), receivers),
        }[transport]
    )

"""What the loop trains, with and without a critic."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from rljob_api.reading.manifest import parse
from rljob_api.sections import Placement
from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_api.sizing.topology import Sizes, lay_out, topology
from rljob_trainer.assembly.learning import (
    Learner,
    links_finding,
    measurement,
    ranks_beside,
    report_links,
    with_critic,
)
from rljob_trainer.assembly.settings import chosen_algorithm
from rljob_trainer.learners.link_report import Link, LinkReport
from rljob_trainer.reporting.finding import Finding
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
    material = SimpleNamespace(algorithm=chosen_algorithm(spec), model=tmp_path)
    group = SimpleNamespace(kl=len)
    made = Learner(foundation, material, group)._batches(None)
    made_of = (made, made.penalties.estimates, measurement(foundation, None, None))
    assert [each.packing.multiple for each in made_of] == [multiple] * 3


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


def test_of_many_slow_links_the_slowest_are_named():
    finding = links_finding(links(8e9, 6e8, 5e8, 4e8, 3e8, 2e8, 1e8))
    assert finding is not None
    assert finding.evidence.count("and rank") == 4
    assert "rank 7 on pod-7: 0.1 GB/s; rank 0" in finding.evidence
    assert "; and 2 more; all-reduce" in finding.evidence


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

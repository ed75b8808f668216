"""Two real engines, a real router, real weight sync; then things are broken. Each test heals what others broke."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import ray

from rljob_api.control import ROUTER
from rljob_trainer.batches.batches import StepBatch
from rljob_trainer.batches.packing import Packing, TrainingSequence, pack
from rljob_trainer.engines import memory
from rljob_trainer.engines.actor.weight_copy import HELD, WEIGHTS
from rljob_trainer.engines.command import ANY_SITE, CPU_SITE
from rljob_trainer.engines.weight_offer import WeightFiles
from rljob_trainer.learners.config import layout
from rljob_trainer.learners.group import LearnerGroup
from rljob_trainer.learners.rank_calls import Rank
from rljob_trainer.sync.layout import Sharding
from rljob_trainer.sync.learner_link import LearnerLink
from rljob_trainer.sync.publisher import Transport
from rljob_trainer.sync.rank_calls import WritingRank
from rljob_trainer.sync.rank_makers import publishing_rank
from rljob_trainer.sync.transport import Broadcast, Delta, Disk, Ipc
from support.processes import gone
from support.trainer.fleet import (
    NAMES,
    PROMPT,
    Fleet,
    FreeReservation,
    scheduler_of,
    send,
    shared_memory_of,
    start_ray,
    tree,
)
from support.trainer.learner_data import RANKS_S, learner_config, sequences
from support.trainer.thread_learner import Tensors

DAMAGED = "model.layers.1.mlp.gate_proj.weight"
HELD_AS = "model.layers.1.mlp.gate_up_proj.weight"


@pytest.fixture(scope="module")
def running(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    start_ray()
    fleet = Fleet(tiny_llama_dir, tmp_path_factory.mktemp("fleet"))
    try:
        fleet.start()
        yield fleet
        pids = [pid for engine in fleet.engines() if engine.state != "Dead" for pid in tree(engine.pid or 0)]
        files = shared_memory_of(pids)
    finally:
        fleet.stop()
        ray.shutdown()
    assert all(gone(pid) for pid in pids)
    assert not [file for file in files if Path(file).exists()]


@pytest.fixture
def fleet(running: Fleet) -> Fleet:
    running.publisher.transport = running.broadcast
    running.learner.damage = lambda tensors: tensors
    running.learner.offered = lambda files: None
    running.heal()
    running.incidents.clear()
    return running


def next_version(fleet: Fleet) -> int:
    fleet.learner.take_a_step()
    return (fleet.publisher.version or 0) + 1


def damaged(tensors: Tensors) -> Tensors:
    changed = tensors[DAMAGED].clone()
    changed[0, 0] += 1e-6
    return {**tensors, DAMAGED: changed}


def test_samples_know_their_engine_and_the_version_of_their_weights(fleet: Fleet) -> None:
    answers = fleet.generate(tokens=4, requests=8)
    assert {answer.engine for answer in answers} == set(NAMES)
    assert {answer.version for answer in answers} == {fleet.publisher.version}
    assert all(len(answer.tokens_T) == len(answer.logprobs_T) for answer in answers)


def test_a_server_forks_its_scheduler_and_its_detokenizer(fleet: Fleet) -> None:
    # Spawned, they would have a resource tracker beside them, and have imported all of SGLang again.
    assert len(tree(fleet.engine(NAMES[0]).pid or 0)) == 3


def test_a_server_loads_its_tokenizer_once(fleet: Fleet) -> None:
    engine = fleet.engine(NAMES[0])
    assert fleet.log(engine.name).read_text().count("Load tokenizer") == 1 + engine.generation


def test_a_server_does_not_know_of_megatron() -> None:
    check = "import rljob_sglang_cpu; rljob_sglang_cpu.register(); import megatron"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (CPU_SITE, ANY_SITE)))}
    ended = subprocess.run([sys.executable, "-c", check], env=environment, capture_output=True, text=True, check=False)
    assert ended.stderr.endswith("ModuleNotFoundError: import of megatron halted; None in sys.modules\n")


@pytest.mark.parametrize("way", ["broadcast", "disk"])
def test_after_a_publication_every_engine_holds_the_learners_weights(fleet: Fleet, way: str) -> None:
    fleet.publisher.transport = getattr(fleet, way)
    version = next_version(fleet)
    publication = fleet.publish(version)
    assert set(publication.engines) == set(NAMES)
    assert not publication.failed
    assert {answer.version for answer in fleet.generate(tokens=4, requests=4)} == {version}


def test_an_engine_that_answers_gives_its_memory_back_when_it_is_idle(fleet: Fleet) -> None:
    async def hands_over() -> int:
        answers = asyncio.create_task(fleet.requests(tokens=256, requests=8))
        while not any([await client.num_requests(10) for client in clients]):
            assert not answers.done()
            await asyncio.sleep(0.01)
        await fleet.pool.hold(memory.NOTHING)  # SGLang ends at once when it is asked too early
        await fleet.pool.hold(memory.ALL)
        return len(await answers)

    generations = [engine.generation for engine in fleet.engines()]
    clients = [fleet.client(engine.name) for engine in fleet.engines()]
    assert fleet.run(hands_over(), 120) == 8
    assert [engine.generation for engine in fleet.engines()] == generations
    assert fleet.generate(tokens=4)


@pytest.mark.parametrize(
    ("number", "cause", "error", "detected_s"),
    [
        (signal.SIGKILL, "ProcessExited", "the server ended with -9", (0.0, 2.0)),
        (signal.SIGSTOP, "Unresponsive", "3 probes in a row failed", (3.0, 40.0)),
    ],
)
def test_a_lost_router_comes_back_with_its_engines_and_is_reported(
    fleet: Fleet, number: int, cause: str, error: str, detected_s: tuple[float, float]
) -> None:
    pid = fleet.router.pid
    answers = fleet.background.submit(fleet.requests(tokens=300, requests=8))
    fleet.until(lambda: fleet.num_requests(NAMES[0]) > 0, 30)
    send(number, [pid])
    fleet.until(lambda: len(fleet.incidents) == 1, 45)
    fleet.until(lambda: len(fleet.incidents) == 2, 60)
    assert {answer.engine for answer in answers.result(120)} <= set(NAMES)  # asked again, none is lost
    assert (fleet.router.pid != pid, gone(pid), len(fleet.listed())) == (True, True, 2)
    assert {answer.engine for answer in fleet.generate(tokens=4, requests=8)} == set(NAMES)
    (noticed, why), (returned, again) = fleet.incidents
    assert (why, again, noticed.engine, noticed.error) == (cause, cause, ROUTER, error)
    assert detected_s[0] <= (noticed.detect_seconds or 0.0) <= detected_s[1]
    assert noticed.return_seconds is None and 0.0 < (returned.return_seconds or 0.0) < 60.0
    assert returned.model_copy(update={"return_seconds": None}) == noticed


def test_an_engine_with_a_damaged_tensor_is_refused_and_the_tensor_named(fleet: Fleet) -> None:
    fleet.learner.damage = damaged
    publication = fleet.publish(next_version(fleet))
    assert set(publication.failed) == set(NAMES)
    assert all(f"1 of 14 tensors differ from the learner's: {HELD_AS}" in text for text in publication.failed.values())
    fleet.until(lambda: not fleet.listed(), 10)


def test_a_killed_server_is_noticed_and_its_requests_are_answered_by_the_other(fleet: Fleet) -> None:
    victim = fleet.engine(NAMES[0])
    answers = fleet.background.submit(fleet.requests(tokens=300, requests=8))
    time.sleep(0.5)
    killed_at = time.time()
    send(signal.SIGKILL, [victim.pid or 0])
    assert fleet.until(lambda: fleet.engine(NAMES[0]).state == "Dead", 5) < 2.0
    fleet.until(lambda: fleet.listed() == [fleet.engine(NAMES[1]).url], 5)
    assert time.time() - killed_at < 4.0
    assert [answer.finish_reason in {"length", "stop"} for answer in answers.result(100)] == [True] * 8


def test_a_killed_scheduler_takes_its_server_with_it(fleet: Fleet) -> None:
    victim = fleet.engine(NAMES[1])
    pids = tree(victim.pid or 0)
    files = shared_memory_of(pids)
    send(signal.SIGKILL, [scheduler_of(victim.pid or 0)])
    assert fleet.until(lambda: fleet.engine(NAMES[1]).state == "Dead", 5) < 2.0
    fleet.until(lambda: all(gone(pid) for pid in pids), 10)
    fleet.until(lambda: not any(Path(file).exists() for file in files), 10)
    assert "sglang::sched" in fleet.engine(NAMES[1]).last_error


def test_a_restarted_engine_gets_no_request_until_it_holds_the_current_weights(fleet: Fleet) -> None:
    fleet.publish(next_version(fleet))
    send(signal.SIGKILL, [fleet.engine(NAMES[0]).pid or 0])
    fleet.until(lambda: fleet.engine(NAMES[0]).state == "Dead", 5)
    fleet.run(fleet.publisher.learner_moves(), 5)  # the learner trains: nobody can catch up
    fleet.restart(NAMES[0])
    fleet.until(lambda: fleet.engine(NAMES[0]).state == "Stale", 120)
    assert {answer.engine for answer in fleet.generate(tokens=4, requests=8)} == {NAMES[1]}
    assert fleet.listed() == [fleet.engine(NAMES[1]).url]
    version = next_version(fleet)
    fleet.publish(version)
    answers = fleet.generate(tokens=4, requests=8)
    assert {(answer.engine, answer.version) for answer in answers} == {(name, version) for name in NAMES}
    incident, cause = fleet.incidents[-1]
    assert (incident.engine, cause) == (NAMES[0], "ProcessExited")
    assert 0 < (incident.reroute_seconds or 0) < (incident.return_seconds or 0)


def test_a_hung_engine_is_left_behind_and_the_others_get_the_weights(fleet: Fleet) -> None:
    hung = tree(fleet.engine(NAMES[0]).pid or 0)
    version = next_version(fleet)
    send(signal.SIGSTOP, hung)
    publication = fleet.publish(version)
    assert publication.engines == (NAMES[1],)
    assert "no answer within 10 s" in publication.failed[NAMES[0]]
    assert {answer.engine for answer in fleet.generate(tokens=4, requests=4)} == {NAMES[1]}
    fleet.until(lambda: all(gone(pid) for pid in hung), 20)


def test_an_engine_that_dies_in_the_middle_of_a_broadcast_does_not_stop_the_others(fleet: Fleet) -> None:
    version = next_version(fleet)
    victim = fleet.engine(NAMES[0]).pid or 0

    def kill_and_go_on(tensors: Tensors) -> Tensors:
        fleet.learner.damage = lambda tensors: tensors
        send(signal.SIGKILL, [scheduler_of(victim)])
        return tensors

    fleet.learner.damage = kill_and_go_on
    publication = fleet.publish(version)
    assert publication.engines == (NAMES[1],)
    assert {answer.version for answer in fleet.generate(tokens=4, requests=4)} == {version}


def dead(fleet: Fleet, name: str) -> None:
    """Return when an engine is dead, killing it if it is not."""
    if fleet.engine(name).state != "Dead":
        send(signal.SIGKILL, [fleet.engine(name).pid or 0])
    fleet.until(lambda: fleet.engine(name).state == "Dead", 5)


def test_an_engine_that_returns_on_an_empty_machine_gets_the_whole_weights(
    running: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    dead(running, NAMES[0])  # it is after the test before, and so this test need not wait for another start
    running.publisher.transport = running.delta
    version = next_version(running)
    assert running.publish(version).engines == (NAMES[1],)
    shutil.rmtree(running.copy)
    running.heal()
    assert f"engine={NAMES[0]} action=copy_whole" in caplog.text
    assert {engine.version for engine in running.engines()} == {version}
    assert {answer.version for answer in running.generate(tokens=4, requests=4)} == {version}


def skip(fleet: Fleet, files: WeightFiles) -> None:
    (fleet.copy / HELD).write_text("earlier-version offer")


def damage_copy(fleet: Fleet, files: WeightFiles) -> None:
    np.memmap(fleet.copy / WEIGHTS, np.uint8, "r+")[-1] ^= 1


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (lambda fleet, files: files.delta_path.unlink(), "No such file"),
        (lambda fleet, files: os.truncate(files.delta_path, files.delta.nbytes - 1), "is damaged"),
        (skip, "the machine holds earlier-version, the delta is for"),
        (damage_copy, "the copy has the digest"),
    ],
    ids=["a lost delta", "half a delta", "a version was missed", "the copy is damaged"],
)
def test_engines_get_what_has_changed_and_the_whole_weights_when_that_does_not_help(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, trouble: Callable[[Fleet, WeightFiles], None], reason: str
) -> None:
    caplog.set_level("INFO")
    fleet.publisher.transport = fleet.delta
    fleet.publish(next_version(fleet))  # other transports were used in between
    caplog.clear()
    assert set(fleet.publish(next_version(fleet)).engines) == set(NAMES)
    assert "copy_whole" not in caplog.text
    fleet.learner.offered = partial(trouble, fleet)
    version = next_version(fleet)
    assert set(fleet.publish(version).engines) == set(NAMES)
    assert reason in caplog.text
    assert {answer.version for answer in fleet.generate(tokens=4, requests=4)} == {version}


def test_an_added_engine_serves_verified_weights_and_one_that_goes_answers_its_last_requests(fleet: Fleet) -> None:
    fleet.publish(next_version(fleet))
    gone_before = FreeReservation.left
    fleet.scale(3)
    fleet.until(lambda: len(fleet.listed()) == 3, 120)
    assert fleet.engine("engine-2").state == "Healthy"
    answers = fleet.generate(tokens=4, requests=9)
    assert {answer.engine for answer in answers} == {*NAMES, "engine-2"}
    assert {answer.version for answer in answers} == {fleet.publisher.version}

    pids = tree(fleet.engine("engine-2").pid or 0)
    last = fleet.background.submit(fleet.requests(tokens=300, requests=9))
    fleet.until(lambda: fleet.num_requests("engine-2") > 0, 20)
    fleet.scale(2)
    fleet.until(lambda: len(fleet.listed()) == 2, 10)
    assert fleet.engine("engine-2").state == "Leaving"
    answers = last.result(100)
    assert "engine-2" in {answer.engine for answer in answers}, "it has answered what it was asked"
    fleet.until(lambda: {engine.name for engine in fleet.engines()} == set(NAMES), 30)
    assert all(gone(pid) for pid in pids)
    assert FreeReservation.left == gone_before + 1
    assert set(fleet.publish(next_version(fleet)).engines) == set(NAMES)
    assert "engine-2" not in {incident.engine for incident, _ in fleet.incidents}


SHARED = Path("/dev/shm")


@pytest.mark.parametrize(
    ("world", "sizes"),
    [
        pytest.param(1, {}, id="one rank", marks=pytest.mark.long),
        pytest.param(2, {"tensor": 2}, id="tensor parallel"),
        pytest.param(2, {"pipeline": 2}, id="pipeline parallel", marks=pytest.mark.long),
        pytest.param(2, {}, id="data parallel", marks=pytest.mark.long),
    ],
)
def test_engines_hold_what_a_learner_of_any_layout_has_trained(
    fleet: Fleet, tiny_llama_dir: Path, tmp_path: Path, world: int, sizes: dict[str, int]
) -> None:
    config = learner_config(tiny_llama_dir, **sizes)
    make = partial(publishing_rank, config=config, sharding=Sharding(1, 2, tied_embeddings=True))
    ranks = layout(config, world)
    learner = LearnerGroup(make, [{"num_cpus": 0}] * world, ranks, timeout_s=RANKS_S, max_skipped=0)
    before = set(SHARED.glob("torch_*"))
    try:
        learner.start()
        samples = sequences(8)
        link = LearnerLink(learner)
        specs = learner.call(WritingRank.weight_specs)[0]
        transports: list[Transport] = [Broadcast(link, specs, "gloo", 1, bucket_bytes=100_000), Disk(link, tmp_path)]
        transports += [Delta(link, tmp_path / "deltas", tmp_path / "copy", fleet.hosts)] * 2
        if world == len(NAMES):  # a rank for each engine, as on shared slots
            beside = {name: (rank,) for rank, name in enumerate(NAMES)}
            transports += [Ipc(link, specs, 100_000, beside)] * 2
        for transport in transports:
            learner.train([StepBatch(pack(samples, Packing(ranks.data, 64)), len(samples), 0)])
            fleet.publisher.transport = transport
            publication = fleet.publish((fleet.publisher.version or 0) + 1)
            assert set(publication.engines) == set(NAMES), publication.failed
        assert list(tmp_path.glob("deltas/delta-*")), "the second of two offers was a delta"
        answers = fleet.generate(tokens=12, requests=8)
        assert {answer.engine for answer in answers} == set(NAMES)
        ((batch,),) = pack([scored(answer.tokens_T, answer.logprobs_T) for answer in answers], Packing(1, 1024))
        ours_R = learner.call(Rank.logprobs, [batch], None)[ranks.output_rank(0)][0]
        np.testing.assert_allclose(ours_R, batch.logprobs_R, atol=1e-4)
    finally:
        learner.stop()
        for path in (
            set(SHARED.glob("torch_*")) - before
        ):  # on a CPU they stay after a kill; no manifest shares so there
            path.unlink()


def scored(tokens: tuple[int, ...], logprobs: tuple[float, ...]) -> TrainingSequence:
    return TrainingSequence((*PROMPT, *tokens), len(PROMPT), 1.0, logprobs, 1.0)

"""Whole runs of `rljob run`: real Ray, Megatron-core, SGLang and router, on a tiny model, with kills and interrupts."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rljob_api.exits import Exit
from support.operator.helm_release import rendered
from support.operator.prometheus_server import Prometheus, Target, queries, running, scrape_config
from support.trainer.whole_run import HELD_OUT, PROMPTS_PER_STEP, WholeRun, expected_journal, uids, without_commits

pytestmark = pytest.mark.timeout(900)

Begin = Callable[..., WholeRun]
Scrape = Callable[[WholeRun], Prometheus]
MANY = 36
"""steps that take longer than an order to stop after this one"""
STEPS = 45
"""long enough for an engine to come back"""


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts runs, and ends what a failed test has left."""
    runs: list[WholeRun] = []

    def started(model: Path, **sections: Any) -> WholeRun:
        run = WholeRun(model, tmp_path, **sections)
        runs.append(run)
        run.start()
        return run

    yield started
    for run in runs:
        run.stop()


@pytest.fixture
def scrape(prometheus: Path, tmp_path: Path) -> Iterator[Scrape]:
    """Let a Prometheus scrape a run, as the chart's PodMonitor says, as if it ran in a pod."""
    monitor = rendered("--set=monitoring.podMonitors.enabled=true")["PodMonitor/rl-operator-jobs"]
    with ExitStack() as stack:

        def started(run: WholeRun) -> Prometheus:
            target = Target(run.metrics_address(), "ml", "tiny-head", {"rljob.dev/job": "tiny"})
            return stack.enter_context(running(prometheus, tmp_path / "prometheus", [scrape_config(monitor, [target])]))

        yield started


def issued(run: WholeRun) -> int:
    """Return the last step that has begun but not ended, or -1."""
    try:
        last = run.journal[-1]
    except (OSError, IndexError, ValueError):
        return -1
    return int(last["step"]) if last["event"] == "issued" else -1


def servers(run: WholeRun) -> list[int]:
    """Return the pids of the run's SGLang schedulers."""
    return [process.pid for process in run.processes() if process.name().startswith("sglang::sched")]


@pytest.mark.long
def test_a_killed_engine_is_replaced_while_the_step_finishes_on_the_other(
    begin: Begin, tiny_qwen3_dir: Path, tmp_path: Path, scrape: Scrape
) -> None:
    run = begin(
        tiny_qwen3_dir,
        data={"evaluationSets": [{"name": "few", "jsonl": str(tmp_path / "questions.jsonl"), "limit": HELD_OUT // 2}]},
        placement="Disaggregated",
        algorithm={"kl": {"coefficient": 0.001}},
        rollout={"engines": 2, "contextLength": 256, "sampling": {"maxNewTokens": 160}},
        training={"steps": STEPS, "gpusPerNode": 2, "tensorParallel": 2},
        checkpoint={"hfExport": True, "interval": 100},
    )
    server = scrape(run)
    run.until(lambda: issued(run) >= 2)
    time.sleep(0.3)  # some of the answers are on their way
    step = issued(run)
    run.kill(servers(run)[0])
    assert step >= 2, "the engine was killed in the middle of a rollout"
    assert run.end() == Exit.OK, run.output

    steps = run.records("step")
    assert [record["step"] for record in steps] == list(range(1, STEPS + 1))
    assert run.journal == expected_journal(STEPS, PROMPTS_PER_STEP, 100, uids())
    (incident,) = [record for record in run.records("engine") if record["return_seconds"] is not None]
    assert incident["detect_seconds"] < 2
    assert incident["reroute_seconds"] < 5
    assert steps[0]["kl"] == 0.0, "policy and reference are the same before the first update"
    assert max(record["logprob_mismatch"] for record in steps) < 1e-4
    assert steps[-1]["reward_mean"] > steps[0]["reward_mean"] + 0.2, "it learns"
    assert (run.run_directory / "hf" / "model.safetensors").exists()
    assert incident["engine"] in (run.run_directory / "report.html").read_text()
    assert run.left_behind() == []

    at = server.last_scrape("rljob_step")
    asked = [query for query in queries() if not query.is_about_the_operator and not query.is_about_gpus]
    assert server.silent(asked, at, namespace="ml", rljob="tiny") == []
    (failures,) = server.query("sum(rljob_engine_failures_total)", at)
    assert float(failures["value"][1]) == 1


def test_an_interrupted_and_a_killed_run_go_on_exactly_where_they_were(begin: Begin, tiny_llama_dir: Path) -> None:
    run = begin(
        tiny_llama_dir,
        training={"steps": MANY, "gpusPerNode": 2},
        weightSync={"transport": "Disk"},
        evaluation={"interval": 12},
    )
    run.until(lambda: run.steps() >= 3)
    run.interrupt()
    assert run.end() == Exit.PREEMPTED, run.output
    assert run.left_behind() == []
    saved = run.steps()
    assert 3 <= saved < MANY

    run.start()
    run.until(lambda: run.steps() >= saved + 3)
    run.kill_everything()

    run.start()
    assert run.end() == Exit.OK, run.output
    assert run.left_behind() == []
    work = without_commits(run.journal)
    expected = expected_journal(MANY, PROMPTS_PER_STEP, 2, uids())
    assert work == without_commits(expected)
    assert {record["step"] for record in expected if record["event"] == "committed"} <= {
        record["step"] for record in run.journal if record["event"] == "committed"
    }
    assert [record["step"] for record in run.records("step")] == list(range(1, MANY + 1))
    assert [record["step"] for record in run.records("evaluation")] == [0, 12, 24, 36]


def test_a_pipeline_trains_by_a_user_s_own_algorithm_and_its_phases_add_up(
    begin: Begin, tiny_llama_dir: Path, tmp_path: Path
) -> None:
    rows = [{"question": f"{n} - 1 =", "answer": str(n - 1)} for n in range(3)]
    (tmp_path / "minus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = begin(
        tiny_llama_dir,
        data={
            "evaluationSets": [
                {"name": "minus", "jsonl": str(tmp_path / "minus.jsonl"), "samplesPerPrompt": 4},
                {"name": "few", "jsonl": str(tmp_path / "questions.jsonl"), "limit": HELD_OUT // 2},
            ]
        },
        training={"steps": 2, "gpusPerNode": 2, "pipelineParallel": 2},
        algorithm={
            "name": "tiny_algorithm:own",
            "kl": {"coefficient": 0.1, "addedTo": "Reward"},
            "importanceSampling": {"kind": "Truncate"},
            "overlong": {"buffer": 4},
            "dynamicSampling": {"maxRounds": 2, "overSample": 2},
        },
    )
    assert run.end() == Exit.OK, run.output

    first, second = run.records("step")
    assert (first["kl"], second["kl"] > 0) == (0.0, True)
    assert first["importance_weight"] == pytest.approx(1.0, abs=1e-3)
    assert first["importance_cut"] == first["clip_fraction"] == 0.0
    assert first["groups_dropped"] >= PROMPTS_PER_STEP
    assert first["reward_mean"] < 0, "responses that reach the limit lose 1; the held-out accuracy below does not"
    issued, consumed = (
        [uid for record in run.journal if record["event"] == event for uid in record["prompts"]]
        for event in ("issued", "consumed")
    )
    assert issued == consumed == uids()[: len(issued)]
    assert len(issued) == 2 * PROMPTS_PER_STEP + first["groups_dropped"] + second["groups_dropped"]

    evaluations = run.records("evaluation")
    assert [{name: each["n"] for name, each in record["sets"].items()} for record in evaluations] == [
        {"minus": 3, "few": HELD_OUT // 2}
    ] * 2
    sets = evaluations[0]["sets"]
    assert f"minus {sets['minus']['sampled']:.2f}, few {sets['few']['sampled']:.2f} at step 0\n" in run.output

    (begun,), (ended,) = run.records("run"), run.records("end")
    measured = sum(
        sum(record["phase_seconds"].values()) for kind in ("ready", "step", "end") for record in run.records(kind)
    )
    assert measured == pytest.approx(ended["time"] - begun["time"], rel=0.01)
    last = run.output.strip().splitlines()[-1]
    number = r"\d\.\d\d"
    assert re.fullmatch(
        rf"held-out accuracy {number} -> {number} \(greedy {number} -> {number}\), 2 steps, \d+ s; report: \S+", last
    )


def test_bad_data_is_refused_with_its_own_code_before_anything_is_started(begin: Begin, tiny_llama_dir: Path) -> None:
    run = begin(tiny_llama_dir, data={"inputKey": "nothing"})
    assert run.end() == Exit.BAD_INPUT
    assert "no key `nothing`" in run.output
    assert not list(run.run_directory.glob("logs/*"))
    assert run.left_behind() == []

"""What a terminal shows, with its styles, as text that a diff shows: `[bold]12/200[/]`.

`make generate` writes a file for each look, and a test compares them.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from io import StringIO
from itertools import groupby
from pathlib import Path

from rich.console import Console, RenderableType
from rich.segment import Segment

from rljob_api.control import EngineState, EngineStatus, Finding, RunState
from rljob_api.exits import Exit
from rljob_api.reading.manifest import load
from rljob_api.status import AttemptFailure, AttemptStatus, ConditionType, JobEngine, Phase
from rljob_cli.jobs import job_page, job_table, top_view
from rljob_cli.manifest import plan, plan_view
from rljob_cli.terminal import panels, prose
from rljob_cli.trials import reward_view
from rljob_trainer.assembly.reward_trial import TOTAL as ALL_PARTS
from rljob_trainer.assembly.reward_trial import Trial, Verdict
from rljob_trainer.preflight import Findings
from support.api.sample_rljob_status import NOON, SAMPLE
from support.cli.sample_job import NOW, in_phase, job
from support.cli.synthetic_status import progress, status, view

WIDTH = 100
MANIFEST = """\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: sums}
spec:
  model: {checkpoint: hf://Qwen/Qwen3-0.6B}
  data: {train: {jsonl: train.jsonl}}
  reward: {kind: ExactMatch}
  rollout: {promptsPerStep: 4, samplesPerPrompt: 4, engines: 1, sampling: {maxNewTokens: 8, stop: ["\\n"]}}
  training: {steps: 10, gpusPerNode: 2, optimizer: {learningRate: 1.0e-5}}
"""
ANSWERS = """\
job.yaml: spec.rollout.promptsPerStep: 1.5 has the wrong type; expected: whole number, at least 1; nearest valid: 2
job.yaml: spec.training.steps: is missing: rollouts to train on (whole number, at least 1)
other.yaml: valid (not checked, because not on this machine: Qwen/Qwen3-4B; the model of the hub is hf://Qwen/Qwen3-4B)
other.yaml: warning: spec.data.heldOut.limit: 5000 is more than the 200 rows of the file
exit code 9, BadInput: data, model, checkpoint or your function is missing, invalid or fails
  do:   fix the file, row, reward, algorithm or generate function that the message names; `rljob reward test` tests it
  rejected:
    rollout: {promptsPerStep: 32, samplesPerPrompt: 8, contextLength: 4096, engines: 8, gpusPerEngine: 2}
1. TrainOutOfMemory: the learner has no memory
   cause: Activations of the longest micro-batch do not fit beside weights and optimizer state on the fullest GPU
   seen:  driver-attempt-1.log:7  torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
FAILURE = AttemptFailure(
    code="TrainOutOfMemory", title="The learner has no memory", remedy="Lower maxTokensPerGpu", evidence="log:7 CUDA"
)
ENDED = AttemptStatus(
    number=1,
    cluster="gsm8k-7f3a1-1",
    start_after=NOON,
    started=NOON,
    ended=NOON,
    exit_code=Exit.OUT_OF_MEMORY,
    failure=FAILURE,
)


def display() -> RenderableType:
    """A run whose second engine has come back, with a finding."""
    finding = Finding(name="NoSignal", evidence="0.9 of the groups", advice="other questions")
    shown = status().model_copy(update={"findings": (finding,), "incidents": (), "attempt": 2})
    return panels.picture(view(shown), WIDTH)


def display_in_trouble() -> RenderableType:
    """A run that drains while one of many engines is dead."""
    many = [EngineStatus(name=f"engine-{i}", state=EngineState.HEALTHY, since=0.0, version=18) for i in range(11)]
    dead = EngineStatus(name="engine-99", state=EngineState.DEAD, since=0.0, restarts=2, last_error="out of memory")
    changes = {"engines": (*many, dead), "state": RunState.DRAINING, "incidents": (), "phase": "checkpoint"}
    return panels.picture(view(status().model_copy(update=changes)), WIDTH)


def display_at_the_end() -> RenderableType:
    """A run that has finished."""
    done = progress().model_copy(update={"step": 36})
    changes = {"state": RunState.FINISHED, "result": "held-out 0.11 to 0.54", "incidents": (), "progress": done}
    return panels.picture(view(status().model_copy(update=changes)), WIDTH)


def display_at_the_start() -> RenderableType:
    """A run whose driver has not said anything."""
    return panels.picture(view(None), WIDTH)


def page() -> RenderableType:
    """A job that trains."""
    return job_page.as_page(job(), NOW, bars=True, ascii_only=False)


def page_of_a_failure() -> RenderableType:
    """A job that has failed."""
    shown = in_phase(Phase.FAILED, ConditionType.FAILED, attempts=(ENDED,))
    return job_page.as_page(shown, NOW, bars=True, ascii_only=False)


def page_of_a_finding() -> RenderableType:
    """A job that trains and does not learn."""
    return job_page.as_page(in_phase(Phase.TRAINING, ConditionType.SOUND, "False"), NOW, bars=False, ascii_only=False)


def table() -> RenderableType:
    """Jobs in several phases."""
    jobs = [in_phase(phase, ConditionType.READY) for phase in Phase]
    return job_table.as_table(jobs, NOW, namespaces=True)


def top() -> RenderableType:
    """More engines than are shown, one of them in trouble and one behind."""
    assert SAMPLE.engines is not None
    count = top_view.SHOWN_ENGINES
    many = [JobEngine(name=f"engine-{i}", state=EngineState.HEALTHY, since=NOON, version=12) for i in range(count)]
    dead = JobEngine(name="engine-98", state=EngineState.DEAD, since=NOON, restarts=2, last_error="killed " * 20)
    late = JobEngine(name="engine-99", state=EngineState.STALE, since=NOON, version=9)
    items = SAMPLE.engines.model_copy(update={"items": (*many, dead, late)})
    return top_view.as_tables([job(engines=items)], NOW, namespaces=True)


def _plan() -> plan.Plan:
    made = plan.plan(load(MANIFEST), None, Findings())
    return replace(made, problems=("train.jsonl is not there",))


def plan_tables() -> RenderableType:
    """A plan with a problem and warnings."""
    return plan_view.as_tables(_plan(), boxes=False)


def plan_in_boxes() -> RenderableType:
    """The same on a terminal."""
    return plan_view.as_tables(_plan(), boxes=True)


def reward() -> RenderableType:
    """A trial of two parts, of which one failed."""
    good = Verdict(0, "1 + 1 =", "2", "a\n“2” " * 20, {"right": 1.0, "own": 0.5}, {}, 1.5)
    bad = Verdict(1, "1 + 2 =", "3", "", {"right": 0.0, "own": None}, {"own": "ValueError: no\nstack"}, None)
    total = Verdict(2, "1 + 3 =", "4", "4", {"right": 1.0, "own": 1.0}, {ALL_PARTS: "no number"}, None)
    trial = Trial((good, bad, total), {"right": 0.003, "own": 0.0301}, ())
    return reward_view.as_table(trial, boxes=True)


def answers() -> RenderableType:
    """What `validate`, `explain` and `doctor` say, at 80 columns."""
    return prose.wrapped(ANSWERS, 80)


LOOKS: Mapping[str, Callable[[], RenderableType]] = {
    each.__name__: each
    for each in (
        *(display, display_in_trouble, display_at_the_end, display_at_the_start),
        *(page, page_of_a_failure, page_of_a_finding),
        *(table, top, plan_tables, plan_in_boxes, reward, answers),
    )
}


def look(what: RenderableType) -> str:
    """Return what a terminal shows, with the style of each part."""
    console = Console(file=StringIO(), width=WIDTH, force_terminal=True, color_system="truecolor", _environ={})
    return "".join(f"{_marked(line).rstrip()}\n" for line in console.render_lines(what, pad=False))


def _marked(line: Iterable[Segment]) -> str:
    alike = groupby(line, key=lambda part: str(part.style or ""))
    parts = ((style, "".join(part.text for part in some)) for style, some in alike)
    return "".join(text if style in ("", "none") else f"[{style}]{text}[/]" for style, text in parts)


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    directory.mkdir(exist_ok=True)
    for name, make in LOOKS.items():
        (directory / f"{name}.txt").write_text(look(make()))

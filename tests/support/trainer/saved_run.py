"""The files that a run leaves behind, written by the real parts, with a learner that has no model."""

from pathlib import Path
from types import SimpleNamespace

from rljob_trainer.rundir.checkpoints import Checkpoints
from rljob_trainer.rundir.journal import Journal
from rljob_trainer.rundir.rollout_files import Dump
from rljob_trainer.samples import Group, Prompt, Sample, ScoredGroup

MADE = {"spec.rollout.samplesPerPrompt": 2}
PROMPTS_PER_STEP = 2


class Learner:
    def stage(self, directory: Path) -> None:
        self.directory = directory

    def write(self) -> dict[str, str]:
        (self.directory / "__0_0.distcp").write_bytes(b"weights")
        (self.directory / "common.pt").write_bytes(b"common")
        return {}


def saved_run(directory: Path, steps: int, interval: int) -> Path:
    """Write what a run of so many steps leaves; return its directory."""
    journal = Journal(directory / "journal.jsonl")
    journal.rewind(0, "")
    store = Checkpoints(
        directory=directory / "checkpoints",
        keep=100,
        layout="tensor 1 x pipeline 1 x data 2",
        model="model",
        precision="fp32",
        learner=Learner(),
        stream=SimpleNamespace(position=(0, 32), fingerprint="abc"),
        journal=journal,
        copied=lambda *_: None,
        saved=lambda *_: None,
        may_write=lambda: None,
    )
    dump = Dump(directory / "rollouts").rewind(0, MADE)
    for step in range(steps):
        prompts = [prompt(number) for number in range(step * PROMPTS_PER_STEP, (step + 1) * PROMPTS_PER_STEP)]
        journal.issued(step, [each.uid for each in prompts])
        dump.write(step, [[scored(each) for each in prompts]], MADE)
        journal.consumed(step)
        if (step + 1) % interval == 0:
            store.save(step + 1)
    journal.close()
    (directory / "events.jsonl").write_text("")
    return directory


def prompt(number: int) -> Prompt:
    return Prompt(f"0:{number}", f"{number} + 1 =", f"Q: {number} + 1 =", (number, 7), str(number + 1), {})


def scored(asked: Prompt) -> ScoredGroup:
    samples = (Sample((7, 8, 9), (-0.1, -0.2, -0.3), "so 2", 3, "stop", "engine-0"),) * 2
    return ScoredGroup(Group(asked, samples), (1.0, 0.5))


def checkpoint(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"iter_{step:07d}"


def damage(run: Path, step: int) -> None:
    """Cut a byte off a shard."""
    (checkpoint(run, step) / "__0_0.distcp").write_bytes(b"weight")

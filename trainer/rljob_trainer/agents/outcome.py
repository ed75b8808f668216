"""How a call of an agent's function, or its program, ended."""

from dataclasses import dataclass

from rljob_trainer.processes.answers import Reply
from rljob_trainer.processes.function_worker import Setup


@dataclass(frozen=True, slots=True)
class Returned:
    """It has returned a reward, a text to judge, or nothing."""

    reward: float | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """It has raised, was late, or its process ended."""

    reason: str
    is_late: bool = False


Outcome = Returned | Failed


def outcome(answer: Reply, setup: Setup) -> Outcome:
    """Return what a worker's answer says."""
    match answer:
        case {"scores": [score]}:
            return Returned(reward=float(score))
        case {"text": str(text)}:
            return Returned(text=text)
        case {"nothing": True}:
            return Returned()
        case {"late": True}:
            return late(setup.timeout_s)
        case {"returned": value}:
            return Failed(f"returned {value}; a finite number, a text or None is expected")
        case {"memory": True}:
            return Failed(f"needed more than {setup.memory_bytes >> 20} MiB (memoryMib)")
        case _:
            return Failed(f"failed: {answer.get('raised', 'its process gave an answer that was not ours')}")


def late(timeout_s: float) -> Failed:
    """Return the failure of an agent that has not ended in its time."""
    return Failed(f"took longer than {timeout_s:g} s (rollout.agent.timeoutSeconds)", is_late=True)

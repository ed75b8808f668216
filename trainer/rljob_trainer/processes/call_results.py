"""What a call of a user's function has given, in the words of the function's author."""

from dataclasses import dataclass
from typing import Any

from rljob_trainer.processes.answers import Reply
from rljob_trainer.processes.function_worker import Setup

FORGED = "gave an answer that was not ours"


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of the function."""

    prompt: str
    """uid of the prompt, for messages"""
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class FailedCall:
    """Stands for the scores of a call that failed."""

    reason: str
    """which function failed on which prompt, and how"""


Result = tuple[float, ...] | FailedCall
"""the scores of a call"""


@dataclass(frozen=True, slots=True)
class CallResults:
    """Reads answers to calls of one function."""

    name: str
    """of the reward, for messages"""
    setup: Setup

    def result(self, call: Asked, answer: Reply) -> Result:
        match answer:
            case {"scores": scores} if len(scores) == self._num_scores(call):
                return tuple(map(float, scores))
            case {"scores": scores}:
                return self.gone(call, FORGED, 0)
            case {"late": True}:
                return self.late(call)
            case {"returned": value}:
                return FailedCall(f"{self.name} returned {value} for {_on(call)}; {self._wanted(call)}")
            case {"length": length}:
                wanted = len(call.arguments[1])
                return FailedCall(
                    f"{self.name} returned a list of {length} for {_on(call)}, which has {wanted} responses"
                )
            case {"memory": True}:
                memory = f"{self.setup.memory_bytes >> 20} MiB (memoryMib)"
                return FailedCall(f"{self.name} needed more than {memory} on {_on(call)}")
            case _:
                return FailedCall(f"{self.name} failed on {_on(call)}: {answer['raised']}")

    def late(self, call: Asked) -> FailedCall:
        return FailedCall(f"{self.name} took longer than {self.setup.timeout_s:g} s (timeoutSeconds) on {_on(call)}")

    def gone(self, call: Asked, end: str, others: int) -> FailedCall:
        beside = f", with {others} other calls under way" if others else ""
        return FailedCall(f"the process of {self.name} {end} on {_on(call)}{beside}")

    def _wanted(self, call: Asked) -> str:
        if self.setup.by_group:
            return (
                f"with judges: Group a list of {len(call.arguments[1])} finite numbers is wanted, one for each response"
            )
        return "a finite number is wanted (a function of all responses at once has judges: Group)"

    def _num_scores(self, call: Asked) -> int:
        return len(call.arguments[1]) if self.setup.by_group else 1


def _on(call: Asked) -> str:
    return f"prompt {call.prompt}"

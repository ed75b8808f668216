"""What verl and NeMo-RL say alike of an objective: its name, its lower clip, its critic, and the longest response."""

from rljob_api import algorithms
from rljob_importing.draft import Draft, NoteKind, origin
from rljob_importing.words import Given

CLIPS_NOTHING = 1.0
"""lower range of a ratio, which is above 0"""


def foreign(system: str, name: str) -> str:
    """Return a name for a foreign algorithm that rljob does not know, so that the manifest is refused."""
    return f"{system} {name}" if name in algorithms.KNOWN or ":" in name else name


def put_lower_clip(made: Draft, low: float, given: Given) -> None:
    shown = f"{origin(given)}: above {CLIPS_NOTHING:g} is none" if low > CLIPS_NOTHING else origin(given)
    made.put("algorithm.clipLow", min(low, CLIPS_NOTHING), shown)


def note_critic(made: Draft, critic: Given | None, policy: str | None) -> None:
    """Note a critic that begins with another model than the policy."""
    if critic is not None and critic.text != policy:
        made.note(NoteKind.LOST, critic, "the critic begins with spec.model.checkpoint, like the policy")


def note_longest_scored(made: Draft, given: Given, longest: int) -> None:
    """Note that the penalty of long responses is largest at our longest response [tokens], and not at theirs."""
    why = f"the penalty is largest at spec.rollout.sampling.maxNewTokens, {longest} tokens, and not at this length"
    made.note(NoteKind.CHECK, given, why)

"""A bound for prompt and response together, as a context with a longest response in it."""

from rljob_importing.draft import Draft, NoteKind, origin
from rljob_importing.words import Given

SHARE = 4
"""part of the context that is left for the prompt where nothing says how long prompts are"""
MOST_PROMPT = 2048
"""of such a part [tokens]"""


def share(made: Draft, both: int, response: tuple[int, Given] | None, given: Given | None, default: str) -> None:
    """Set the context, and a longest response that leaves room for a prompt. Without one, note that it is a choice."""
    shown = origin(given) if given else default
    made.put("rollout.contextLength", both, shown)
    if response is not None and 0 < response[0] < both:
        made.put("rollout.sampling.maxNewTokens", response[0], f"{origin(response[1])}: of the {both} tokens together")
        why = f"bounds prompt and response together: of {both} tokens a response has at most {response[0]} here"
        made.note(NoteKind.CHECK, given, why)
        return
    prompt = max(1, min(both // SHARE, MOST_PROMPT))
    made.put("rollout.sampling.maxNewTokens", max(1, both - prompt), f"{shown}: less {prompt} for the prompt")
    why = (
        f"bounds prompt and response together: {prompt} of {both} tokens are left for the prompt here; set"
        " spec.rollout.sampling.maxNewTokens to spec.rollout.contextLength minus your longest prompt"
    )
    made.note(NoteKind.CHECK, given, why)

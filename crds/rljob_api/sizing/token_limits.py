"""How long a prompt may be, so that its longest response fits behind it."""

from rljob_api.sections import Spec


def prompt_room(spec: Spec, longest: int) -> int:
    """Return how long a prompt of this job may be [tokens]; `longest` are the positions that its model was made for."""
    rollout = spec.rollout
    kv_tokens = None if spec.is_sft else rollout.kv_tokens(spec.runtime.device)
    return longest_prompt(rollout.context_length or longest, kv_tokens, rollout.sampling.max_new_tokens)


def longest_prompt(context: int, kv_tokens: int | None, max_new_tokens: int) -> int:
    """Return how long a prompt may be [tokens] for SGLang 0.5.17 to accept it and not to shorten its response."""
    limit = min(context, kv_tokens or context)
    return min(limit - max_new_tokens - 2, limit - 7)


def context_room(spec: Spec, longest: int) -> int:
    """Return how long prompt and response may be together [tokens]; `longest` as above."""
    context = spec.rollout.context_length or longest
    return min(context, spec.rollout.kv_tokens(spec.runtime.device) or context)


def new_tokens(context: int, used: int) -> int:
    """Return how many tokens SGLang 0.5.17 makes behind `used` ones in such a context; below 1: it refuses."""
    return context - used - 2 if used <= context - 7 else 0

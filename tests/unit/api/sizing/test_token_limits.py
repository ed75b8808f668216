"""How long prompts and samples may be, so that SGLang neither refuses them nor shortens them."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from rljob_api.reading.manifest import load
from rljob_api.sections import CPU_KV_TOKENS, Spec
from rljob_api.sizing.token_limits import context_room, longest_prompt, new_tokens, prompt_room

CONTEXT, NEW = 4096, 2048
"""of the good manifest"""


def spec_with(good: str, *edits: tuple[str, str]) -> Spec:
    for old, new in edits:
        assert old in good
        good = good.replace(old, new)
    return load(good).spec


@given(some.integers(8, 5000), some.none() | some.integers(8, 5000), some.integers(1, 5000))
def test_the_longest_prompt_leaves_room_for_the_longest_response_and_no_longer_one_does(context, kv_tokens, new):
    limit = min(context, kv_tokens or context)
    longest = longest_prompt(context, kv_tokens, new)
    assume(longest > 0)
    assert new_tokens(limit, longest) >= new
    assert new_tokens(limit, longest + 1) < new


@pytest.mark.parametrize(("used", "made"), [(0, 98), (92, 6), (93, 5), (94, 0), (100, 0), (200, 0)])
def test_behind_so_many_tokens_sglang_makes_so_many(used, made):
    assert new_tokens(100, used) == made


@pytest.mark.parametrize(
    ("edits", "room"),
    [
        ((), CONTEXT - NEW - 2),
        ((("    contextLength: 4096\n", ""),), 10_000 - NEW - 2),
        ((("    contextLength: 4096\n", "    maxTotalTokens: 3000\n"),), 3000 - NEW - 2),
        ((("    gpusPerNode: 8\n", "    gpusPerNode: 8\n    precision: fp32\n"),), CONTEXT - NEW - 2),
    ],
    ids=["the manifest's context", "the model's context", "the KV cache", "any precision"],
)
def test_a_prompt_has_the_room_that_context_and_kv_cache_leave(good, edits, room):
    assert prompt_room(spec_with(good, *edits), longest=10_000) == room


def test_on_cpu_the_kv_cache_has_a_size_where_the_manifest_has_none(good):
    cpu = spec_with(good, ("    contextLength: 4096\n", ""), ("  reward:", "  runtime: {device: Cpu}\n  reward:"))
    assert prompt_room(cpu, longest=100_000) == CPU_KV_TOKENS - NEW - 2
    assert context_room(cpu, longest=100_000) == CPU_KV_TOKENS


def test_what_is_learned_from_data_needs_no_kv_cache(good):
    sft = spec_with(
        good,
        ("  reward:\n    kind: Math\n", "  algorithm: {name: sft}\n  runtime: {device: Cpu}\n"),
        ("    contextLength: 4096\n", ""),
        ("    samplesPerPrompt: 8\n", ""),
        ("    engines: 8\n", ""),
    )
    assert prompt_room(sft, longest=100_000) == 100_000 - NEW - 2


@pytest.mark.parametrize(
    ("edits", "room"),
    [
        ((), CONTEXT),
        ((("    contextLength: 4096\n", ""),), 10_000),
        ((("    contextLength: 4096\n", "    maxTotalTokens: 3000\n"),), 3000),
    ],
)
def test_prompt_and_response_together_have_the_smaller_of_context_and_kv_cache(good, edits, room):
    assert context_room(spec_with(good, *edits), longest=10_000) == room

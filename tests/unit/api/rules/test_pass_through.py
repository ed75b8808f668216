"""Arguments of SGLang and Megatron that pass through, and those that do not."""

import re

import pytest

from rljob_api.reading import field_lookup
from rljob_api.rules import arguments
from rljob_api.rules.arguments import MEGATRON_FIELDS, MEGATRON_FREE, MEGATRON_OURS, SGLANG_FIELDS, SGLANG_OURS
from support.tables import each_of


@pytest.mark.parametrize(
    "given",
    [
        {"chunked-prefill-size": 4096},
        {"disable-radix-cache": True},
        {"schedule-conservativeness": 1},
        {"attention-backend": "triton"},
        {"cuda-graph-bs-decode": [1, 2, 4]},
        {"cuda-graph-config": {"decode": {"max_bs": 64}}},
        {"quantization-param-path": "scales.json"},
    ],
)
def test_a_free_argument_of_sglang_passes(given):
    assert tuple(arguments.problems("sglang", given)) == ()


@pytest.mark.parametrize(
    "given",
    [
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        {"deallocate_pipeline_outputs": True},
    ],
)
def test_a_free_argument_of_megatron_passes(given):
    assert tuple(arguments.problems("megatron", given)) == ()


@pytest.mark.parametrize(
    ("kind", "value", "fits"),
    [
        ("boolean", True, True),
        ("boolean", 1, False),
        ("integer", 1, True),
        ("integer", True, False),
        ("integer", 1.5, False),
        ("number", 1, True),
        ("number", "1", False),
        ("string", "a", True),
        ("string", None, False),
        ("json", {"a": 1}, True),
        ("json", "{}", False),
        ("list of integer", [1, 2], True),
        ("list of integer", [1, "2"], False),
        ("list of integer", 1, False),
        ("integer or list of integer", 1, True),
        ("integer or list of integer", [1], True),
    ],
)
def test_a_value_fits_its_kind(kind, value, fits):
    assert arguments.fits(value, kind) is fits


def test_every_value_of_a_list_must_be_a_choice():
    (problem,) = arguments.problems("sglang", {"lora-target-modules": ["q_proj", "k_prj"]})

    assert (problem.value, problem.nearest) == ("k_prj", "k_proj")


def test_a_command_line_is_what_argparse_reads():
    given = {
        "disable-radix-cache": True,
        "enable-torch-compile": False,
        "dllm-fdfo": False,
        "page-size": 16,
        "cuda-graph-bs-decode": [1, 2],
        "cuda-graph-config": {"decode": {"max_bs": 64}},
    }

    assert arguments.sglang_command_line(given) == (
        *("--disable-radix-cache", "--no-dllm-fdfo", "--page-size", "16"),
        *("--cuda-graph-bs-decode", "1", "2", "--cuda-graph-config", '{"decode": {"max_bs": 64}}'),
    )


SPREADS = re.compile(r"(^|-)(ep|eplb|dp|pp|cp|dcp|a2a|deepep|kt|lora|ssl|grpc|elastic|offload)(-|$)")
"""words in the names of arguments that change the layout of weights, or how engines are reached"""
HARMLESS = {
    *("lora-backend", "lora-drain-wait-threshold", "lora-eviction-policy", "lora-strict-loading"),
    *("lora-target-modules", "lora-use-virtual-experts", "enable-lora-overlap-loading", "max-lora-chunk-size"),
    *("max-lora-rank",),  # of no effect without enable-lora
    *("disaggregation-decode-enable-offload-kvcache", "mm-enable-dp-encoder"),
}


def test_no_argument_that_spreads_weights_otherwise_is_free():
    spreads = {each.canonical for name, each in arguments.known("sglang").items() if SPREADS.search(name)}
    assert spreads - set(SGLANG_OURS) - set(SGLANG_FIELDS) == HARMLESS


@each_of(sorted({*SGLANG_FIELDS, *SGLANG_OURS}))
def test_what_we_own_of_sglang_exists_under_its_first_name(name):
    assert arguments.known("sglang")[name].canonical == name


@each_of(sorted({*MEGATRON_FREE, *(name for names in MEGATRON_OURS.values() for name in names)}))
def test_what_we_name_of_megatron_exists(name):
    assert name in arguments.known("megatron")


FLAGS_ALONE = {"global_batch_size", "lr_decay_style", "lr_warmup_iters"}
"""of Megatron's command line, without a field in its configurations"""


@pytest.mark.parametrize("name", sorted(MEGATRON_FIELDS.keys() - FLAGS_ALONE))
def test_what_a_field_stands_for_in_megatron_exists(name):
    assert name in arguments.contents()["transformerConfig"] or name in arguments.contents()["optimizerConfig"]


def test_nothing_of_megatron_is_both_free_and_ours():
    assert [name for name in MEGATRON_FREE if arguments.known("megatron")[name].kind == "object"] == []
    assert set(MEGATRON_FREE).isdisjoint(name for names in MEGATRON_OURS.values() for name in names)


@pytest.mark.parametrize("path", sorted({*SGLANG_FIELDS.values(), *MEGATRON_FIELDS.values()}))
def test_the_owner_of_an_argument_is_a_field_of_the_manifest(path):
    assert tuple(path.split(".")) in field_lookup.entries()


@pytest.mark.parametrize("reason", sorted({*SGLANG_OURS.values(), *MEGATRON_OURS}))
def test_a_reason_continues_the_sentence_that_an_argument_cannot_be_set(reason):
    assert reason[0].islower() and not reason.endswith(".")

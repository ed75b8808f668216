"""Configurations of verl and NeMo-RL become RLJobs: real settings, and those whose meaning differs."""

from pathlib import Path

import pytest
import yaml

from rljob_api.reading import field_lookup, manifest
from rljob_api.rules import arguments
from rljob_importing import nemo_rl_keys, verl_keys
from rljob_importing.draft import NoteKind
from rljob_importing.manifest_text import text
from rljob_importing.script import NoTrainingError, imported
from support.api.imported_fields import difference

HERE = Path(__file__).parent
SCRIPTS = yaml.safe_load((HERE / "verl_scripts.yaml").read_text())["scripts"]
SEVERAL_KEYS = yaml.safe_load((HERE / "several_keys.yaml").read_text())
NEMO = (HERE / "nemo_rl_settings.yaml").read_text()
SMALL_VERL = (
    "data.train_files=t.parquet actor_rollout_ref.model.path=m algorithm.adv_estimator=grpo data.train_batch_size=8"
    " actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.rollout.n=4 trainer.total_training_steps=20"
)
SMALL_NEMO = {
    "policy": {
        "model_name": "m",
        "generation": {"max_new_tokens": 64},
        "train_global_batch_size": 16,
        "optimizer": {"kwargs": {"lr": 1e-6}},
    },
    "grpo": {"num_prompts_per_step": 4, "num_generations_per_prompt": 4, "max_num_steps": 10},
    "data": {"train_data_path": "t.jsonl"},
    "env": {"math": {"num_workers": 8}},
    "cluster": {"gpus_per_node": 8, "num_nodes": 1},
}


def verl(words):
    return imported(f"python3 -m verl.trainer.main_ppo {words} $@\n", "run.sh", lambda path: None, {})


def verl_spec(words):
    return verl(f"{SMALL_VERL} {words}").content["spec"]


def nemo(*, files=None, **sections):
    settings = {name: {**SMALL_NEMO.get(name, {}), **sections.get(name, {})} for name in {**SMALL_NEMO, **sections}}
    return imported(yaml.safe_dump(settings), "grpo.yaml", (files or {}).get, {})


def unlisted(found):
    return [str(note) for note in found.notes if note.kind is NoteKind.UNLISTED]


@pytest.mark.parametrize("script", SCRIPTS, ids=[each["name"] for each in SCRIPTS])
def test_every_setting_of_verl_s_examples_is_a_field_or_explained(script):
    found = verl(script["arguments"])

    assert unlisted(found) == []
    assert [problem.field for problem in found.problems] == ["spec.training.steps"]
    assert manifest.problems(text(found, "run.sh")) == found.problems


def test_every_setting_of_nemo_rl_s_example_is_a_field_or_explained():
    found = imported(NEMO, "grpo_math_1B.yaml", lambda path: None, {})

    assert unlisted(found) == []
    assert [problem.field for problem in found.problems] == ["spec.data.train", "spec.rollout.contextLength"]
    assert found.origin_of(found.problems[1]) == "policy.max_total_sequence_length: 512, line 21"
    assert found.arguments > 80


def nemo_with(words):
    command = f"uv run examples/run_grpo.py --config c.yaml {words}\n"
    return imported(command, "x.sh", {"c.yaml": yaml.safe_dump(SMALL_NEMO)}.get, {})


@pytest.mark.parametrize("case", SEVERAL_KEYS["verl"], ids=lambda case: case["given"])
def test_settings_of_verl_that_belong_together_make_these_fields_and_notes(case):
    assert difference(verl(f"{SMALL_VERL} {case['given']}"), verl(SMALL_VERL)) == case["made"]


@pytest.mark.parametrize("case", SEVERAL_KEYS["nemo-rl"], ids=lambda case: case["given"])
def test_settings_of_nemo_rl_that_belong_together_make_these_fields_and_notes(case):
    assert difference(nemo_with(case["given"]), nemo_with("")) == case["made"]


@pytest.mark.parametrize("keys", [verl_keys.KEYS, nemo_rl_keys.KEYS], ids=["verl", "NeMo-RL"])
def test_every_field_of_a_table_exists(keys):
    known = {field_lookup.dotted(path) for path in field_lookup.entries()}
    known |= {f"spec.extraArgs.megatron.{name}" for name in arguments.known("megatron")}

    assert [each.path for each in keys.values() if hasattr(each, "path") and f"spec.{each.path}" not in known] == []


def test_verl_counts_a_mini_batch_in_prompts():
    spec = verl_spec("")

    assert (spec["rollout"]["promptsPerStep"], spec["training"]["globalBatchSize"]) == (8, 16)


def test_a_small_manifest_of_verl_is_valid():
    assert verl(SMALL_VERL).problems == ()


@pytest.mark.parametrize(
    ("words", "kl"),
    [
        ("actor_rollout_ref.actor.kl_loss_coef=0.1", None),
        ("actor_rollout_ref.actor.use_kl_loss=True", {"coefficient": 0.001, "estimator": "k3"}),
        (
            "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_type=mse",
            {"coefficient": 0.001, "estimator": "k2"},
        ),
        (
            "algorithm.use_kl_in_reward=True algorithm.kl_ctrl.kl_coef=0.2",
            {"coefficient": 0.2, "addedTo": "Reward", "estimator": "k1"},
        ),
    ],
)
def test_verl_s_penalty_is_in_the_loss_or_in_the_reward(words, kl):
    assert verl_spec(words)["algorithm"].get("kl") == kl


def test_verl_s_files_may_be_a_list():
    data = verl_spec("data.val_files=\"['a/gsm8k/test.parquet', 'a/math/test.parquet']\" trainer.test_freq=5")["data"]

    assert data["heldOut"] == {"parquet": "a/gsm8k/test.parquet"}
    assert data["evaluationSets"] == [{"name": "math-test", "parquet": "a/math/test.parquet"}]


def test_verl_s_engines_share_all_gpus():
    words = "trainer.nnodes=2 trainer.n_gpus_per_node=8 actor_rollout_ref.rollout.tensor_model_parallel_size=4"
    spec = verl_spec(words)

    assert (spec["placement"], spec["rollout"]["engines"], spec["rollout"]["gpusPerEngine"]) == ("Colocated", 4, 4)


def test_verl_s_dual_clip_is_on_unless_it_says_otherwise():
    assert verl_spec("")["algorithm"]["dualClip"] == 3.0
    assert verl_spec("actor_rollout_ref.actor.clip_ratio_c=5")["algorithm"]["dualClip"] == 5.0


def test_verl_s_yaml_is_read_like_its_overrides():
    settings = {"actor_rollout_ref": {"model": {"path": "m"}, "rollout": {"n": 4}}, "data": {"train_batch_size": 8}}
    spec = imported(yaml.safe_dump(settings), "ppo.yaml", lambda path: None, {}).content["spec"]

    assert (spec["model"], spec["rollout"]["samplesPerPrompt"]) == ({"checkpoint": "m"}, 4)


def test_ppo_of_verl_has_its_critic():
    critic = verl_spec("algorithm.adv_estimator=gae algorithm.lam=0.95 critic.optim.lr=2e-5")["algorithm"]["critic"]

    assert critic == {"learningRate": 2e-5, "lambda": 0.95}


def test_a_small_manifest_of_nemo_rl_is_valid():
    assert nemo().problems == ()


def test_nemo_rl_counts_dedicated_engines_inside_the_cluster():
    generation = {"max_new_tokens": 64, "colocated": {"enabled": False, "resources": {"gpus_per_node": 2}}}
    spec = nemo(policy={"generation": generation}).content["spec"]

    assert (spec["placement"], spec["training"]["gpusPerNode"], spec["rollout"]["engines"]) == ("Disaggregated", 6, 2)


def test_only_the_optimizer_of_the_back_end_that_is_on_counts():
    both = {"optimizer": {"kwargs": {"lr": 1e-5}}, "megatron_cfg": {"enabled": True, "optimizer": {"lr": 2e-5}}}

    assert nemo(policy=both).content["spec"]["training"]["optimizer"]["learningRate"] == 2e-5


@pytest.mark.parametrize(
    ("megatron", "made"),
    [
        (
            True,
            {
                "contextParallel": 2,
                "expertParallel": 4,
                "expertTensorParallel": 2,
                "experts": {"biasUpdateRate": 0.001},
            },
        ),
        (False, {"contextParallel": 4}),
    ],
)
def test_the_layout_of_the_back_end_that_is_on_counts(megatron, made):
    sizes = {
        "context_parallel_size": 2,
        "expert_model_parallel_size": 4,
        "expert_tensor_parallel_size": 2,
        "moe_router_bias_update_rate": 0.001,
        "moe_router_load_balancing_type": "none",
        "freeze_moe_router": False,
    }
    both = {"megatron_cfg": {"enabled": megatron, **sizes}, "dtensor_cfg": {"context_parallel_size": 4}}
    found = nemo(policy=both)

    assert {name: found.content["spec"]["training"].get(name) for name in made} == made
    assert [str(note) for note in found.notes if note.kind is NoteKind.LOST] == []
    assert ("expertParallel" in found.content["spec"]["training"]) is megatron


@pytest.mark.parametrize(
    ("words", "recompute", "passed_on"),
    [
        ("actor_rollout_ref.model.enable_gradient_checkpointing=True", "Full", {}),
        ("actor_rollout_ref.model.enable_gradient_checkpointing=False", "None", {}),
        (
            "+actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full"
            " +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=block"
            " +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=2",
            "Full",
            {"recompute_method": "block", "recompute_num_layers": 2},
        ),
    ],
)
def test_layers_that_verl_computes_again_are_computed_again(words, recompute, passed_on):
    spec = verl_spec(words)

    assert spec["training"]["recompute"] == recompute
    assert spec.get("extraArgs", {}).get("megatron", {}) == passed_on


@pytest.mark.parametrize(("back_end", "recompute"), [("megatron_cfg", "Full"), ("dtensor_cfg", None)])
def test_layers_that_the_back_end_of_nemo_rl_computes_again_are_computed_again(back_end, recompute):
    policy = {"megatron_cfg": {"enabled": True}, "dtensor_cfg": {}}
    policy[back_end]["activation_checkpointing"] = True

    assert nemo(policy=policy).content["spec"]["training"].get("recompute") == recompute


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"freeze_moe_router": True}, "the learner trains routers, too"),
        ({"moe_router_load_balancing_type": "seq_aux_loss"}, "set spec.training.experts.balanceLoss"),
        ({"moe_router_dtype": "fp64"}, "the learner's mixture of experts has no such setting"),
        ({"peft": {"enabled": True}}, "rljob has no LoRA"),
        ({"fp8_cfg": {"enabled": True}}, "of engines see spec.rollout.quantization"),
        ({"num_layers_in_first_pipeline_stage": 3}, "see spec.training"),
    ],
)
def test_what_has_no_counterpart_is_lost_with_its_own_reason(setting, why):
    (lost,) = [
        str(note)
        for note in nemo(policy={"megatron_cfg": {"enabled": True, **setting}}).notes
        if note.kind is NoteKind.LOST
    ]
    assert why in lost


def test_references_of_a_configuration_are_followed_and_other_interpolations_named():
    found = imported(NEMO, "grpo_math_1B.yaml", lambda path: None, {})
    unknown = [str(note) for note in found.notes if note.kind is NoteKind.UNKNOWN]

    assert found.content["spec"]["rollout"]["sampling"]["maxNewTokens"] == 512
    assert any("${mul:512, 4} is not evaluated" in note for note in unknown)


def test_a_configuration_builds_on_another_one():
    base = yaml.safe_dump({"policy": {"precision": "float32"}, "grpo": {"num_prompts_per_step": 99}})
    settings = yaml.safe_dump({"defaults": "base.yaml", **SMALL_NEMO})
    spec = imported(settings, "grpo.yaml", {"base.yaml": base}.get, {}).content["spec"]

    assert (spec["training"]["precision"], spec["rollout"]["promptsPerStep"]) == ("fp32", 4)


def test_overrides_of_a_command_come_over_its_configuration():
    command = "uv run examples/run_grpo.py --config c.yaml grpo.num_prompts_per_step=8\n"
    spec = imported(command, "x.sh", {"c.yaml": yaml.safe_dump(SMALL_NEMO)}.get, {}).content["spec"]

    assert spec["rollout"]["promptsPerStep"] == 8


def test_an_unknown_key_gets_the_nearest_known_one():
    (note,) = unlisted(verl(f"{SMALL_VERL} dat.train_batch_size=3"))

    assert note.endswith("did you mean data.train_batch_size?")


@pytest.mark.parametrize("content", ["- 1\n", "a: 1\n", "a: [\n", ""])
def test_a_configuration_of_something_else_is_refused(content):
    with pytest.raises(NoTrainingError):
        imported(content, "x.yaml", lambda path: None, {})

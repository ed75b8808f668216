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
from support.tables import each_of

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
    assert [problem.field for problem in found.problems] == ["spec.data.train"]
    assert found.origins["rollout.contextLength"] == "policy.max_total_sequence_length: 512, line 21"
    assert found.arguments > 80


def nemo_with(words):
    command = f"uv run examples/run_grpo.py --config c.yaml {words}\n"
    return imported(command, "x.sh", {"c.yaml": yaml.safe_dump(SMALL_NEMO)}.get, {})


@each_of(SEVERAL_KEYS["verl"], lambda case: case["given"])
def test_settings_of_verl_that_belong_together_make_these_fields_and_notes(case):
    assert difference(verl(f"{SMALL_VERL} {case['given']}"), verl(SMALL_VERL)) == case["made"]


@each_of(SEVERAL_KEYS["nemo-rl"], lambda case: case["given"])
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

    assert critic == {"learningRate": 2e-5, "valueClip": 0.5, "lambda": 0.95}


TAUGHT = "distillation.enabled=True distillation.teacher_models.a.model_path=/m/a"


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("algorithm.adv_estimator=remax", "algorithm.name"),
        ("algorithm.adv_estimator=gpg", "algorithm.name"),
        ("algorithm.adv_estimator=$ADV", "algorithm.name"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=sapo", "algorithm.name"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=rloo", "algorithm.name"),
        ("algorithm.adv_estimator=rloo actor_rollout_ref.actor.policy_loss.loss_mode=cispo", "algorithm.name"),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum", "algorithm.lossBy"),
        ("actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_type=abs", "algorithm.kl.estimator"),
        ("algorithm.rollout_correction.rollout_is=geometric", "algorithm.importanceSampling.level"),
        (f"{TAUGHT} distillation.distillation_loss.loss_mode=forward_kl_topk", "algorithm.name"),
        (f"{TAUGHT} distillation.distillation_loss.use_policy_gradient=False", "algorithm.name"),
        (f"{TAUGHT} distillation.distillation_loss.distillation_loss_coef=0", "algorithm.name"),
        (f"{TAUGHT} distillation.teacher_models.b.model_path=/m/b", "algorithm.teacher.checkpoint"),
    ],
)
def test_what_changes_the_algorithm_and_has_no_counterpart_is_never_valid(words, field):
    assert [problem.field for problem in verl(f"{SMALL_VERL} {words}").problems] == [f"spec.{field}"]


@pytest.mark.parametrize(
    "words", ["actor_rollout_ref.actor.policy_loss.loss_mode=vanilla", TAUGHT, f"{TAUGHT} data.max_prompt_length=64"]
)
def test_what_has_a_counterpart_is_valid(words):
    assert verl(f"{SMALL_VERL} {words}").problems == ()


@pytest.mark.parametrize(("estimator", "is_explained"), [("gae", True), ("reinforce_plus_plus", True), ("grpo", False)])
def test_one_sample_is_too_few_with_the_reason(estimator, is_explained):
    words = SMALL_VERL.replace("=grpo", f"={estimator}").replace("rollout.n=4", "rollout.n=1")
    (problem,) = verl(words).problems
    assert problem.field == "spec.rollout.samplesPerPrompt"
    assert ("half of promptsPerStep" in problem.rule) is is_explained


def entry(program, words, before="python3 -m"):
    return imported(f"{before} {program} {words}\n", "run.sh", lambda path: None, {})


@pytest.mark.parametrize(
    "program",
    [
        "verl.trainer.main_ppo",
        "verl.trainer.main_ppo_sync",
        "recipe.dapo.main_dapo",
        "recipe.entropy.main_entropy",
        "recipe.transfer_queue.main_ppo",
        "verl/trainer/main_ppo.py",
        "/opt/verl/recipe/dapo/main_dapo.py",
        "/opt/verl/verl/trainer/main_ppo.py",
        "main_ppo.py",
    ],
)
def test_a_program_with_the_keys_of_main_ppo_is_read(program):
    assert entry(program, SMALL_VERL).content["spec"] == verl(SMALL_VERL).content["spec"]


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("recipe.prime.main_prime", "is verl's recipe prime, which rljob does not train"),
        ("recipe.spin.main_spin", "is verl's recipe spin, which rljob does not train"),
        ("recipe.gkd.main_gkd", "is verl's recipe gkd, which rljob does not train"),
        ("recipe.mine.main_ppo", "is verl's recipe mine, which rljob does not train"),
        ("/w/verl/recipe/spin/main_spin.py", "is verl's recipe spin, which rljob does not train"),
        ("verl.experimental.vla.main_ppo", "is verl's main_ppo, which rljob does not train"),
        ("recipe.r1.main_eval", "of verl measures or samples, and trains nothing"),
        ("verl.trainer.main_generation", "of verl measures or samples, and trains nothing"),
        ("examples/run_dpo.py", "is NeMo-RL's dpo, which rljob does not train"),
        ("examples/run_rm.py", "is NeMo-RL's rm, which rljob does not train"),
    ],
)
def test_a_program_whose_training_is_lacking_is_refused_by_name(program, says):
    with pytest.raises(NoTrainingError, match=f"line 1: {program} {says}"):
        entry(program, SMALL_VERL)


def test_a_training_beside_a_measurement_is_read():
    text = f"python3 -m verl.trainer.main_generation a=1\npython3 -m verl.trainer.main_ppo {SMALL_VERL}\n"
    found = imported(text, "run.sh", lambda path: None, {})
    assert found.problems == ()
    assert "a second training" not in " ".join(map(str, found.notes))


APART = "trainer.n_gpus_per_node=6 actor_rollout_ref.rollout.tensor_model_parallel_size=2"


@pytest.mark.parametrize("prefix", ["rollout", "actor_rollout_ref.rollout"])
@pytest.mark.parametrize(
    "program", ["verl.experimental.one_step_off_policy.main_ppo", "recipe.one_step_off_policy.main_ppo"]
)
def test_one_step_off_policy_has_engines_of_its_own_and_samples_a_step_ahead(program, prefix):
    words = f"{SMALL_VERL} {APART} {prefix}.nnodes=2 {prefix}.n_gpus_per_node=2"
    found = entry(
        program,
        words.replace("train_batch_size=8", "train_batch_size=12").replace("mini_batch_size=4", "mini_batch_size=6"),
    )
    spec = found.content["spec"]
    assert found.problems == ()
    assert (spec["placement"], spec["training"]["gpusPerNode"]) == ("Disaggregated", 6)
    assert (spec["rollout"]["engines"], spec["rollout"]["gpusPerEngine"]) == (2, 2)
    assert spec["rollout"]["async"] == {"maxStaleness": 1}


@pytest.mark.parametrize(
    ("words", "asynchronous"),
    [
        (
            "async_training.staleness_threshold=0.5 async_training.partial_rollout=True",
            {"maxStaleness": 6, "updateInterval": 4, "partial": True},
        ),
        ("async_training.partial_rollout=False", {"maxStaleness": 4, "updateInterval": 4}),
        ("async_training.trigger_parameter_sync_step=1", {"maxStaleness": 2, "updateInterval": 1, "partial": True}),
    ],
)
def test_a_fully_asynchronous_run_is_a_stream_of_mini_batches(words, asynchronous):
    more = "trainer.n_gpus_per_node=4 rollout.n_gpus_per_node=4 rollout.total_rollout_steps=80"
    program = "verl.experimental.fully_async_policy.fully_async_main"
    found = entry(program, f"{SMALL_VERL} {more} async_training.require_batches=2 {words}")
    spec = found.content["spec"]
    assert found.problems == ()
    assert (spec["rollout"]["promptsPerStep"], spec["training"]["globalBatchSize"]) == (8, 16)
    assert (spec["training"]["steps"], spec["rollout"]["async"]) == (10, asynchronous)


SMALL_SFT = "data.train_files=t.parquet data.train_batch_size=8 optim.lr=1e-5 trainer.total_training_steps=20"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("verl.trainer.sft_trainer", "model.path=m data.messages_key=messages trainer.n_gpus_per_node=8"),
        ("verl.trainer.fsdp_sft_trainer", "model.partial_pretrain=m"),
    ],
)
def test_a_supervised_training_of_verl_is_read(program, words):
    found = entry(program, f"{SMALL_SFT} data.max_length=2048 {words}", "torchrun --nnodes=1 --nproc_per_node 8 -m")
    spec = found.content["spec"]
    assert (found.problems, unlisted(found)) == ((), [])
    assert (spec["algorithm"], spec["model"]) == ({"name": "sft"}, {"checkpoint": "m"})
    assert (spec["rollout"]["contextLength"], spec["rollout"]["sampling"]["maxNewTokens"]) == (2048, 1536)
    assert (spec["training"]["gpusPerNode"], spec["data"]["inputKey"]) == (8, "messages")


def test_an_argument_that_cannot_be_read_is_named_and_no_default_is_stated_as_a_fact():
    found = entry("verl.trainer.main_ppo", f"{SMALL_VERL} $MORE")
    (note,) = [str(note) for note in found.notes if note.kind is NoteKind.UNKNOWN]
    assert note == "${MORE}, line 1: $MORE is not set in the script: arguments in it are missing here"
    assert not [said for said in found.origins.values() if "verl's default" in said]
    assert found.origins["training.optimizer.learningRate"] == "a guess: ${MORE} of line 1 may set it"


@pytest.mark.parametrize(
    ("before", "word", "what"),
    [
        ('read -ra MORE <<< "$(python3 x.py)"\n', "${MORE[@]}", "the array MORE"),
        ("", "${MORE[@]}", "the array MORE"),
        ("source more.sh\n", "", "the sourced file more.sh"),
    ],
)
def test_defaults_that_a_list_of_unknown_arguments_may_replace_are_guesses(before, word, what):
    text = f"{before}python3 -m verl.trainer.main_ppo {SMALL_VERL} {word}\n"
    found = imported(text, "run.sh", lambda path: None, {})
    assert found.origins["training.optimizer.learningRate"] == f"a guess: {what} may set it"
    assert not [said for said in found.origins.values() if "verl's default" in said]


def test_arguments_in_a_variable_with_an_unknown_part_are_all_read():
    text = 'MORE="actor_rollout_ref.model.path=$HOME/q \\\n actor_rollout_ref.actor.optim.lr=3e-6"\n'
    text += f"python3 -m verl.trainer.main_ppo {SMALL_VERL} $MORE\n"
    found = imported(text, "run.sh", lambda path: None, {})
    assert found.content["spec"]["model"] == {"checkpoint": "${HOME}/q"}
    assert found.content["spec"]["training"]["optimizer"]["learningRate"] == 3e-6
    assert found.origins["training.optimizer.weightDecay"] == "verl's default"


@pytest.mark.parametrize(
    ("words", "is_named"),
    [
        ("--config-path=/c --config-name=mine", True),
        ("--config-name mine.yaml", True),
        ("--config-path=./config --config-name=ppo_trainer", False),
        ("--config-name='ppo_megatron_trainer.yaml'", False),
    ],
)
def test_a_configuration_that_is_not_verl_s_own_is_named(words, is_named):
    notes = [str(note) for note in verl(f"{SMALL_VERL} {words}").notes if note.kind is NoteKind.UNKNOWN]
    assert ["its settings are not read" in note for note in notes] == [True] * is_named


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
        ({"num_layers_in_first_pipeline_stage": 3}, "spec.training.pipelineLayers sets them one by one"),
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

    assert found.content["spec"]["rollout"]["sampling"]["maxNewTokens"] == 384
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


def of_section(section, keys=(), name="c.yaml", **sections):
    """Return what is made of a small configuration whose training has another section than `grpo`."""
    settings = {head: content for head, content in SMALL_NEMO.items() if head != "grpo"}
    settings |= {section: {**SMALL_NEMO["grpo"], **dict(keys)}, **sections}
    return imported(yaml.safe_dump(settings), name, lambda path: None, {})


VALUE = {"model_name": "m", "optimizer": {"kwargs": {"lr": 1e-5}}, "max_grad_norm": 0.5}


@pytest.mark.parametrize(
    ("value", "critic"),
    [
        (VALUE, {"learningRate": 1e-5, "clipGrad": 0.5}),
        ({"model_name": "m"}, {"learningRate": 1e-6}),
        (
            {**VALUE, "megatron_cfg": {"enabled": True, "optimizer": {"lr": 3e-5}}},
            {"learningRate": 3e-5, "clipGrad": 0.5},
        ),
    ],
)
def test_the_section_ppo_of_nemo_rl_is_read_and_value_is_its_critic(value, critic):
    found = of_section("ppo", value=value)
    assert (found.problems, unlisted(found)) == ((), [])
    assert found.content["spec"]["algorithm"] == {"name": "ppo", "critic": critic}
    assert found.content["spec"]["rollout"]["samplesPerPrompt"] == 4


def test_the_critic_of_nemo_rl_has_its_settings():
    estimator = {"name": "gae", "gae_lambda": 0.95, "gae_gamma": 0.9, "normalize_advantages": True}
    keys = {"adv_estimator": estimator, "policy_training_start_step": 3, "ppo_epochs": 1}
    found = of_section("ppo", keys, value=VALUE)
    critic = found.content["spec"]["algorithm"]["critic"]
    assert critic == {"learningRate": 1e-5, "gamma": 0.9, "lambda": 0.95, "clipGrad": 0.5, "warmupSteps": 3}
    assert [str(note) for note in found.notes if note.kind is NoteKind.LOST] == []


def test_the_asynchronous_settings_of_ppo_are_those_of_grpo():
    found = of_section("ppo", {"async_ppo": {"enabled": True}}, value=VALUE)
    assert found.content["spec"]["rollout"]["async"] == {"maxStaleness": 1}


def test_a_value_model_of_its_own_is_named():
    (lost,) = [
        note for note in of_section("ppo", value={**VALUE, "model_name": "v"}).notes if note.kind is NoteKind.LOST
    ]
    assert "the critic begins with spec.model.checkpoint" in lost.why


@pytest.mark.parametrize(
    ("loss", "is_valid"), [({}, True), ({"kl_type": "reverse"}, True), ({"kl_type": "mixed"}, False)]
)
def test_the_section_distillation_of_nemo_rl_is_read_and_only_its_reverse_divergence_is_valid(loss, is_valid):
    found = of_section("distillation", {"topk_logits_k": 64}, teacher={"model_name": "/m/t"}, loss_fn=loss)
    assert unlisted(found) == []
    assert found.content["spec"]["algorithm"] == {"name": "distillation", "teacher": {"checkpoint": "/m/t"}}
    assert (found.problems == ()) is is_valid


def test_the_section_sft_of_nemo_rl_is_read():
    settings = {
        "sft": {"max_num_steps": 60, "max_num_epochs": 1, "val_period": 10, "val_batches": 8, "seed": 42},
        "policy": {
            "model_name": "m",
            "train_global_batch_size": 32,
            "max_total_sequence_length": 1024,
            "optimizer": {"kwargs": {"lr": 5e-6}},
        },
        "data": {"train_data_path": "t.jsonl", "val_data_path": "v.jsonl", "chat_key": "messages"},
        "cluster": {"gpus_per_node": 1, "num_nodes": 1},
    }
    found = imported(yaml.safe_dump(settings), "sft.yaml", lambda path: None, {})
    spec = found.content["spec"]
    assert (found.problems, unlisted(found)) == ((), [])
    assert (spec["algorithm"], spec["data"]["inputKey"]) == ({"name": "sft"}, "messages")
    assert (spec["training"]["steps"], spec["rollout"]["promptsPerStep"]) == (60, 32)
    assert (spec["rollout"]["contextLength"], spec["rollout"]["sampling"]) == (1024, {"maxNewTokens": 768})
    assert spec["evaluation"] == {"interval": 10}


@pytest.mark.parametrize("section", ["dpo", "rm"])
def test_a_section_whose_training_is_lacking_is_refused_by_name(section):
    with pytest.raises(NoTrainingError, match=f"is NeMo-RL's {section}, which rljob does not train"):
        of_section(section)


def test_of_two_sections_the_one_that_is_not_of_the_base_counts():
    found = of_section("ppo", grpo={"num_prompts_per_step": 99}, value=VALUE)
    assert found.content["spec"]["rollout"]["promptsPerStep"] == 4
    needless = [str(note) for note in found.notes if "the section ppo decides the training" in note.why]
    assert needless == ["grpo.num_prompts_per_step: 99, line 10: the section ppo decides the training"]


@pytest.mark.parametrize(
    ("program", "name"), [("run_grpo.py", "grpo"), ("run_vlm_grpo.py", "grpo"), ("run_ppo.py", "ppo")]
)
def test_the_program_of_nemo_rl_says_which_section_counts(program, name):
    both = {**SMALL_NEMO, "ppo": SMALL_NEMO["grpo"], "value": VALUE}
    found = imported(f"uv run examples/{program} --config c.yaml", "x.sh", {"c.yaml": yaml.safe_dump(both)}.get, {})
    assert found.content["spec"].get("algorithm", {}).get("name", "grpo") == name


@pytest.mark.parametrize(
    "settings",
    [
        {"grpo": {"adv_estimator": {"name": "gdpo"}}},
        {"loss_fn": {"disable_ppo_ratio": True}},
        {"loss_fn": {"reference_policy_kl_penalty": 0.1, "reference_policy_kl_type": "k9"}},
        {"loss_fn": {"use_importance_sampling_correction": True, "truncated_importance_sampling_type": "seq-mask-tis"}},
    ],
)
def test_what_nemo_rl_changes_the_algorithm_by_and_has_no_counterpart_is_never_valid(settings):
    (problem,) = nemo(**settings).problems
    assert problem.field.startswith("spec.algorithm.")


def test_arguments_of_nemo_rl_that_are_not_known_are_named():
    found = nemo_with("$MORE")
    assert "${MORE}, line 1: $MORE is not set in the script: arguments in it are missing here" in map(str, found.notes)

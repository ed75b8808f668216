"""What a manifest says to the parts of a run."""

from dataclasses import replace

import pytest
from transformers import Gemma3TextConfig, Qwen3Config

from rljob_api.reading.manifest import parse
from rljob_api.sections import Experts, Recompute, Schedule
from rljob_api.sizing.token_limits import longest_prompt
from rljob_api.sizing.topology import topology
from rljob_trainer.assembly.settings import (
    RECOMPUTE,
    chosen_algorithm,
    critic_settings,
    first_round,
    lead,
    learner_config,
    loss_settings,
    made_by,
    publication_s,
    router_settings,
    sharding,
)
from rljob_trainer.data.prompt_scheduler import Lead
from rljob_trainer.learners.config import layout
from rljob_trainer.sync.layout import Sharding
from support.trainer.whole_run import manifest


@pytest.mark.parametrize(
    ("context", "cache", "new", "longest"),
    [(64, 8192, 5, 57), (64, 8192, 1, 57), (4096, 8192, 2048, 2046), (40960, 8192, 100, 8090), (512, None, 8, 502)],
)
def test_a_prompt_leaves_room_for_its_response_and_for_what_the_engine_keeps(context, cache, new, longest):
    assert longest_prompt(context, cache, new) == longest


AHEAD = {"placement": "Disaggregated", "rollout": {"async": {"maxStaleness": 3, "updateInterval": 2, "partial": True}}}


TRUNCATED = {"importanceSampling": {"kind": "Truncate"}}


@pytest.mark.parametrize(
    ("sections", "old"),
    [
        ({}, "learner"),
        (AHEAD, "engines"),
        (AHEAD | {"algorithm": TRUNCATED}, "learner"),
        (AHEAD | {"debug": {"replay": "runs/first/rollouts"}}, "engines"),
        (AHEAD | {"debug": {"rolloutOnly": True}}, "learner"),
    ],
    ids=["waiting", "ahead", "ahead and corrected", "a replay", "without a learner"],
)
def test_samples_of_older_weights_are_trained_on_by_the_engines_probabilities_unless_they_are_corrected(
    sections, old, tmp_path
):
    spec = parse(manifest(tmp_path, tmp_path, **sections)).spec
    assert loss_settings(spec, chosen_algorithm(spec)).old == old


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, Lead(6)),
        (AHEAD, Lead(6, 3, 2)),
        (AHEAD | {"debug": {"rolloutOnly": True}}, Lead(6)),
    ],
)
def test_without_a_learner_nothing_is_ahead(sections, expected, tmp_path):
    assert lead(parse(manifest(tmp_path, tmp_path, **sections)).spec) == expected


@pytest.mark.parametrize(("tokens", "seconds"), [(20, 31.0), (32_768, 30 + 32_768 / 20)])
def test_a_response_may_take_longer_the_more_tokens_it_may_have(tmp_path, tokens, seconds):
    spec = parse(manifest(tmp_path, tmp_path)).spec
    sampling = spec.rollout.sampling.model_copy(update={"max_new_tokens": tokens})
    rollout = spec.rollout.model_copy(update={"request_timeout_seconds": 30, "sampling": sampling})
    assert rollout.longest_request_s == seconds
    assert router_settings(spec.model_copy(update={"rollout": rollout})).request_timeout_s == seconds


@pytest.mark.parametrize(
    ("policy", "agent", "keeps"),
    [("CacheAware", True, True), ("RoundRobin", True, False), ("CacheAware", False, False)],
)
def test_sessions_of_agents_stay_at_an_engine_unless_the_manifest_wants_another_policy(tmp_path, policy, agent, keeps):
    rollout = {"routerPolicy": policy} | ({"agent": {"function": "own:run"}} if agent else {})
    assert router_settings(parse(manifest(tmp_path, tmp_path, rollout=rollout)).spec).keeps_sessions is keeps


@pytest.mark.parametrize(("gigabytes", "seconds"), [(0, 120.0), (8, 136.0), (710, 1540.0)])
def test_a_publication_may_take_longer_the_larger_the_model_is(tmp_path, gigabytes, seconds):
    spec = parse(manifest(tmp_path, tmp_path)).spec
    spec = spec.model_copy(update={"weight_sync": spec.weight_sync.model_copy(update={"timeout_seconds": 120})})
    for number in range(2):
        with (tmp_path / f"model-{number}.safetensors").open("wb") as file:
            file.truncate(gigabytes * 10**9 // 2)  # no block of it is on the disk
    (tmp_path / "optimizer.bin").write_bytes(bytes(1000))
    assert publication_s(spec, tmp_path) == seconds


def test_engines_split_the_embedding_of_all_models_but_gemma_3(tmp_path):
    spec = parse(manifest(tmp_path, tmp_path)).spec

    assert sharding(spec, Gemma3TextConfig(num_key_value_heads=1)) == Sharding(1, 1, True, whole_embedding=True)
    assert sharding(spec, Qwen3Config(num_key_value_heads=8)) == Sharding(1, 8, False, whole_embedding=False)


def test_a_step_asks_at_first_for_what_dynamic_sampling_would(tmp_path):
    dynamic = {"algorithm": {"dynamicSampling": {"overSample": 1.5}}}
    assert first_round(parse(manifest(tmp_path, tmp_path)).spec) == 4
    assert first_round(parse(manifest(tmp_path, tmp_path, **dynamic)).spec) == 6


def test_samples_made_ahead_are_not_taken_for_others(tmp_path):
    waiting, ahead = (made_by(parse(manifest(tmp_path, tmp_path, **each)).spec, "", "") for each in ({}, AHEAD))
    assert waiting["spec.rollout.async"] is None, "as in dumps that do not have it"
    assert ahead["spec.rollout.async"] == {"maxStaleness": 3, "updateInterval": 2, "partial": True}


PPO = {"name": "ppo", "critic": {"learningRate": 4e-5, "clipGrad": 0.5, "valueClip": 0.3, "warmupSteps": 5}}


def spec_of_ppo(directory):
    optimizer = {"learningRate": 2e-5, "minLearningRate": 1e-6, "schedule": "Cosine", "warmupSteps": 3, "beta2": 0.9}
    training = {"steps": 20, "stepsPerRollout": 2, "precision": "fp32", "optimizer": optimizer}
    return parse(manifest(directory, directory, algorithm=PPO, training=training)).spec


def test_a_critic_has_the_policy_s_optimizer_with_its_own_rate_and_limit(tmp_path):
    spec = spec_of_ppo(tmp_path)
    policy, critic = learner_config(spec, chosen_algorithm(spec), tmp_path, 1, tmp_path), critic_settings(spec)
    assert critic is not None
    assert (critic.value_clip, critic.optimizer.learning_rate, critic.optimizer.clip_grad) == (0.3, 4e-5, 0.5)
    assert critic.optimizer.min_learning_rate == pytest.approx(2e-6)
    assert (critic.optimizer.schedule, critic.optimizer.warmup_steps, critic.optimizer.beta2) == (
        Schedule.COSINE,
        3,
        0.9,
    )
    assert (policy.total_steps, critic.total_steps) == (30, 40)


@pytest.mark.parametrize(
    ("training", "passed", "expected"),
    [
        ({}, {}, {}),
        ({"recompute": "Full"}, {}, RECOMPUTE[Recompute.FULL]),
        ({"recompute": "Full"}, {"recompute_num_layers": 2}, RECOMPUTE[Recompute.FULL] | {"recompute_num_layers": 2}),
    ],
)
def test_recomputation_reaches_megatron_and_what_is_passed_through_comes_first(training, passed, expected, tmp_path):
    usual = {"steps": 20, "precision": "fp32", "optimizer": {"learningRate": 2e-5}}
    spec = parse(manifest(tmp_path, tmp_path, training=usual | training, extraArgs={"megatron": passed})).spec
    assert learner_config(spec, chosen_algorithm(spec), tmp_path, 1, tmp_path).megatron_args == expected


def test_the_learner_gets_the_layers_of_its_stages(tmp_path):
    stages = {"gpusPerNode": 2, "pipelineParallel": 2, "pipelineLayers": [3, 1]}
    spec = parse(manifest(tmp_path, tmp_path, training=stages)).spec
    assert learner_config(spec, chosen_algorithm(spec), tmp_path, 1, tmp_path).layout.layers == (3, 1)


def test_the_learner_gets_the_chunks_of_its_stages_and_packs_as_they_need(tmp_path):
    stages = {"gpusPerNode": 4, "pipelineParallel": 4, "virtualPipeline": 3}
    spec = parse(manifest(tmp_path, tmp_path, training=stages)).spec
    config, where = learner_config(spec, chosen_algorithm(spec), tmp_path, 1, tmp_path), topology(spec)
    assert (config.layout.virtual, where.layout.virtual, where.layout.micro_batch_multiple) == (3, 3, 4)
    assert str(where.layout) == str(layout(config, 4)) == "tensor 1 x pipeline 4 x data 1, virtual pipeline 3"
    assert layout(config, 4).micro_batch_multiple == 4
    plain = replace(config, layout=replace(config.layout, virtual=1))
    assert (layout(plain, 4).micro_batch_multiple, str(layout(plain, 4))) == (1, "tensor 1 x pipeline 4 x data 1")


@pytest.mark.parametrize(("device", "kept"), [("Cpu", None), ("Gpu", "kernels/kernels.tar")])
def test_kernels_are_kept_on_gpus_where_something_is_compiled(tmp_path, device, kept):
    usual = manifest(tmp_path, tmp_path, training={"precision": "bf16"}, runtime={"device": device})
    spec = parse(usual).spec
    found = learner_config(spec, chosen_algorithm(spec), tmp_path, 1, tmp_path / "run").kernels
    assert found == (kept and tmp_path / "run" / kept)


def test_the_learner_gets_the_settings_of_its_routers(tmp_path):
    spec = parse(manifest(tmp_path, tmp_path, training={"experts": {"zLoss": 0.2}})).spec
    assert learner_config(spec, chosen_algorithm(spec), tmp_path, 1, tmp_path).experts == Experts(z_loss=0.2)


@pytest.mark.parametrize("shares", [True, False])
def test_the_learner_shares_out_tokens_as_the_manifest_says(tmp_path, shares):
    sizes = {"gpusPerNode": 2, "tensorParallel": 2, "sequenceParallel": shares}
    spec = parse(manifest(tmp_path, tmp_path, training=sizes)).spec
    config = learner_config(spec, chosen_algorithm(spec), tmp_path, 1, tmp_path)
    assert (config.layout.tensor, config.layout.sequence) == (2, shares)

"""Launch scripts of slime become RLJobs: real argument lists, and the settings whose meaning differs."""

from pathlib import Path

import pytest
import yaml

from rljob_api.errors import ManifestError
from rljob_api.facts import System, facts
from rljob_api.reading import field_lookup, manifest
from rljob_importing.draft import NoteKind
from rljob_importing.manifest_text import text
from rljob_importing.script import NoTrainingError, imported
from rljob_importing.slime_flags import FLAGS
from support.api.imported_fields import difference
from support.tables import each_of

HERE = Path(__file__).parent
SCRIPTS = yaml.safe_load((HERE / "slime_scripts.yaml").read_text())["scripts"]
SEVERAL_FLAGS = yaml.safe_load((HERE / "several_keys.yaml").read_text())["slime"]
NAMES = [each["name"] for each in SCRIPTS]
SYSTEMS: tuple[System, ...] = ("slime", "miles", "megatron")
"""whose flags slime's and Miles' scripts have"""
SMALL = (
    "--hf-checkpoint m --prompt-data d.jsonl --rm-type math --num-rollout 10 --rollout-batch-size 4"
    " --n-samples-per-prompt 4 --rollout-max-response-len 64 --global-batch-size 16 --lr 1e-6 --lr-decay-style constant"
)


def flat(given):
    return " ".join(flat(each) for each in given) if isinstance(given, list) else given


def from_words(words, program="train.py"):
    return imported(f"python3 {program} {words}\n", "run-job.sh", lambda path: None, {})


def from_data(script):
    return from_words(flat(script["arguments"]), script["program"])


def spec_of(words, program="train.py"):
    return from_words(f"{SMALL} {words}", program).content["spec"]


def notes(words, kind):
    return [str(note) for note in from_words(f"{SMALL} {words}").notes if note.kind is kind]


@pytest.mark.parametrize("script", SCRIPTS, ids=NAMES)
def test_every_argument_of_the_example_scripts_is_a_field_or_explained(script):
    found = from_data(script)

    assert [str(note) for note in found.notes if note.kind is NoteKind.UNLISTED] == []
    assert found.listed == found.arguments > 40


@pytest.mark.parametrize("script", SCRIPTS, ids=NAMES)
def test_the_manifest_of_an_example_script_is_valid_but_for_what_the_script_does_not_say(script):
    found = from_data(script)
    written = text(found, script["name"])

    assert sorted(problem.field for problem in found.problems) == sorted(script.get("problems", []))
    assert manifest.problems(written) == found.problems


@each_of(SEVERAL_FLAGS, lambda case: case["given"])
def test_flags_that_belong_together_make_these_fields_and_notes(case):
    program, _, words = case["given"].partition(" ")

    assert difference(from_words(f"{SMALL} {words}", program), from_words(SMALL)) == case["made"]


def test_every_field_of_the_table_exists():
    paths = {f"spec.{entry.path}" for entry in FLAGS.values() if hasattr(entry, "path")}
    known = {field_lookup.dotted(path) for path in field_lookup.entries()}

    assert [path for path in paths if path not in known and ".extraArgs." not in path] == []


def test_every_flag_that_a_field_names_is_in_the_table():
    named = [facts(entry.field).names(system) for entry in field_lookup.entries().values() for system in SYSTEMS]

    assert sorted({flag for flags in named for flag in flags if "_" not in flag} - set(FLAGS)) == []


def test_each_line_has_its_origin():
    lines = text(from_words(SMALL), "run.sh").splitlines()

    assert "    promptsPerStep: 4  # --rollout-batch-size 4, line 1" in lines
    assert "    lossBy: Sample  # slime's default" in lines


def test_slime_s_defaults_are_written_where_an_rljob_has_others():
    spec = spec_of("")

    assert spec["data"] == {"train": {"jsonl": "d.jsonl"}, "inputKey": "input", "chatTemplate": False, "shuffle": False}
    assert spec["training"]["optimizer"]["beta2"] == 0.999
    assert spec["training"]["gpusPerNode"] == 8


def test_sizes_of_experts_are_fields_and_the_model_s_own_are_not_needed():
    words = "--expert-model-parallel-size 4 --expert-tensor-parallel-size 2 --actor-num-gpus-per-node 8 --num-experts 8"
    training = spec_of(words)["training"]

    assert (training["expertParallel"], training["expertTensorParallel"]) == (4, 2)
    assert notes("--num-experts 8", NoteKind.LOST) == []
    assert len(notes("--moe-router-dtype fp32", NoteKind.LOST)) == 1


@pytest.mark.parametrize(
    ("words", "rate"),
    [
        ("--moe-router-enable-expert-bias --moe-router-bias-update-rate 0", None),
        ("--moe-router-enable-expert-bias --moe-router-bias-update-rate 0.0", None),
        ("--moe-router-enable-expert-bias --moe-router-bias-update-rate 0.002", 0.002),
        ("--moe-router-enable-expert-bias", 0.001),
        ("--moe-router-bias-update-rate 0.002", None),
    ],
)
def test_the_rate_of_a_router_s_bias_is_a_field_where_there_is_a_bias(words: str, rate: float | None):
    assert spec_of(words)["training"].get("experts", {}).get("biasUpdateRate") == rate
    assert notes(words, NoteKind.LOST) == []
    assert [note for note in notes(words, NoteKind.CHECK) if "default rate is 0.001" in note] == (
        notes(words, NoteKind.CHECK)[:1] if words.endswith("bias") else []
    )


def test_sequence_parallelism_is_a_field_and_is_left_out_where_one_rank_has_all_tokens():
    words = "--sequence-parallel --tensor-model-parallel-size 2 --actor-num-gpus-per-node 8"

    assert spec_of(words)["training"]["sequenceParallel"] is True
    assert notes(words, NoteKind.LOST) == []
    for alone in ("--sequence-parallel", "--sequence-parallel --tensor-model-parallel-size 1"):
        assert "sequenceParallel" not in spec_of(alone)["training"]
        (left_out,) = [note for note in notes(alone, NoteKind.NEEDLESS) if "sequence-parallel" in note]
        assert "left out: spec.training.sequenceParallel would not be used: tensorParallel is 1" in left_out


def test_the_chunks_of_a_stage_are_a_field_and_follow_from_the_layers_of_a_chunk():
    stages = "--pipeline-model-parallel-size 2 --actor-num-gpus-per-node 8"
    of_layers = f"--num-layers-per-virtual-pipeline-stage 3 {stages}"

    assert spec_of(f"--num-virtual-stages-per-pipeline-rank 2 {stages}")["training"]["virtualPipeline"] == 2
    assert spec_of(f"--num-layers 36 {of_layers}")["training"]["virtualPipeline"] == 6
    for unclear in (of_layers, f"--num-layers 35 {of_layers}"):
        assert "virtualPipeline" not in spec_of(unclear)["training"]
        (unknown,) = notes(unclear, NoteKind.UNKNOWN)
        assert unknown.endswith(
            ": set spec.training.virtualPipeline to the layers of a pipeline stage, divided by this number"
        )
    alone = "--num-virtual-stages-per-pipeline-rank 2 --actor-num-gpus-per-node 8"
    assert "virtualPipeline" not in spec_of(alone)["training"]
    assert "left out: spec.training.virtualPipeline would not be used" in "".join(notes(alone, NoteKind.NEEDLESS))


def test_the_size_of_context_parallelism_is_a_field():
    words = "--context-parallel-size 2 --actor-num-gpus-per-node 8"

    assert spec_of(words)["training"]["contextParallel"] == 2
    assert notes(words, NoteKind.LOST) == []


@pytest.mark.parametrize(
    ("words", "experts"),
    [
        ("--moe-aux-loss-coeff 0.1 --moe-router-load-balancing-type seq_aux_loss", (0.1, "Sequence")),
        ("--moe-aux-loss-coeff 0.1 --moe-router-load-balancing-type global_aux_loss", (0.1, "Step")),
        ("--moe-aux-loss-coeff 0.1", (0.1, "Step")),
        ("--moe-aux-loss-coeff 0 --moe-router-load-balancing-type seq_aux_loss", None),
        ("--moe-aux-loss-coeff 0.1 --moe-router-load-balancing-type none", None),
    ],
)
def test_the_balance_loss_and_its_kind_are_read_together(words: str, experts: tuple[float, str] | None):
    given = spec_of(words)["training"].get("experts")
    assert (given and (given["balanceLoss"], given["balanceOver"])) == experts


def test_a_loss_over_micro_batches_is_noted():
    assert len(notes("--moe-aux-loss-coeff 0.1", NoteKind.CHECK)) > len(notes("", NoteKind.CHECK))


def test_the_z_loss_and_the_replay_are_fields():
    experts = spec_of("--moe-z-loss-coeff 0.001 --use-routing-replay --num-steps-per-rollout 2")["training"]["experts"]
    assert experts == {"zLoss": 0.001, "replay": "Learner"}
    assert spec_of("--use-rollout-routing-replay")["training"]["experts"] == {"replay": "Rollout"}


def test_one_sample_for_each_prompt_is_slime_s_default_and_refused():
    found = from_words(SMALL.replace("--n-samples-per-prompt 4", "").replace("size 16", "size 4"))

    assert [problem.field for problem in found.problems] == ["spec.rollout.samplesPerPrompt"]


def test_a_batch_that_would_drop_samples_is_a_problem_with_its_origin():
    found = from_words(SMALL.replace("size 16", "size 5"))

    assert [found.origin_of(problem) for problem in found.problems] == ["--global-batch-size 5, line 1"]


@pytest.mark.parametrize(
    ("words", "placement", "engines", "gpus_per_engine"),
    [
        ("--colocate --actor-num-gpus-per-node 4", "Colocated", 4, None),
        ("--colocate --actor-num-gpus-per-node 4 --rollout-num-gpus-per-engine 2", "Colocated", 2, 2),
        ("--colocate --actor-num-nodes 2 --rollout-num-gpus-per-engine 16", "Colocated", 2, 8),
        ("--rollout-num-gpus 6 --rollout-num-gpus-per-engine 2", "Disaggregated", 3, 2),
        ("--rollout-num-gpus 64 --rollout-num-gpus-per-engine 32", "Disaggregated", 8, 8),
    ],
)
def test_engines_are_gpus_by_gpus_of_an_engine(words, placement, engines, gpus_per_engine):
    spec = spec_of(words)

    assert (spec["placement"], spec["rollout"]["engines"]) == (placement, engines)
    assert spec["rollout"].get("gpusPerEngine") == gpus_per_engine


@pytest.mark.parametrize(
    ("words", "kl"),
    [
        ("--kl-loss-coef 0.1", None),
        ("--use-kl-loss --kl-loss-coef 0.0", None),
        ("--use-kl-loss --kl-loss-coef 0.1", {"coefficient": 0.1, "estimator": "k1"}),
        ("--use-kl-loss --kl-loss-coef 0.1 --kl-loss-type low_var_kl", {"coefficient": 0.1, "estimator": "k3"}),
        ("--use-kl-loss --kl-loss-coef 0.1 --kl-loss-type k3", {"coefficient": 0.1, "estimator": "k3", "clamp": False}),
        ("--kl-coef 0.1 --kl-loss-type k2", {"coefficient": 0.1, "addedTo": "Reward", "estimator": "k2"}),
    ],
)
def test_a_penalty_needs_its_coefficient(words, kl):
    assert spec_of(words).get("algorithm", {}).get("kl") == kl


@pytest.mark.parametrize(("given", "seconds"), [("0.4", 1), ("30", 30), ("7.6", 8)])
def test_seconds_are_rounded_to_whole_ones(given, seconds):
    assert spec_of(f"--rollout-health-check-interval {given}")["recovery"] == {"healthIntervalSeconds": seconds}


@pytest.mark.parametrize(
    ("words", "low", "high"),
    [
        ("--eps-clip 0.1", 0.1, 0.1),
        ("--eps-clip-high 0.28", None, 0.28),
        ("--eps-clip 0.1 --eps-clip-high 0.3", 0.1, 0.3),
        ("--eps-clip 0.2", 0.2, None),
    ],
)
def test_the_upper_clip_range_is_the_lower_one_unless_it_is_given(words, low, high):
    two_steps = SMALL.replace("size 16", "size 8")
    algorithm = from_words(f"{two_steps} {words}").content["spec"]["algorithm"]

    assert (algorithm.get("clipLow"), algorithm.get("clipHigh")) == (low, high)


def test_a_setting_without_effect_is_left_out_and_listed():
    found = from_words(
        f"{SMALL} --eps-clip-high 0.28 --min-lr 1e-7 --update-weight-buffer-size 1073741824 --colocate "
        "--update-weight-transport disk"
    )
    left_out = " ".join(str(note) for note in found.notes if note.kind is NoteKind.NEEDLESS)

    assert found.problems == ()
    assert "--eps-clip-high 0.28, line 1: left out: spec.algorithm.clipHigh would clip nothing" in left_out
    assert "--min-lr 1e-7, line 1: left out" in left_out
    assert "--update-weight-buffer-size 1073741824, line 1: left out" in left_out


def test_the_size_of_buckets_has_an_effect_on_colocated_gpus_too():
    assert spec_of("--update-weight-buffer-size 1073741824 --colocate")["weightSync"] == {"bucketMib": 1024}


def test_evaluation_sets_come_in_pairs_and_slices_are_limits():
    data = spec_of("--eval-interval 5 --eval-prompt-data a/b x.jsonl@[0:64] gpqa y.parquet")["data"]

    assert data["heldOut"] == {"jsonl": "x.jsonl", "limit": 64}
    assert data["evaluationSets"] == [{"name": "gpqa", "parquet": "y.parquet"}]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--rollout-num-gpus 2", {"maxStaleness": 1}),
        ("--rollout-num-gpus 2 --update-weights-interval 3", {"maxStaleness": 3, "updateInterval": 3}),
        ("--rollout-num-gpus 2 --partial-rollout --max-weight-staleness 4", {"maxStaleness": 4, "partial": True}),
        ("--rollout-num-gpus 2 --fully-async", {"maxStaleness": 1, "partial": True}),
    ],
)
def test_train_async_is_rollout_async(words, expected):
    assert spec_of(words, "train_async.py")["rollout"]["async"] == expected


def test_a_warm_up_fraction_is_counted_in_optimizer_steps():
    words = f"{SMALL.replace('size 16', 'size 8')} --lr-warmup-fraction 0.25"

    assert from_words(words).content["spec"]["training"]["optimizer"]["warmupSteps"] == 5


def test_dynamic_sampling_over_samples_by_the_quotient_of_the_batches():
    words = "--dynamic-sampling-filter-path a.b.check_reward_nonzero_std --over-sampling-batch-size 6"

    assert spec_of(words)["algorithm"]["dynamicSampling"] == {"overSample": 1.5}


@pytest.mark.parametrize(
    ("filter_", "masks", "lost"),
    [("mask_truncated", True, 0), ("mask_truncated_and_llm_judge_failed", True, 1), ("mask_infra_failures", None, 1)],
)
def test_a_filter_that_masks_truncated_samples_is_a_field(filter_, masks, lost):
    words = f"--rollout-sample-filter-path miles.rollout.filter_hub.rollout_filters.{filter_}"

    assert spec_of(words).get("algorithm", {}).get("maskTruncated") is masks
    assert len(notes(words, NoteKind.LOST)) == lost


def test_a_function_of_the_user_is_carried_over_with_a_warning():
    spec = spec_of("--custom-rm-path my.rewards.score --custom-generate-function-path my.turns.generate")

    assert spec["reward"] == {"function": "my.rewards:score", "kind": "Python"}
    assert spec["rollout"]["generate"] == "my.turns:generate"
    assert len(notes("--custom-rm-path my.rewards.score", NoteKind.CHECK)) == 1


def test_an_unknown_flag_gets_the_nearest_known_one():
    (note,) = notes("--rollout-batchsize 3", NoteKind.UNLISTED)

    assert note == "--rollout-batchsize 3, line 1: unknown name; did you mean --rollout-batch-size?"


def test_an_argument_of_sglang_is_passed_through_or_refused_with_the_reason():
    spec = spec_of("--sglang-chunked-prefill-size 4096 --sglang-disable-radix-cache --sglang-cuda-graph-bs 1 2")
    lost = " ".join(notes("--sglang-dp-size 2 --sglang-nothing 1", NoteKind.LOST))

    assert spec["extraArgs"]["sglang"] == {
        "chunked-prefill-size": 4096,
        "disable-radix-cache": True,
        "cuda-graph-bs": [1, 2],
    }
    assert "an engine is parallel over tensors only" in lost
    assert "--sglang-nothing 1, line 1: is not an argument of SGLang" in lost


def test_a_secret_is_never_written():
    written = text(from_words(f"{SMALL} --use-wandb --wandb-project p --wandb-key 0123abcd"), "run.sh")

    assert "0123abcd" not in written
    assert "--wandb-key (hidden)" in written


def test_a_value_that_only_a_run_knows_is_named_and_left_out():
    found = from_words(f"{SMALL} --save $OUT/x --save-interval $(cat n)")
    unknown = [str(note) for note in found.notes if note.kind is NoteKind.UNKNOWN]

    assert found.content["spec"]["checkpoint"] == {"directory": "${OUT}/x"}
    assert "--save ${OUT}/x, line 1: $OUT is not set in the script" in unknown
    assert "--save-interval $(cat n), line 1: $(cat n) is not evaluated" in unknown


def test_a_script_without_a_training_is_refused():
    with pytest.raises(NoTrainingError, match=r"starts no training; looked for train\.py"):
        imported("ls -la\n", "x.sh", lambda path: None, {})


def test_the_written_manifest_is_read_back_as_it_was_made():
    found = from_words(f"{SMALL} --rollout-stop '</a>' '# x' --save 'true' --colocate")

    try:
        job = manifest.load(text(found, "run.sh"))
    except ManifestError as error:
        pytest.fail(str(error))
    assert job.spec.rollout.sampling.stop == ("</a>", "# x")
    assert job.spec.checkpoint.directory == "true"


def test_no_text_of_a_script_becomes_a_line_of_the_manifest():
    odd = "a\u2028b\x85c"
    found = imported(
        f"python3 train.py {SMALL} --save $'x\ny' --rollout-stop '{odd}' --nothing 'x\nspec: 1'\n", "r.sh", {}.get, {}
    )

    job = manifest.load(text(found, "r\nspec: 2"))
    assert (job.spec.checkpoint.directory, job.spec.rollout.sampling.stop) == ("x\ny", (odd,))


def test_a_missing_backslash_is_named_and_the_flags_behind_it_are_read():
    script = f"ARGS=({SMALL})\npython3 train.py \\\n  --colocate\n  ${{ARGS[@]}} \\\n  --save x\n"
    found = imported(script, "run.sh", {}.get, {})
    checks = [str(note) for note in found.notes if note.kind is NoteKind.CHECK]

    assert found.problems == ()
    assert found.content["spec"]["checkpoint"] == {"directory": "x"}
    assert any("bash ends the command before it, where a \\ is missing" in check for check in checks)


@pytest.mark.parametrize(
    ("given", "begins_with", "kind"),
    [
        ("m/Qwen3-30B-A3B-FP8", "m/Qwen3-30B-A3B", "Fp8"),
        ("m/Qwen3-4B_fp8/", "m/Qwen3-4B", "Fp8"),
        ("m/Qwen3-30B-A3B-INT4/", "m/Qwen3-30B-A3B", "Int4"),
        ("m/Qwen3-4B_int4", "m/Qwen3-4B", "Int4"),
    ],
)
def test_engines_of_a_quantised_checkpoint_are_quantised_and_the_learner_begins_in_bf16(
    given: str, begins_with: str, kind: str
):
    spec = spec_of(f"--hf-checkpoint {given}")

    assert (spec["model"]["checkpoint"], spec["rollout"]["quantization"]) == (begins_with, kind)
    (check,) = notes(f"--hf-checkpoint {given}", NoteKind.CHECK)
    assert "begins with the checkpoint in bf16" in check
    assert ("OPEN_TRAINING_INT4_FAKE_QAT_FLAG" in check) == (kind == "Int4")


@pytest.mark.parametrize("given", ["m/FP8-model", "m/fp8/model", "m/modelfp8", "m/int4/model", "m/modelint4"])
def test_other_names_are_of_checkpoints_in_bf16(given: str):
    spec = spec_of(f"--hf-checkpoint {given}")

    assert (spec["model"]["checkpoint"], "quantization" in spec["rollout"]) == (given, False)


def test_a_number_that_is_too_long_or_infinite_is_named():
    unknown = notes(f"--rollout-batch-size {'1' * 200_000}x --save-interval 1e999", NoteKind.UNKNOWN)
    assert "1…' is not a whole number" in unknown[0]
    assert "'1e999' is not a whole number" in unknown[1]


def test_notes_of_many_unknown_parts_are_short():
    unknown = notes(f"--save /a/{''.join(f'$(a{index})' for index in range(20_000))}", NoteKind.UNKNOWN)
    assert len(unknown) == 11
    assert max(map(len, unknown)) < 1_000
    assert "19990 more parts are not known" in unknown[-1]


def test_only_the_first_unknown_names_are_compared_with_the_known_ones():
    unlisted = notes(" ".join(f"--num-rolloutt{index} 1" for index in range(2_000)), NoteKind.UNLISTED)
    assert ["did you mean" in note for note in unlisted] == [True] * 100 + [False] * 1_900


STAGES = "--num-layers 61 --pipeline-model-parallel-size 4"


@pytest.mark.parametrize(
    ("words", "layers"),
    [
        (f"{STAGES} --decoder-last-pipeline-num-layers 13", [16, 16, 16, 13]),
        (f"{STAGES} --decoder-first-pipeline-num-layers 13", [13, 16, 16, 16]),
        (f"{STAGES} --decoder-first-pipeline-num-layers 15 --decoder-last-pipeline-num-layers 14", [15, 16, 16, 14]),
        ("--num-layers 10 --pipeline-model-parallel-size 2 --decoder-last-pipeline-num-layers 4", [6, 4]),
    ],
)
def test_uneven_stages_are_counted(words: str, layers: list[int]):
    assert spec_of(words)["training"]["pipelineLayers"] == layers


@pytest.mark.parametrize(
    "words",
    [
        f"{STAGES} --decoder-last-pipeline-num-layers 12",
        "--pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 12",
        "--num-layers 61 --decoder-last-pipeline-num-layers 12",
        f"{STAGES} --decoder-last-pipeline-num-layers $LAST",
        f"{STAGES} --decoder-last-pipeline-num-layers 61",
    ],
)
def test_uneven_stages_that_cannot_be_counted_are_named(words: str):
    assert "pipelineLayers" not in spec_of(words)["training"]
    assert [each for each in notes(words, NoteKind.UNKNOWN) if "spec.training.pipelineLayers" in each]


def test_a_supervised_rollout_always_renders_with_the_chat_template():
    words = "--rollout-function-path slime.rollout.sft_rollout.generate_rollout --loss-type sft_loss"
    assert spec_of(words, "train_async.py")["data"]["chatTemplate"] is True
    assert spec_of("")["data"]["chatTemplate"] is False


@pytest.mark.parametrize(
    ("words", "section", "field", "value"),
    [
        ("--sglang-dtype bfloat16", "training", "precision", "bf16"),
        ("--sglang-dtype float32", "training", "precision", "fp32"),
        ("--sglang-dtype auto", "training", "precision", None),
        ("--sglang-dtype float16", "training", "precision", None),
        ("--sglang-device cuda", "runtime", "device", "Gpu"),
        ("--sglang-device cpu", "runtime", "device", "Cpu"),
        ("--sglang-device xpu", "runtime", "device", None),
    ],
)
def test_words_of_sglang_become_those_of_the_field(words: str, section: str, field: str, value: str | None):
    found = from_words(f"{SMALL} {words}")
    assert found.content["spec"].get(section, {}).get(field) == value
    assert not [problem for problem in found.problems if problem.field == f"spec.{section}.{field}"]
    assert value or [each for each in found.notes if f"spec.{section}.{field}" in each.why]


@pytest.mark.parametrize(
    ("words", "is_named"),
    [
        ("--spec slime_plugins.models.qwen3_next get_qwen3_next_spec", True),
        ("--spec slime_plugins.models.glm4 get_glm_spec", False),
        ("--attention-output-gate", True),
        ("--linear-attention-freq 4", True),
        ("--multi-latent-attention", False),
    ],
)
def test_layers_of_a_family_that_is_not_trained_are_named(words: str, is_named: bool):
    lost = notes(words, NoteKind.LOST)
    assert bool([each for each in lost if "docs/models.md" in each]) is is_named


@pytest.mark.parametrize(
    "name",
    [
        *("MiniMax-M2", "Qwen3-Next-80B-A3B", "Qwen3.5-35B-A3B", "GLM-5", "glm5-744B-A40B", "GLM-4.7-Flash"),
        *("gpt-oss-20b", "Qwen2.5-VL-7B-Instruct", "DeepSeek-V3.2", "gemma-3-4b-it", "Llama-4-Scout", "GLM-4.5V"),
    ],
)
def test_a_checkpoint_of_a_family_that_is_not_trained_is_named(name: str):
    found = from_words(f"{SMALL} --hf-checkpoint /m/{name}")
    assert [each for each in found.notes if each.kind is NoteKind.LOST and "does not train" in each.why]


OURS = (
    "Qwen3-30B-A3B",
    "Qwen2.5-7B",
    "Meta-Llama-3-8B",
    "GLM-4.5-Air",
    "GLM-4.7",
    "GLM-Z1-9B-0414",
    "DeepSeek-V3-0324",
)


@pytest.mark.parametrize("name", [*OURS, "Kimi-K2-Instruct", "Mixtral-8x7B", "gemma-3-1b-it", "Moonlight-16B-A3B"])
def test_a_checkpoint_of_a_family_that_is_trained_is_not(name: str):
    found = from_words(f"{SMALL} --hf-checkpoint /m/{name}")
    assert not [each for each in found.notes if "does not train" in each.why]


@pytest.mark.parametrize(
    ("name", "words", "is_said"),
    [
        ("Qwen2.5-7B-Instruct", "--apply-chat-template", True),
        ("Llama-3.1-8B-Instruct", "--apply-chat-template", True),
        ("Qwen2.5-7B-Instruct", "", False),
        ("Qwen3-8B", "--apply-chat-template", False),
    ],
)
def test_a_system_turn_that_a_template_adds_by_itself_is_named(name: str, words: str, is_said: bool):
    found = from_words(f"{SMALL} --hf-checkpoint /m/{name} {words}")
    assert bool([each for each in found.notes if "spec.data.systemPrompt" in each.why]) is is_said


@pytest.mark.parametrize(
    ("width", "ranks", "nearest"), [(768, 8, 6), (768, 2, None), (1536, 8, 6), (2048, 8, None), (100, 2, 0)]
)
def test_fp8_blocks_that_an_engine_would_cut_are_named(width: int, ranks: int, nearest: int | None):
    words = f"--hf-checkpoint /m/MoE-FP8 --moe-ffn-hidden-size {width} --rollout-num-gpus-per-engine {ranks} --colocate"
    cut = [each for each in notes(words, NoteKind.LOST) if "block of FP8" in each]
    assert bool(cut) is (nearest is not None)
    assert not nearest or f"gpusPerEngine {nearest}" in cut[0]


def test_a_launcher_in_python_is_refused_as_one():
    with pytest.raises(NoTrainingError, match="a launcher in Python, which is not read"):
        imported("U.execute_train(train_args='--lr 1e-6')", "run_qwen3.py", lambda path: None, {})


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ('read -ra MODEL_ARGS <<< "$(python3 args.py)"', "is read while the script runs"),
        ("mapfile -t MODEL_ARGS < <(python3 args.py)", "is read while the script runs"),
        ("readarray -t MODEL_ARGS < args.txt", "is read while the script runs"),
        ("X=1", "is not set in the script"),
    ],
)
def test_arguments_that_only_a_run_could_know_are_missed(before: str, why: str):
    text = f"{before}\npython3 train.py {SMALL} ${{MODEL_ARGS[@]}} --colocate\n"
    found = imported(text, "run.sh", lambda path: None, {})
    assert f"line 2: the array MODEL_ARGS {why}; its arguments are missing" in [str(each) for each in found.notes]
    assert found.content["spec"]["placement"] == "Colocated"


def test_a_note_on_a_sourced_file_names_that_file():
    model = "\nif [ $BIG ]; then\n  MODEL_ARGS=(--num-layers 4)\nfi\n"
    text = f"source models/small.sh\npython3 train.py {SMALL} ${{MODEL_ARGS[@]}}\n"
    found = imported(text, "run.sh", {"models/small.sh": model}.get, {})
    why = "the array MODEL_ARGS is set under a condition; used as it stands"
    assert f"small.sh line 3: {why}" in [str(each) for each in found.notes]

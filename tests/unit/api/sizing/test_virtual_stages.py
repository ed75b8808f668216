"""Virtual pipeline stages: each rank has several chunks of layers, and keeps more activations."""

import pytest

from rljob_api.sizing.memory import activation_formula, fullest, kept_layers, shared
from rljob_api.sizing.model_shape import problems, shape, teacher_problems
from rljob_api.sizing.topology import Topology, topology
from support.api.sized_jobs import QWEN3_600M, bytes_of, job

MODEL = shape(QWEN3_600M)
"""of 28 layers"""
EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}


def stages(pipeline: int, chunks: int, **fields: object) -> tuple[str, str]:
    lines = {"pipelineParallel": pipeline, "virtualPipeline": chunks, **fields}
    return "steps: 200", "\n    ".join(["steps: 200", *(f"{name}: {value}" for name, value in lines.items())])


def placed(good: str, pipeline: int, chunks: int, **fields: object) -> Topology:
    return topology(job(good, stages(pipeline, chunks, **fields)).spec)


@pytest.mark.parametrize(("pipeline", "chunks"), [(2, 2), (2, 7), (4, 7)])
def test_equal_chunks_keep_activations_by_megatron_s_factor(good: str, pipeline: int, chunks: int) -> None:
    kept = kept_layers(MODEL, placed(good, pipeline, chunks))
    assert kept == MODEL.layers * (1 + (pipeline - 1) / (pipeline * chunks))
    plain, virtual = (bytes_of(good, stages(pipeline, number)) for number in (1, chunks))
    assert virtual["activations"] * MODEL.layers == plain["activations"] * kept
    assert virtual["weights"] == plain["weights"]


def naive_kept(layers: list[int], stages: int, stage: int) -> int:
    """Walk Megatron's order of passes: a warm-up, then one forward and one backward pass in turns."""
    own = layers[stage::stages]
    order = [chunk for _ in range(6) for chunk in range(len(own)) for _ in range(stages)]
    held = most = forward = backward = 0
    for _ in range((stages - stage - 1) * 2 + (len(own) - 1) * stages):
        held += own[order[forward]]
        forward += 1
    while forward < len(order):
        held += own[order[forward]]
        most = max(most, held)
        held -= own[len(own) - 1 - order[backward]]
        forward, backward = forward + 1, backward + 1
    return most


@pytest.mark.parametrize("layers", [[3, 11, 8, 6], [1, 1, 1, 25], [25, 1, 1, 1], [5, 5, 5, 5, 5, 3]])
def test_uneven_chunks_keep_what_the_schedule_holds_at_most(good: str, layers: list[int]) -> None:
    where = placed(good, 2, len(layers) // 2, pipelineLayers=layers)
    assert where.layout.stage_layers(28) == (sum(layers[::2]), sum(layers[1::2]))
    assert kept_layers(MODEL, where) == max(naive_kept(layers, 2, stage) for stage in range(2))


def test_formulas_show_the_factor(good: str) -> None:
    def formula(chunks: int, **fields: object) -> str:
        spec = job(good, stages(2, chunks, **fields)).spec
        return activation_formula(MODEL, spec, topology(spec))

    assert formula(1).startswith("maxTokensPerGpu x L x (4H")
    assert formula(2).startswith("maxTokensPerGpu x L x (1 + (PP - 1) / (PP x VP)) x (4H")
    assert formula(2, pipelineLayers=[7, 7, 7, 7]).startswith("maxTokensPerGpu x 35 x (4H")
    assert formula(2, recompute="Full").startswith("maxTokensPerGpu x (L x (1 + (PP - 1) / (PP x VP)) x H + (4H")


def test_a_rank_has_the_layers_of_its_chunks(good: str) -> None:
    model, where = MODEL, placed(good, 2, 2, pipelineLayers=[2, 8, 4, 14])
    assert where.layout.chunk_layers(28) == (2, 8, 4, 14)
    assert fullest(model, where) == model.stage(1, 1, 2) + 8 * model.layer()
    assert placed(good, 2, 2).layout.chunk_layers(28) == (7, 7, 7, 7)
    assert placed(good, 2, 2).layout.stage_layers(28) == (14, 14)


def test_first_layers_without_experts_are_counted_where_their_chunks_are() -> None:
    model = shape({**QWEN3_600M, **EXPERTS, "moe_intermediate_size": 768})
    found = [(model.dense_layers, model.layers_in(stage, [2, 8, 4, 14], 2)) for stage in range(2)]
    assert found == [(0, (0, 6)), (0, (0, 22))]
    object.__setattr__(model, "dense_layers", 11)
    assert [model.layers_in(stage, [2, 8, 4, 14], 2) for stage in range(2)] == [(3, 3), (8, 14)]


def test_states_are_shared_out_by_the_experts_of_all_chunks(good: str) -> None:
    model = shape({**QWEN3_600M, **EXPERTS, "moe_intermediate_size": 768})
    where = placed(good, 2, 2, expertParallel=4, pipelineLayers=[1, 12, 1, 14])
    parameters, experts = fullest(model, where), 26 * model.experts_of_layer(4)
    assert shared(model, where, parameters, 8) == 8 * (parameters - experts) // 4 + 8 * experts


def test_chunks_must_divide_the_layers_of_a_stage(good: str) -> None:
    spec = job(good, stages(2, 4)).spec
    (wrong,) = problems(MODEL, spec)
    assert str(wrong) == (
        "spec.training.virtualPipeline: 4 does not divide the model's 14 layers of a stage; nearest valid: 2"
    )
    (wrong,) = teacher_problems(MODEL, MODEL, spec)
    assert "does not divide the teacher's 14 layers of a stage" in str(wrong)
    assert problems(MODEL, job(good, stages(2, 7)).spec) == ()
    assert problems(MODEL, job(good, stages(2, 4, pipelineLayers=[3, 3, 3, 3, 4, 4, 4, 4])).spec) == ()
    (wrong,) = problems(shape({**QWEN3_600M, "num_hidden_layers": 27}), spec)
    assert str(wrong).startswith("spec.training.pipelineParallel: 2 does not divide the model's 27 layers")


def test_micro_batches_come_in_groups_of_as_many_as_there_are_stages(good: str) -> None:
    assert [placed(good, 4, chunks).layout.micro_batch_multiple for chunks in (1, 7)] == [1, 4]

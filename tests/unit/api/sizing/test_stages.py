"""Pipeline stages with layers of their own: their parameters, activations and experts, and what is refused."""

import pytest

from rljob_api.sizing.memory import fullest, shared
from rljob_api.sizing.model_shape import problems, shape, teacher_problems
from rljob_api.sizing.topology import topology
from support.api.sized_jobs import QWEN3_600M, bytes_of, job

STAGES = "steps: 200\n    pipelineParallel: 4\n    pipelineLayers: {}"


def test_stages_with_layers_of_their_own_have_their_parameters_and_activations(good):
    even = bytes_of(good, ("steps: 200", STAGES.format("[7, 7, 7, 7]")))
    uneven = bytes_of(good, ("steps: 200", STAGES.format("[2, 8, 8, 10]")))
    model = shape(QWEN3_600M)
    fullest = max(model.stage(index, 1, 4, layers=(2, 8, 8, 10)) for index in range(4))

    assert even == bytes_of(good, ("steps: 200", "steps: 200\n    pipelineParallel: 4"))
    assert uneven["weights"] == 2 * fullest == 2 * (model.stage(3, 1, 4) + 3 * model.layer())
    assert uneven["activations"] * 28 == even["activations"] * max(4 * 2, 3 * 8, 2 * 8, 10)


@pytest.mark.parametrize("layers", ["[26, 2]", "[2, 26]"])
def test_states_are_shared_out_by_the_experts_of_the_fullest_stage(good, layers):
    stages = f"steps: 200\n    pipelineParallel: 2\n    expertParallel: 4\n    pipelineLayers: {layers}"
    moe = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    }
    model = shape({**QWEN3_600M, **moe, "moe_intermediate_size": 768})
    where = topology(job(good, ("steps: 200", stages)).spec)
    parameters, experts = fullest(model, where), 26 * model.experts_of_layer(4)

    assert (where.layout.copies, where.layout.expert_data) == (4, 1)
    assert shared(model, where, parameters, 8) == 8 * (parameters - experts) // 4 + 8 * experts


def test_stages_must_have_all_layers_between_them(good):
    given = job(good, ("steps: 200", STAGES.format("[2, 8, 8, 9]"))).spec
    (wrong,) = problems(shape(QWEN3_600M), given)
    assert str(wrong) == (
        "spec.training.pipelineLayers: [2, 8, 8, 9] adds up to 27, and the model's layers are 28; "
        "nearest valid: [7, 7, 7, 7]"
    )
    (wrong,) = problems(shape({**QWEN3_600M, "num_hidden_layers": 30}), given)
    assert wrong.nearest == "[8, 8, 7, 7]"
    assert problems(shape({**QWEN3_600M, "num_hidden_layers": 27}), given) == ()


def test_a_teacher_has_the_student_s_stages(good):
    spec = job(good, ("steps: 200", STAGES.format("[6, 8, 8, 6]"))).spec
    student = shape(QWEN3_600M)
    (wrong,) = teacher_problems(shape({**QWEN3_600M, "num_hidden_layers": 36}), student, spec)
    assert "adds up to 28, and the teacher's layers are 36" in str(wrong)
    assert teacher_problems(student, student, spec) == ()

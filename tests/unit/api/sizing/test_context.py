"""Context parallelism: what the ranks that share the tokens of samples need, and how many shares of data there are."""

import pytest
import yaml

from rljob_api.reading.manifest import parse
from rljob_api.sections import RLJob
from rljob_api.sizing.batch import batch
from rljob_api.sizing.known_models import ON_THE_HUB
from rljob_api.sizing.memory import estimate
from rljob_api.sizing.model_shape import shape
from rljob_api.sizing.topology import topology

MODEL = shape(ON_THE_HUB["Qwen/Qwen3-0.6B"])


def training(good: str, **fields: int) -> RLJob:
    """The good job, of 8 GPUs, with other fields of its training."""
    content = yaml.safe_load(good)
    content["spec"]["training"] |= fields
    return parse(content)


def sizes_of(job: RLJob) -> dict[str, int]:
    where = topology(job.spec)
    return {item.what: item.bytes for item in estimate(MODEL, job.spec, where).learner}


def test_context_parallel_ranks_share_the_tokens_of_long_samples(good: str) -> None:
    alone = training(good, maxTokensPerGpu=8192)
    split = training(good, maxTokensPerGpu=2048, contextParallel=4)

    assert alone.spec.training.micro_batch_tokens == split.spec.training.micro_batch_tokens == 8192
    gathered = 2048 * MODEL.layers * 2 * MODEL.key * 4 * 2
    assert sizes_of(split)["activations"] == sizes_of(alone)["activations"] // 4 + gathered


def test_context_parallel_ranks_share_the_optimizer_as_data_parallel_ranks_do(good: str) -> None:
    alone, split = training(good), training(good, contextParallel=4)

    assert (topology(alone.spec).layout.data, topology(split.spec).layout.data) == (8, 2)
    assert topology(alone.spec).layout.copies == topology(split.spec).layout.copies == 8
    for what in ("weights", "gradients", "Adam moments", "master weights"):
        assert sizes_of(split)[what] == sizes_of(alone)[what]


def test_formulas_show_the_size_of_context_parallelism_where_there_is_one(good: str) -> None:
    job = training(good, contextParallel=2)
    formulas = {item.what: item.formula for item in estimate(MODEL, job.spec, topology(job.spec)).learner}

    assert formulas["Adam moments"] == "P x 8 / (CP x DP), distributed optimizer"
    assert "+ 2K x CP) / TP" in formulas["activations"]
    assert "CP" not in estimate(MODEL, training(good).spec, topology(training(good).spec)).learner[3].formula


@pytest.mark.parametrize(("context", "samples"), [(1, 8), (4, 2)])
def test_an_optimizer_step_needs_a_sample_for_each_share_of_data(good: str, context: int, samples: int) -> None:
    content = yaml.safe_load(good)
    content["spec"]["training"]["contextParallel"] = context
    content["spec"]["rollout"] |= {"promptsPerStep": samples // 2, "samplesPerPrompt": 2}

    assert batch(parse(content).spec).global_batch_size == samples


def test_experts_may_be_spread_over_context_parallel_ranks(good: str) -> None:
    where = topology(training(good, contextParallel=2, expertParallel=2).spec)

    assert (where.layout.expert_data, where.layout.data_ranks_meet) == (4, False)
    assert topology(training(good, contextParallel=2, expertParallel=4).spec).layout.data_ranks_meet

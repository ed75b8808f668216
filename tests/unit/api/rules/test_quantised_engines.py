"""Which kernels experts may have, by the format of their weights."""

import pytest

from rljob_api.rules.rollout import quantised_engines
from rljob_api.sections import Precision, Quantization
from support.api.bad_manifests import table
from support.api.sized_jobs import job


@pytest.mark.parametrize(
    ("kind", "kernels", "refused"),
    [
        (Quantization.INT4, "triton", True),
        (Quantization.INT4, "auto", False),
        (Quantization.INT4, "marlin", False),
        (Quantization.FP8, "triton", False),
        (None, "triton", False),
    ],
)
def test_experts_in_int4_have_marlins_kernels(kind, kernels, refused):
    spec = job(table()["good"]).spec
    given = spec.model_copy(
        update={
            "rollout": spec.rollout.model_copy(update={"quantization": kind}),
            "training": spec.training.model_copy(update={"precision": Precision.BF16}),
            "extra_args": spec.extra_args.model_copy(update={"sglang": {"moe-runner-backend": kernels}}),
        }
    )
    assert bool(list(quantised_engines(given))) is refused

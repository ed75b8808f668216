"""What an attempt does with less memory after an earlier one ran out of it. Pure.

Called by the operator and by `rljob run`, which hand the result to the driver in an environment variable: a driver of
an older image ignores it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from rljob_api.sections import Device, Section, Spec

VARIABLE: Final = "RLJOB_ADJUSTMENTS"
"""environment variable of the driver: a JSON object of values by field"""
LESS: Final = 0.9
"""factor for each failure"""
USUAL_FRACTION: Final = 0.85
"""about what SGLang 0.5.17 chooses on a large GPU if the manifest names no memory fraction"""
TOKENS: Final = "training.maxTokensPerGpu"
FRACTION: Final = "rollout.memoryFraction"
NO_GRAPHS: Final = "extraArgs.sglang.disable-cuda-graph"
OF_LEARNER: Final = frozenset({"TrainOutOfMemory"})
OF_ENGINE: Final = frozenset({"EngineOutOfMemory", "ColocatedOutOfMemory", "CudaGraphCapture", "IllegalMemoryAccess"})
GRAPHS: Final = "CudaGraphCapture"

Adjustments = Mapping[str, int | float | bool]
"""value by field, for example `{"training.maxTokensPerGpu": 7372}`"""


def adjustments(spec: Spec, failures: Sequence[str]) -> Adjustments:
    """Return what the next attempt changes after attempts that ended by these failures, codes of the catalogue.

    The learner gets smaller micro-batches, which changes no result; the engine less memory. Graphs that cannot be
    captured with less memory either are left out. Empty with `recovery.adjustMemory: false`, and on CPUs.
    """
    if not spec.recovery.adjust_memory or spec.runtime.device is Device.CPU:
        return {}
    learner = sum(code in OF_LEARNER for code in failures)
    engine = sum(code in OF_ENGINE for code in failures) if spec.has_engines else 0
    found: dict[str, int | float | bool] = {}
    if learner:
        found[TOKENS] = max(1, int(spec.training.max_tokens_per_gpu * LESS**learner))
    if engine:
        found[FRACTION] = round((spec.rollout.memory_fraction or USUAL_FRACTION) * LESS**engine, 3)
    if engine and failures.count(GRAPHS) > 1:
        found[NO_GRAPHS] = True
    return found


def adjusted(spec: Spec, values: Adjustments) -> Spec:
    """Return the spec with these values. Raises KeyError for a field that is not adjusted."""
    for field, value in values.items():
        match field:
            case "training.maxTokensPerGpu":
                part: Section = spec.training.model_copy(update={"max_tokens_per_gpu": int(value)})
            case "rollout.memoryFraction":
                part = spec.rollout.model_copy(update={"memory_fraction": float(value)})
                if spec.learner_leaves:  # as before: a fraction of the manifest would mean that it stays
                    stays_as_it_is = spec.training.model_copy(update={"offload": True})
                    spec = spec.model_copy(update={"training": stays_as_it_is})
            case "extraArgs.sglang.disable-cuda-graph":
                sglang = {**spec.extra_args.sglang, "disable-cuda-graph": bool(value)}
                part = spec.extra_args.model_copy(update={"sglang": sglang})
            case _:
                raise KeyError(field)
        section = {"training": "training", "rollout": "rollout", "extraArgs": "extra_args"}[field.partition(".")[0]]
        spec = spec.model_copy(update={section: part})
    return spec


def written(values: Adjustments) -> str:
    """Return the value of the environment variable."""
    return json.dumps(dict(values), sort_keys=True)


def read(environment: Mapping[str, str]) -> Adjustments:
    """Return the adjustments in an environment; empty: there are none."""
    found: dict[str, int | float | bool] = json.loads(environment.get(VARIABLE, "{}"))
    return found


def in_words(values: Adjustments) -> str:
    """Return, for example, `training.maxTokensPerGpu 7372, rollout.memoryFraction 0.765`."""
    return ", ".join(f"{field} {json.dumps(value)}" for field, value in values.items())

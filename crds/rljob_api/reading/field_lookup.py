"""The fields of a manifest by path, and the search for the field that was meant (did you mean).

The names of other systems are facts of the fields, or in the tables below where they are not plain.
"""

import re
from dataclasses import dataclass
from functools import cache, lru_cache

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rljob_api import facts
from rljob_api.facts import item_of, section_of
from rljob_api.rules import arguments
from rljob_api.rules.likeness import LONGEST_COMPARED, similar
from rljob_api.sections import RLJob

Path = tuple[str, ...]

OF_VERL = {
    "adv-estimator": "spec.algorithm.name",
    "clip-ratio-c": "spec.algorithm.dualClip",
    "clip-ratio-high": "spec.algorithm.clipHigh",
    "clip-ratio-low": "spec.algorithm.clipLow",
    "gen-batch-size": "spec.algorithm.dynamicSampling.overSample",
    "loss-agg-mode": "spec.algorithm.lossBy",
    "max-prompt-length": "spec.rollout.contextLength",
    "nnodes": "spec.training.nodes",
    "ppo-mini-batch-size": "spec.training.globalBatchSize",
    "train-files": "spec.data.train",
    "val-files": "spec.data.heldOut",
}
"""names of verl that are not plainly a field, without the sections before them"""
OF_NEMO_RL = {
    "max-new-tokens": "spec.rollout.sampling.maxNewTokens",
    "max-total-sequence-length": "spec.rollout.contextLength",
    "max-trajectory-age-steps": "spec.rollout.async.maxStaleness",
    "ratio-clip-min": "spec.algorithm.clipLow",
    "reference-policy-kl-penalty": "spec.algorithm.kl.coefficient",
    "token-level-loss": "spec.algorithm.lossBy",
    "val-period": "spec.evaluation.interval",
}
"""the same of NeMo-RL"""
OTHERS = {
    **OF_VERL,
    **OF_NEMO_RL,
    "async-buffer-size": "spec.rollout.async.maxStaleness",
    "custom-loss-function-path": "spec.algorithm.name",
    "global-batch": "spec.training.globalBatchSize",
    "hf-model-path": "spec.model.checkpoint",
    "log-dir": "spec.checkpoint.directory",
    "mask-truncated-completions": "spec.algorithm.maskTruncated",
    "micro-batch-size": "spec.training.maxTokensPerGpu",
    "normalize-advantages": "spec.algorithm.normalizeBy",
    "num-epoch": "spec.training.steps",
    "router-strategy": "spec.rollout.routerPolicy",
    "save-path": "spec.checkpoint.directory",
    "seq-length": "spec.rollout.contextLength",
    "use-kl-loss": "spec.algorithm.kl.coefficient",
    "use-tensorboard": "spec.runtime.tensorboard",
}
"""names from other systems, or from texts about them, that are no facts of a field"""

NEEDLESS = {
    "check-weight-update-equal": "every publication is verified tensor by tensor",
    "load": "a run resumes from spec.checkpoint.directory by itself",
    "model-name": "the architecture is read from the checkpoint",
    "num-data-workers": "prompts are read ahead by themselves",
    "qkv-format": "samples are always packed",
    "streaming-data": "prompts are read ahead by themselves",
    "use-dynamic-batch-size": "samples are always packed, up to spec.training.maxTokensPerGpu",
    "use-fault-tolerance": "engines are always watched, see spec.recovery",
}
"""names from there that have no counterpart because none is needed, and why"""

LACKING = {
    **dict.fromkeys(
        ("lora", "lora-rank", "lora-alpha", "peft", "adapter", "qlora"), "has no LoRA: all weights are trained"
    ),
    **dict.fromkeys(("vllm", "trtllm", "tensorrt-llm"), "has no other engines than SGLang's"),
    **dict.fromkeys(
        ("fsdp", "fsdp2", "fsdp-config", "deepspeed", "zero-stage", "zero"), "has no other learner than Megatron-core"
    ),
    **dict.fromkeys(("dpo", "dpo-beta", "orpo", "kto"), "has no training on preferences"),
    **dict.fromkeys(("images", "image-key", "vision", "multimodal-keys"), "has no models with vision"),
    **dict.fromkeys(("prefill-num-servers", "pd-disaggregation"), "has no engines that part prefill from decoding"),
}
"""names of what there is nothing for here, and what to say instead of the field with the most similar name"""
LACKING_PAGE = "docs/limits.md#what-is-not-there"


OTHER_VALUES = {
    "cuda": "Gpu",
    "cuda0": "Gpu",
    "nvidia": "Gpu",
    "icepop": "Mask",
    "lowvarkl": "k3",
    "mis": "Mask",
    "nccl": "Broadcast",
    "seqmeantokenmean": "Sample",
    "seqmeantokensumnorm": "Constant",
    "tis": "Truncate",
}
"""values from other systems, without case and separators, that do not resemble ours"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One field of the manifest."""

    path: Path
    field: FieldInfo
    section: type[BaseModel] | None
    """the model of its content when it is a section, or a list of sections"""
    in_list: bool = False
    """it belongs to the sections of a list, where a field's name alone is ambiguous"""

    @property
    def text(self) -> str:
        return facts.text(self.field)


@cache
def entries() -> dict[Path, Entry]:
    """Return every field of the manifest by its path, sections before their fields."""
    return {entry.path: entry for entry in walk(RLJob, ())}


def walk(model: type[BaseModel], above: Path, in_list: bool = False) -> list[Entry]:
    found = []
    for name, field in model.model_fields.items():
        path = (*above, field.alias or name)
        section, item = section_of(field.annotation), item_of(field.annotation)
        found.append(Entry(path, field, section or item, in_list))
        below = section or item
        found.extend(walk(below, path, in_list or item is not None) if below else [])
    return found


def dotted(path: Path) -> str:
    return ".".join(path)


@cache
def flags() -> dict[str, tuple[Path, ...]]:
    """Return the fields that stand for a flag of slime, Megatron or SGLang, by the flag without dashes in front."""
    found: dict[str, tuple[Path, ...]] = {}
    for entry in outside_lists():
        for flag in facts.facts(entry.field).flags:
            found[flag] = (*found.get(flag, ()), entry.path)
    return found


@cache
def keys() -> dict[str, str]:
    """Return the fields that stand for a key of verl or NeMo-RL, by its last name; a single word may mean anything."""
    names = {
        spelled(name.rpartition(".")[2]): dotted(entry.path)
        for entry in outside_lists()
        for name in (*facts.facts(entry.field).names("verl"), *facts.facts(entry.field).names("nemo_rl"))
    }
    return {name: path for name, path in names.items() if "-" in name and name not in NEEDLESS}


@cache
def outside_lists() -> tuple[Entry, ...]:
    return tuple(entry for entry in entries().values() if not entry.in_list)


@lru_cache(256)  # there are fewer sections; others have no fields
def siblings(section: Path) -> tuple[str, ...]:
    """Return the names of the fields directly in a section."""
    return tuple(path[-1] for path in entries() if path[:-1] == section)


def meant(section: Path, name: str) -> str | None:
    """Return the field that an unknown name in a section most likely means, or None."""
    if len(name) > LONGEST_COMPARED:
        return None
    word = spelled(name)
    here = {spelled(sibling): dotted((*section, sibling)) for sibling in siblings(section)}
    return here.get(word) or exactly(word) or close(word, here) or close(word, anywhere())


def needless(name: str) -> str | None:
    """Return why a name from another system needs no counterpart, or None."""
    return NEEDLESS.get(spelled(name))


def lacking(name: str) -> str | None:
    """Return a clause that says that there is nothing for a name from another system, or None."""
    said = LACKING.get(spelled(name))
    return None if said is None else f"rljob {said}; see {LACKING_PAGE}"


def exactly(word: str) -> str | None:
    """Return the field, pass-through argument or advice that goes by exactly this name."""
    plain = word.removeprefix("sglang-")
    places = flags().get(word) or flags().get(plain) or named(word)
    if places:
        return " or ".join(dotted(path) for path in places)
    return OTHERS.get(word) or OTHERS.get(plain) or keys().get(word) or arguments.passed_through(plain)


def named(word: str) -> tuple[Path, ...]:
    return tuple(entry.path for entry in outside_lists() if spelled(entry.path[-1]) == word)


@cache
def anywhere() -> dict[str, str]:
    fields = {spelled(entry.path[-1]): dotted(entry.path) for entry in outside_lists()}
    return {flag: dotted(paths[0]) for flag, paths in flags().items()} | fields


def close(word: str, candidates: dict[str, str]) -> str | None:
    near = similar(word, candidates, cutoff=0.75)
    return candidates[near] if near is not None else None


def spelled(name: str) -> str:
    """Return camelCase, snake_case and --kebab-case alike, as kebab-case: `n_samples`, `nSamples` -> `n-samples`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name.strip().lstrip("-"))
    return words.replace("_", "-").lower()

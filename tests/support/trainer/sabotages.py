"""Breaks one function of a running system, in every process of a run that imports its module.

`commit` is called by a `sitecustomize.py` in the run's directory, which comes first on PYTHONPATH: so it is there in
the driver, in Ray's workers and in SGLang, and nothing of the product knows of it. Only the module that is named is
touched, right after it has been imported; this file imports nothing that costs time.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

Break = Callable[[Any, Path], None]
"""changes a module; the run's directory is there for what must be remembered over processes"""
SPOILS = "spoils.txt"
"""in the run's directory: what is still to be done to weights that an engine gets, in words"""
NORMS = [f"model.layers.{layer}.input_layernorm.weight" for layer in (0, 1)]
DOWN = "model.layers.1.mlp.down_proj.weight"
EMBEDDING = "model.embed_tokens.weight"


def install(directory: Path, sabotage: str) -> None:
    """Let all processes of the run in `directory` commit a sabotage."""
    imports = "import pathlib\n\nfrom support.trainer import sabotages\n\n"
    code = f"{imports}sabotages.commit({sabotage!r}, pathlib.Path(__file__).parent)\n"
    (directory / "sitecustomize.py").write_text(code)


def commit(sabotage: str, directory: Path) -> None:
    """Break what the sabotage is about as soon as this process imports it."""
    module, change = SABOTAGES[sabotage]
    sys.meta_path.insert(0, Saboteur(module, lambda imported: change(imported, directory)))


class Saboteur(MetaPathFinder):
    """Finds one module as the others would, and changes it behind its import."""

    def __init__(self, module: str, change: Callable[[ModuleType], None]) -> None:
        self._module = module
        self._change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(found for finder in others if (found := finder.find_spec(fullname, path, target)))
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._change(module)

        loader.exec_module = exec_module
        return spec


# weights


def spoil_updates(updater: Any, directory: Path) -> None:
    """Spoil what an engine's process gets with its second publication, in the next way of `SPOILS`."""
    update, updates = updater.WeightUpdater.update_weights_from_distributed, [0]

    def spoiled(self: Any, *arguments: Any, **options: Any) -> Any:
        updates[0] += 1
        pending = directory / SPOILS
        todo = pending.read_text().split()
        if updates[0] < 2 or not todo:
            return update(self, *arguments, **options)
        pending.write_text(" ".join(todo[1:]))
        model = self.get_model()
        load = model.load_weights
        model.load_weights = lambda weights: load(WAYS[todo[0]](dict(weights)).items())
        try:
            return update(self, *arguments, **options)
        finally:
            del model.load_weights

    updater.WeightUpdater.update_weights_from_distributed = spoiled


def swapped(weights: dict[str, Any]) -> dict[str, Any]:
    first, second = NORMS
    return weights | {first: weights[second], second: weights[first]}


def zeroed(weights: dict[str, Any]) -> dict[str, Any]:
    return weights | {DOWN: weights[DOWN] * 0}


def flipped(weights: dict[str, Any]) -> dict[str, Any]:
    """Change the lowest bit of one number."""
    import torch

    tensor = weights[EMBEDDING].clone()
    tensor.view(torch.int32)[300, 7] ^= 1
    return weights | {EMBEDDING: tensor}


def swallowed(weights: dict[str, Any]) -> dict[str, Any]:
    return {}


WAYS = {"swapped": swapped, "zeroed": zeroed, "flipped": flipped, "swallowed": swallowed}


# the learner


def another_reference(reference: Any, directory: Path) -> None:
    begin = reference.ReferenceWeights.__init__

    def begun(self: Any, model: Any) -> None:
        begin(self, model)
        self._weights[0].add_(1e-3)

    reference.ReferenceWeights.__init__ = begun


def nothing_loaded(local_bridge: Any, directory: Path) -> None:
    def load_weights(self: Any, models: Sequence[Any], directory: str) -> None:
        for name, weight in models[0].named_parameters():
            weight.data.normal_(1.0 if "norm" in name else 0.0, 0.02)

    local_bridge.LocalBridge.load_weights = load_weights


def shifted_mask(packing: Any, directory: Path) -> None:
    """Train on the tokens before those that it is about: on the prompt's last one, and not on the response's."""
    pack = packing._micro_batch

    def shifted(sequences: Any) -> Any:
        batch = pack(sequences)
        positions_R = batch.positions_R - 1
        return replace(batch, positions_R=positions_R, targets_R=batch.tokens_T[positions_R + 1])

    packing._micro_batch = shifted


def shifted_turns(samples: Any, directory: Path) -> None:
    """Take the first token of what the environment says for the model's own, and the model's first for another's."""
    own_T = samples.Sample.own_T.fget
    samples.Sample.own_T = property(lambda self: (not self.segments, *own_T(self)[:-1]))


def shifted_logprobs(packing: Any, directory: Path) -> None:
    """Take the probability of the token that a hidden state belongs to, instead of the next one's."""
    pack = packing._micro_batch

    def shifted(sequences: Any) -> Any:
        batch = pack(sequences)
        return replace(batch, targets_R=batch.tokens_T[batch.positions_R])

    packing._micro_batch = shifted


def forgotten_temperature(logprobs: Any, directory: Path) -> None:
    compute = logprobs.logprobs_and_entropy
    logprobs.logprobs_and_entropy = lambda *tensors, temperature, **options: compute(*tensors, **options)


def flipped_advantages(grpo: Any, directory: Path) -> None:
    compute = grpo.GroupRelative.__call__
    grpo.GroupRelative.__call__ = lambda self, outcomes: [
        [-value for value in values] for values in compute(self, outcomes)
    ]


def advantages_of_others(grpo: Any, directory: Path) -> None:
    """Give each group the advantages of the next one."""
    compute = grpo.GroupRelative.__call__
    grpo.GroupRelative.__call__ = lambda self, outcomes: (given := compute(self, outcomes))[1:] + given[:1]


def flipped_objective(clip: Any, directory: Path) -> None:
    compute = clip.clip
    clip.clip = lambda responses, settings: replace(surrogate := compute(responses, settings), loss_R=-surrogate.loss_R)


def loss_times(factor: float, step: int) -> Break:
    """Return what multiplies the loss of one optimizer step, counted from 1."""

    def change(rank: Any, directory: Path) -> None:
        compute = rank.LearnerRank._loss

        def multiplied(self: Any, *arguments: Any) -> Any:
            loss, *others = compute(self, *arguments)
            return loss * factor if self.step == step - 1 else loss, *others

        rank.LearnerRank._loss = multiplied

    return change


# rollouts


def answers_of_others(generation: Any, directory: Path) -> None:
    """Answer with what was said to the prompt before."""
    generate, said = generation.RouterGenerator.generate, []

    async def mixed_up(self: Any, *arguments: Any) -> Any:
        said.append(await generate(self, *arguments))
        return said[-2:][0]

    generation.RouterGenerator.generate = mixed_up


def one_token_for_ever(generation: Any, directory: Path) -> None:
    """Repeat the first token of every answer to its end."""
    make = generation.sample

    def repeated(answer: Any) -> Any:
        sample = make(answer)
        return replace(sample, tokens_T=sample.tokens_T[:1] * len(sample.tokens_T))

    generation.sample = repeated


SABOTAGES: dict[str, tuple[str, Break]] = {
    "spoiled weights": ("sglang.srt.model_executor.model_runner_components.weight_updater", spoil_updates),
    "another reference": ("rljob_trainer.learners.rank.weights.reference", another_reference),
    "nothing loaded": ("rljob_trainer.learners.rank.weights.families.local_bridge", nothing_loaded),
    "shifted mask": ("rljob_trainer.batches.packing", shifted_mask),
    "shifted turns": ("rljob_trainer.samples", shifted_turns),
    "shifted log-probabilities": ("rljob_trainer.batches.packing", shifted_logprobs),
    "forgotten temperature": ("rljob_trainer.learners.rank.head.logprobs", forgotten_temperature),
    "flipped advantages": ("rljob_trainer.algorithms.grpo", flipped_advantages),
    "advantages of others": ("rljob_trainer.algorithms.grpo", advantages_of_others),
    "flipped objective": ("rljob_trainer.learners.objectives.clip", flipped_objective),
    "gradient not finite": ("rljob_trainer.learners.rank.rank", loss_times(float("nan"), 2)),
    "gradient exploded": ("rljob_trainer.learners.rank.rank", loss_times(1000.0, 5)),
    "answers of others": ("rljob_trainer.engines.generation", answers_of_others),
    "one token for ever": ("rljob_trainer.engines.generation", one_token_for_ever),
}
"""by what is wrong: the module that is broken, and how"""

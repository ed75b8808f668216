"""How many floating-point operations training takes, and how many a GPU does in a second. Pure.

Counted are the products and the causal attention, forward and backward; what is computed again is not.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from rljob_api.sizing.model_shape import Shape

PEAKS = {
    "NVIDIA H100 80GB HBM3": 790e12,  # measured: a product of 8192 x 8192 x 8192
    "NVIDIA H200": 790e12,  # measured
    "NVIDIA A100": 312e12,  # data sheet
    "NVIDIA B200": 2250e12,  # data sheet
}
"""bf16 FLOP/s of a GPU, by the beginning of its name"""


def peak_flops(device_name: str) -> float | None:
    """Return the bf16 FLOP/s of a GPU; None for one that is not known."""
    return next((peak for name, peak in PEAKS.items() if device_name.startswith(name)), None)


def pairs_of(lengths: Iterable[int], window: int | None = None) -> int:
    """Return the pairs of a token with itself or one before it, of which it sees `window`; added up over sequences."""
    return sum(_pairs(length, min(length, window or length)) for length in lengths)


def _pairs(length: int, seen: int) -> int:
    return seen * (seen + 1) // 2 + (length - seen) * seen


def training_flops(model: Shape, tokens: int, responses: int, pairs: int, local_pairs: int | None = None) -> int:
    """Return the FLOPs of forward and backward.

    `tokens` pass the layers, `responses` of them are projected onto the vocabulary, and `pairs` are those of a token
    with itself or one before it, added up over the sequences; `local_pairs` those in layers with a window, and as many
    where it is None.
    """
    mlp = 3 * model.hidden * model.ffn
    if model.experts:
        mlp = mlp * model.experts_per_token + model.hidden * model.experts  # and their router
        mlp += 3 * model.hidden * model.shared_ffn
    mlps = (model.layers - model.dense_layers) * mlp + model.dense_layers * 3 * model.hidden * model.dense_ffn
    matrices = model.layers * sum(model.products) + mlps
    forward = 2 * (tokens * matrices + responses * model.embedding())
    local = sum(model.local)
    attended = (model.layers - local) * pairs + local * (pairs if local_pairs is None else local_pairs)
    return 3 * (forward + 2 * attended * (model.query + model.attended))


@dataclass(frozen=True, slots=True)
class Work:
    """What a model's training takes for each part of a sequence, forward and backward [FLOPs]."""

    token: int
    """in the layers"""
    response: int
    """more for a token that is predicted: its projection onto the vocabulary"""
    pair: int
    """of a token with itself or one before it, in the layers that see all of them"""
    local_pair: int = 0
    """the same in the layers with a window"""
    window: int | None = None
    """tokens that a token sees there, itself included"""

    @classmethod
    def of(cls, model: Shape) -> "Work":
        """Return that of a model."""
        return cls(
            token=training_flops(model, 1, 0, 0),
            response=training_flops(model, 0, 1, 0),
            pair=training_flops(model, 0, 0, 1, 0),
            local_pair=training_flops(model, 0, 0, 0, 1),
            window=model.local_window,
        )

    def of_sequence(self, tokens: int, responses: int) -> int:
        """Return that of a sequence of `tokens`, prompt included, of which `responses` are predicted."""
        pairs, local_pairs = pairs_of((tokens,)), pairs_of((tokens,), self.window)
        return tokens * self.token + responses * self.response + pairs * self.pair + local_pairs * self.local_pair

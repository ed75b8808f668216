"""Tries an objective on a few made-up tokens, so that a mistake shows before anything is started: a failing one as a
lost process, and one without its minus sign only once rewards have fallen.
"""

import difflib
import traceback
from pathlib import Path

import torch

from rljob_trainer.learners.config import LossSettings
from rljob_trainer.learners.objectives.objective import Objective, Responses, Surrogate

TOKENS = 6
"""of two sequences"""


class ObjectiveError(ValueError):
    """An objective cannot be trained on; the text says what it did."""


def tried(objective: Objective, settings: LossSettings) -> None:
    """Call the objective and differentiate its loss once. Raises ObjectiveError."""
    old_R = torch.linspace(-2.0, -0.5, TOKENS)
    logprobs_R = (old_R + torch.linspace(-0.1, 0.1, TOKENS)).requires_grad_()
    responses = Responses(
        logprobs_R=logprobs_R,
        old_logprobs_R=old_R,
        advantages_R=torch.tensor([1.0, -1.0]).repeat_interleave(TOKENS // 2),
        counts_R=torch.ones(TOKENS),
        sequences_R=torch.arange(2).repeat_interleave(TOKENS // 2),
        num_sequences=2,
    )
    try:
        made = objective(responses, settings)
    except Exception as error:
        raise ObjectiveError(f"failed on a trial: {_described(error)}") from error
    if not isinstance(made, Surrogate):
        raise ObjectiveError(f"returned {type(made).__name__}; expected a Surrogate")
    shapes = {name: tuple(getattr(getattr(made, name), "shape", ())) for name in ("loss_R", "ratio_R", "clipped_R")}
    if wrong := {name: shape for name, shape in shapes.items() if shape != (TOKENS,)}:
        raise ObjectiveError(f"returned {wrong} for {TOKENS} tokens; expected one value for each")
    if not made.loss_R.requires_grad:
        raise ObjectiveError("returned a loss that does not depend on logprobs_R: nothing would be trained")
    (slope_R,) = torch.autograd.grad(made.loss_R.sum(), logprobs_R)
    if not bool(torch.isfinite(made.loss_R).all() and torch.isfinite(slope_R).all()):
        raise ObjectiveError("returned a loss or a gradient that is not finite for ordinary values")
    if bool((slope_R[responses.advantages_R > 0] > 0).any()):
        raise ObjectiveError(
            "has a loss that grows with the log-probability of a token with advantage 1, so better responses would "
            "become less likely; a loss is minimised: a sign is missing"
        )


def _described(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    near: list[str] = []
    if isinstance(error, AttributeError) and error.name:
        near = difflib.get_close_matches(error.name.lower(), dir(error.obj), n=1, cutoff=0.5)
    nearest = f"; nearest: {near[0]}" if near else ""
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno}){nearest}"

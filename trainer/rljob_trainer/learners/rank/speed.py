"""What a step would take at the peak of the learner's GPUs: the measure of its speed."""

from dataclasses import dataclass
from typing import Any

import torch

from rljob_api.sizing.families import BY_MODEL_TYPE
from rljob_api.sizing.flops import pairs_of, peak_flops, training_flops
from rljob_api.sizing.model_shape import Shape, read
from rljob_trainer.learners.rank.attention.layout import TokenLayout


@dataclass(frozen=True, slots=True)
class Speed:
    """A model on all GPUs of a learner."""

    model: Shape
    flops_per_second: float | None
    """of all of them together; None: not known, or no GPUs"""

    @classmethod
    def of(cls, hf_config: Any, device: torch.device, world_size: int) -> "Speed":
        """Return that of `world_size` ranks with GPUs like this one."""
        peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
        model = read(hf_config.to_dict(), BY_MODEL_TYPE[hf_config.model_type])
        return cls(model, None if peak is None else peak * world_size)

    def seconds_at_peak(self, layout: TokenLayout) -> float:
        """Return how long all GPUs would need for this micro-batch of one data-parallel share; 0.0: not known."""
        if self.flops_per_second is None:
            return 0.0
        lengths = layout.lengths_S.tolist()
        pairs, local = pairs_of(lengths), pairs_of(lengths, self.model.local_window)
        flops = training_flops(self.model, len(layout.tokens_N), len(layout.positions_R), pairs, local)
        return flops / self.flops_per_second

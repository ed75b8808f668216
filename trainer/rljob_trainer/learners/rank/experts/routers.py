"""The routers of a rank's model over the passes of an optimizer step: measuring, counting, training.

logprobs ─ notes the choices ─┐
                              └─► (a pass that counts the loads of the step) ─► training ─► metrics
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from megatron.core import parallel_state

from rljob_api.sections import BalanceOver, Experts, Replay
from rljob_trainer.batches.packing import UNKNOWN, MicroBatch
from rljob_trainer.learners.rank.attention.flash import uploaded
from rljob_trainer.learners.rank.attention.layout import share_length
from rljob_trainer.learners.rank.attention.rank_tokens import RankTokens
from rljob_trainer.learners.rank.experts.experts import adjust_biases
from rljob_trainer.learners.rank.experts.routing import (
    LOG_PROBABILITIES,
    Choices,
    LogProbabilities,
    Routing,
    StepTotals,
    Tally,
    log_softmax,
)


class ExpertRouters:
    """The routers of a policy with experts. Methods are collective."""

    def __init__(self, settings: Experts, model: Any, device: torch.device) -> None:
        """`model` is Megatron's configuration."""
        self._settings = settings
        self._device = device
        self._layers, self._experts, self._per_token = model.num_layers, model.num_moe_experts, model.moe_router_topk
        self._score = LOG_PROBABILITIES[model.moe_router_score_function]
        self._choices: dict[int, list[Choices]] = {}
        """of optimizer steps to come: the experts that the policy chose before the first of them"""

    def measuring(self, number: int | None) -> "RouterPass | None":
        """Return a pass that notes its choices for the optimizer step of that number, or that uses those of the
        rollout; None: they do not matter."""
        if self._settings.replay is Replay.ROLLOUT:
            return self._pass()
        if self._settings.replay is None or number is None:
            return None
        self._choices[number] = []
        return self._pass(recorded=self._choices[number])

    def training(
        self, batches: Sequence[MicroBatch], number: int | None, forward: Callable[["RouterPass"], object]
    ) -> "RouterPass":
        """Return the pass of an optimizer step; `forward` runs the model once more without gradients, if needed."""
        replayed = None if number is None else self._choices.pop(number, None)
        settings = self._settings
        step = totals(batches, self._device) if settings.balance_loss or settings.z_loss else None
        if step and settings.balance_loss and settings.balance_over is BalanceOver.STEP:
            counting = self._pass(tally=self._tally(), always=True, replayed=replayed)
            with torch.no_grad():
                forward(counting)
            step = replace(step, loads_L_E=counting.loads())
        return self._pass(step=step, tally=self._tally(), replayed=replayed)

    def _pass(self, **named: Any) -> "RouterPass":
        return RouterPass(self._settings, self._device, self._layers, self._score, **named)

    def _tally(self) -> Tally:
        return Tally.of(self._layers, self._experts, self._per_token, self._device)


@dataclass
class RouterPass:
    """One pass of micro-batches through the model: makes the routing of each."""

    settings: Experts
    device: torch.device
    layers: int
    """of the model"""
    log_probabilities: LogProbabilities = log_softmax
    step: StepTotals | None = None
    tally: Tally | None = None
    always: bool = False
    replayed: Sequence[Choices] | None = None
    """of each micro-batch: what an earlier pass chose"""
    recorded: list[Choices] | None = None
    """where this pass notes what it chose; None: nowhere"""
    _number: int = field(default=0)

    def loads(self) -> torch.Tensor:
        """Return how many tokens of all ranks each expert has got [L, E]."""
        assert self.tally is not None
        return self.tally.over_ranks()[:, : self.tally.experts]

    def end(self, changed: Sequence[torch.nn.Module]) -> dict[str, Any]:
        """Return the metrics of all ranks by name, after an update that `changed` these chunks. Collective.

        The biases of their routers are changed by the loads of this pass, if that is configured.
        """
        if self.tally is None:
            return {}
        whole_L = self.tally.over_ranks()
        if rate := self.settings.bias_update_rate:
            for chunk in changed:
                adjust_biases(chunk, whole_L[:, : self.tally.experts], rate)
        return asdict(self.tally.metrics(whole_L, self.settings))

    def of(self, batch: MicroBatch, part: RankTokens) -> Routing:
        """Return the routing of the next micro-batch."""
        group = parallel_state.get_tensor_model_parallel_group()
        layout, length = part.layout, len(part.tokens_M)
        size = share_length(length, group.size())
        start, stop = (min(length, size * place) for place in (group.rank(), group.rank() + 1))
        local_T = part.local_N[layout.node_T]
        sequence_T = np.repeat(np.arange(batch.num_sequences), layout.lengths_S)
        held = counted(batch)[sequence_T] & (local_T >= start) & (local_T < stop)
        node_T = local_T[held] - start
        number, self._number = self._number, self._number + 1
        made: Choices | None = None
        if self.recorded is not None:
            made = {}
            self.recorded.append(made)
        return Routing(
            settings=self.settings,
            counts_N=self._tensor(np.bincount(node_T, minlength=stop - start).astype(np.float64)),
            node_T=self._tensor(node_T),
            sequence_T=self._tensor(sequence_T[held]),
            lengths_S=self._tensor(layout.lengths_S.astype(np.float64)),
            group=parallel_state.get_tensor_and_context_parallel_group(),
            step=self.step,
            tally=self.tally,
            always=self.always,
            wanted=self._wanted(batch, local_T, start, stop) if self.replayed is None else self.replayed[number],
            made=made,
            log_probabilities=self.log_probabilities,
        )

    def _wanted(self, batch: MicroBatch, local_T: npt.NDArray[np.int64], start: int, stop: int) -> Choices | None:
        """Return the experts that engines chose for the tokens from `start` on; packed ones that are computed once have
        the same."""
        if self.settings.replay is not Replay.ROLLOUT or batch.experts_TC is None:
            return None
        experts_NC = np.full((stop - start, batch.experts_TC.shape[1]), UNKNOWN, np.int16)
        places = np.flatnonzero((local_T >= start) & (local_T < stop))[::-1]  # the first one stays
        experts_NC[local_T[places] - start] = batch.experts_TC[places]
        experts_N_L_K = self._tensor(experts_NC.reshape(stop - start, self.layers, -1))
        return dict(enumerate(experts_N_L_K.unbind(1)))

    def _tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return uploaded(torch.from_numpy(np.ascontiguousarray(array)), self.device)


def counted(batch: MicroBatch) -> npt.NDArray[np.bool_]:
    """Return which sequences count: copies that only fill up a rank's share have no weight."""
    found: npt.NDArray[np.bool_] = np.zeros(batch.num_sequences, np.bool_)
    found[batch.sequences_R[batch.weights_R != 0]] = True
    return found


def totals(batches: Sequence[MicroBatch], device: torch.device) -> StepTotals:
    """Return how many sequences and tokens a step has. Collective."""
    number = sum(int(counted(batch).sum()) for batch in batches)
    tokens = sum(int(np.diff(batch.cu_seqlens_S1)[counted(batch)].sum()) for batch in batches)
    sums = torch.tensor([number, tokens], dtype=torch.float64, device=device)
    dist.all_reduce(sums, group=parallel_state.get_data_parallel_group())
    return StepTotals(sums[0], sums[1])

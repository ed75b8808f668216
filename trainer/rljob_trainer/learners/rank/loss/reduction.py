"""Metrics of one optimizer step: from the tokens of a micro-batch to one value over all ranks, as the table says.

    policy_loss ─ token_sums ─► Sums of a micro-batch ─┐
    policy_loss ─ token_sums ─► Sums of a micro-batch ─┴─ over_ranks ─► values, equal on every rank

Axes: R response tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from rljob_trainer.metric_table import Metric, table
from rljob_trainer.metrics import OptimizerStep

TABLE = {name: line for name, line in table(OptimizerStep).items() if line.tokens is not None}
WEIGHTED = "response_tokens"
"""the metric that counts the tokens which a mean is over"""

Sums = Mapping[str, torch.Tensor]
"""of one micro-batch, by metric: the sum over the response tokens that have a weight, or the largest of them; fp64"""


def token_sums(counts_R: torch.Tensor, **values_R: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Return the sums of values of response tokens by metric, without gradients; None: it was not measured.

    `counts_R` is 1 for a token with a weight, else 0. Raises KeyError for a metric that is not in the table.
    """
    sums = {WEIGHTED: counts_R.sum()}
    for name, each_R in values_R.items():
        if each_R is not None:
            counted_R = torch.where(counts_R != 0, each_R.detach().double(), 0.0)
            sums[name] = counted_R.max() if TABLE[name].tokens == "largest" else counted_R.sum()
    return sums


def over_ranks(sums: Sequence[Sums], device: torch.device) -> dict[str, Any]:
    """Return what was measured, over all micro-batches of all ranks. Collective.

    `sums` are those of this rank's micro-batches, where it holds the output of its data-parallel share; else none.
    """
    totals, largest = packed(sums, device)
    dist.all_reduce(totals)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return unpacked(totals, largest)


def packed(sums: Sequence[Sums], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what ranks add up, and what they take the largest of: maxima, and for each metric 1 if it was measured.

    All ranks pack the same metrics in the same order, whether or not they measured them.
    """
    added, maxima = _added(), _maxima()
    if not sums:
        zeros = torch.zeros(2 * len(TABLE), dtype=torch.float64, device=device)
        return zeros[: len(added)], zeros[len(added) :]
    absent = torch.zeros((), dtype=torch.float64, device=device)

    def stacked(names: Sequence[str]) -> torch.Tensor:
        return torch.stack([torch.stack([each.get(name, absent) for name in names]) for each in sums])

    measured = [float(any(name in each for each in sums)) for name in TABLE]
    flags = torch.tensor(measured, dtype=torch.float64, device=device)
    return stacked(added).sum(0), torch.cat([stacked(maxima).amax(0), flags])


def unpacked(totals: torch.Tensor, largest: torch.Tensor) -> dict[str, Any]:
    """Return the values that any rank measured, from what `packed` returned, reduced over the ranks."""
    names = [*_added(), *_maxima()]
    numbers = torch.cat([totals, largest]).tolist()  # one copy to the host
    values, measured = dict(zip(names, numbers, strict=False)), numbers[len(names) :]
    mean = 1.0 / max(values[WEIGHTED], 1.0)
    return {
        name: _value(line, values[name], mean)
        for (name, line), is_measured in zip(TABLE.items(), measured, strict=True)
        if is_measured
    }


def _added() -> list[str]:
    return [name for name, line in TABLE.items() if line.tokens != "largest"]


def _maxima() -> list[str]:
    return [name for name, line in TABLE.items() if line.tokens == "largest"]


def _value(line: Metric, total: float, mean: float) -> float:
    match line.tokens:
        case "mean":
            return total * mean
        case "count":
            return int(total)
        case _:
            return total

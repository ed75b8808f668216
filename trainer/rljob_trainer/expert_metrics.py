"""The lines of the table of metrics that a mixture of experts has; `metrics.py` has the others."""

from dataclasses import dataclass

from rljob_trainer.metric_table import Plot, metric


@dataclass(frozen=True, kw_only=True)
class ExpertMetrics:
    """Of the routers of all layers, over all tokens trained on, prompts included. None: the model has no experts."""

    expert_load: float | None = metric(
        "Tokens of the busiest expert as a multiple of the mean of its layer; of the layer where that is most",
        "",
        "rljob_expert_load",
        "train/expert_load",
        plot=Plot(
            "Load of the experts",
            "busiest / mean",
            low=1.0,
            note="1: all experts of a layer get equally many tokens. The number of experts divided by those of a token"
            " is the most: every token goes to the same ones.",
        ),
    )
    router_entropy: float | None = metric(
        "Mean entropy of the routers' probabilities over the experts",
        "nats",
        "rljob_router_entropy_nats",
        "train/router_entropy",
        plot=Plot("Entropy of the routers", "router entropy", low=0.0),
    )
    balance_loss: float | None = metric(
        "Load-balance loss before its coefficient, mean of the layers; 1: all experts get equally much",
        "",
        "rljob_balance_loss",
        "train/balance_loss",
    )
    """None without the loss, as the next one"""
    router_z_loss: float | None = metric(
        "Z-loss of the routers before its coefficient, mean of the layers",
        "",
        "rljob_router_z_loss",
        "train/router_z_loss",
    )
    dropped_tokens: int | None = metric(
        "Choices of experts that were not carried out; 0, because no expert has a limit",
        "tokens",
        "rljob_dropped_tokens",
        "train/dropped_tokens",
        steps=sum,
    )

"""Multi-head latent attention (MLA, arXiv 2405.04434): its sizes, and what of a `config.json` is refused. Pure.

    hidden ─► latent of queries ─► norm ─► queries, a plain and a turned part for each head
    hidden ─► latent of keys and values ─► norm ─► keys (plain part) and values of each head
           └► the turned part of the keys, one for all heads

Without a rank of queries, they are projected from the hidden state.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

YARN = ("factor", "original_max_position_embeddings", "mscale", "mscale_all_dim")
"""what YaRN needs here: transformers and SGLang take other values where one of them is not given"""
OTHERS = ("type", "rope_type", "rope_theta", "beta_fast", "beta_slow")
"""what both read alike, given or not"""


@dataclass(frozen=True, slots=True)
class Latent:
    """The sizes of latent attention."""

    heads: int
    query_rank: int
    """width of the latent of queries; 0: they have none"""
    rank: int
    """width of the latent of keys and values"""
    plain: int
    """numbers of a query or key that do not turn with its position"""
    turned: int
    """numbers that do"""
    value: int
    """numbers of a value"""
    sharpness: float = 1.0
    """what scores are multiplied by, beside 1 / sqrt(plain + turned)"""

    @property
    def head(self) -> int:
        """width of a query or key"""
        return self.plain + self.turned

    @property
    def keys_values(self) -> int:
        """width of what the latent is projected to: the plain keys and the values of all heads"""
        return self.heads * (self.plain + self.value)

    def split(self, hidden: int) -> int:
        """Return the parameters that tensor ranks split: the matrices whose rows or columns belong to heads."""
        queries = (self.query_rank or hidden) * self.heads * self.head
        return queries + self.rank * self.keys_values + self.heads * self.value * hidden

    def whole(self, hidden: int) -> int:
        """Return those of the matrices that every tensor rank has: to the latents, and to the turned part of keys."""
        return hidden * (self.query_rank + self.cached)

    @property
    def norms(self) -> int:
        """parameters of the norms of the latents"""
        return self.query_rank + self.rank

    @property
    def cached(self) -> int:
        """numbers that an engine keeps of each token and layer, on each of its ranks"""
        return self.rank + self.turned


def latent_of(config: Mapping[str, Any]) -> Latent:
    """Return the sizes in a `config.json`. Raises KeyError for one that is not there."""
    return Latent(
        heads=config["num_attention_heads"],
        query_rank=config["q_lora_rank"] or 0,
        rank=config["kv_lora_rank"],
        plain=config["qk_nope_head_dim"],
        turned=config["qk_rope_head_dim"],
        value=config["v_head_dim"],
        sharpness=sharpness(scaling_of(config)),
    )


def scaling_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the rotary embedding; transformers 5 has them under another name than the hub's files."""
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def sharpness(scaling: Mapping[str, Any]) -> float:
    """Return what YaRN multiplies scores by: the square of its `mscale_all_dim`, as DeepSeek's model does."""
    factor, all_dim = scaling.get("factor") or 1.0, scaling.get("mscale_all_dim") or 0.0
    return (0.1 * all_dim * math.log(factor) + 1.0) ** 2 if factor > 1 else 1.0


def latent_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a `config.json` says of latent attention that learner or engine cannot compute."""
    model = latent_of(config)
    if (groups := config.get("num_key_value_heads") or model.heads) != model.heads:
        yield f"num_key_value_heads {groups} is not supported, only num_attention_heads {model.heads}"
    if (width := config.get("head_dim") or model.turned) != model.turned:
        yield f"head_dim {width} is not supported, only qk_rope_head_dim {model.turned}"
    if model.turned < 2 or model.turned % 2:
        yield f"qk_rope_head_dim {model.turned} is not supported, only even numbers from 2 on"
    if not 1 <= model.value <= model.head:
        yield f"v_head_dim {model.value} is not supported, only 1 to {model.head}, the width of a key"
    scaling = scaling_of(config)
    if (scaling.get("rope_type") or scaling.get("type") or "default") != "yarn":
        return
    if missing := [name for name in YARN if not scaling.get(name)]:
        yield f"rope_scaling has no {' and no '.join(missing)}, and yarn needs {', '.join(YARN)}"
    elif config["max_position_embeddings"] > (most := int(scaling[YARN[0]] * scaling[YARN[1]])):
        yield f"max_position_embeddings is more than {most}, which is {' x '.join(YARN[:2])} of yarn"
    for name in scaling:
        if name not in (*YARN, *OTHERS):
            yield f"rope_scaling has {name}, which transformers and SGLang read differently; leave it out"

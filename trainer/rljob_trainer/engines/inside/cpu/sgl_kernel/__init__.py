"""Stands in for SGLang's kernel package on a machine without GPUs.

SGLang 0.5.17 imports names from `sgl_kernel` while it starts, but no CPU build of that package is published. With
`--attention-backend torch_native` and dense fp32 or bf16 models none of those kernels is ever called; should one be, it
raises and names itself, instead of answering wrong. Goes when SGLang publishes CPU kernels.
"""

from collections.abc import Callable
from typing import Any, NoReturn

__version__ = "0.0.0+cpu.stub"


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name}: this model needs an SGLang kernel that does not exist on CPU")

    return missing

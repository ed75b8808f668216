"""SGLang plugin: matrices in INT4 are loaded again and again, and hashed in the layout in which they are published.

    published: words of 8 inputs  ─ close ─►  Marlin: words in the order in which its kernels read them
               [outputs, inputs / 8]  ◄─ open ─   [inputs / 16, outputs * 2]

SGLang 0.5.17 lays weights out anew for its kernels after the first load, and can then load nothing more: linear layers
have lost what their loaders need, and nothing asks experts to restore their shapes. Changes to it here:
- a matrix has one piece of memory, and two parameters that read it: one as published, for SGLang's loaders, and one for
  its kernels, whose CUDA graphs keep the address. Before tensors are loaded, the layers that they belong to are opened,
  and closed afterwards;
- nothing is lost between the layouts, for each is a permutation of the other: the checksum of a closed layer is that of
  its tensors as published. So it is the memory that kernels read which is verified.
Both layouts are made by PyTorch on every device; on a CPU `rljob_sglang_int4.py` multiplies. Goes when SGLang loads
such weights repeatedly, and can be asked for hashes of what it has loaded.

Axes: K inputs, N outputs, E experts; b pairs of numbers (a byte), w words.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

SCHEMES = "sglang.srt.layers.quantization.compressed_tensors.schemes"
LINEAR = f"{SCHEMES}.compressed_tensors_wNa16.CompressedTensorsWNA16"
EXPERTS = f"{SCHEMES}.compressed_tensors_wNa16_moe.CompressedTensorsWNA16MoE"
MADE = "sglang.srt.model_loader.loader._initialize_model"
LAYER = re.compile(r"model\.layers\.\d+\.")
PACKED, SCALE, SHAPE = "weight_packed", "weight_scale", "weight_shape"
OF_LINEAR, OF_EXPERTS = ("",), ("w13_", "w2_")
"""beginnings of the names of a layer's parameters"""
INDICES = ("w13_weight_g_idx", "w2_weight_g_idx", "w13_g_idx_sort_indices", "w2_g_idx_sort_indices")
"""of experts, empty: columns are not reordered"""
TILE, IN_BLOCK = 16, 1024
"""rows and columns of a tile; numbers of four tiles, which are permuted together"""
EXPERTS_AT_ONCE = 16
"""whose numbers are in memory one by one, while they are permuted"""

Weights = Iterable[tuple[str, torch.Tensor]]


def register() -> None:
    """Called by SGLang in each of its processes before they start to work."""
    HookRegistry.register(f"{LINEAR}.create_weights", with_a_weight, HookType.AFTER)
    HookRegistry.register(f"{LINEAR}.process_weights_after_loading", linear_loaded, HookType.REPLACE)
    HookRegistry.register(f"{EXPERTS}.process_weights_after_loading", experts_loaded, HookType.REPLACE)
    HookRegistry.register(MADE, can_be_loaded_again, HookType.AFTER)


class Part(NamedTuple):
    """A tensor of a layer, as published and as kernels read it; both are the same memory."""

    published: torch.nn.Parameter
    kernel: torch.nn.Parameter
    close: Callable[[torch.Tensor], torch.Tensor]
    """from the published layout to that of kernels"""
    open: Callable[[torch.Tensor], torch.Tensor]


class Matrices:
    """The quantised matrices of a layer. They are closed while kernels may run."""

    def __init__(self, layer: torch.nn.Module, parts: dict[str, Part], locks: torch.Tensor) -> None:
        self._layer = layer
        self._locks = locks
        self.parts = parts
        self.closed = False

    def close(self) -> None:
        """Lay the weights out for kernels."""
        if not self.closed:
            for name, part in self.parts.items():
                part.kernel.data.copy_(part.close(part.published.data))
                setattr(self._layer, name, part.kernel)
            self._locks.zero_()  # an engine that has given its memory back has found other numbers there
            self.closed = True

    def open(self) -> None:
        """Lay the weights out as published, so that some can be loaded."""
        if self.closed:
            for name, part in self.parts.items():
                part.published.data.copy_(part.open(part.kernel.data))
                setattr(self._layer, name, part.published)
            self.closed = False


def with_a_weight(_: None, scheme: Any, *, layer: torch.nn.Module, **__: Any) -> None:
    """Give a linear layer a `weight` while the model is made: GLM-4.5 asks that of its shared expert for its type."""
    layer.__dict__["weight"] = layer.weight_packed


def linear_loaded(scheme: Any, layer: Any) -> None:
    """Stand in for `process_weights_after_loading` of a linear layer."""
    if not hasattr(layer, "rljob_matrices"):
        device = layer.weight_packed.device
        scheme.w_q_name, scheme.w_s_name, scheme.w_zp_name, scheme.w_gidx_name = (
            *(PACKED, SCALE),
            *("weight_zero_point", "weight_g_idx"),
        )
        scheme.is_k_full = True
        scheme.workspace = workspace(device)
        for name in (scheme.w_zp_name, scheme.w_gidx_name, "g_idx_sort_indices"):
            setattr(layer, name, no_indices(device, 0))
        layer.rljob_matrices = Matrices(layer, parts(layer, OF_LINEAR, transposed), scheme.workspace)
    layer.rljob_matrices.close()


def experts_loaded(scheme: Any, layer: Any) -> None:
    """Stand in for `process_weights_after_loading` of a layer's experts, whose tensors SGLang loads transposed."""
    if not hasattr(layer, "rljob_matrices"):
        packed = layer.w13_weight_packed
        for name in INDICES:
            setattr(layer, name, no_indices(packed.device, packed.shape[0], 0))
        layer.workspace = workspace(packed.device, 4)
        layer.rljob_matrices = Matrices(layer, parts(layer, OF_EXPERTS, as_it_is), layer.workspace)
    layer.rljob_matrices.close()
    layer.is_marlin_converted = True


def parts(layer: Any, beginnings: tuple[str, ...], turned: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Part]:
    """Return the parts of a layer whose published tensors, `turned`, have an input in each row."""
    found = {}
    for beginning in beginnings:
        packed, scale = getattr(layer, beginning + PACKED), getattr(layer, beginning + SCALE)
        (words, outputs), (groups, _) = turned(packed.data).shape[-2:], turned(scale.data).shape[-2:]
        of_kernel = (*packed.shape[:-2], words * 8 // TILE, outputs * 2)
        found[beginning + PACKED] = Part(
            packed,
            kernel_parameter(packed, of_kernel),
            lambda tensor: chunked(marlin, turned(tensor)),
            lambda tensor: turned(chunked(gptq, tensor)),
        )
        found[beginning + SCALE] = Part(
            scale,
            kernel_parameter(scale, (*scale.shape[:-2], groups, outputs)),
            lambda tensor: permuted(turned(tensor), scale_order()),
            lambda tensor: turned(permuted(tensor, inverse(scale_order()))),
        )
    return found


def kernel_parameter(published: torch.nn.Parameter, shape: tuple[int, ...]) -> torch.nn.Parameter:
    """Return a parameter of another shape on the same memory. SGLang has plain ones for torch.compile."""
    return torch.nn.Parameter(published.data.view(shape), requires_grad=False)


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(-1, -2).contiguous()


def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def workspace(device: torch.device, blocks: int = 1) -> torch.Tensor:
    """Return the locks of a kernel, a fixed number for each multiprocessor. Source: marlin_make_workspace."""
    on_gpu = device.type == "cuda"
    processors = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 0
    return torch.zeros(processors * blocks, dtype=torch.int32, device=device)


def no_indices(device: torch.device, *shape: int) -> torch.nn.Parameter:
    """Return a parameter without numbers, which kernels need. It is never published, and not in checksums."""
    found = torch.nn.Parameter(torch.empty(shape, dtype=torch.int32, device=device), requires_grad=False)
    found._skip_weight_check = True
    return found


def can_be_loaded_again(model: Any, *_: Any, **__: Any) -> None:
    """Let a model with such layers open them before it loads, and close them afterwards."""
    for module in model.modules():
        module.__dict__.pop("weight", None)
    if any(is_packed(module) for module in model.modules()):
        model.load_weights = partial(load, model, model.load_weights)


def is_packed(module: Any) -> bool:
    """Return whether a layer's matrices are in INT4."""
    return any(hasattr(module, beginning + PACKED) for beginning in (*OF_LINEAR, *OF_EXPERTS))


def load(model: torch.nn.Module, original: Callable[[Weights], Any], weights: Weights) -> Any:
    """Stand in for `load_weights`, which loads some tensors or all."""
    opened = of_these(model, weights)
    for matrices in opened:
        matrices.open()
    try:
        return original((name, tensor) for name, tensor in weights if not name.endswith(SHAPE))
    finally:
        for matrices in opened:
            matrices.close()


def of_these(model: torch.nn.Module, weights: Weights) -> list[Matrices]:
    """Return the matrices in the layers that tensors belong to; in all, if they are only known as they come."""
    touched = {layer_of(name) for name, _ in weights} if isinstance(weights, list) else None
    return [
        module.rljob_matrices
        for name, module in model.named_modules()
        if hasattr(module, "rljob_matrices") and (touched is None or layer_of(name) in touched)
    ]


def layer_of(name: str) -> str | None:
    """Return the beginning of a name that all tensors and modules of a layer share; None: it is in no layer."""
    return found[0] if (found := LAYER.match(name)) else None


class Read(NamedTuple):
    """How a check of weights reads a parameter. The names are those of SGLang's `QuantizedWeight`."""

    comparable_cls: Callable[[torch.Tensor, torch.Tensor], "Published"]
    scale_name: str
    """of another parameter, which is left out of the answer: that of the shape, which is never read"""


class Published:
    """A tensor of a closed layer, for a check of weights: SGLang calls `dequantize` when it hashes it."""

    def __init__(self, part: Part, tensor: torch.Tensor, shape: torch.Tensor) -> None:
        self._part, self._tensor = part, tensor

    def dequantize(self) -> torch.Tensor:
        """Return the tensor as published; outputs of experts after inputs are turned."""
        found = self._part.open(self._tensor)
        return transposed(found) if found.dim() > 2 else found


def as_published(model: torch.nn.Module) -> Iterator[tuple[str, Read]]:
    """Yield the name of each parameter in another layout than published, and how it is read."""
    for name, module in model.named_modules():
        matrices = getattr(module, "rljob_matrices", None)
        for own, part in matrices.parts.items() if matrices is not None else ():
            shape = re.sub(f"{PACKED}|{SCALE}", SHAPE, own)
            yield f"{name}.{own}", Read(partial(Published, part), f"{name}.{shape}")


def chunked(permute: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    """Return one matrix, or those of experts, permuted; not all experts at once."""
    if tensor.dim() == 2:
        return permute(tensor)
    return torch.cat([permute(some) for some in tensor.split(EXPERTS_AT_ONCE)])


def marlin(words_KN: torch.Tensor) -> torch.Tensor:
    """Return words of 8 inputs [..., K / 8, N] in Marlin's order [..., K / 16, N * 2]."""
    *experts, words, outputs = words_KN.shape
    numbers_KN = numbers(words_KN).transpose(-1, -2).reshape(*experts, words * 8, outputs)
    tiles = numbers_KN.view(*experts, words * 8 // TILE, TILE, outputs // TILE, TILE).transpose(-2, -3)
    blocks = tiles.reshape(*experts, words * 8 // TILE, -1, IN_BLOCK)
    return packed(blocks[..., order().to(blocks.device)]).view(*experts, words * 8 // TILE, outputs * 2)


def gptq(marlin_words: torch.Tensor) -> torch.Tensor:
    """Return words in Marlin's order [..., K / 16, N * 2] as words of 8 inputs [..., K / 8, N]."""
    *experts, rows, columns = marlin_words.shape
    blocks = numbers(marlin_words).view(*experts, rows, -1, IN_BLOCK)[..., inverse(order()).to(marlin_words.device)]
    tiles = blocks.view(*experts, rows, columns // 2 // TILE, TILE, TILE).transpose(-2, -3)
    numbers_KN = tiles.reshape(*experts, rows * TILE // 8, 8, columns // 2)
    return packed(numbers_KN.transpose(-1, -2).contiguous()).squeeze(-1)


def numbers(words: torch.Tensor) -> torch.Tensor:
    """Return the eight numbers of each word [..., w] as bytes [..., w, 8]; the first is in the lowest bits."""
    pairs_b = words.contiguous().view(torch.uint8).view(*words.shape, 4)
    return torch.stack((pairs_b & 15, pairs_b >> 4), dim=-1).view(*words.shape, 8)


def packed(numbers_w: torch.Tensor) -> torch.Tensor:
    """Return numbers [..., 8 w] in words [..., w]."""
    return (numbers_w[..., 0::2] | numbers_w[..., 1::2] << 4).view(torch.int32)


def permuted(scales: torch.Tensor, order_: torch.Tensor) -> torch.Tensor:
    """Return scales [..., K / 32, N] with each run of outputs in another order."""
    return scales.reshape(-1, len(order_))[:, order_.to(scales.device)].view(scales.shape)


@cache
def scale_order() -> torch.Tensor:
    """Return the order of 64 scales of a row, where a column has several groups. Source: get_scale_perms."""
    return torch.arange(64).view(8, 8).t().reshape(-1)


@cache
def order() -> torch.Tensor:
    """Return where each of 1,024 numbers of four tiles comes from, for 4 bits.

    Source: get_weight_perm of SGLang's test_marlin_utils, and gptq_marlin_repack.cuh.
    """
    found = []
    for thread in range(32):
        column, row = divmod(thread, 4)
        rows = (2 * row, 2 * row + 1, 2 * row + 8, 2 * row + 9)
        of_tile = [TILE * each + column + half for half in (0, 8) for each in rows]
        interleaved = [of_tile[each] for each in (0, 2, 4, 6, 1, 3, 5, 7)]
        found += [number + TILE * TILE * tile for tile in range(4) for number in interleaved]
    return torch.tensor(found)


def inverse(order_: torch.Tensor) -> torch.Tensor:
    """Return the order that undoes another one."""
    return order_.argsort()

"""Which tensors engines get in place of which, in every format."""

import traceback
from collections.abc import Iterator

import pytest
import torch

from rljob_api.sections import Quantization
from rljob_api.sizing.quantised import FORMATS, Quantised
from rljob_api.sizing.tensors import ITEM_BYTES
from rljob_doctor.diagnosis import diagnose
from rljob_doctor.scan import scan
from rljob_trainer.sync.layout import LayoutError, TensorSpec
from rljob_trainer.sync.rank.quantised.encoding import PARTS, AsTrained, check, encoding
from rljob_trainer.sync.rank.sender import DTYPE_CODES, SendError, specs_of

LAYER = "model.layers.0"
Q, GATE, NORM = f"{LAYER}.self_attn.q_proj.weight", f"{LAYER}.mlp.gate.weight", f"{LAYER}.input_layernorm.weight"
HEAD, BIAS, EXPERT = "lm_head.weight", f"{LAYER}.self_attn.q_proj.bias", f"{LAYER}.mlp.experts.0.up_proj.weight"
LEFT_ALONE = ("lm_head", f"{LAYER}.mlp.gate")
ENDINGS = {
    Quantization.FP8: (".weight", ".weight_scale_inv"),
    Quantization.INT4: (".weight_packed", ".weight_scale", ".weight_shape"),
}
each_kind = pytest.mark.parametrize("kind", list(Quantization))


def tensors() -> dict[str, torch.Tensor]:
    axes = {Q: (200, 160), BIAS: (200,), GATE: (4, 130), EXPERT: (128, 256), NORM: (130,), HEAD: (300, 130)}
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in axes.items()}


def test_every_format_is_computed_counted_and_sent() -> None:
    assert FORMATS.keys() == PARTS.keys() == set(Quantization)
    assert ITEM_BYTES.keys() <= DTYPE_CODES.keys()


def test_without_a_format_engines_get_the_learners_tensors() -> None:
    given = tensors()
    made = encoding(None)
    assert isinstance(made, AsTrained)
    assert made.specs(specs_of(given.items())) == specs_of(made.tensors(given.items())) == specs_of(given.items())
    assert all(tensor is given[name] for name, tensor in made.tensors(given.items()))


@each_kind
def test_linear_layers_become_parts_and_all_else_stays_in_its_order(kind: Quantization) -> None:
    given = tensors()
    found = dict(encoding(Quantised(kind, LEFT_ALONE)).tensors(given.items()))
    of_q, of_expert = ([name.removesuffix(".weight") + end for end in ENDINGS[kind]] for name in (Q, EXPERT))
    assert list(found) == [*of_q, BIAS, GATE, *of_expert, NORM, HEAD]
    assert all(found[name] is given[name] for name in (BIAS, GATE, NORM, HEAD))
    for name, wanted in zip(of_q, PARTS[kind](Q, given[Q]), strict=True):
        assert torch.equal(found[name].view(torch.uint8), wanted.view(torch.uint8))


@each_kind
def test_what_is_announced_is_what_is_published(kind: Quantization) -> None:
    made = encoding(Quantised(kind, LEFT_ALONE))
    assert made.specs(specs_of(tensors().items())) == specs_of(made.tensors(tensors().items()))


@each_kind
@pytest.mark.parametrize(
    ("left_alone", "said"),
    [
        (("lm_head",), f"lacks a module that is not a linear layer: {GATE}"),
        ((f"{LAYER}.mlp.gate",), f"lacks a module that is not a linear layer: {HEAD}"),
        ((*LEFT_ALONE, f"{LAYER}.self_attn.q_proj"), f"has linear layers: {Q}"),
    ],
)
def test_a_list_that_does_not_fit_the_model_is_refused(
    kind: Quantization, left_alone: tuple[str, ...], said: str
) -> None:
    name = {Quantization.FP8: "modules_to_not_convert", Quantization.INT4: "ignore"}[kind]
    with pytest.raises(LayoutError, match=rf"^quantization_config\.{name} {said}$") as raised:
        encoding(Quantised(kind, left_alone)).specs(specs_of(tensors().items()))
    log = "".join(traceback.format_exception(raised.value)).encode()
    assert diagnose([scan("log", log)]).findings[0].failure.code == "QuantIgnoreList"


def test_a_matrix_of_an_unknown_kind_must_be_listed() -> None:
    strange = [TensorSpec(f"{LAYER}.mlp.router_map.weight", (8, 8), "bfloat16")]
    with pytest.raises(LayoutError, match="router_map"):
        check(strange, Quantised(Quantization.INT4, ()))
    check(strange, Quantised(Quantization.INT4, (f"{LAYER}.mlp.router_map",)))


@pytest.mark.parametrize(
    ("columns", "near"), [(144, "(200, 128)"), (150, "(200, 160)"), (1, "(200, 32)"), (160, None), (32, None)]
)
def test_rows_that_groups_do_not_divide_are_refused_with_the_nearest_shape(columns: int, near: str | None) -> None:
    how, given = Quantised(Quantization.INT4, ()), [TensorSpec(Q, (200, columns), "bfloat16")]
    if near is None:
        check(given, how)
        return
    with pytest.raises(LayoutError) as raised:
        check(given, how)
    rule = f"has rows that groups of 32 do not divide; nearest valid: {near}"
    assert str(raised.value) == f"{Q}: (200, {columns}) {rule}"


def test_a_matrix_that_is_left_alone_may_have_any_rows() -> None:
    check([TensorSpec(GATE, (4, 130), "bfloat16")], Quantised(Quantization.INT4, LEFT_ALONE))


@each_kind
@pytest.mark.parametrize("bad", [True, False])
def test_a_collective_export_is_exhausted_whatever_happens(kind: Quantization, bad: bool) -> None:
    given, exported = tensors(), []
    given[Q][0, 0] = float("nan") if bad else 0.0

    def export() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in given.items():
            exported.append(name)
            yield name, tensor

    published = encoding(Quantised(kind, LEFT_ALONE)).tensors(export())
    if bad:
        with pytest.raises(SendError):
            next(published)
    else:
        next(published)
        published.close()  # type: ignore[attr-defined]
    assert exported == list(given)

"""Megatron's optimizer with our parts around it, step by step against torch's AdamW and its gradient clipping."""

import copy
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from rljob_api import sections
from rljob_api.sections import Schedule
from rljob_trainer.learners.rank.optimizer import optimizer as optimizer_module
from rljob_trainer.learners.rank.optimizer.optimizer import Optimizer, data_parallel, is_alone, restore_steps
from rljob_trainer.learners.rank.optimizer.optimizer_state import STATE, shares
from support.trainer.lone_rank import SmallModel, lone_rank

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")

STEPS = 8
PLAIN = sections.Optimizer(learning_rate=0.03, clip_grad=1e9)
FULL = sections.Optimizer(
    learning_rate=0.03,
    min_learning_rate=0.004,
    schedule=Schedule.COSINE,
    warmup_steps=3,
    beta1=0.8,
    beta2=0.9,
    epsilon=1e-3,
    weight_decay=0.2,
    clip_grad=1.5,
)


@pytest.fixture(scope="module", autouse=True)
def rank() -> Iterator[None]:
    with lone_rank():
        yield


class Trained:
    """A model with its optimizer."""

    def __init__(
        self,
        settings: sections.Optimizer,
        precision: str = "fp32",
        total_steps: int = STEPS,
        *,
        shares_matrix: bool = False,
    ) -> None:
        """`shares_matrix`: as an embedding that the first and the last pipeline stage have."""
        self.model = SmallModel(torch.bfloat16 if precision == "bf16" else torch.float32)
        self.model.matrix.shared_embedding = shares_matrix  # type: ignore[attr-defined]  # Megatron's
        (self.ddp,) = data_parallel([self.model])
        self.optimizer = Optimizer([self.ddp], settings, total_steps, precision)

    def step(self, gradients: list[torch.Tensor]) -> tuple[bool, float]:
        self.ddp.zero_grad_buffer()
        self.optimizer.megatron.zero_grad()
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            parameter.main_grad.copy_(gradient)  # type: ignore[attr-defined]  # Megatron's
        return self.optimizer.step()

    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def parts(self) -> list[Any]:
        return list(self.optimizer.megatron.chained_optimizers)


def gradients(seed: int, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(shape, generator=generator) for shape in ((3, 4), (3,))]


def rate(given: sections.Optimizer, step: int, total_steps: int = STEPS) -> float:
    """Return the learning rate of a step, counted from 1, by the words of the manual."""
    warmup = min(given.warmup_steps, total_steps)
    if step <= warmup:
        return given.learning_rate * step / warmup
    done = (step - warmup) / (total_steps + 1 - warmup)
    left = {Schedule.CONSTANT: 1.0, Schedule.LINEAR: 1.0 - done, Schedule.COSINE: (1 + math.cos(math.pi * done)) / 2}
    return given.min_learning_rate + (given.learning_rate - given.min_learning_rate) * left[given.schedule]


def rates(given: sections.Optimizer, total_steps: int) -> list[float]:
    trained, found = Trained(given, total_steps=total_steps), []
    for seed in range(total_steps):
        trained.step(gradients(seed))
        found.append(trained.optimizer.learning_rate)
    return found


class Torch:
    """The same steps by torch alone."""

    def __init__(self, given: sections.Optimizer) -> None:
        self.given, self.steps = given, 0
        self.matrix, self.bias = (p.detach().clone().float().requires_grad_() for p in SmallModel().parameters())
        groups = [{"params": [self.matrix]}, {"params": [self.bias], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(
            groups, betas=(given.beta1, given.beta2), eps=given.epsilon, weight_decay=given.weight_decay
        )

    def step(self, gradients: list[torch.Tensor]) -> float:
        self.steps += 1
        for parameter, gradient in zip((self.matrix, self.bias), gradients, strict=True):
            parameter.grad = gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_((self.matrix, self.bias), self.given.clip_grad)
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.given, self.steps)
        self.optimizer.step()
        return float(norm)

    def weights(self) -> list[torch.Tensor]:
        return [self.matrix.detach().clone(), self.bias.detach().clone()]


schedules = st.builds(
    lambda kind, warmup, floor: PLAIN.model_copy(
        update={"schedule": kind, "warmup_steps": warmup, "min_learning_rate": floor}
    ),
    st.sampled_from(Schedule),
    st.integers(0, 14),
    st.sampled_from([0.0, 0.01]),
)


@settings(max_examples=40)
@given(schedules, st.integers(1, 12))
def test_every_step_has_the_learning_rate_of_the_schedule(given: sections.Optimizer, total: int) -> None:
    assert rates(given, total) == pytest.approx([rate(given, step, total) for step in range(1, total + 1)])


@settings(max_examples=40)
@given(schedules, st.integers(1, 12))
def test_the_rate_rises_to_its_peak_and_then_never_rises_again(given: sections.Optimizer, total: int) -> None:
    found, warmup = rates(given, total), min(given.warmup_steps, total)
    assert found[:warmup] == sorted(found[:warmup])
    assert found[warmup:] == sorted(found[warmup:], reverse=True)
    assert min(found) > 0.0 and max(found) <= given.learning_rate + 1e-12
    assert min(found[warmup:], default=1.0) > given.min_learning_rate


@pytest.mark.parametrize("clip_grad", [1e9, 1.5, 1e-3], ids=["free", "clipped", "always clipped"])
@pytest.mark.parametrize("schedule", Schedule)
def test_steps_are_those_of_adamw_with_clipped_gradients(schedule: Schedule, clip_grad: float) -> None:
    given = FULL.model_copy(update={"schedule": schedule, "clip_grad": clip_grad})
    ours, theirs = Trained(given), Torch(given)
    for seed in range(STEPS):
        grads = gradients(seed, scale=10.0 ** (seed % 3 - 1))
        taken, norm = ours.step(grads)
        assert (taken, norm) == (True, pytest.approx(theirs.step(grads), rel=1e-6))
        torch.testing.assert_close(ours.weights(), theirs.weights(), rtol=1e-5, atol=1e-6)


def test_bf16_weights_are_the_rounded_masters_of_an_fp32_optimizer() -> None:
    ours, theirs = Trained(FULL, "bf16"), Torch(FULL)
    for mine, other in zip(ours.weights(), (theirs.matrix, theirs.bias), strict=True):
        other.data.copy_(mine)
    for seed in range(STEPS):
        ours.step(gradients(seed))
        theirs.step(gradients(seed))
    masters = [each.bfloat16() for each in theirs.weights()]
    torch.testing.assert_close(ours.weights(), masters, rtol=2**-8, atol=1e-6)
    torch.testing.assert_close(masters_of(ours), theirs.weights(), rtol=1e-5, atol=1e-6)


def masters_of(trained: Trained) -> list[torch.Tensor]:
    (part,) = trained.parts()
    masters = [master for group in part.optimizer.param_groups for master in group["params"]]
    return [next(m for m in masters if m.numel() == p.numel()).view_as(p) for p in trained.model.parameters()]


@pytest.mark.parametrize("clip_grad", [0.999, 1.001])
def test_gradients_are_clipped_only_above_the_limit(clip_grad: float) -> None:
    grads = [torch.zeros(3, 4), torch.tensor([0.6, 0.8, 0.0])]
    trained = Trained(PLAIN.model_copy(update={"clip_grad": clip_grad}))
    assert trained.step(grads) == (True, pytest.approx(1.0))
    used = trained.model.bias.main_grad.norm().item()  # type: ignore[union-attr, operator]  # Megatron's
    assert used == pytest.approx(min(1.0, clip_grad), abs=1e-5)


def test_the_gradient_norm_is_that_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = Trained(PLAIN.model_copy(update={"clip_grad": 1.0}))

    def with_another_rank(squares: torch.Tensor, group: object) -> None:
        assert group is trained.optimizer.megatron.get_grad_stats_parallel_group()
        squares += 3.0  # its squares

    monkeypatch.setattr(torch.distributed, "all_reduce", with_another_rank)
    assert trained.step([torch.zeros(3, 4), torch.tensor([0.6, 0.8, 0.0])]) == (True, pytest.approx(2.0))
    assert trained.model.bias.main_grad.norm().item() == pytest.approx(0.5, abs=1e-5)  # type: ignore[union-attr, operator]


def test_a_gradient_exactly_at_the_limit_stays_as_it_is() -> None:
    trained = Trained(PLAIN.model_copy(update={"clip_grad": 1.0}))
    assert trained.step([torch.zeros(3, 4), torch.tensor([0.0, 1.0, 0.0])]) == (True, 1.0)
    assert trained.model.bias.main_grad.tolist() == [0.0, 1.0, 0.0]  # type: ignore[union-attr, operator]  # Megatron's


def test_a_rank_without_gradients_takes_the_norm_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = Trained(PLAIN)
    (part,) = trained.parts()
    monkeypatch.setattr(part, "get_parameters", list)
    monkeypatch.setattr(part, "get_main_grads_for_grad_norm", list)
    own: list[torch.Tensor] = []

    def with_another_rank(squares: torch.Tensor, group: object) -> None:
        own.append(squares.clone())
        squares += 9.0

    monkeypatch.setattr(torch.distributed, "all_reduce", with_another_rank)
    assert trained.step(gradients(0)) == (True, 3.0)
    assert own == [torch.zeros((), dtype=torch.float64)]
    assert own[0].dtype == torch.float64, "all ranks send one type"


def test_gradients_are_added_up_in_fp32_and_moments_are_kept_by_one_kernel() -> None:
    trained = Trained(FULL, "bf16")
    assert [p.main_grad.dtype for p in trained.model.parameters()] == [torch.float32] * 2  # type: ignore[attr-defined]
    groups = trained.optimizer.megatron.param_groups
    assert [(group["fused"], group["foreach"]) for group in groups] == [(True, False)] * len(groups)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_megatron_gets_the_type_of_the_weights(precision: str, dtype: torch.dtype) -> None:
    (part,) = Trained(FULL, precision).parts()
    assert (part.config.bf16, part.config.params_dtype) == (precision == "bf16", dtype)


def test_a_lone_rank_moves_neither_gradients_nor_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    trained, moved = Trained(PLAIN), []
    for group in trained.ddp.bucket_groups:
        for work in ("start_grad_sync", "finish_grad_sync", "start_param_sync"):
            monkeypatch.setattr(group, work, lambda *_, **__: moved.append(1))
    trained.ddp.finish_grad_sync()
    trained.ddp.start_param_sync()
    assert moved == []


@pytest.mark.parametrize(
    ("ranks", "expert_ranks", "experts", "alone"),
    [(1, 1, None, True), (1, 2, None, True), (2, 1, None, False), (1, 1, 8, True), (1, 2, 8, False), (2, 1, 8, False)],
)
def test_tensor_parallel_ranks_share_gradients_of_experts_alone(
    ranks: int, expert_ranks: int, experts: int | None, alone: bool
) -> None:
    assert is_alone(ranks, expert_ranks, experts) is alone


def test_gradients_of_all_ranks_are_added_and_divided_by_no_token_count(monkeypatch: pytest.MonkeyPatch) -> None:
    trained, finalized = Trained(PLAIN), []

    def finalize(*arguments: object, **groups: object) -> None:
        finalized.append((arguments, groups))

    monkeypatch.setattr(optimizer_module, "finalize_model_grads", finalize)
    trained.ddp.config.finalize_model_grads_func([trained.ddp], 7, pg_collection="groups")
    assert finalized == [(([trained.ddp], None), {"pg_collection": "groups"})]


def test_a_rank_with_a_share_of_the_optimizer_begins_with_zeros() -> None:
    masters = [torch.ones(2, 3, requires_grad=True), torch.ones(4, requires_grad=True)]
    groups = [{"params": masters[:1]}, {"params": masters[1:]}]
    part = SimpleNamespace(optimizer=SimpleNamespace(param_groups=groups, state={}))
    optimizer_module._make_moments(part)
    for master in masters:
        state = part.optimizer.state[master]
        assert sorted(state) == ["exp_avg", "exp_avg_sq", "step"]
        assert (state["step"].shape, state["step"].dtype, state["step"].item()) == ((), torch.float32, 0.0)
        for name in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(state[name], torch.zeros(master.shape)) and not state[name].requires_grad
        assert state["exp_avg"].data_ptr() != state["exp_avg_sq"].data_ptr()


@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
def test_a_step_whose_gradient_is_not_finite_leaves_everything_as_it_was(poison: float) -> None:
    hit, spared = Trained(FULL), Trained(FULL)
    bad = gradients(9)
    bad[0][1, 2] = poison
    for trained in (hit, spared):
        trained.step(gradients(0))
    before, rate_before = hit.weights(), hit.optimizer.learning_rate
    taken, norm = hit.step(bad)
    assert not taken and not math.isfinite(norm)
    assert hit.optimizer.learning_rate == rate_before
    torch.testing.assert_close(hit.weights(), before, rtol=0, atol=0)
    for trained in (hit, spared):
        assert trained.step(gradients(1))[0]
    torch.testing.assert_close(hit.weights(), spared.weights(), rtol=0, atol=0)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("shares_matrix", [False, True])
def test_shares_are_all_parameters_with_what_megatron_holds_of_them(precision: str, shares_matrix: bool) -> None:
    trained = Trained(FULL, precision, shares_matrix=shares_matrix)
    for seed in range(2):
        trained.step(gradients(seed))
    (part,) = trained.parts()
    found = list(shares(part))
    assert {each.parameter for each in found} == {*trained.ddp.module.parameters()}
    (gathered,) = DistributedOptimizer.get_parameter_state_dp_zero(part)[0].values()
    for each in found:
        assert each.numbers == range(each.parameter.numel()), "there is one rank"
        assert torch.equal(each.weight, each.parameter.detach().flatten())
        held = each.held()
        assert held.keys() == {"param", "exp_avg", "exp_avg_sq"} and all(numbers.any() for numbers in held.values())
        start, end, _ = part.buffers[0].param_index_map[each.parameter]
        if not shares_matrix:  # 0.16.1 looks in the wrong place for what lies behind the padding of a bucket
            for name, numbers in held.items():
                torch.testing.assert_close(numbers, gathered[name][start:end], rtol=0, atol=0)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_share_takes_over_what_it_is_given_and_the_weight_with_its_master(precision: str) -> None:
    trained = Trained(FULL, precision)
    trained.step(gradients(0))
    (part,) = trained.parts()
    for number, share in enumerate(shares(part), 1):
        given = {name: torch.full((len(share.numbers),), number + 1 / (2 + i)) for i, name in enumerate(STATE)}
        share.take(given)
        torch.testing.assert_close(share.held(), given, rtol=0, atol=0)
        assert torch.equal(share.parameter.detach().flatten(), given["param"].to(share.parameter.dtype))


def test_a_fresh_optimizer_has_a_state_to_save() -> None:
    (part,) = Trained(FULL).parts()
    states = list(part.optimizer.state.values())
    assert [sorted(state) for state in states] == [["exp_avg", "exp_avg_sq", "step"]] * 2
    assert not any(tensor.any() for state in states for tensor in state.values())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_loaded_optimizer_goes_on_as_if_it_had_never_stopped(precision: str) -> None:
    whole, resumed = Trained(FULL, precision), Trained(FULL, precision)
    for seed in range(3):
        whole.step(gradients(seed))
    (old,), (new,) = whole.parts(), resumed.parts()
    for name, parameter in resumed.model.named_parameters():
        parameter.data.copy_(whole.model.get_parameter(name))
    for model_param, source in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        group, place = old.model_param_group_index_map[source]
        master = old.optimizer.param_groups[group]["params"][place]
        state = {name: tensor.clone() for name, tensor in old.optimizer.state[master].items() if name != "step"}
        new._set_main_param_and_optimizer_states(model_param, {"param": master.detach().clone(), **state})
    restore_steps(resumed.optimizer.megatron, 3)
    resumed.optimizer.schedule.load_state_dict(copy.deepcopy(whole.optimizer.schedule.state_dict()))
    for seed in range(3, 6):
        whole.step(gradients(seed))
        resumed.step(gradients(seed))
    torch.testing.assert_close(resumed.weights(), whole.weights(), rtol=0, atol=0)


def test_restored_step_counters_count_each_for_itself() -> None:
    trained = Trained(FULL)
    (part,) = trained.parts()
    shared = torch.tensor(1.0)
    for state in part.optimizer.state.values():
        state["step"] = shared
    restore_steps(trained.optimizer.megatron, 5)
    trained.step(gradients(0))
    assert [state["step"].item() for state in part.optimizer.state.values()] == [6.0, 6.0]

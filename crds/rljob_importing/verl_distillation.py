"""verl's on-policy distillation, `distillation.enabled`, as `algorithm.name: distillation`.

Here the teacher's signal is the difference of the log-probabilities of the sampled tokens, put into the policy
gradient: `loss_mode=k1` with `use_policy_gradient`. A loss over several tokens of the vocabulary is another one.
"""

from rljob_api import algorithms
from rljob_importing.draft import Arguments, Draft, NoteKind, origin
from rljob_importing.verl_given import DEFAULT, on, shown
from rljob_importing.verl_keys import DISTILLATION, SAMPLED, TEACHER

LOSS = "k3"
"""verl's default"""
SIGNAL = "the divergence is estimated from the sampled tokens by k1, and put into the policy gradient"
ONE = "there is one teacher for all rows; set spec.algorithm.teacher.checkpoint to the one that you want"


def distillation(made: Draft, arguments: Arguments) -> bool:
    """Carry over a distillation; return whether it is on."""
    switch = "distillation.enabled"
    if not on(arguments, switch):
        _off(made, arguments)
        return False
    made.put("algorithm.name", algorithms.DISTILLATION, origin(arguments[switch]))
    teachers = {given.text.rstrip("/"): given for name, given in arguments.items() if TEACHER.fullmatch(name)}
    for index, (path, given) in enumerate(teachers.items()):
        if index == 0:
            made.put("algorithm.teacher.checkpoint", path, origin(given))
        else:
            made.leave_open("algorithm.teacher.checkpoint", given, ONE)
    _loss(made, arguments)
    _reward(made, arguments)
    return True


def _off(made: Draft, arguments: Arguments) -> None:
    for name, given in arguments.items():
        if TEACHER.fullmatch(name) or name == f"{DISTILLATION}.loss_mode":
            made.note(NoteKind.NEEDLESS, given, "has no effect without distillation.enabled")


def _loss(made: Draft, arguments: Arguments) -> None:
    name, gradient = f"{DISTILLATION}.loss_mode", f"{DISTILLATION}.use_policy_gradient"
    mode = arguments.text(name) or LOSS
    if name in arguments and mode not in SAMPLED:
        made.leave_open("algorithm.name", arguments[name], f"this loss has no counterpart: {SIGNAL}")
    elif name in arguments and mode not in ("k1", "kl"):
        made.note(NoteKind.CHECK, arguments[name], SIGNAL)
    if gradient in arguments and not on(arguments, gradient) and not arguments[gradient].unknown:
        if mode in ("k2", "mse"):
            made.note(NoteKind.CHECK, arguments[gradient], f"{SIGNAL}; the gradient of k2 has the same mean")
        elif mode in SAMPLED:
            made.leave_open("algorithm.name", arguments[gradient], f"this gradient has no counterpart: {SIGNAL}")


def _reward(made: Draft, arguments: Arguments) -> None:
    """verl weighs the teacher against a reward of weight 1, an RLJob the reward against the teacher."""
    switches = (f"{DISTILLATION}.use_task_rewards", f"{DISTILLATION}.use_policy_loss")
    switch = next((name for name in switches if name in arguments), None)
    if switch and not on(arguments, switch):
        return
    weight = f"{DISTILLATION}.distillation_loss_coef"
    share = arguments.number(weight)
    source = arguments.get(weight) or (arguments[switch] if switch else None)
    if share is not None and share <= 0:
        made.leave_open("algorithm.name", arguments[weight], "the teacher's signal always has weight 1")
        return
    made.put("algorithm.teacher.rewardCoefficient", 1 / (share or 1.0), origin(source) if source else DEFAULT)
    why = "the reward's part of the advantage is the reward minus its group's mean, not divided by a deviation"
    made.note(NoteKind.CHECK, source, why if source else f"{shown(arguments, switches[0])}, use_task_rewards: {why}")

"""The programs of verl and NeMo-RL that start a training, and which of them rljob trains, too.

A recipe of verl may train differently with the keys of `main_ppo`; it is read only if its name is known.
"""

import re
from enum import StrEnum

VERL = re.compile(
    r"(verl|recipe)\.([\w.]+\.)?(main_\w+|\w+_main|\w*sft_trainer\w*)"
    r"|([\w.-]*/)*(verl|recipe)/([\w.-]+/)*(main_\w+|\w+_main|\w*sft_trainer\w*)\.py"
    r"|([\w.-]*/)*(main_(ppo|dapo)|(fsdp_)?sft_trainer)\.py|[\w.]+\.main_dapo"
)
NEMO_RL = re.compile(r"(.*/)?run_(\w+_)?(grpo|ppo|sft|distillation|dpo|rm)(_\w+)?\.py")
EVALUATES = re.compile(r".*\bmain_(eval|gen)\w*")
"""programs of verl that train nothing"""


class Training(StrEnum):
    """What a program of verl does with its keys."""

    ALTERNATING = "Alternating"
    """`main_ppo`: rollouts and training alternate"""
    ONE_STEP_AHEAD = "OneStepAhead"
    """rollouts of the next step while the learner trains, on separate GPUs"""
    FULLY_ASYNC = "FullyAsync"
    """rollouts without end, with bounded staleness, on separate GPUs"""
    SFT = "Sft"


TRAININGS = (
    (re.compile(r"(.*\.)?one_step_off_policy\.\w+"), Training.ONE_STEP_AHEAD),
    (re.compile(r"(.*\.)?fully_async_policy\.\w+"), Training.FULLY_ASYNC),
    (re.compile(r"(.*\.)?(fsdp_)?sft_trainer(_ray|_engine)?"), Training.SFT),
    (
        re.compile(
            r"(verl\.trainer\.|(.*\.)?(dapo|entropy|transfer_queue)\.)?main_(ppo|dapo|entropy)\w*|.*\.main_dapo"
        ),
        Training.ALTERNATING,
    ),
)
"""by the module's name, the first that fits"""
LACKING = re.compile(r"(?:.*/)?run_(\w*off_policy\w*|(?:\w+_)?(?:dpo|rm)(?:_\w+)?)\.py")
"""programs of NeMo-RL whose training rljob has not"""


def of_verl(program: str) -> Training | None:
    """Return what a program of verl trains; None: nothing that rljob trains."""
    module = _module(program)
    if EVALUATES.fullmatch(module):
        return None
    return next((training for pattern, training in TRAININGS if pattern.fullmatch(module)), None)


def why_not(program: str) -> str:
    """Return why a program is not read, as the end of a sentence; empty: it is."""
    if NEMO_RL.fullmatch(program):
        found = LACKING.fullmatch(program)
        return f"is NeMo-RL's {found[1]}, which rljob does not train" if found else ""
    if not VERL.fullmatch(program) or of_verl(program):
        return ""
    module = _module(program)
    if EVALUATES.fullmatch(module):
        return "of verl measures or samples, and trains nothing"
    *packages, name = module.split(".")
    of_recipe = f"recipe {packages[-1]}" if "recipe" in packages and packages[-1] != "recipe" else name
    return f"is verl's {of_recipe}, which rljob does not train"


def _module(program: str) -> str:
    """Return `recipe.dapo.main_dapo` of `/verl/recipe/dapo/main_dapo.py`, or the name of a module as it is."""
    if not program.endswith(".py"):
        return program
    parts = program.removesuffix(".py").lstrip("./").split("/")
    begins = max((index for index, part in enumerate(parts) if part in ("verl", "recipe")), default=len(parts) - 1)
    inside = parts.index("verl") if "verl" in parts[:-2] and parts[parts.index("verl") + 1] in PACKAGES else begins
    return ".".join(parts[inside:])


PACKAGES = ("trainer", "experimental")
"""packages of verl with programs; the directory above them may be called verl, too"""

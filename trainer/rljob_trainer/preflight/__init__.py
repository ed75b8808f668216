"""Checks before anything starts: files and this machine, in seconds, without torch.

    validate, plan ──► files of the model, functions, questions   what is not on this machine is left out, and said
    run, first driver ► the same, and disk, ports                 what is not on this machine is wrong

Modules read files into values (`read_*`, the thin shell) and judge the values (pure). A finding is a `Problem`, in the
format of everything that is wrong with a manifest; what is wrong for sure ends the command, the rest is a warning.
"""

from rljob_trainer.preflight.checks import PreflightError, look_at_files, look_at_machine, require
from rljob_trainer.preflight.findings import Findings

__all__ = ["Findings", "PreflightError", "look_at_files", "look_at_machine", "require"]

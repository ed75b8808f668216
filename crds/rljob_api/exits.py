"""Why a process of ours ended, as its exit code: the driver, and the verbs of the command line."""

from enum import IntEnum


class Exit(IntEnum):
    """What a supervisor, a script or CI may decide on."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> "Exit":
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    OK = 0, "done"
    """the work is finished"""
    FAILED = 1, "failed for a reason that has no code of its own; the log tells"
    """any failure that is not one of those below"""
    USAGE = 2, "wrong command line"
    """given by the command-line parser: an unknown option, a file that does not exist"""
    BAD_MANIFEST = 3, "the manifest breaks a rule; running it again will not help"
    """one or more problems, each told on a line"""
    OUT_OF_MEMORY = 4, "a learner or an engine ran out of memory"
    """of the device or of the host"""
    LOST_PEER = 5, "a process that the run needs is gone and could not be brought back"
    """a rank of the learner, or the last engine"""
    STALLED = 6, "no progress before the deadline"
    """a phase took longer than its deadline; the log names it"""
    PREEMPTED = 7, "interrupted or drained: saved and stopped; run it again to go on"
    """Ctrl-C, SIGTERM, or an order to drain"""
    BUDGET_EXHAUSTED = 8, "recovery used up its restarts"
    """the log tells what it tried and why each attempt ended"""
    BAD_INPUT = 9, "data, model, checkpoint or a function of yours is missing, fails or does not fit"
    """found when the files are opened, after the manifest itself was valid"""
    DIVERGED = 10, "training diverged: too many gradients were not finite; lower the learning rate"
    """more than `training.optimizer.maxSkippedSteps` optimizer steps were skipped"""
    NOT_FOUND = 66, "there is no such job, engine or log in the cluster"
    """EX_NOINPUT of sysexits.h; the message names the nearest that there is"""
    UNREACHABLE = 69, "the cluster, or what runs in it, does not answer; try again later"
    """EX_UNAVAILABLE"""
    IN_USE = 75, "another `rljob run`, or a newer attempt, works in this directory; try again later"
    """EX_TEMPFAIL of sysexits.h"""
    FORBIDDEN = 77, "the cluster does not let you; the message names the right that is missing"
    """EX_NOPERM"""
    SETUP = 78, "no kubeconfig, or rljob is not installed in the cluster"
    """EX_CONFIG"""
    INTERRUPTED = 130, "interrupted: a run, by the second time, ended without saving"
    """what a shell reports for a command that Ctrl-C has ended"""


def camel_case(code: Exit) -> str:
    """Return the name of an exit code as a condition's reason: `BadManifest`."""
    return "".join(word.capitalize() for word in code.name.split("_"))

"""Exit codes of the driver and of the command line, and what the end of an attempt counts as."""

from enum import IntEnum, StrEnum


class Exit(IntEnum):
    """An exit code with its meaning. Supervisors, scripts and CI decide on it."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> "Exit":
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    OK = 0, "done"
    """the work is finished"""
    FAILED = 1, "failed; see the log"
    """any failure that is not one of those below"""
    USAGE = 2, "wrong command line"
    """from the command-line parser: an unknown option, a file that does not exist"""
    BAD_MANIFEST = 3, "invalid manifest; a retry will not help"
    """one or more problems, one on each line"""
    OUT_OF_MEMORY = 4, "a learner or an engine ran out of memory"
    """of the device or of the host"""
    LOST_PEER = 5, "a required process is gone and could not be restarted"
    """a rank of the learner, or the last engine"""
    STALLED = 6, "no progress before the deadline"
    """a phase took longer than its deadline; the log names it"""
    PREEMPTED = 7, "interrupted or drained; saved and stopped; run it again to resume"
    """Ctrl-C, SIGTERM, or an order to drain"""
    BUDGET_EXHAUSTED = 8, "all restarts are used up"
    """the log has each attempt and why it ended"""
    BAD_INPUT = 9, "data, model, checkpoint or your function is missing, invalid or fails"
    """found when the files are opened; the manifest itself is valid"""
    DIVERGED = 10, "training diverged: too many non-finite gradients; lower the learning rate"
    """more than `training.optimizer.maxSkippedSteps` of the last 100 optimizer steps were skipped"""
    AWAY = 11, "a judge, tools or a volume outside the run were away for too long"
    """longer than `recovery.outageSeconds`, or more samples were lost than `recovery.lostSamples` allows; restarted"""
    NOT_FOUND = 66, "no such job, engine or log in the cluster"
    """EX_NOINPUT of sysexits.h; the message names the nearest existing one"""
    UNREACHABLE = 69, "the cluster or the job does not respond; retry later"
    """EX_UNAVAILABLE"""
    IN_USE = 75, "another run uses this directory; end it, or name another directory"
    """EX_TEMPFAIL of sysexits.h"""
    FORBIDDEN = 77, "permission denied; the message names the missing right"
    """EX_NOPERM"""
    SETUP = 78, "no kubeconfig, or rljob is not installed in the cluster"
    """EX_CONFIG"""
    INTERRUPTED = 130, "interrupted twice; ended without saving"
    """as a shell reports a command that Ctrl-C ended"""


class Cause(StrEnum):
    """What the end of an attempt counts as."""

    APPLICATION = "Application"
    """a failure of the run itself; `recovery.driverRestarts` limits these"""
    INFRASTRUCTURE = "Infrastructure"
    """a pod or node was lost, or the attempt was preempted; `recovery.infrastructureRestarts` limits these"""
    SUSPENDED = "Suspended"
    """the job was suspended; there is no limit"""


def camel_case(code: Exit) -> str:
    """Return the name of an exit code as a condition's reason: `BadManifest`."""
    return "".join(word.capitalize() for word in code.name.split("_"))

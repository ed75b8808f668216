"""What people type by the habit of other programs, and what does it here. Pure."""

from collections.abc import Mapping

RUN = "`rljob run FILE` runs a manifest on this machine, `kubectl apply -f FILE` in a cluster"
END = "`kubectl delete rljob NAME` ends a job of a cluster, Ctrl-C saves and ends a run on this machine"
PAUSE = """`kubectl patch rljob NAME --type merge -p '{"spec":{"suspend":true}}'` suspends a job of a cluster"""
LIST = "`rljob status` lists the jobs of a cluster, `rljob runs list DIRECTORY` the runs on a volume"
SHOW = "`rljob status NAME` shows a job, `rljob why NAME` what it waits for"
VALIDATE = "`rljob validate FILE` checks a manifest"
AGAIN = "`rljob run FILE` resumes a run on this machine, `rljob resume NAME` a failed job of a cluster"
FILE = "the file is an argument without an option"
JSON = "nearest valid: -o json"

COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(
        ("apply", "create", "deploy", "exec", "launch", "new", "schedule", "start", "submit", "train", "up"), RUN
    ),
    **dict.fromkeys(("abort", "cancel", "delete", "down", "kill", "remove", "rm", "stop", "terminate"), END),
    **dict.fromkeys(("pause", "suspend"), PAUSE),
    **dict.fromkeys(("get", "jobs", "list", "ls", "ps"), LIST),
    **dict.fromkeys(("describe", "info", "show", "watch"), SHOW),
    **dict.fromkeys(("check", "lint", "verify"), VALIDATE),
    **dict.fromkeys(("continue", "restart", "retry"), AGAIN),
    **dict.fromkeys(("debug", "diagnose", "events"), "`rljob why NAME` and `rljob doctor NAME` find causes"),
    **dict.fromkeys(("eval", "evaluate", "sample"), "`rljob rollout test FILE` samples and scores rows of the data"),
    **dict.fromkeys(("dashboard", "monitor", "stats"), "`rljob top` and `rljob status NAME --watch` show jobs at work"),
    **dict.fromkeys(("dry-run", "dryrun"), "`rljob plan FILE` shows what a run would do"),
    **dict.fromkeys(("download", "pull"), "`rljob run FILE` downloads the model and the data that it needs"),
    **dict.fromkeys(("clean", "gc", "prune"), "`rljob runs prune DIRECTORY` deletes old runs of a volume"),
    "help": "`rljob --help` lists all commands, `rljob COMMAND --help` the options of one",
    "version": "`rljob --version` shows it",
}
"""by the name of a command that there is not"""
OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("-c", "-f", "--config", "--file", "--filename", "--manifest"), FILE),
    **dict.fromkeys(("--check", "--dry-run"), "`rljob plan FILE` shows what a run would do, and starts nothing"),
    **dict.fromkeys(("--format", "--json"), JSON),
    **dict.fromkeys(("--continue", "--load", "--resume"), "a run resumes from its newest checkpoint by itself"),
    **dict.fromkeys(
        ("--checkpoint-dir", "--output-dir", "--save", "--save-dir"), "the manifest has spec.checkpoint.directory"
    ),
}
"""by an option that a command does not have"""


def instead_of_command(name: str) -> str | None:
    """Return what does what a command of this name does elsewhere; None: that is not known."""
    return COMMANDS.get(name.lower())


def instead_of_option(name: str) -> str | None:
    """Return what stands for an option; None: that is not known."""
    return OPTIONS.get(name)

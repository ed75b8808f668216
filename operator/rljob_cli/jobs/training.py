"""How a job of a cluster trains, as its status shows it: why it failed, is not sound, or is slow. Pure."""

from collections.abc import Iterator
from statistics import median

from rljob_api.status import ConditionType, Phase
from rljob_cli.jobs.jobs import Job
from rljob_cli.terminal.formats import rate, seconds

POINTS = 3
"""last points of the curve that must all be slow"""
SLOW = 1.5
"""the usual speed is this many times the present one"""
SAYS = frozenset({Phase.TRAINING, Phase.RECOVERING, Phase.FAILED})


def sentence(job: Job) -> str:
    """Return what is wrong with a job that has trained; "": nothing is known to be."""
    return wrong(job) or (_slow(job) if job.status.phase is Phase.TRAINING else "")


def wrong(job: Job) -> str:
    """Return what is wrong with a job apart from its speed; "": nothing is known to be."""
    if job.status.phase not in SAYS:
        return ""
    failure = job.attempt.failure if job.attempt else None
    if failure and job.status.phase is not Phase.TRAINING:
        return f"{failure.code}: {failure.title}; {failure.remedy}"
    if job.status.phase is Phase.TRAINING:
        sound = job.condition(ConditionType.SOUND)
        if sound is not None and sound.status == "False":
            return f"it trains, but {sound.reason.replace(',', ', ')}: {sound.message}"
    return ""


def evidence(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the numbers of a job that has trained."""
    failure, progress = (job.attempt.failure if job.attempt else None), job.status.progress
    if failure:
        yield "failure", f"{failure.code}: {failure.evidence}"
    if progress is None:
        return
    if (times := progress.step_seconds) is not None:
        parts = {"rollout": times.rollout, "train": times.train, "publish": times.publish}
        known = {name: value for name, value in parts.items() if value is not None}
        rest = {"rest": max(0.0, times.total - sum(known.values()))}
        shown = ", ".join(
            f"{name} {seconds(value)} ({value / times.total:.0%})" for name, value in (known | rest).items()
        )
        yield "step", f"{seconds(times.total)}: {shown}" if times.total else "no time"
    speeds = [point.tokens_per_second for point in job.status.curve if point.tokens_per_second]
    if speeds:
        yield "speed", f"{rate(speeds[-1])} generated tokens/s; the median of the run is {rate(median(speeds))}"
    rewards = [(point.step, point.reward) for point in job.status.curve if point.reward is not None]
    if len(rewards) > 1:
        (first, before), (last, now) = rewards[0], rewards[-1]
        yield "reward", f"{now:.3g} at step {last}; at step {first} it was {before:.3g}"
    for engine in job.unwell:
        yield "engine", f"{engine.name} is {engine.state}: {engine.last_error or 'no error is known'}"


def _slow(job: Job) -> str:
    speeds = [point.tokens_per_second for point in job.status.curve if point.tokens_per_second]
    if len(speeds) < 2 * POINTS:
        return ""
    usual, now = median(speeds), max(speeds[-POINTS:])
    if now * SLOW >= usual:
        return ""
    return f"it is slow: engines generate {rate(now)} tokens/s, and the median of the run is {rate(usual)}"

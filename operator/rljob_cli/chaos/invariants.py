"""What must hold of a job regardless of faults, as its status and its journal show it from outside. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rljob_cli.chaos.seen import Seen
from rljob_cli.jobs.jobs import Job
from rljob_trainer.rundir import names
from rljob_trainer.rundir.journal import JournalError, Record, Sum, audited, record_of


class Invariant(StrEnum):
    """A claim, by its name in the output."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> "Invariant":
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    PROMPTS_ONCE = "prompts-once", "each prompt is issued and consumed once, none is left out"
    PROMPTS_IN_ORDER = "prompts-in-order", "a step consumes its prompts in order, and a resume issues the same ones"
    VERSIONS_RISE = "versions-rise", "the version of the weights falls only where a resume goes back"
    STEPS_FROM_CHECKPOINT = "steps-from-checkpoint", "a resume goes back to the newest checkpoint, and not further"
    STATUS_NAMES_FAULT = (
        "status-names-fault",
        "the status names each fault: a recovery action, or the end of an attempt",
    )
    WEIGHTS_EQUAL = (
        "weights-equal",
        "no engine had other weights than the learner, and no rank other ones than its peers",
    )
    REFUSED_IDLE = "refused-idle", "no step uses a sample of an engine whose weights were not verified"
    ONE_DRIVER = "one-driver", "there is at most one driver, and one attempt that runs"
    HISTORY_STAYS = "history-stays", "attempts are numbered in turn, and what has ended stays as it was"
    RECOVERS = "recovers", "after each fault another step is done in time, and the job does not fail"
    NOTHING_HELD = "nothing-held", "a job that has ended has no pods"


OTHER_WEIGHTS = "tensors differ from the learner's"
"""what a publication says of an engine that holds other weights"""


@dataclass(frozen=True, slots=True)
class Broken:
    """An invariant that does not hold."""

    invariant: Invariant
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


def journal(content: bytes) -> tuple[Record, ...]:
    """Return the records of a file of the journal; a torn last line is left out. Raises JournalError."""
    return tuple(record_of(line, f"journal.jsonl:{n}") for n, line in enumerate(content.split(b"\n")[:-1], 1))


def continued_from(content: bytes) -> int | None:
    """Return the step until which a full file is that this one follows; None: it is the first of its journal."""
    line, end, _ = content.partition(b"\n")
    try:
        first = record_of(line, "journal.jsonl:1") if end else None
    except JournalError:
        return None
    return first.step if first is not None and first.event == "continued" else None


def joined(files: Sequence[Sequence[Record]]) -> tuple[Record, ...]:
    """Return the records of files that follow each other, as one. Raises JournalError where one follows another end."""
    (first, *others) = files
    records, sum_ = list(first), Sum()
    for each in first:
        sum_.add(each)
    for file in others:
        begin, *rest = file
        due = sum_.continued(begin.step, begin.checkpoint or "")
        if begin != due:
            name = f"{names.FULL_JOURNALS}/{names.full_journal(begin.step)}"
            raise JournalError(f"{name}: comes to {due.line()!r:.100}, and is followed by {begin.line()!r:.100}")
        records += rest
        for each in rest:
            sum_.add(each)
    return tuple(records)


@dataclass
class Trail:
    """All that was seen so far. Each `add_…` takes the next look, and returns what it breaks."""

    last: Job | None = None
    version: tuple[int, Job] | None = None
    """highest version since the last resume, and the job as it was then"""
    checkpoint: int = 0
    """newest step that a checkpoint was seen to hold"""
    issued: list[str] = field(default_factory=list)
    """prompts, in the order in which they were first seen to be issued"""
    issued_before: int | None = None
    """prompts before those; None: no journal was read"""
    full: set[int] = field(default_factory=set)
    """full files of the journal that were read: the step until which each is"""

    def add_seen(self, seen: Seen) -> list[Broken]:
        """Take a look at the job and its processes."""
        broken = [*_drivers(seen), *_weights(seen), *self._job(seen.job)]
        self.last = seen.job
        saved = seen.job.status.last_checkpoint
        self.checkpoint = max(self.checkpoint, saved.step if saved else 0)
        return broken

    def add_journal(self, files: Sequence[bytes]) -> list[Broken]:
        """Take files of the journal, the oldest first, read after the last look: the newest, and what is not `full`."""
        try:
            records = joined([journal(content) for content in files])
        except JournalError as error:
            return [Broken(Invariant.PROMPTS_ONCE, str(error))]
        begins = [continued_from(content) or 0 for content in files]
        self.full = {until for until in (*self.full, *begins[1:]) if until <= begins[-1]}
        broken = [Broken(Invariant.PROMPTS_ONCE, f"journal.jsonl:{fault}") for fault in audited(records)][:1]
        broken += [*_left_out(records), *_out_of_order(records), *self._same_prompts(records)]
        if (done := steps_done(records)) < self.checkpoint:
            text = f"the journal ends after step {done}, and a checkpoint holds step {self.checkpoint}"
            broken.append(Broken(Invariant.STEPS_FROM_CHECKPOINT, text))
        return broken

    def _job(self, job: Job) -> Iterator[Broken]:
        yield from _attempts(job)
        if self.last is not None:
            yield from _history(self.last, job)
            yield from self._steps(self.last, job)
        yield from self._version(job)

    def _steps(self, before: Job, now: Job) -> Iterator[Broken]:
        if before.status.progress is None or now.step >= before.step:
            return
        if now.step < self.checkpoint:
            text = f"step {before.step} was followed by step {now.step}, and a checkpoint holds step {self.checkpoint}"
            yield Broken(Invariant.STEPS_FROM_CHECKPOINT, text)

    def _version(self, job: Job) -> Iterator[Broken]:
        version = job.status.progress.weight_version if job.status.progress else None
        if version is None:
            return
        if self.version is not None and version < self.version[0]:
            highest, then = self.version
            if (
                job.step >= then.step
                and job.status.attempt == then.status.attempt
                and job.status.began == then.status.began
            ):
                yield Broken(
                    Invariant.VERSIONS_RISE, f"version {highest} at step {then.step}, then {version} at step {job.step}"
                )
        if self.version is None or version != self.version[0]:
            self.version = version, job

    def _same_prompts(self, records: Sequence[Record]) -> Iterator[Broken]:
        before = records[0].issued if records and records[0].event == "continued" else 0
        now = [uid for record in records if record.event == "issued" for uid in record.prompts]
        if self.issued_before is None or before > self.issued_before + len(self.issued):
            self.issued_before, self.issued = before, now
            return
        first = max(before, self.issued_before)
        old, new = self.issued[first - self.issued_before :], now[first - before :]
        for place, (was, is_) in enumerate(zip(old, new, strict=False), first + 1):
            if was != is_:
                text = f"prompt {place} was {was}, and after a resume it is {is_}"
                yield Broken(Invariant.PROMPTS_IN_ORDER, text)
                return
        if len(new) > len(old):
            self.issued += new[len(old) :]


def steps_done(records: Sequence[Record]) -> int:
    """Return the number of steps that a journal shows as consumed."""
    for record in reversed(records):
        match record.event:
            case "consumed":
                return record.step + 1
            case "continued":
                return record.step
            case "issued" | "committed":
                pass
    return 0


def unnamed(what: str, said: Sequence[str]) -> list[Broken]:
    """Return that the status says nothing of a fault from which the job has recovered."""
    if said:
        return []
    return [Broken(Invariant.STATUS_NAMES_FAULT, f"{what}: no recovery action, and no end of an attempt")]


def unrecovered(what: str, job: Job, within_s: float) -> Broken:
    """Return that a job has not recovered from something."""
    if job.has_ended:
        return Broken(
            Invariant.RECOVERS, f"after {what}: the job has {str(job.status.phase).lower()}: {job.explanation}"
        )
    engines = f"{job.engines_ready} of {job.engines_wanted} engines"
    state = f"it is {job.status.phase} at step {job.step} with {engines}: {job.explanation}"
    return Broken(Invariant.RECOVERS, f"after {what}: not well within {within_s:.0f} s; {state}")


def held(job: Job, pods: Sequence[str], grace_s: float) -> list[Broken]:
    """Return that a job that has ended still has pods; `grace_s`: their grace period [s]."""
    if not job.has_ended or not pods:
        return []
    text = f"{job.key} is {job.status.phase}, and has pods after their {grace_s:.0f} s: {', '.join(pods)}"
    return [Broken(Invariant.NOTHING_HELD, text)]


def _drivers(seen: Seen) -> Iterator[Broken]:
    if seen.drivers > 1:
        where = ", ".join(f"{len(head.processes['driver'])} in {pod}" for pod, head in seen.heads.items())
        yield Broken(Invariant.ONE_DRIVER, f"{seen.drivers} drivers: {where}")


def _weights(seen: Seen) -> Iterator[Broken]:
    """Compare what the run has recorded since the start. What is older was there before."""
    for head in seen.heads.values():
        for each in head.refused:
            if each.age_s < seen.at_s and OTHER_WEIGHTS in each.error:
                yield Broken(Invariant.WEIGHTS_EQUAL, f"{each.engine}: {each.error}")
            if each.age_s < seen.at_s and each.samples:
                text = f"{each.samples} samples of {each.engine} were used after it was refused: {each.error}"
                yield Broken(Invariant.REFUSED_IDLE, text)
        for copies in head.unequal:
            if copies.age_s < seen.at_s:
                yield Broken(Invariant.WEIGHTS_EQUAL, copies.evidence)


def _attempts(job: Job) -> Iterator[Broken]:
    running = [each.number for each in job.status.attempts if each.started is not None and each.ended is None]
    if len(running) > 1:
        yield Broken(Invariant.ONE_DRIVER, f"attempts {', '.join(map(str, running))} run at once")
    numbers = [each.number for each in job.status.attempts]
    if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        yield Broken(Invariant.HISTORY_STAYS, f"attempts are numbered {', '.join(map(str, numbers))}")


def _history(before: Job, now: Job) -> Iterator[Broken]:
    if now.status.attempt < before.status.attempt:
        text = f"attempt {before.status.attempt} was followed by attempt {now.status.attempt}"
        yield Broken(Invariant.HISTORY_STAYS, text)
    ended = {each.number: each for each in before.status.attempts if each.ended is not None}
    known = {each.number: each for each in now.status.attempts}
    oldest = min(known, default=0)
    for number, was in ended.items():
        is_ = known.get(number)
        if is_ is None and number < oldest:
            continue  # a status keeps the newest ones
        if is_ is None or is_.ended is None or was.exit_code not in (None, is_.exit_code):
            text = f"attempt {number} had ended with {was.exit_code}, and now has not"
            yield Broken(Invariant.HISTORY_STAYS, text)


def _left_out(records: Sequence[Record]) -> Iterator[Broken]:
    """Compare the rows of all whole epochs: `EPOCH:ROW`. A journal that continues another one begins within one."""
    epochs: dict[str, set[str]] = {}
    for record in records:
        for uid in record.prompts if record.event == "issued" else ():
            epoch, _, row = uid.rpartition(":")
            epochs.setdefault(epoch, set()).add(row)
    begins = 1 if records and records[0].event == "continued" else 0
    whole = list(epochs.items())[begins:-1]
    rows = set().union(*epochs.values()) if whole else set()
    for epoch, of in whole:
        if left := rows - of:
            example = min(left, key=lambda row: (len(row), row))
            yield Broken(
                Invariant.PROMPTS_ONCE, f"prompt {epoch}:{example} was never issued, and a later epoch has begun"
            )
            return


def _out_of_order(records: Sequence[Record]) -> Iterator[Broken]:
    issued: dict[int, list[str]] = {}
    for record in records:
        match record.event:
            case "continued":
                issued = {step: list(prompts) for step, prompts in record.waiting}
            case "issued":
                issued.setdefault(record.step, []).extend(record.prompts)
            case "consumed":
                due = issued.pop(record.step, [])
                if due != list(record.prompts):
                    text = (
                        f"step {record.step} consumed {list(record.prompts)!s:.80}, and {due!s:.80} were issued for it"
                    )
                    yield Broken(Invariant.PROMPTS_IN_ORDER, text)
                    return
            case "committed":
                pass

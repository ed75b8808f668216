"""Says how a log ends, and what its exceptions and last errors are about that no signature knows."""

import re
from collections.abc import Callable, Sequence
from mmap import mmap
from typing import Final

from rljob_doctor.catalogue import catalogue
from rljob_doctor.entry import Failure, Level
from rljob_doctor.likeness import most_like
from rljob_doctor.log_text import AFTER, BEFORE, SPAN, TRACEBACK, is_beside_the_point, is_handled, observed
from rljob_doctor.log_text import text as read
from rljob_doctor.occurrences import LAST_WORDS, UNKNOWN, Occurrence, Scanned
from rljob_doctor.topics import code_of_exception, code_of_line, frames

END: Final = 1 << 16
"""bytes at the end of a log that say whether the run succeeded"""
SHORT: Final = 12
"""characters of a message that continues in the next lines"""
WHOLE = re.compile(r"(['\"]).*\1\s*$")
"""a message that is one quoted word, such as the key of a `KeyError`: the next lines do not belong to it"""
SUCCESS = re.compile(
    r"Job '[\w-]+' succeeded"
    r"|\"kind\": ?\"end\".*\"outcome\": ?\"finished\""
    r"|\bjobDeploymentStatus: Complete\b"
    r"|^condition Succeeded \w+: "
)
"""Ray's client, the events of a run, a RayJob, and a job's status"""
GOES_ON = re.compile(r"^\{\"kind\": ?\"(?:run|end)\"")
"""an event of a run that began again after a success, or ended otherwise"""
PROGRESS = re.compile(
    r"(?i)\bstep:? ?\d+(?: ?/ ?\d+)?\b.*(?:loss|reward|score|grad_?norm|actor/|critic/|train/)"
    r"|\biteration:? +\d+ ?/ *\d+ *\|"
    r"|\{'loss': |\"kind\": ?\"step\"|\bfired up and ready to roll\b|\bRay runtime started\b"
)
"""a step of slime, verl, Megatron, a trainer of transformers or rljob, or an engine or node of Ray that has started"""
GOES_WELL = re.compile(
    r"(?i)\b(?:is|are|server|engine|service|runtime|training|cluster) (?:now )?(?:ready|started|up and running)\b"
    r"|\b(?:finished|completed?|succeeded|successfully|resumed|saved)\b"
    r"|\b(?:step|epoch|iteration|rollout|turn):? ?\d+\b"
    r"|\blink (?:is )?up\b|\b(?:just )?became ready\b|\breconnect(?:ed)? success\b"
    r"|\b(?:is|are|as) (?:now )?healthy\b|\bconnection restored\b"
    r"|\bsample \d+: \d|\brows kept\b|: ok\b|\b(?:ok|done)\.?$"
)
"""a line that says that something works: an error before it, which no signature knows, was none that matters"""
NOT_FINITE = re.compile(r"(?i)\b(?:nan|inf)\b(?! iterations)")
PREFIX = (
    r"(?:\([^)]*\) ?|[\w.-]*\[[^\]]*\]:? ?|\S+ std(?:err|out) F |[│|>]\s*|std(?:err|out): ?"
    r"|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-][\d:]+)?\s+|- [\w.-]+ - (?:[A-Z]+ - )?|(?:[\w./-]+\.py:\d+\] ?)"
    r"|(?:\d+\.){3}\d+: ?|[a-z][\w.-]*-\d+: |[\w.-]+ +\| "
    r"|(?:ERROR|CRITICAL|FATAL):? (?:[\d-]+ [\d:.]+ )?(?:\S+:\d+:? )?(?:-- )?|(?:[Ee]rror|E): )*\s*"
)
"""what Ray, torchrun, pdsh, mpirun, Compose, loggers and collectors write before a line of a process"""
CLASS = (
    r"(?:(?:\w+\.)*(?:_?[A-Z]\w*(?:Error|Exception|Interrupt)|Exception|Stop(?:Async)?Iteration)"
    r"|(?:\w+\.)+_?(?:exceptions?|errors?)\.[A-Z]\w+"
    r"|(?:\w+\.)+(?:[A-Z]\w*)?Timeout|(?:\w+\.)*NVMLError_\w+"
    r"|(?:re|queue|zipfile|gzip|cv2|pkg_resources|tarfile|binascii|socket|subprocess|struct|zlib|lzma|http\.client"
    r"|concurrent\.futures\.\w+|httpx|httpcore|aiohttp\.client_exceptions|starlette\.requests|pyarrow\.lib"
    r"|botocore\.errorfactory)\.(?:[A-Z]\w+|error|gaierror))\b"
)
EXCEPTION = re.compile(rf"^{PREFIX}({CLASS}(?:\(\w+\))?(?:: .+|:?\s*$|\s+Traceback \(most recent call last\)))")
BEFORE_MESSAGE = re.compile(rf"^{PREFIX}")
FRAME = re.compile(rf'^{PREFIX}File "[^"]+", line \d+, in \S+')
"""a frame of a traceback"""
FINALIZER = re.compile(r", in __del__\s*$")
"""a frame below which Python ignores an exception, and the program continues"""
RAISED = re.compile(rf"({CLASS})(?:\((\w+)\))?:? *(.*)")
"""an exception anywhere in a line: its class, the class that Ray passes on, and the message"""
ASSERTED = re.compile(r"\bassert \S.*")
"""the source of an assertion, which a traceback quotes below its innermost frame"""
TASK = re.compile(r"\bray::(?:[\w-]+:)?(\w+)\.(\w+)\(\)")
"""the method of an actor whose exception Ray passes on"""
LOOKS_LIKE_ERROR = re.compile(
    r"(?i)\bfail(?:ed|ure|s)?\b|\b(?:unable|inability|not possible) to\b|\bcould ?n(?:o|')?t\b|\bcannot\b|\bcan't\b"
    r"|\b(?:denied|refused|forbidden|unauthorized|killed|invalid|crashed|unschedulable|evicted|deadlock)\b"
    r"|\btimed out\b|\btime-?out (?:expired|exceeded|waiting|while|after|error)\b|\b(?:rpc|cuda|hip|rocm) error\b"
    r"|(?-i:\b[Ee]rror[: ])"
    r"|\bnot (?:found|ready|available|enough|exist|satisf\w+|supported|allowed|permitted|respond(?:ing)?)\b"
    r"|\bno (?:such|space|nodes?|route|matching|valid)\b|\b(?:exceed(?:ed|s)|expired|exhausted)\b"
    r"|\b(?:unexpected(?:ly)?|mismatch(?:ed)?|rejected|hung|corrupt(?:ed)?)\b"
    r"|\bConnection to \S+ .*\bwas lost\b|\bunknown filesystem\b|\bremounting filesystem read-only\b"
    r"|\bhas been shut down\b|\btimeout, aborting\b|(?-i:^(?:ERROR|error|fatal|FATAL|E): )|\bcould not (?:solve|get)\b"
    r"|(?-i:\blevel=\"?(?:error|fatal)\b|\"error\": ?\"\w|<(?:ERROR|FATAL)>:)"
    r"|\bdeadline exceeded\b|\bpanic:|\bpending placement groups?\b|(?-i:\bscheduling_state: (?:NO_|INFEASIBLE))"
    r"|\blost connection\b|\bno (?:\w+ )?(?:files|devices|workers?|servers?) (?:found|available|could)\b"
    r"|(?-i:\bFailed[A-Z]\w+)|\bunbound variable\b|\bsyntax error\b|\b(?:bad substitution|not a valid identifier)\b"
    r"|(?-i:\bNCCL WARN )"
)
"""a line that may say why a program ended, however it is written"""
NO_ERROR = re.compile(
    r"\b(?:INFO|DEBUG|(?<!NCCL )WARN|WARNING|TRACE|Normal)\b|\b[IW]\d{4} \d\d:\d\d|level=\"?(?:info|warn|debug)"
    r"|\"level\": ?\"info|\[[IW] |\b[IW] \d+ \d+\]| W\]|[Ww]arning: |\bFAILED \S+::|File \"|\\n|\braise \w|: success\b"
    r"|(?<![\d.])0 (?:\w+ )?(?:failed|errors?|failures?|denied|refused|killed|lost|evicted)\b"
    r"|(?<![Rr]ank)[:=] ?0(?![.:x\d])|\bcount 0\b"
    r"|[:=] *\"?(?:[Ff]alse|[Nn]one|<none>|null|\[\])[\",}\s│]*$"
    r"|INTENDED_(?:SYSTEM|USER)_EXIT|#success=\d+ #failure=\d+|\btaint(?:s|ing) kernel\b"
    r"|\bframe #\d+: |has already been registered|\bpip's dependency resolver\b"
    r"|\[Rem Allocator\]|\bsudo: |the object has been modified|\bwon't affect\b"
    r"|(?:[Rr]eadiness|[Ss]tartup) probe|[Hh]ealth check failed"
    r"|\b(?:[Ii]f|[Ww]hen|[Uu]nless|until|in case)\b[^.]*\b(?:fail\w*|not|cannot|error|invalid|denied)\b"
    r"|\b(?:may|might)\b(?! be dead)|\b(?:[Ii]gnor|[Ss]kip)\w*"
    r"|\b[Dd]efaulting to\b|\bleaving it set\b|\b(?:disable|repress) this (?:warning|message)\b"
)
"""a line that looks like an error and is none, or not alone: by its level, or because it speaks of what could happen"""


def look_at_end(data: bytes | mmap, result: Scanned) -> None:
    """Set where the run succeeded, its last exception, and where its last traceback is cut off."""
    offset = max(0, len(data) - END)
    number = result.lines - bytes(data[offset:]).count(b"\n")
    for line in bytes(data[offset:]).split(b"\n"):
        number += 1
        text = read(line, 0, min(len(line), 2 * SPAN))
        if SUCCESS.search(text):
            result.succeeded_at = offset
        elif GOES_ON.match(text):
            result.succeeded_at = -1
        if PROGRESS.search(text) and not NOT_FINITE.search(text):
            result.progress_at = offset
        elif GOES_WELL.search(text) and not LOOKS_LIKE_ERROR.search(text):
            result.well_at = offset
        last, exception = offset + len(line), EXCEPTION.match(text)
        seen = Occurrence(result.name, number, exception[1] if exception else text.strip(), start=offset)
        is_frame = exception is None and FRAME.match(text) and not FINALIZER.search(text)
        counts = (exception or is_frame) and not is_beside_the_point(text) and not is_handled(data, offset, last)
        if exception:
            result.last_frame = None
            if counts:
                result.last_exception = seen
        else:
            if counts:
                result.last_frame = seen
            if result.lines - number < LAST_WORDS:
                _look_for_topic(data, seen, last, result)
        offset = last + 1


def _look_for_topic(data: bytes | mmap, seen: Occurrence, last: int, result: Scanned) -> None:
    """Note a line that looks like an error and ends at `last`, with the code that a rule or its words suggest."""
    text = observed(seen.text)
    if not LOOKS_LIKE_ERROR.search(text) or NO_ERROR.search(text) or is_beside_the_point(text):
        return
    ruled = code_of_line(text)
    code = ruled or most_like(BEFORE_MESSAGE.sub("", text))
    if code is not None and not is_handled(data, seen.start, last):
        (result.last_errors if ruled else result.last_likely).setdefault(code, []).append(seen)


def look_at_exceptions(data: bytes | mmap, result: Scanned, goes_on: Callable[[], bool]) -> None:
    """Set what the exceptions are that no signature knows; after `goes_on` says no, only what the last one is."""
    unknown = [*result.found.get(UNKNOWN, ()), *([result.last_words] if result.last_words else [])]
    known = {
        each.start for code, found in result.found.items() if not _says_little(catalogue()[code]) for each in found
    }
    asked = {each.start: each for each in unknown if each.start not in known}
    for start, each in asked.items():
        if start != max(asked) and not goes_on():
            result.unjudged += 1
            continue
        raised = RAISED.search(each.text)
        if FRAME.match(each.text):
            before = read(data, max(0, start - BEFORE), start)
            code = code_of_exception("", (*frames(before), *frames(each.text)))
        elif raised and "can't be subclassed" not in each.text:
            code = code_of_exception(*_error_and_frames(data, start, raised))
        else:
            code = None
        if code is not None:
            result.inferred.setdefault(code, []).append(each)


def _says_little(failure: Failure) -> bool:
    """Return whether a failure only says that something ended or was not reached, so that a rule may say more."""
    return failure.general and failure.level is Level.CONSEQUENCE


def _error_and_frames(data: bytes | mmap, start: int, raised: re.Match[str]) -> tuple[str, Sequence[str]]:
    """Return an exception as `Class: message`, with the frames of its traceback."""
    name, passed_on, message = raised[1].rpartition(".")[2], raised[2], raised[3]
    after = read(data, start, min(len(data), start + AFTER)).split("\n", 1)
    rest = after[1] if len(after) > 1 else ""
    if passed_on or message.startswith(TRACEBACK):
        called = TASK.findall(message)
        # The traceback that follows has its own exception: its innermost frame did not raise this one.
        return f"{passed_on or name}: ", (*frames(rest), *(f"ray::{actor} in {method}" for actor, method in called))
    before = read(data, max(0, start - BEFORE), start)
    if not message and (asserted := ASSERTED.search(before.rpartition('File "')[2])):
        message = asserted[0]
    elif len(message) < SHORT and not WHOLE.match(message):
        message = f"{message} {' '.join(rest.split(chr(10))[:2])}"
    return f"{name}: {message}", frames(before)

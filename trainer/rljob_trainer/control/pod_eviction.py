"""The preStop hook of a job's pods: `python -m rljob_trainer.control.pod_eviction --holds Learner --port N --grace N`.

The kubelet runs it in the pod's container when the pod is deleted, for example by the eviction of a node drain, and
sends SIGTERM only after it has ended. It reports the eviction to the driver and waits until the driver has saved and
ended. It never fails: an error of a hook would end the pod at once.
"""

import argparse
import http.client
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path

from rljob_api.control import (
    EVICT,
    EVICTION_TOKEN_VARIABLE,
    TOKEN_VARIABLE,
    Eviction,
    EvictionResult,
    eviction_token_of,
)

HEAD_VARIABLE = "FQ_RAY_IP"
"""environment variable that KubeRay sets in the workers' containers: the head's address"""
LOOK_S = 1.0
"""between two requests [s]"""
ANSWER_S = 5.0
UNREACHABLE_S = 20.0
"""without an answer for this time, a driver that has answered before is gone [s]"""
NEVER_REACHED_S = 5.0
"""the same before the first answer: when a whole cluster is deleted, the head is often gone first [s]"""
NEIGHBOURS_S = 10.0
"""a pod that the run can lose stays this long: the eviction of a neighbour that it cannot lose may follow [s]"""
LINGER_S = 15.0
"""the head stays this long after the driver has ended, so that the operator can read from Ray how it ended [s]"""


class NoAnswer(Enum):
    """Why there is no result."""

    REFUSED = auto()
    """nothing listens at the port, or the token is not the driver's: rljob's driver does not run"""
    UNREACHABLE = auto()


Answer = EvictionResult | NoAnswer


def await_end(
    ask: Callable[[], Answer],
    grace_s: float,
    linger_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> str:
    """Report the eviction again and again until the pod may end; return why, in words.

    `linger_s` is waited after the end of a driver that has saved, at most until `grace_s` is over.
    """
    began = answered = clock()
    patience_s, is_draining = NEVER_REACHED_S, False
    while clock() - began < grace_s:
        answer, now = ask(), clock()
        if isinstance(answer, EvictionResult):
            answered, patience_s, is_draining = now, UNREACHABLE_S, answer.outcome == "Draining"
        if (why := _reason_to_end(answer, now - began, now - answered >= patience_s)) is not None:
            if is_draining and isinstance(answer, NoAnswer):
                sleep(max(0.0, min(linger_s, grace_s - (now - began))))
                return f"the driver has ended: {why}"
            return why
        sleep(LOOK_S)
    return f"the grace period of {grace_s:.0f} s is over"


def _reason_to_end(answer: Answer, waited_s: float, is_silent: bool) -> str | None:
    """Return why the pod may end; None: it should wait."""
    match answer:
        case NoAnswer.REFUSED:
            return "no driver listens"
        case NoAnswer.UNREACHABLE:
            return "the driver does not answer" if is_silent else None
        case EvictionResult(outcome="Draining"):
            return "the driver makes no progress" if answer.stalled else None
        case EvictionResult():
            return "the run continues without this pod" if waited_s >= NEIGHBOURS_S else None


def post(url: str, token: str, eviction: Eviction) -> Answer:
    """Report the eviction once."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, eviction.model_dump_json(by_alias=True).encode(), headers, method="POST")
    try:
        with DIRECT.open(request, timeout=ANSWER_S) as answer:
            return EvictionResult.model_validate_json(answer.read())
    except urllib.error.HTTPError:
        return NoAnswer.REFUSED
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return NoAnswer.REFUSED if isinstance(reason, ConnectionRefusedError) else NoAnswer.UNREACHABLE


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Run the hook."""
    options = _parser().parse_args(arguments)
    token, head, name = eviction_token_of(environ), environ.get(HEAD_VARIABLE, "127.0.0.1"), socket.gethostname()
    if token is None:
        say(f"{name}: no {EVICTION_TOKEN_VARIABLE}, so the driver cannot be asked to save")
        return
    eviction = Eviction(pod=name, node=_address(name), holds=options.holds)
    linger_s = LINGER_S if TOKEN_VARIABLE in environ else 0.0
    say(f"{name}: asks the driver at {head} to save")
    why = await_end(lambda: post(f"http://{head}:{options.port}{EVICT}", token, eviction), options.grace, linger_s)
    say(f"{name}: ends: {why}")


def _address(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except OSError:
        return ""


def say(text: str, processes: Path = Path("/proc")) -> None:
    """Write a line into the container's own log: a kubelet shows a hook's output only when it fails.

    The log is the standard error of the container's first process. The pod's first process is another container's.
    """
    for process in sorted(int(each.name) for each in processes.iterdir() if each.name.isdigit()):
        with suppress(OSError), (processes / f"{process}/fd/2").open("a") as log:
            print(f"rljob eviction: {text}", file=log)
            return


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rljob_trainer.control.pod_eviction", description=__doc__)
    parser.add_argument(
        "--holds", choices=("Learner", "Engines"), required=True, help="what the run loses with the pod"
    )
    parser.add_argument("--port", type=int, required=True, help="of the control protocol, on the head")
    parser.add_argument("--grace", type=float, required=True, help="longest wait [s]")
    return parser


DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""HTTP without the environment's proxies, which cannot reach the head"""

if __name__ == "__main__":
    main(sys.argv[1:], os.environ)

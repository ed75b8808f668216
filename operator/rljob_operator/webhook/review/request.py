"""From the body of a request to the body of its answer: what a child does, and what is said where it fails. Pure."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_api.foreign_text import printable
from rljob_operator.identity import Manifest
from rljob_operator.webhook.review.answer import Answer, review

UID = re.compile(rb'"uid" *: *"([-0-9A-Za-z]{1,64})"')
NEAR = 2_000
"""where the uid of a request stands: at its beginning [bytes]"""
LONGEST_PLACE = 120
FAILED = "the review has failed; see the log of the webhook\n"


@dataclass(frozen=True, slots=True)
class Reviewed:
    """The answer to a request, as it is sent and counted."""

    status: int
    body: str
    outcome: str = "Error"
    """for the metric"""
    place: str = ""
    """`namespace/name` of the object, for the log"""

    def sent(self) -> bytes:
        return json.dumps([self.status, self.body, self.outcome, self.place]).encode()


def received(sent: bytes) -> Reviewed:
    return Reviewed(*json.loads(sent))


def reviewed(body: bytes, judge: Callable[[Manifest], Answer]) -> Reviewed:
    """Return the answer to the text of an AdmissionReview; `judge` takes its `request`, and may raise."""
    try:
        request: Manifest = json.loads(body)["request"]
        uid = request["uid"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return Reviewed(400, "the body is not an AdmissionReview\n")
    return _answered(request, judge(request), uid)


def too_much(body: bytes, why: str) -> Reviewed:
    """Return the refusal of an object that cannot be checked within its limits.

    It says so itself: with failurePolicy Ignore an error would let it in.
    """
    uid = UID.search(body[:NEAR])
    if uid is None:
        return Reviewed(500, FAILED)
    refused = Answer(f"the manifest cannot be checked: {why}; make it smaller", outcome="TooMuch")
    return _answered({}, refused, uid[1].decode())


def _answered(request: Mapping[str, Any], found: Answer, uid: str) -> Reviewed:
    place = printable(f"{request.get('namespace', '')}/{request.get('name', '')}", LONGEST_PLACE)
    return Reviewed(200, json.dumps(review({"uid": uid}, found)), found.outcome, place)

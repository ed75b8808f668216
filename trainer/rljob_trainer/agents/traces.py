"""Traces of agents' trajectories by OpenTelemetry, where its own variables name a collector; off without them.

    invoke_agent               a trajectory, from the opening of its session to its sample, or its failure
      └─ chat, chat, ...       each answer of the model

Spans are made when a trajectory has ended, of what is kept of it anyway: nothing is passed on with requests. They have
numbers and names, and no text of prompts and answers.
"""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rljob_trainer.samples import Answer, Prompt, Sample

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""variables of OpenTelemetry, of which one must name a collector"""
DISABLED, QUEUE, NAME = "OTEL_SDK_DISABLED", "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_SERVICE_NAME"
MOST_WAITING = 16_384
"""spans that wait to be sent: all agents of a step may end at once; further ones are left out"""
CLOSE_S = 10.0
"""for spans that were not sent yet, when a run ends"""
MOST_CALLS, LONGEST_NAME = 16, 64
"""calls of a span, and characters of a name that a model has made up"""
LONGEST_REASON = 2_000
"""of a failure [characters]"""
NS = 10**9


class Traces:
    """Makes spans, and gives them to a processor."""

    def __init__(self, processor: "SpanProcessor", service: str | None = "rljob") -> None:
        """`service` None: a variable says it."""
        # Not at the top: most runs have no traces, and it takes 0.3 s.
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        resource = Resource.create({} if service is None else {"service.name": service})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("rljob")

    def made(self, prompt: Prompt, sample: Sample, began: float, ended: float) -> None:
        """Trace a trajectory that has become a sample. Times are unix times [s]."""
        from opentelemetry.trace import set_span_in_context

        root = self._tracer.start_span(
            "invoke_agent", start_time=_ns(began), attributes=_about(prompt) | _of_sample(sample)
        )
        context = set_span_in_context(root)
        for answer in sample.answers:
            span = self._tracer.start_span("chat", context, start_time=_ns(answer.began), attributes=_of_answer(answer))
            span.end(_ns(answer.began + answer.seconds))
        root.end(_ns(ended))

    def failed(self, prompt: Prompt, began: float, ended: float, error: Exception) -> None:
        """Trace a trajectory that has failed. Times are unix times [s]."""
        from opentelemetry.trace import Status, StatusCode

        kind = {"error.type": type(error).__name__}
        root = self._tracer.start_span("invoke_agent", start_time=_ns(began), attributes=_about(prompt) | kind)
        root.set_status(Status(StatusCode.ERROR, str(error)[:LONGEST_REASON]))
        root.end(_ns(ended))

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Send what waits, for this time at most: a collector that does not answer holds no run up."""
        closing = threading.Thread(target=self._provider.shutdown, name="close-traces", daemon=True)
        closing.start()
        closing.join(timeout_s)


def traces(environ: Mapping[str, str]) -> Traces | None:
    """Return traces that are sent where the variables say; None: they name no collector."""
    if not any(environ.get(name) for name in ENDPOINTS) or environ.get(DISABLED, "").lower() == "true":
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    waiting = None if environ.get(QUEUE) else MOST_WAITING
    named = environ.get(NAME) or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return Traces(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=waiting), None if named else "rljob")


def _about(prompt: Prompt) -> dict[str, Any]:
    return {"gen_ai.operation.name": "invoke_agent", "rl.prompt.uid": prompt.uid}


def _of_sample(sample: Sample) -> dict[str, Any]:
    reward = {} if sample.reward is None else {"rl.reward": sample.reward}
    return reward | {
        "rl.answers": len(sample.answers),
        "rl.branches": len(sample.branches),
        "rl.tokens": len(sample.tokens_T),
        "rl.tokens.trained": sample.num_trained,
        "rl.weights.version": sample.version,
        "rl.finish_reason": sample.finish_reason,
    }


def _of_answer(answer: Answer) -> dict[str, Any]:
    calls = [name[:LONGEST_NAME] for name in answer.calls[:MOST_CALLS]]
    return ({"rl.calls": calls} if calls else {}) | {
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.output_tokens": answer.tokens,
        "gen_ai.response.finish_reasons": [answer.finish_reason],
        "rl.engine": answer.engine,
    }


def _ns(seconds: float) -> int:
    return round(seconds * NS)

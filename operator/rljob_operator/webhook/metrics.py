"""The webhook's own metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)
OUTCOMES = ("Allowed", "Unchanged", "BadManifest", "Never", "TooMuch", "Busy", "Error")


class Metrics:
    """All series, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.seconds = Histogram(
            "rljob_webhook_review_seconds", "Time to answer a review", buckets=BUCKETS_S, registry=self.registry
        )
        self.reviews = Counter(
            "rljob_webhook_reviews", "Reviews that were answered, by outcome", ["reason"], registry=self.registry
        )
        self.expires = Gauge(
            "rljob_webhook_certificate_expiry_timestamp_seconds",
            "When the certificate ends that is served",
            registry=self.registry,
        )
        self.unreadable = Gauge(
            "rljob_webhook_unreadable_objects",
            "Objects of the API server that could not be read and were skipped, since the start",
            registry=self.registry,
        )
        for outcome in OUTCOMES:
            self.reviews.labels(outcome)

    def text(self) -> bytes:
        """Return all series as Prometheus reads them."""
        return generate_latest(self.registry)

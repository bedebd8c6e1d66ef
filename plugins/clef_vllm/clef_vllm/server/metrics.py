"""Prometheus metrics of one server, in a registry of its own, with vLLM's beside them on the page."""

from collections.abc import Sequence
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from clef_vllm.requests import Prepared
from clef_vllm.server.admission import Admission

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)


class Metrics:
    """Names begin with clef_; a record is one SystemOne body, alone or in a batch."""

    def __init__(self, admission: Admission) -> None:
        self.registry = registry = CollectorRegistry()
        self.records = Counter(
            "clef_records", "Records by outcome: ok, or the kind of error", ["outcome"], registry=registry
        )
        self.responses = Counter("clef_http_responses", "HTTP responses", ["route", "status"], registry=registry)
        self.seconds = Histogram(
            "clef_http_seconds", "HTTP requests from first byte to last", ["route"], buckets=SECONDS, registry=registry
        )
        self.stages = Histogram(
            "clef_stage_seconds", "Time of a record in each stage", ["stage"], buckets=SECONDS, registry=registry
        )
        self.tokens = Histogram("clef_prompt_tokens", "Tokens of a prompt", buckets=TOKENS, registry=registry)
        self.questions = Histogram("clef_questions", "Questions of a record", buckets=COUNTS, registry=registry)
        self.options = Histogram("clef_options", "Options of a record", buckets=COUNTS, registry=registry)
        self.images = Counter("clef_images", "Images decoded", registry=registry)
        self.videos = Counter("clef_videos", "Videos decoded", registry=registry)
        self.truncations = Counter("clef_truncations", "Records whose state was cut to fit", registry=registry)
        self.ready = Gauge("clef_ready", "1 when requests are answered", registry=registry)
        for name, text, read in (
            ("clef_in_flight", "HTTP requests accepted and not yet answered", lambda: admission.accepted),
            ("clef_queued", "Records that wait for their turn", lambda: admission.waiting),
            ("clef_working", "Records being decoded, encoded or in the engine", lambda: admission.working),
        ):
            Gauge(name, text, registry=registry).set_function(read)

    def watch_pieces(self, encoders: Sequence[Any]) -> None:
        """Count from now on how often the encoders knew a schema piece already."""
        pieces = Gauge("clef_pieces", "Prompt pieces so far, by where their tokens came from", ["source"],
                       registry=self.registry)  # fmt: skip
        pieces.labels("memory").set_function(lambda: sum(encoder.pieces.hits for encoder in encoders))
        pieces.labels("tokenizer").set_function(lambda: sum(encoder.pieces.misses for encoder in encoders))

    def count(self, prepared: Prepared, length: int) -> None:
        """An answered record; `length` is its prompt in tokens after image expansion."""
        self.tokens.observe(length)
        self.questions.observe(len(prepared.options))
        self.options.observe(sum(len(options) for _, options in prepared.options))
        self.images.inc(len(prepared.images))
        self.videos.inc(len(prepared.videos))
        self.truncations.inc(int(prepared.truncated))

    def page(self) -> bytes:
        """Our metrics and those of the default registry (vLLM's engine, this process)."""
        return generate_latest(self.registry) + generate_latest(REGISTRY)

"""Event logs of a chosen length in tokens: published calibration sets stop at about 2,000, and long inputs are answered
worst.

A log is events of a few services. Its questions ask what can be looked up in it: the service of the first and of the
last event, the worst level, and whether a service failed. Lengths are spread evenly over the range, in an order drawn
by the seed; evaluation draws other numbers than calibration and asks in other words.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

from clefquant.calibration.draft import Draft
from clefquant.calibration.source_config import EventLogSource

SERVICES = ("auth", "billing", "search", "gateway", "mailer", "cache", "worker", "storage", "web", "queue")
LEVELS = ("debug", "info", "warning", "error", "fatal")
MESSAGES = {
    "debug": ("cache miss for key {n}", "heartbeat {n} ok", "poll took {n} ms"),
    "info": ("request {n} served", "job {n} done", "user {n} logged in", "started process {n}"),
    "warning": ("slow response: {n} ms", "retrying request {n}", "disk {n} nearly full"),
    "error": (
        "timeout after {n} ms",
        "connection {n} refused",
        "write to volume {n} failed",
        "bad gateway for request {n}",
    ),
    "fatal": ("process {n} out of memory", "process {n} died"),
}
WORDINGS = {
    "calibration": (
        "Which service logged the first event?",
        "Which service logged the last event?",
        "How bad is the worst event?",
        "The service {x} logged an error or worse.",
    ),
    "evaluation": (
        "Whose is the first line of the log?",
        "Whose is the last line of the log?",
        "What is the highest severity?",
        "Did {x} report an error or something worse?",
    ),
}
MEASURED_EVERY_EVENTS = 16


def event_log_drafts(
    source: EventLogSource, split: str, seed: int, count: int, tokens_of: Callable[[str], int]
) -> Iterator[Draft]:
    """Logs without end. ``tokens_of`` counts the tokens of a text; a log ends with the events that reach its length."""
    low, high = source.tokens
    lengths = [low + round((high - low) * index / max(count - 1, 1)) for index in range(count)]
    random.Random(f"{source.name}/{split}/{seed}").shuffle(lengths)
    number = 0
    while True:
        rng = random.Random(f"{source.name}/{split}/{seed}/{number}")
        yield _log(
            rng, f"{source.name} number {number + 1}", f"{number:06d}", split, lengths[number % count], tokens_of
        )
        number += 1


def _log(
    rng: random.Random, place: str, record_id: str, split: str, length_tokens: int, tokens_of: Callable[[str], int]
) -> Draft:
    services = rng.sample(SERVICES, rng.randint(4, 7))
    worst = rng.choice(LEVELS[1:])
    weights = [2.0 ** -(2 * i) for i in range(1, LEVELS.index(worst) + 2)]
    clock, lines, events, measured = rng.randint(0, 40_000), [], [], 0
    while measured < length_tokens:
        # Counted in blocks: a line alone has about as many tokens as within the log, but not exactly.
        for _ in range(MEASURED_EVERY_EVENTS):
            clock += rng.randint(1, 30)
            level = rng.choices(LEVELS[: len(weights)], weights)[0]
            service = rng.choice(services)
            events.append((service, level))
            message = rng.choice(MESSAGES[level]).format(n=rng.randint(1, 9999))
            stamp = f"{clock // 3600 % 24:02d}:{clock // 60 % 60:02d}:{clock % 60:02d}"
            lines.append(f"{stamp} {level.upper():<7} {service}: {message}")
        measured += tokens_of("\n".join(lines[-MEASURED_EVERY_EVENTS:]) + "\n")
    while len(lines) > 1 and measured - (last := tokens_of(lines[-1] + "\n")) >= length_tokens:
        lines.pop()
        events.pop()
        measured -= last
    asked_about = rng.choice(services)
    record, answers = _ask(split, services, events, asked_about)
    return Draft(place, record_id, {"state": "\n".join(lines), "questions": record}, answers, "event_log")


def _ask(
    split: str, services: list[str], events: list[tuple[str, str]], one: str
) -> tuple[dict[str, Any], dict[str, str]]:
    first, last, severity, failed = WORDINGS[split]
    who = {service: f"The {service} service" for service in sorted(services)}
    questions: dict[str, Any] = {
        "first": {"type": "choice", "instructions": first, "criteria": who},
        "last": {"type": "choice", "instructions": last, "criteria": who},
        "severity": {"type": "score", "instructions": severity, "criteria": list(LEVELS)},
        "failed": {"type": "noul", "instructions": failed.format(x=one)},
    }
    answers = {
        "first": events[0][0],
        "last": events[-1][0],
        "severity": str(max(LEVELS.index(level) for _, level in events)),
        "failed": "true"
        if any(service == one and level in ("error", "fatal") for service, level in events)
        else "false",
    }
    return questions, answers

"""Event logs of a few services, up to about 2,000 tokens: who logged what, how bad, first and last.

Most questions look one line up; counting ("which service has the most errors") is asked rarely and with a clear lead.
Evaluation uses held-out pairs of service and message for errors, and held-out frames.
"""

import random
from itertools import product
from typing import NamedTuple

from clefquant.calibration.example import Example, Split
from clefquant.calibration.generators.wording import (
    Asked,
    Wording,
    assemble,
    choice,
    noul,
    phrase,
    question_id,
    score,
    split_pairs,
)

SERVICES = ("auth", "billing", "search", "gateway", "mailer", "cache", "worker", "storage", "web", "queue")
LEVELS = ("debug", "info", "warning", "error", "fatal")
MESSAGES: dict[str, tuple[str, ...]] = {
    "debug": ("cache miss", "poll", "heartbeat ok"),
    "info": ("request served", "job done", "user logged in", "started"),
    "warning": ("slow response", "retrying", "disk nearly full"),
    "error": ("timeout", "connection refused", "write failed", "bad gateway"),
    "fatal": ("out of memory", "process died", "panic"),
}
BAD: dict[str, tuple[str, ...]] = {
    "timeout": ("It took too long", "No answer in time"),
    "connection refused": ("The other side did not accept", "Could not connect"),
    "write failed": ("Data was not saved", "Could not save"),
    "bad gateway": ("A wrong answer from behind", "The server behind was wrong"),
}
"""Error messages to ways an option may describe them."""
TRAIN_PAIRS, EVALUATION_PAIRS = split_pairs("logs", product(SERVICES, BAD))

ASK_WORST: Wording = (
    ("Highest severity in the log", "How bad is the worst event?", "Which is the worst level?"),
    ("How bad is the highest severity?", "The worst level in the log"),
)
WORST_NAMES = (
    ("only debug", "info", "warning", "error", "fatal"),
    ("Nothing but debug lines", "Normal information", "Some warning", "At least one error", "A fatal event"),
)
ASK_SEEN: Wording = (
    ("Does the service {x} appear in the log?", "The log has a line of {x}.", "Is there any event of {x}?"),
    ("Is there a line of {x} in the log?", "The service {x} does appear."),
)
ASK_ERROR: Wording = (
    ("Is there any error of the service {x}?", "{x} logged at least one error.", "Did {x} log an error?"),
    ("Did the service {x} log an error?", "There is at least one error of {x}."),
)
ASK_FAILED: Wording = (
    ("Which service logged an error?", "Service that failed", "Who failed?"),
    ("Which service failed?", "Service that logged an error"),
)
ASK_WHO: Wording = (
    ('Which service logged "{m}"?', 'Service with the message "{m}"', 'Choose the service that logged "{m}".'),
    ('Which service has the message "{m}"?', 'Choose the service with "{m}".'),
)
ASK_WHAT: Wording = (
    ("Which error did {x} log?", "Error of the service {x}", "What went wrong in {x}?"),
    ("Which error went wrong in the service {x}?", "The error of {x}"),
)
ASK_LAST: Wording = (
    ("Which service logged the last event?", "Service of the last line", "Who logged last?"),
    ("Which service is the last line of?", "Service that logged the last event"),
)
ASK_FIRST: Wording = (
    ("Which service logged the first event?", "Service of the first line", "Who logged first?"),
    ("Which service is the first line of?", "Service that logged the first event"),
)
ASK_LAST_LEVEL: Wording = (
    ("How bad is the last event?", "Level of the last line", "Severity of the last event"),
    ("Which level is the last line?", "How bad is the last line?"),
)
ASK_MOST: Wording = (
    ("Which service has the most errors?", "Service with the largest number of errors"),
    ("Which service has the largest number of errors?",),
)
ASK_COUNT: Wording = (
    ("How many errors are there?", "Number of errors in the log"),
    ("How many errors are in the log?",),
)
COUNT_NAMES = (
    ("none", "one", "two or three", "four or more"),
    ("0 errors", "1 error", "2 or 3 errors", "4 or more errors"),
)


class Event(NamedTuple):
    """One line of a log."""

    service: str
    level: str
    message: str


def _events(rng: random.Random, split: Split, services: list[str]) -> list[Event]:
    count = rng.choice((2, 3, 3, 4, 5, 6, 8, 12)) if rng.random() < 0.93 else rng.randint(20, 75)
    top = rng.choice((0, 1, 2, 2, 3, 3, 3, 4))
    weights = (4, 6, 3, 0, 0)
    events = []
    for _ in range(count):
        level = rng.choices(LEVELS[: top + 1], weights[: top + 1])[0]
        events.append(Event(rng.choice(services), level, rng.choice(MESSAGES[level])))
    if top >= 2:
        events[rng.randrange(count)] = Event(rng.choice(services), "warning", rng.choice(MESSAGES["warning"]))
    if top >= 3:
        known = [p for p in (EVALUATION_PAIRS if split == "evaluation" else TRAIN_PAIRS) if p[0] in services]
        culprits = rng.sample(services, min(len(services), rng.choice((1, 1, 2))))
        pairs = [p for p in known if p[0] in culprits] or known or [(services[0], "timeout")]
        for _ in range(rng.choice((1, 1, 2, 3, 4, 5))):
            service, message = rng.choice(pairs)
            events[rng.randrange(count)] = Event(service, "error", message)
    if top == 4:
        events[rng.randrange(count)] = Event(rng.choice(services), "fatal", rng.choice(MESSAGES["fatal"]))
    return events


def _state(rng: random.Random, events: list[Event]) -> object:
    shape, clock = rng.random(), rng.randint(0, 50000)
    rows: list[object] = []
    for event in events:
        clock += rng.randint(1, 90)
        stamp = f"{clock // 3600:02d}:{clock // 60 % 60:02d}"
        if shape < 0.6:
            rows.append(f"{stamp} {event.level.upper()} {event.service}: {event.message}")
        else:
            rows.append({"level": event.level, "message": event.message, "service": event.service})
    if shape < 0.35:
        return "\n".join(map(str, rows))
    return {"events": rows} if rng.random() < 0.7 else rows


# Long: a list of questions, each with its wording and its right answer.
def _questions(rng: random.Random, split: Split, events: list[Event], services: list[str]) -> list[Asked]:
    def pick(right: str) -> dict[str, str | None]:
        named = rng.random() < 0.5
        return {s: f"The {s} service" if named else None for s in sorted({right, *services})}

    errors = {s: [e for e in events if e.service == s and e.level == "error"] for s in services}
    total = sum(map(len, errors.values()))
    one = rng.choice(services)
    culprits = [s for s in services if errors[s]]
    blamed = rng.choice(culprits) if culprits and rng.random() < 0.5 else rng.choice(services)
    seen = rng.choice(SERVICES) if rng.random() < 0.5 else one
    asked = [
        score(
            question_id(rng, "severity", "max_level"), phrase(rng, split, ASK_WORST), rng.choice(WORST_NAMES),
            max(LEVELS.index(e.level) for e in events),
        ),
        noul(
            rng, question_id(rng, "seen"), phrase(rng, split, ASK_SEEN, x=seen), any(e.service == seen for e in events)
        ),
        noul(rng, question_id(rng, "failed"), phrase(rng, split, ASK_ERROR, x=blamed), bool(errors[blamed])),
        choice(rng, question_id(rng, "last"), phrase(rng, split, ASK_LAST), pick(one), events[-1].service, opaque=0.0),
        choice(rng, question_id(rng, "first"), phrase(rng, split, ASK_FIRST), pick(one), events[0].service, opaque=0.0),
        score(
            question_id(rng, "last_level"), phrase(rng, split, ASK_LAST_LEVEL), LEVELS, LEVELS.index(events[-1].level)
        ),
    ]  # fmt: skip
    if len(culprits) == 1:
        asked.append(
            choice(rng, question_id(rng, "culprit"), phrase(rng, split, ASK_FAILED), pick(one), culprits[0], opaque=0.0)
        )
    by_message: dict[str, set[str]] = {}
    for event in events:
        by_message.setdefault(event.message, set()).add(event.service)
    unique = sorted(message for message, owners in by_message.items() if len(owners) == 1)
    if unique:
        message = rng.choice(unique)
        owner = next(iter(by_message[message]))
        asked.append(
            choice(rng, question_id(rng, "who"), phrase(rng, split, ASK_WHO, m=message), pick(one), owner, opaque=0.0)
        )
    single = sorted(s for s in culprits if len({e.message for e in errors[s]}) == 1)
    if single:
        service = rng.choice(single)
        options: dict[str, str | None] = {m: rng.choice(d) if rng.random() < 0.6 else None for m, d in BAD.items()}
        asked.append(
            choice(
                rng,
                question_id(rng, "what"),
                phrase(rng, split, ASK_WHAT, x=service),
                options,
                errors[service][0].message,
            )
        )
    if rng.random() < 0.15:
        counts = sorted((len(errors[s]) for s in services), reverse=True)
        if counts[0] >= counts[1] + 2:
            worst = max(services, key=lambda s: len(errors[s]))
            asked.append(
                choice(rng, question_id(rng, "most"), phrase(rng, split, ASK_MOST), pick(one), worst, opaque=0.0)
            )
        level = sum(total > x for x in (0, 1, 3))
        asked.append(score(question_id(rng, "errors"), phrase(rng, split, ASK_COUNT), rng.choice(COUNT_NAMES), level))
    return asked


def generate(rng: random.Random, *, split: Split, questions: int | None = None) -> Example:
    """One log of two to 75 events with up to ``questions`` questions (default two to six)."""
    services = rng.sample(SERVICES, rng.randint(3, 6))
    events = _events(rng, split, services)
    # Logs are long: ask much of each.
    questions = questions if questions is not None else rng.choice((2, 3, 4, 5, 6, 6))
    return assemble(rng, _state(rng, events), _questions(rng, split, events, services), "logs", questions=questions)

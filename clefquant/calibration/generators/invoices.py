"""Invoices and orders: fields to look up, bands and rules over named fields, as JSON or as text.

Numbers keep a clear distance from the thresholds that questions name. Evaluation asks about held-out pairs of country
and status, in held-out frames.
"""

import random
from itertools import product
from typing import Any

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
    shuffled,
    split_pairs,
)

STATUS: dict[str, tuple[str, ...]] = {
    "paid": ("The customer has paid", "Money was received", "paid in full"),
    "overdue": ("Payment is late", "Past the due date and not paid", "late payment"),
    "open": ("Waiting for payment, not late yet", "sent and not due yet", "waiting"),
    "cancelled": ("It was withdrawn", "No longer valid, nothing to pay", "withdrawn"),
    "draft": ("Not sent yet", "Still being written", "unfinished"),
}
"""Status to ways an option may describe it."""
COUNTRIES = ("France", "Germany", "Spain", "Italy", "Poland", "Japan", "Brazil", "Canada")
METHODS = ("card", "bank transfer", "cash", "cheque", "voucher")
CARRIERS = ("courier", "post", "pickup", "freight")
ITEMS = (
    "lamp", "desk", "chair", "cable", "printer", "paper", "mouse", "screen", "battery", "router", "shelf", "clock",
    "heater", "carpet", "window", "pump",
)  # fmt: skip
NAMES = (
    "Adler Ltd",
    "Brook and Sons",
    "Cedar Inc",
    "Dune Media",
    "Elm Foods",
    "Fjord Marine",
    "Grove Labs",
    "Hill Tools",
)
TEAMS = ("blue", "green", "red", "north", "south", "east", "west")
PAIRS = tuple(product(COUNTRIES, STATUS))
TRAIN_PAIRS, EVALUATION_PAIRS = split_pairs("invoice", PAIRS)
BANDS = (100, 400, 1000)
BAND_NAMES = (
    ("less than 100", "from 100 to 400", "from 400 to 1000", "more than 1000"),
    ("Small, below 100", "Medium, 100 to 400", "Large, 400 to 1000", "Very large, above 1000"),
)
COUNT_NAMES = (("one", "two", "three", "four or more"), ("1 line", "2 lines", "3 lines", "4 or more lines"))

ASK_STATUS: Wording = (
    (
        "What is the status?",
        "Status of the document",
        "Choose the status that applies.",
        "In which state is the invoice?",
    ),
    ("Choose the status of the invoice.", "What is the state of the document?", "Which status applies?"),
)
ASK_IS: Wording = (
    ('Is the status "{x}"?', "The invoice is {x}.", "Is the invoice {x}?"),
    ("The status is {x}.", 'Is it "{x}"?'),
)
ASK_COUNTRY: Wording = (
    ("Which country is it for?", "Country of the customer", "Where does the customer live?"),
    ("Which country does the customer live in?", "Country it is for"),
)
ASK_ABROAD: Wording = (
    ("Is the customer in {x}?", "The order goes to {x}.", "Is the country {x}?"),
    ("Is it for a customer in {x}?", "The country is {x}."),
)
ASK_METHOD: Wording = (
    ("How is it paid?", "Payment method", "Which payment method was chosen?"),
    ("Which method of payment is chosen?", "How was it paid?"),
)
ASK_CARRIER: Wording = (
    ("How is it shipped?", "Way of shipping", "Which shipping was chosen?"),
    ("Which way is it shipped?", "Shipping that was chosen"),
)
ASK_ITEM: Wording = (
    ("Does it contain a {x}?", "A {x} is among the items.", "Is a {x} one of the items?"),
    ("Is a {x} among the items?", "One of the items is a {x}."),
)
ASK_WHICH: Wording = (
    ("Which of these items was ordered?", "Choose the item that is in the order.", "Item that appears in the lines"),
    ("Which item is in the lines of the order?", "Choose the item that was ordered."),
)
ASK_TOTAL: Wording = (
    ("Is the total above {x}?", "The total is more than {x}.", "Does the total exceed {x}?"),
    ("The total is above {x}.", "Is the total more than {x}?"),
)
ASK_BAND: Wording = (
    ("How large is the total?", "Size of the total", "In which band is the total?"),
    ("Which band is the total in?", "How large is the size of the total?"),
)
ASK_LINES: Wording = (
    ("How many lines does it have?", "Number of items", "Count the lines."),
    ("How many items does it have?", "Number of lines"),
)
ASK_QUANTITY: Wording = (
    ("Of which item are the most pieces ordered?", "Item with the largest quantity"),
    ("Of which item is the quantity the largest?",),
)
ASK_TEAM: Wording = (
    ("Which team handles it?", "Choose the team by the rule that applies.", "Team for this document"),
    ("Which team handles this document?", "Choose the team that applies."),
)
ASK_RULE: Wording = (
    (
        "Approve if the status is {s} and the country is {c}.", "Is the status {s} and the country {c}?",
        "It is {s} and goes to {c}.",
    ),
    ("The status is {s} and the country is {c}.", "Is it {s} and is the country {c}?"),
)  # fmt: skip


def _lines(rng: random.Random) -> list[dict[str, Any]]:
    items = rng.sample(ITEMS, rng.choice((1, 2, 2, 3, 3, 4, 5)))
    return [{"item": item, "quantity": rng.randint(1, 9)} for item in items]


def _state(rng: random.Random, fields: dict[str, Any]) -> object:
    if rng.random() < 0.6:
        document = {key: fields[key] for key in shuffled(rng, fields)}
        return {"invoice": document} if rng.random() < 0.4 else document
    parts = [f"{key}: {value}" for key, value in fields.items() if key != "lines"]
    parts += [f"{line['quantity']} x {line['item']}" for line in fields["lines"]]
    if rng.random() < 0.5:
        rng.shuffle(parts)
    return rng.choice(("\n", "; ")).join(parts)


def _far_from(rng: random.Random, total: int) -> int:
    """A round threshold at least a quarter of ``total`` away from it."""
    known = (50, 100, 200, 300, 500, 800, 1000, 1500)
    return rng.choice([x for x in known if abs(x - total) > total / 4 or abs(x - total) > 400])


# Long: a list of questions, each with its wording and its right answer.
def _questions(rng: random.Random, split: Split, fields: dict[str, Any]) -> list[Asked]:
    country, status, total = fields["country"], fields["status"], fields["total"]
    items = [line["item"] for line in fields["lines"]]
    absent = [item for item in ITEMS if item not in items]
    described = {key: rng.choice(words) if rng.random() < 0.85 else None for key, words in STATUS.items()}
    threshold = _far_from(rng, total)
    by_country = rng.random() < 0.5
    key, values = ("country", COUNTRIES) if by_country else ("status", tuple(STATUS))
    ruled = [fields[key], *rng.sample([v for v in values if v != fields[key]], 2)]
    teams = rng.sample(TEAMS, 3)
    rules: dict[str, str | None] = {
        f"team_{team}": rng.choice(("{k} is {v}", "when the {k} is {v}")).format(k=key, v=value)
        for team, value in zip(teams, ruled, strict=True)
    }
    some = rng.choice(items) if rng.random() < 0.5 else rng.choice(absent)
    asked_status = status if rng.random() < 0.5 else rng.choice(tuple(STATUS))
    asked_country = country if rng.random() < 0.5 else rng.choice(COUNTRIES)
    rule_status, rule_country = (status, country) if rng.random() < 0.5 else rng.choice(PAIRS)
    which = [rng.choice(items), *rng.sample(absent, rng.randint(1, 4))]
    methods: dict[str, str | None] = dict.fromkeys(METHODS)
    carriers: dict[str, str | None] = dict.fromkeys(CARRIERS)
    where: dict[str, str | None] = dict.fromkeys({country, *rng.sample(COUNTRIES, rng.randint(2, 6))})
    where = dict(sorted(where.items()))
    asked = [
        choice(rng, question_id(rng, "status", "state"), phrase(rng, split, ASK_STATUS), described, status),
        noul(
            rng, question_id(rng, "is_" + asked_status), phrase(rng, split, ASK_IS, x=asked_status),
            asked_status == status,
        ),
        choice(rng, question_id(rng, "country"), phrase(rng, split, ASK_COUNTRY), where, country),
        noul(
            rng, question_id(rng, "goes_to"), phrase(rng, split, ASK_ABROAD, x=asked_country),
            asked_country == country,
        ),
        choice(rng, question_id(rng, "payment"), phrase(rng, split, ASK_METHOD), methods, fields["payment"]),
        choice(rng, question_id(rng, "shipping"), phrase(rng, split, ASK_CARRIER), carriers, fields["shipping"]),
        noul(rng, question_id(rng, "has_item"), phrase(rng, split, ASK_ITEM, x=some), some in items),
        choice(rng, question_id(rng, "item"), phrase(rng, split, ASK_WHICH), dict.fromkeys(which), which[0]),
        noul(rng, question_id(rng, "above", "large"), phrase(rng, split, ASK_TOTAL, x=threshold), total > threshold),
        score(
            question_id(rng, "amount", "band"), phrase(rng, split, ASK_BAND), rng.choice(BAND_NAMES),
            sum(total > band for band in BANDS),
        ),
        score(
            question_id(rng, "lines"), phrase(rng, split, ASK_LINES), rng.choice(COUNT_NAMES), min(len(items), 4) - 1
        ),
        choice(rng, question_id(rng, "team"), phrase(rng, split, ASK_TEAM), rules, f"team_{teams[0]}", opaque=0.1),
        noul(
            rng, question_id(rng, "rule", "approve"), phrase(rng, split, ASK_RULE, s=rule_status, c=rule_country),
            (rule_status, rule_country) == (status, country),
        ),
    ]  # fmt: skip
    most = sorted(fields["lines"], key=lambda line: -int(line["quantity"]))
    # The hard one, kept rare: compare quantities, the largest at least two ahead.
    if rng.random() < 0.3 and len(most) > 1 and most[0]["quantity"] >= most[1]["quantity"] + 2:
        asked.append(
            choice(
                rng, question_id(rng, "most"), phrase(rng, split, ASK_QUANTITY), dict.fromkeys(items), most[0]["item"]
            )
        )
    return asked


def generate(rng: random.Random, *, split: Split, questions: int | None = None) -> Example:
    """One invoice or order with up to ``questions`` questions (default one to six)."""
    country, status = rng.choice(EVALUATION_PAIRS if split == "evaluation" else TRAIN_PAIRS)
    total = rng.choice((rng.randint(15, 90), rng.randint(120, 360), rng.randint(450, 900), rng.randint(1200, 3000)))
    fields: dict[str, Any] = {
        "number": f"{rng.choice('ABDR')}-{rng.randint(100, 999)}",
        "customer": rng.choice(NAMES),
        "country": country,
        "status": status,
        "payment": rng.choice(METHODS),
        "shipping": rng.choice(CARRIERS),
        "total": total,
        "lines": _lines(rng),
    }
    if rng.random() < 0.4:
        fields["note"] = rng.choice(
            ("call before delivery", "second order", "leave at the door", "new customer", "none")
        )
    return assemble(rng, _state(rng, fields), _questions(rng, split, fields), "invoices", questions=questions)

"""Message routing: which of 2 to 77 intents (verb x object) does a customer's message express?

The message says an intent in other words than the option's description does; both vocabularies are shown in training,
the sentence frames of evaluation are not, nor are its intents. Decoy sentences name a second, unwanted intent.
"""

import random
from itertools import product

from clefquant.calibration.example import Example, Split
from clefquant.calibration.generators.wording import (
    Asked,
    Wording,
    assemble,
    choice,
    is_held_out,
    noul,
    phrase,
    question_id,
    score,
    shuffled,
    split_pairs,
)

OBJECTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "order": (("my order", "my purchase", "the things i bought"), ("an order", "a purchase", "goods bought")),
    "subscription": (("my subscription", "my monthly plan", "my membership"), ("a subscription", "a membership")),
    "card": (("my card", "my credit card", "my debit card"), ("a bank card", "a payment card")),
    "appointment": (("my appointment", "my visit", "my consultation"), ("an appointment", "a booked visit")),
    "flight": (("my flight", "my plane ticket", "my airline booking"), ("a flight", "an airline ticket")),
    "hotel": (("my hotel room", "our stay", "my room"), ("a hotel room", "an overnight stay")),
    "invoice": (("my invoice", "the bill", "my last bill"), ("an invoice", "a bill", "a billing statement")),
    "account": (("my account", "my login", "my profile"), ("a user account", "a login")),
    "parcel": (("my parcel", "my package", "the box"), ("a parcel", "a package", "a shipment")),
    "claim": (("my claim", "my insurance case", "the damage case"), ("an insurance claim", "a damage case")),
    "phone": (("my phone", "my mobile", "my handset"), ("a mobile phone", "a handset")),
    "course": (("my course", "my class", "my lessons"), ("a course", "a class", "lessons")),
}
"""Object id to (names in messages, names in descriptions)."""

VERBS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "cancel": (("cancel {o}", "call off {o}", "get rid of {o}", "end {o}"), ("Cancel {o}", "Call off or end {o}")),
    "change": (("change {o}", "modify {o}", "edit {o}", "update {o}"), ("Change {o}", "Modify or edit {o}")),
    "track": (
        ("find out where {o} is", "check the status of {o}", "track {o}", "get news on {o}"),
        ("Status of {o}", "Track the progress of {o}"),
    ),
    "open": (
        ("set up {o}", "create {o}", "begin with {o}", "get started with {o}"),
        ("Set up {o}", "Create or start {o}"),
    ),
    "refund": (
        ("get my money back for {o}", "be reimbursed for {o}", "get a refund for {o}", "get back what i paid for {o}"),
        ("Refund for {o}", "Give money back for {o}"),
    ),
    "report": (
        ("report a problem with {o}", "complain about {o}", "tell you that {o} is broken", "report a fault of {o}"),
        ("A fault of {o}", "Problem or complaint: {o}"),
    ),
    "explain": (
        ("understand how {o} works", "learn more about {o}", "ask about the rules for {o}", "get information on {o}"),
        ("How {o} works", "Information and rules: {o}"),
    ),
    "verify": (
        ("confirm {o}", "verify {o}", "get proof of {o}", "make sure {o} is valid"),
        ("Verify {o}", "Confirmation or proof of {o}"),
    ),
    "expedite": (
        ("speed up {o}", "get {o} sooner", "have priority for {o}", "make {o} faster"),
        ("Speed up {o}", "Priority for {o}, faster"),
    ),
    "share": (
        ("share {o} with my wife", "give a friend access to {o}", "add a person to {o}", "let my brother use {o}"),
        ("Share {o}", "Another person uses {o}"),
    ),
    "export": (
        ("download {o}", "get a copy of {o}", "print {o}", "save {o} as a pdf"),
        ("Copy of {o}", "Download or print {o}"),
    ),
    "remind": (
        ("get a reminder about {o}", "be notified about {o}", "receive an alert for {o}", "be reminded of {o}"),
        ("Reminder about {o}", "Alert or notification: {o}"),
    ),
}
"""Verb id to (phrases in messages, phrases in descriptions)."""

INTENTS = tuple(product(VERBS, OBJECTS))
TRAIN_INTENTS, EVALUATION_INTENTS = split_pairs("intent", INTENTS)

WANT: Wording = (
    (
        "i want to {x}", "i would like to {x}", "i need to {x}", "how do i {x}", "how can i {x}", "help me to {x}",
        "i am trying to {x}", "please let me {x}", "is it possible to {x}", "i wish to {x}", "can i {x}",
        "i have to {x}",
    ),
    (
        "please help, i want to {x}", "i need help to {x}", "i would need to {x}", "how would i {x}",
        "would it be possible to {x}", "please help me, how can i {x}",
    ),
)  # fmt: skip
DECOY: Wording = (
    (
        "yesterday i was able to {x}", "i do not want to {x}", "my brother wanted to {x}", "last week i had to {x}",
        "my neighbour was trying to {x}", "i was already able to {x}",
    ),
    ("last week i was able to {x}", "my neighbour had to {x}", "i do not need to {x}"),
)  # fmt: skip
TONES: dict[str, Wording] = {
    "angry": (
        (
            "this is unacceptable", "i am furious", "the worst service ever", "i am sick of this", "what a joke",
            "your service is a joke", "this company is the worst",
        ),
        ("i am furious, what a service", "this is the worst company ever", "i am sick of your service"),
    ),
    "friendly": (
        (
            "thanks a lot", "you are great", "many thanks", "have a lovely day", "i appreciate your help",
            "thanks for your great service", "have a great day",
        ),
        ("many thanks for your great help", "many thanks, have a lovely day", "i appreciate this a lot, you are great"),
    ),
    "neutral": ((), ()),
}  # fmt: skip
_LEADS = ("i need this", "please do it", "it must be done", "can you do it", "please take care of it", "i want it done")
_TIMES: tuple[tuple[str, ...], ...] = (
    ("whenever you have time", "without any rush", "when you find the time", "in your own time"),
    ("in the next few weeks", "some time next month", "within the next months", "a few weeks from now"),
    ("by the end of the week", "in the next few days", "within two or three days", "in a few days"),
    ("today", "right now", "at once", "before tonight"),
)
"""Per level of urgency, lowest first. Every lead goes with every time; some pairs are kept for evaluation."""


def _urgency(times: tuple[str, ...]) -> Wording:
    pairs = [(lead, time) for lead in _LEADS for time in times]
    held = [pair for pair in pairs if is_held_out("urgency", *pair)] or [("please do it", times[0])]
    return tuple(" ".join(p) for p in pairs if p not in held), tuple(" ".join(p) for p in held)


URGENCY: tuple[Wording, ...] = tuple(_urgency(times) for times in _TIMES)
FILLER = (
    "i live in a small town near the coast", "my number has not changed", "i have been a customer for {n} years",
    "i tried the website first", "the weather is awful here", "my reference is {n}{n}", "i called {n} times",
    "i am writing from work", "the chat bot did not answer", "i read the faq page", "i also like the new logo",
    "we talked on monday", "it was {n} degrees in the office", "my dog is called rex",
    "there are {n} people in our house",
)  # fmt: skip
GREETINGS = ("hi", "hello", "good morning", "hey there", "dear team", "", "", "")

ASK_ROUTE: Wording = (
    (
        "Which intent does the customer message express?", "Route the message to the right queue.",
        "What does the customer want?", "Choose the option that fits the request best.", "Intent of the message",
    ),
    (
        "Which option does the customer want?", "Choose the right queue for the message.",
        "What is the intent of the customer?",
    ),
)  # fmt: skip
ASK_URGENT: Wording = (
    ("Is the request urgent?", "Does the customer need it today?", "The request is urgent."),
    ("Is it urgent for the customer?", "The customer does need it today."),
)
ASK_WHEN: Wording = (
    ("How soon must it be done?", "Urgency of the request", "How urgent is the message?"),
    ("How urgent is the request?", "How soon does the customer need it?"),
)
WHEN_LEVELS = (
    ("no rush or not said", "within weeks", "within days", "today"),
    ("No hurry at all, or nothing about time", "Weeks from now, next month", "This week, a few days", "At once, today"),
)
ASK_TONE: Wording = (
    ("Tone of the message", "How does the customer sound?", "Choose the tone."),
    ("How does the message sound?", "Choose the tone of the customer."),
)
TONE_OPTIONS = {"angry": "Angry or insulting", "friendly": "Kind, says thanks", "neutral": "Neither angry nor friendly"}
ASK_ABOUT: Wording = (
    ("Does the customer want something about {o}?", "The request is about {o}.", "Is the request about {o}?"),
    ("Is it about {o}?", "The customer wants something about {o}."),
)
ASK_VERB: Wording = (
    ('Does the request fit "{d}"?', 'The customer wants this: "{d}"'),
    ('Does the customer want this: "{d}"?', 'The request fits "{d}".'),
)

Intent = tuple[str, str]


def describe(rng: random.Random, intent: Intent) -> str:
    """An option's description of ``intent``, in the words of descriptions."""
    verb, thing = intent
    return rng.choice(VERBS[verb][1]).format(o=rng.choice(OBJECTS[thing][1]))


def utter(rng: random.Random, intent: Intent) -> str:
    """The verb phrase of ``intent`` in the words of messages."""
    verb, thing = intent
    return rng.choice(VERBS[verb][0]).format(o=rng.choice(OBJECTS[thing][0]))


def _options(
    rng: random.Random, gold: Intent, decoy: Intent | None, known: tuple[Intent, ...], count: int
) -> list[Intent]:
    """``count`` intents with ``gold`` among them; about half share its verb or its object, the decoy comes first."""
    hard = shuffled(rng, (i for i in known if i != gold and (i[0] == gold[0] or i[1] == gold[1])))
    picked = [gold] + ([decoy] if decoy else [])
    picked += [i for i in hard if i not in picked][: rng.randint(0, max(0, count - len(picked)))]
    rest = [i for i in known if i not in picked]
    picked += rng.sample(rest, max(0, min(count - len(picked), len(rest))))
    return picked[:count]


def _route(
    rng: random.Random, split: Split, gold: Intent, decoy: Intent | None, known: tuple[Intent, ...], count: int
) -> Asked:
    options: dict[str, str | None] = {}
    style = rng.choice(("{v}_{o}", "{v}_{o}", "{o}.{v}", "{v} {o}"))
    bare = rng.random() < 0.1
    gold_id = style.format(v=gold[0], o=gold[1])
    for verb, thing in _options(rng, gold, decoy, known, count):
        options[style.format(v=verb, o=thing)] = None if bare else describe(rng, (verb, thing))
    ask = phrase(rng, split, ASK_ROUTE)
    return choice(rng, question_id(rng, "intent", "route", "queue", "topic"), ask, options, gold_id, opaque=0.45)


def _message(
    rng: random.Random, split: Split, gold: Intent, decoy: Intent | None, tone: str, urgency: int | None
) -> str:
    parts = [phrase(rng, split, WANT, x=utter(rng, gold))]
    if decoy:
        parts.append(phrase(rng, split, DECOY, x=utter(rng, decoy)))
    if tone != "neutral":
        parts.append(phrase(rng, split, TONES[tone]))
    if urgency is not None:
        parts.append(phrase(rng, split, URGENCY[urgency]))
    parts += [line.format(n=rng.randint(2, 9)) for line in rng.sample(FILLER, rng.choice((0, 0, 1, 1, 2, 4)))]
    rng.shuffle(parts)
    text = ". ".join(part for part in (rng.choice(GREETINGS), *parts) if part)
    if rng.random() < 0.4:
        text = ". ".join(part[:1].upper() + part[1:] for part in text.split(". "))
    return text


def _state(rng: random.Random, message: str) -> object:
    shape = rng.random()
    if shape < 0.45:
        return message
    if shape < 0.65:
        return {"message": message}
    if shape < 0.88:
        sender = {
            "name": rng.choice(("Anna", "Ben", "Carla", "Farid", "Ines", "Jonas")),
            "since": rng.randint(2001, 2024),
        }
        return {"channel": rng.choice(("email", "chat", "phone", "app")), "customer": sender, "message": message}
    greeting = rng.choice(("Hello! How can I help?", "Good day, tell me more."))
    return {"turns": [{"from": "agent", "text": greeting}, {"from": "customer", "text": message}]}


def generate(
    rng: random.Random, *, split: Split, options: int | None = None, questions: int | None = None, decoys: float = 0.25
) -> Example:
    """One routing example.

    ``options``: how many intents the choice offers (2 to 77; default: mostly few, one in twenty over 20).
    ``questions``: how many questions at most (default one to five). ``decoys``: share of messages that name a second,
    unwanted intent.
    """
    known = INTENTS if split == "evaluation" else TRAIN_INTENTS
    gold = rng.choice(EVALUATION_INTENTS if split == "evaluation" else TRAIN_INTENTS)
    decoy = rng.choice([i for i in known if i[0] != gold[0] and i[1] != gold[1]]) if rng.random() < decoys else None
    tone = rng.choice(tuple(TONES))
    urgency = rng.choice((None, None, 0, 1, 2, 3, 3))
    count = options or (rng.choice((2, 3, 4, 4, 5, 6, 8, 10, 12, 16)) if rng.random() < 0.95 else rng.randint(20, 77))
    message = _message(rng, split, gold, decoy, tone, urgency)
    about = (
        gold[1] if rng.random() < 0.5 else (decoy[1] if decoy and rng.random() < 0.5 else rng.choice(tuple(OBJECTS)))
    )
    other = gold if rng.random() < 0.5 else (decoy if decoy and rng.random() < 0.5 else rng.choice(known))
    asked = [
        noul(rng, question_id(rng, "urgent"), phrase(rng, split, ASK_URGENT), urgency == 3),
        score(question_id(rng, "urgency", "when"), phrase(rng, split, ASK_WHEN), rng.choice(WHEN_LEVELS), urgency or 0),
        choice(rng, question_id(rng, "tone"), phrase(rng, split, ASK_TONE), TONE_OPTIONS, tone, opaque=0.2),
        noul(
            rng, question_id(rng, "about", "subject"),
            phrase(rng, split, ASK_ABOUT, o=rng.choice(OBJECTS[about][1])), about == gold[1],
        ),
        noul(rng, question_id(rng, "fits"), phrase(rng, split, ASK_VERB, d=describe(rng, other)), other == gold),
    ]  # fmt: skip
    wanted = questions if questions is not None else rng.choice((1, 2, 3, 3, 4, 5))
    route = _route(rng, split, gold, decoy, known, count)
    asked = [route, *shuffled(rng, (item for item in asked if item.question_id != route.question_id))[: wanted - 1]]
    return assemble(rng, _state(rng, message), asked, "routing", questions=wanted)

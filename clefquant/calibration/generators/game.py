"""A game agent's view of a room: what it carries, what is near, which rule picks the next action.

Rules are read from the instruction, in order. Numbers keep at least ten points from every threshold. Evaluation uses
held-out pairs of room and enemy, and held-out frames.
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

ROOMS = ("cave", "forest", "tower", "harbour", "market", "temple", "bridge", "mine")
ENEMIES = ("wolf", "goblin", "bandit", "spider", "ghost", "troll")
ITEMS = ("rope", "torch", "potion", "map", "shield", "apple", "key", "bow", "coin", "book")
EXITS = ("north", "south", "east", "west")
WEATHER = ("rain", "snow", "fog", "sun", "wind")
ACTIONS: dict[str, tuple[str, ...]] = {
    "attack": ("Fight the enemy", "Strike at what is near"),
    "flee": ("Run away", "Leave at once"),
    "heal": ("Restore health", "Drink or rest to get well"),
    "explore": ("Look around", "Search the place"),
    "wait": ("Do nothing for now", "Stay where you are"),
}
TRAIN_PAIRS, EVALUATION_PAIRS = split_pairs("game", product(ROOMS, ENEMIES))

RULE: Wording = (
    (
        "If health is below {h}, {a}. Otherwise, if an enemy is here, {b}. Otherwise, {c}.",
        "Choose {a} when health is below {h}, else {b} when there is an enemy, else {c}.",
        "First rule: health below {h} means {a}. Second rule: an enemy here means {b}. In all other cases {c}.",
    ),
    (
        "When health is below {h}, choose {a}. Otherwise, when an enemy is here, choose {b}. Otherwise, choose {c}.",
        "Health below {h} means {a}. If there is an enemy, {b}. In all other cases, {c}.",
    ),
)
KEY_RULE: Wording = (
    (
        "With the {i}, {a}. Without the {i}, {b}.", "If the {i} is carried, choose {a}, otherwise {b}.",
        "Choose {a} when the agent has the {i}, else {b}.",
    ),
    ("If the agent has the {i}, {a}, otherwise {b}.", "Choose {a} with the {i}, {b} without the {i}."),
)  # fmt: skip
ASK_HEALTH: Wording = (
    ("Is health below {x}?", "Health is lower than {x}.", "Does the agent have less than {x} health?"),
    ("Health is below {x}.", "Is health less than {x}?"),
)
ASK_ITEM: Wording = (
    ("Does the agent carry the {x}?", "The {x} is in the bag.", "Is the {x} among the carried things?"),
    ("Is the {x} in the bag?", "The agent does carry the {x}."),
)
ASK_ENEMIES: Wording = (
    ("How many enemies are here?", "Number of enemies", "Count the enemies."),
    ("How many are the enemies?", "The number of enemies here"),
)
ASK_ENEMY: Wording = (
    ("Which enemy is here?", "Kind of enemy", "Choose the enemy that the agent sees."),
    ("Which kind of enemy is here?", "Choose the enemy that is here."),
)
ASK_SEES: Wording = (
    ("Does the agent see a {x}?", "A {x} is here.", "Is there a {x}?"),
    ("Is a {x} here?", "The agent does see a {x}."),
)
ASK_ROOM: Wording = (
    ("Where is the agent?", "Place of the agent", "In which place is the agent?"),
    ("Which place is the agent in?", "Where is the place of the agent?"),
)
ASK_EXIT: Wording = (
    ("Which exit is {x}?", "Choose the exit that is {x}.", "The {x} exit"),
    ("Choose the {x} exit.", "Which is the exit that is {x}?"),
)
ASK_HAND: Wording = (
    ("What is in the hand?", "Thing the agent holds", "What does the agent hold?"),
    ("What thing is in the hand?", "Thing that the agent holds"),
)
ASK_LEVEL: Wording = (
    ("How healthy is the agent?", "Health of the agent", "State of health"),
    ("How healthy is the state of the agent?", "The health of the agent"),
)
LEVELS = (
    ("nearly dead, below 20", "weak, 20 to 50", "fair, 50 to 80", "strong, above 80"),
    ("less than 20", "from 20 to 50", "from 50 to 80", "more than 80"),
)
ENEMY_LEVELS = (("none", "one", "two", "three or more"), ("No enemy", "1 enemy", "2 enemies", "3 or more enemies"))
ACTION_IDS = ("action", "move", "next")


def _rule_question(rng: random.Random, split: Split, view: dict[str, Any]) -> Asked:
    names = rng.sample(tuple(ACTIONS), rng.choice((3, 4, 5)))
    options = {name: rng.choice(ACTIONS[name]) if rng.random() < 0.7 else None for name in names}
    first, second, third = names[:3]
    if rng.random() < 0.4:
        item = rng.choice(view["bag"]) if view["bag"] and rng.random() < 0.5 else rng.choice(ITEMS)
        text, gold = phrase(rng, split, KEY_RULE, i=item, a=first, b=second), first if item in view["bag"] else second
    else:
        limit = rng.choice([x for x in (20, 30, 40, 50, 60) if abs(x - view["health"]) >= 10])
        text = phrase(rng, split, RULE, h=limit, a=first, b=second, c=third)
        gold = first if view["health"] < limit else (second if view["enemies"] else third)
    # Ids must be readable: the rule names them.
    return choice(rng, question_id(rng, *ACTION_IDS), text, options, gold, opaque=0.0)


def _questions(rng: random.Random, split: Split, view: dict[str, Any]) -> list[Asked]:
    bag, enemies, health = view["bag"], view["enemies"], view["health"]
    item = rng.choice(bag) if bag and rng.random() < 0.5 else rng.choice(ITEMS)
    enemy = rng.choice(enemies) if enemies and rng.random() < 0.5 else rng.choice(ENEMIES)
    limit = rng.choice([x for x in (20, 30, 40, 50, 60, 80) if abs(x - health) >= 10])
    rooms = dict.fromkeys(sorted({view["place"], *rng.sample(ROOMS, rng.randint(1, 5))}))
    things = dict.fromkeys(sorted({view["hand"], *rng.sample(ITEMS, rng.randint(2, 5))}))
    state = rng.choice(("open", "locked"))
    exits: dict[str, str | None] = dict.fromkeys(view["exits"])
    asked = [
        _rule_question(rng, split, view),
        noul(rng, question_id(rng, "weak", "danger"), phrase(rng, split, ASK_HEALTH, x=limit), health < limit),
        noul(rng, question_id(rng, "has_" + item), phrase(rng, split, ASK_ITEM, x=item), item in bag),
        score(
            question_id(rng, "threat", "enemies"), phrase(rng, split, ASK_ENEMIES), rng.choice(ENEMY_LEVELS),
            min(len(enemies), 3),
        ),
        noul(rng, question_id(rng, "sees_" + enemy), phrase(rng, split, ASK_SEES, x=enemy), enemy in enemies),
        choice(rng, question_id(rng, "place"), phrase(rng, split, ASK_ROOM), rooms, view["place"]),
        choice(rng, question_id(rng, "hand"), phrase(rng, split, ASK_HAND), things, view["hand"]),
        score(
            question_id(rng, "condition"), phrase(rng, split, ASK_LEVEL), rng.choice(LEVELS),
            sum(health > x for x in (20, 50, 80)),
        ),
    ]  # fmt: skip
    matching = [name for name, value in view["exits"].items() if value == state]
    if len(matching) == 1:
        asked.append(choice(rng, question_id(rng, "exit"), phrase(rng, split, ASK_EXIT, x=state), exits, matching[0]))
    if len(set(enemies)) == 1:
        kinds = dict.fromkeys(sorted({enemies[0], *rng.sample(ENEMIES, 3)}))
        asked.append(choice(rng, question_id(rng, "enemy"), phrase(rng, split, ASK_ENEMY), kinds, enemies[0]))
    return asked


def _state(rng: random.Random, view: dict[str, Any]) -> object:
    if rng.random() < 0.65:
        state = {key: view[key] for key in shuffled(rng, view)}
        return {"view": state, "turn": rng.randint(1, 99)} if rng.random() < 0.4 else state
    parts = [
        f"The agent is in the {view['place']}.",
        f"Health is {view['health']}.",
        f"The bag holds: {', '.join(view['bag']) or 'nothing'}.",
        f"In the hand: {view['hand']}.",
        f"Enemies: {', '.join(view['enemies']) or 'none'}.",
        "Exits: " + ", ".join(f"{name} is {value}" for name, value in view["exits"].items()) + ".",
        f"There is {view['weather']}.",
    ]
    return " ".join(shuffled(rng, parts))


def generate(rng: random.Random, *, split: Split, questions: int | None = None) -> Example:
    """One view of a room with up to ``questions`` questions (default one to six)."""
    place, enemy = rng.choice(EVALUATION_PAIRS if split == "evaluation" else TRAIN_PAIRS)
    count = rng.choice((0, 1, 1, 2, 3, 4))
    bag = rng.sample(ITEMS, rng.randint(0, 6))
    state = rng.choice(("open", "locked"))
    doors = rng.sample(EXITS, rng.choice((2, 3, 3, 4)))
    exits = dict.fromkeys(doors, "locked" if state == "open" else "open")
    exits[rng.choice(doors)] = state
    view: dict[str, Any] = {
        "place": place,
        "health": rng.choice((rng.randint(3, 15), rng.randint(25, 45), rng.randint(55, 75), rng.randint(85, 99))),
        "bag": bag,
        "hand": rng.choice(ITEMS),
        "enemies": [enemy] * (count > 0) + [rng.choice(ENEMIES) for _ in range(count - 1)],
        "exits": exits,
        "weather": rng.choice(WEATHER),
    }
    return assemble(rng, _state(rng, view), _questions(rng, split, view), "game", questions=questions)

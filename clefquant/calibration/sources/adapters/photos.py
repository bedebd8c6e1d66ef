"""Flickr30k: photos with five captions each, asked with all three question types."""

import random
import re
from collections.abc import Mapping
from typing import Any

from clefquant.calibration.check import BadRecord
from clefquant.calibration.sources.adapters.task import Adapter, Mapped, choice

#: Subject to the words that say it is in a caption, most telling first; a photo is of the first that two captions name.
SUBJECTS = {
    "dog": ("A dog", r"dogs?|puppy|puppies"),
    "child": ("A child", r"child(ren)?|kids?|boys?|girls?|toddlers?|baby|babies"),
    "woman": ("A woman", r"wom[ae]n|lady|ladies|female"),
    "man": ("A man", r"m[ae]n|guys?|male|gentlem[ae]n"),
}
OTHER = ("other", "None of these")
_PEOPLE = re.compile(r"\b(people|group|crowd|team|several|many|players|men|women|children|kids|boys|girls|friends)\b")
_OUTDOORS = re.compile(
    r"\b(street|beach|grass|field|snow|park|water|outside|outdoors?|road|mountain|tree|yard|sand|ocean)\b"
)
CROWDS = ("nobody or one person is described", "more than one person may be there", "clearly a group")


def flickr30k(row: Mapping[str, Any], names: Mapping[str, list[str]], rng: random.Random) -> Mapped:
    """The captions give the gold answers and are not shown; a word in two of the five counts."""
    captions = row["caption"] if isinstance(row["caption"], list) else [row["caption"]]
    if row["image"] is None:
        raise BadRecord("the row has no image")
    texts = [str(caption).lower() for caption in captions]

    def said(pattern: re.Pattern[str]) -> int:
        return sum(bool(pattern.search(text)) for text in texts)

    needed = min(2, len(texts))
    subjects = {key: re.compile(rf"\b({words})\b") for key, (_, words) in SUBJECTS.items()}
    subject = next((key for key, pattern in subjects.items() if said(pattern) >= needed), OTHER[0])
    crowd = said(_PEOPLE)
    questions = {
        "outdoors": {"type": "noul", "instructions": "The photo was taken outdoors."},
        "subject": choice(
            "Who or what is the main subject?",
            {**{key: text for key, (text, _) in SUBJECTS.items()}, OTHER[0]: OTHER[1]},
        ),
        "people": {"type": "score", "instructions": "How many people are in the photo?", "criteria": list(CROWDS)},
    }
    answers = {
        "outdoors": said(_OUTDOORS) >= needed,
        "subject": subject,
        "people": str((crowd > 0) + (crowd >= needed + 1)),
    }
    record = {"state": "Look at the photo.", "questions": questions, "images": [row["image"]]}
    return Mapped(record, answers, record_id=str(row.get("img_id") or ""))


FLICKR30K = Adapter(("image", "caption"), "lmms-lab/flickr30k (test), research use only", flickr30k)

"""Each public task from a small Parquet file with the schema its files have on the Hub."""

import io
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from clefquant.calibration.check import BadRecord, check_answers, check_record
from clefquant.calibration.draft import Draft
from clefquant.calibration.source_config import HubSource
from clefquant.calibration.sources.adapters import ADAPTERS
from clefquant.calibration.sources.rows import open_rows
from clefquant.calibration.sources.table_records import table_drafts
from clefquant.errors import InputError

BANKING = [f"intent_{number}" for number in range(77)]
CLINC = [f"wish_{number}" for number in range(150)] + ["oos"]
NLI = ["entailment", "neutral", "contradiction"]


def photo() -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (40, 30), "green").save(data, "JPEG")
    return data.getvalue()


ROWS: dict[str, tuple[list[dict[str, Any]], dict[str, list[str]], pa.Schema | None]] = {
    "banking77": (
        [{"text": "Where is my card?", "label": 11}, {"text": "Why was I charged?", "label": 76}],
        {"label": BANKING},
        None,
    ),
    "clinc150": ([{"text": "set an alarm", "intent": 150}], {"intent": CLINC}, None),
    "arc": (
        [
            {
                "id": "Mercury_1",
                "question": "Which is hot?",
                "choices": {"text": ["ice", "fire"], "label": ["A", "B"]},
                "answerKey": "B",
            },
            {
                "id": "NYS_2",
                "question": "Which?",
                "choices": {"text": ["x", "y"], "label": ["1", "2"]},
                "answerKey": "1",
            },
        ],
        {},
        None,
    ),
    "mmlu": (
        [{"question": "2+2?", "subject": "abstract_algebra", "choices": ["3", "4", "5", "6"], "answer": 1}],
        {"answer": ["A", "B", "C", "D"]},
        None,
    ),
    "hellaswag": (
        [
            {
                "ind": 4,
                "activity_label": "Cooking",
                "ctx_a": "A man",
                "ctx_b": "he",
                "ctx": "A man stirs. he",
                "endings": ["a", "b", "c", "d"],
                "source_id": "x",
                "split": "train",
                "split_type": "indomain",
                "label": "3",
            },
            {
                "ind": 5,
                "activity_label": "Cooking",
                "ctx_a": "A man",
                "ctx_b": "he",
                "ctx": "A man cuts. he",
                "endings": ["a", "b", "c", "d"],
                "source_id": "y",
                "split": "test",
                "split_type": "indomain",
                "label": "",
            },
        ],
        {},
        None,
    ),
    "anli": (
        [{"uid": "u1", "premise": "It rains.", "hypothesis": "It is dry.", "label": 2, "reason": "r"}],
        {"label": NLI},
        None,
    ),
    "boolq": ([{"question": "is it wet", "answer": True, "passage": "It rains."}], {}, None),
    "flickr30k": (
        [
            {
                "image": {"bytes": photo(), "path": "1.jpg"},
                "caption": ["A dog on grass .", "A brown dog outside .", "Dog"],
                "sentids": ["0"],
                "img_id": "7",
                "filename": "1.jpg",
            }
        ],
        {},
        None,
    ),
    "plain_text": ([{"text": "Once upon a time", "meta": {"pile_set_name": "Books"}}], {}, None),
}
ANSWERS: dict[str, list[dict[str, str]]] = {
    "banking77": [{"intent": "intent_11"}, {"intent": "intent_76"}],
    "clinc150": [{"intent": "oos"}],
    "arc": [{"answer": "B"}, {"answer": "1"}],
    "mmlu": [{"answer": "B"}],
    "hellaswag": [{"ending": "D"}, {}],
    "anli": [{"relation": "contradiction"}],
    "boolq": [{"answer": "true"}],
    "flickr30k": [{"outdoors": "true", "subject": "dog", "people": "0"}],
    "plain_text": [{}],
}


def drafts(folder: Path, adapter: str, **options: Any) -> list[Draft]:
    rows, names, _ = ROWS[adapter]
    features = {column: {"names": labels, "_type": "ClassLabel"} for column, labels in names.items()}
    table = pa.Table.from_pylist(rows).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    pq.write_table(table, folder / "train-00000-of-00001.parquet")
    source = HubSource(kind="hub", name="s", dataset="a/b", adapter=adapter, options=options, order="first")
    return list(table_drafts(source, [open_rows(folder / "train-00000-of-00001.parquet")], folder, 0, None))


@pytest.mark.parametrize("adapter", list(ADAPTERS))
def test_rows_of_the_hub_become_records(tmp_path: Path, adapter: str) -> None:
    found = drafts(tmp_path, adapter)
    assert [draft.fault for draft in found] == [None] * len(ANSWERS[adapter])
    assert not any(check_record(draft.record) for draft in found)
    assert [check_answers(draft.record, draft.answers) for draft in found] == ANSWERS[adapter]


def test_banking77_options(tmp_path: Path) -> None:
    sizes = [len(draft.record["questions"]["intent"]["criteria"]) for draft in drafts(tmp_path, "banking77")]
    assert sizes == [77, 77]
    ten = drafts(tmp_path, "banking77", ways=10)
    assert all(len(draft.record["questions"]["intent"]["criteria"]) == 10 for draft in ten)
    assert all(draft.answers["intent"] in draft.record["questions"]["intent"]["criteria"] for draft in ten)
    rng = random.Random(0)
    row = {"text": "t", "label": 0}
    mapped = [ADAPTERS["banking77"].record(row, {"label": BANKING}, rng, ways=["all", 10]) for _ in range(20)]
    drawn = {len(one.record["questions"]["intent"]["criteria"]) for one in mapped}
    assert drawn == {77, 10}


def test_anli_with_three_questions(tmp_path: Path) -> None:
    draft = drafts(tmp_path, "anli", questions=3)[0]
    assert [question["type"] for question in draft.record["questions"].values()] == ["choice", "noul", "score"]
    assert draft.answers == {"relation": "contradiction", "follows": "false", "certainty": "0"}


@pytest.mark.parametrize(
    ("adapter", "row", "reason"),
    [
        ("banking77", {"text": "t", "label": 77}, "label 77 is not one of 0 to 76"),
        ("banking77", {"text": "  ", "label": 1}, "text is empty"),
        ("banking77", {"text": "t"}, "the row has no label"),
        ("mmlu", {"question": "q", "subject": "s", "choices": ["a"], "answer": 3}, "answer 3 is not one of"),
        ("flickr30k", {"image": None, "caption": ["c"]}, "no image"),
    ],
)
def test_rows_that_cannot_be_mapped(adapter: str, row: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRecord, match=reason):
        ADAPTERS[adapter].record(row, {"label": BANKING}, random.Random(0))


def test_a_row_of_another_shape_is_rejected_not_raised(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"question": "q", "choices": ["a"], "answerKey": "A"}\n[1]\n')
    source = HubSource(kind="hub", name="s", dataset="a/b", adapter="arc", order="first")
    found = list(table_drafts(source, [open_rows(tmp_path / "in.jsonl")], tmp_path, 0, None))
    assert [draft.place for draft in found] == ["in.jsonl line 1", "in.jsonl line 2"]
    assert all(draft.fault for draft in found)


def test_unknown_adapter_or_option(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no adapter 'glue'; use one of banking77"):
        list(table_drafts(HubSource(kind="hub", name="s", dataset="a/b", adapter="glue"), [], tmp_path, 0, None))
    source = HubSource(kind="hub", name="s", dataset="a/b", adapter="anli", options={"shots": 3})
    with pytest.raises(InputError, match="anli takes questions, got shots"):
        list(table_drafts(source, [], tmp_path, 0, None))

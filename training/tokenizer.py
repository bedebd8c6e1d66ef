"""The nano tokenizer: byte-level BPE with Qwen's way of splitting text, trained on the generators and the train texts.

python -m training.tokenizer OUT/tokenizer.json
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from training import shape
from training.batches import release_code, training_examples

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Words with one leading character, single digits, runs of marks (the pattern of Qwen's tokenizer files)."""
RECORDS = 40_000


def corpus(records: int) -> Iterator[str]:
    """Prompts of training records, whole."""
    code = release_code()
    for example in training_examples(10_000_000, records):
        yield code.render(example.record["state"])
        for index, (name, question) in enumerate(example.record["questions"].items()):
            yield f"\nFIELD {index + 1}\nID: {name}\nTYPE: {question['type']}\nINSTRUCTION: "
            yield str(question["instructions"])
            for place, (option, description) in enumerate(code.question_options(question)):
                yield f"OPTION {place + 1}: "
                yield code.render(
                    {"option_id": option, **({} if description is None else {"description": description})}
                )
    for _ in range(300):
        yield f"system\n{code.SYSTEM_PROMPT}\nuser\nSTATE:\n\n\nSCHEMA FIELDS:\n\nALLOWED OPTIONS:\nEND FIELD\n"
        yield "\nassistant\n\n\nJOINT SCHEMA DECISIONS:"


def train(path: Path, records: int = RECORDS) -> None:
    """Train and write ``tokenizer.json``."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.VOCABULARY,
        special_tokens=list(shape.SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(records), trainer)
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))


if __name__ == "__main__":
    train(Path(sys.argv[1]))

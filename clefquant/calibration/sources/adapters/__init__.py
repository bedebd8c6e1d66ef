"""Public tasks as records, each against the schema its Parquet files have on the Hub."""

from clefquant.calibration.sources.adapters.intents import BANKING77, CLINC150
from clefquant.calibration.sources.adapters.photos import FLICKR30K
from clefquant.calibration.sources.adapters.plain_text import PLAIN_TEXT
from clefquant.calibration.sources.adapters.reading import ANLI, ARC, BOOLQ, HELLASWAG, MMLU
from clefquant.calibration.sources.adapters.task import Adapter

ADAPTERS: dict[str, Adapter] = {
    "banking77": BANKING77,
    "clinc150": CLINC150,
    "arc": ARC,
    "mmlu": MMLU,
    "hellaswag": HELLASWAG,
    "anli": ANLI,
    "boolq": BOOLQ,
    "flickr30k": FLICKR30K,
    "plain_text": PLAIN_TEXT,
}

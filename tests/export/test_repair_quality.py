"""Bar: a repaired nano answers like one quantized with shared scales, as served with one scale per matrix product."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from clefquant.export.audit.fused import fused_groups, read_scalar
from clefquant.export.repair import repair
from clefquant.quantize.algorithms import to_nearest
from clefquant.quantize.checkpoint import write_checkpoint
from clefquant.quantize.statistics import collect_statistics
from clefquant.quantize.unit import quantize_unit
from clefquant.recipes.formats import find_format
from clefquant.recipes.layout import uniform_layout
from clefquant.release.headers import read_backbone
from clefquant.release.load import load_release, option_logits
from clefquant.release.units import Unit
from clefquant.verify.simulated import load_simulated

MESSAGES = (
    "the parcel never came and nobody answers the phone", "please refund the second payment on my card",
    "the app crashes when I open the settings page", "free prize! claim your reward now at once",
    "what is the exchange rate for a transfer abroad", "I was charged twice for the same invoice",
    "my card was stolen yesterday on the train", "can I change the delivery address of my order",
    "a wonderful film with a weak ending", "the service has been down since this morning",
)  # fmt: skip
PLACES = ("in Berlin", "for order 4711", "again", "since Monday", "please help soon")
TEAMS = {
    "billing": "Payments, refunds, invoices",
    "shipping": "Parcels and delivery",
    "it": "Bugs and outages",
    "none": None,
}
RECORDS = [
    {
        "state": {"message": f"{message} {place}", "number": 7 * at},
        "questions": {
            "urgent": {"type": "noul", "instructions": "Does it need an answer today?"},
            "team": {"type": "choice", "instructions": "Which team should handle the message?", "criteria": TEAMS},
            "tone": {"type": "score", "instructions": "How angry is it?", "criteria": ["calm", "annoyed", "furious"]},
        },
    }
    for at, (message, place) in enumerate((m, p) for p in PLACES for m in MESSAGES)
]


@pytest.fixture(scope="module")
def answered(nano):
    """The model, and the records as it sees them."""
    loaded = load_release(nano)
    return loaded, [loaded.code.encode_record(loaded.processor.tokenizer, record) for record in RECORDS]


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _write(folder: Path, values: dict[str, bytes]) -> None:
    for name, info in read_backbone(folder).items():
        if name in values:
            with info.file.open("r+b") as handle:
                handle.seek(info.start)
                assert handle.write(values[name]) == info.bytes


def _unshare(nano, shared: Path, out: Path, amax: dict[str, float]) -> Path:
    """Each member of a fused group quantized by itself, the way a tool does that does not know the group."""
    shutil.copytree(shared, out)
    values = {}
    for unit in nano.units:
        for linear in (one for group in unit.groups if len(group) > 1 for one in group):
            raw = torch.frombuffer(bytearray(nano.tensors[f"{linear.name}.weight"].read()), dtype=torch.bfloat16)
            weight = raw.view(linear.out_features, linear.in_features)
            alone = Unit(unit.name, unit.layer, unit.kind, ((linear,),))
            found = quantize_unit(alone, {linear.name: weight}, find_format("nvfp4"), amax)[linear.name]
            values |= {f"{linear.name}.{local}": _bytes(tensor) for local, tensor in found.tensors.items()}
    _write(out, values)
    return out


def _halve_first(folder: Path, out: Path) -> Path:
    """The first member of every fused group under half its divisor, as a calibration with headroom leaves it."""
    shutil.copytree(folder, out)
    tensors, values = read_backbone(out), {}
    for group in fused_groups(tensors):
        name = f"{group[0]}.weight_global_scale"
        values[name] = np.float32(read_scalar(tensors[name]) / 2).tobytes()
        scale = torch.frombuffer(bytearray(tensors[f"{group[0]}.weight_scale"].read()), dtype=torch.float8_e4m3fn)
        values[f"{group[0]}.weight_scale"] = _bytes((scale.float() / 2).clamp(min=2.0**-9).to(torch.float8_e4m3fn))
    _write(out, values)
    return out


def _served(folder: Path, out: Path) -> Path:
    """As vLLM runs it: the largest divisor of a fused group for all of its members."""
    shutil.copytree(folder, out)
    tensors = read_backbone(out)
    values = {}
    for group in fused_groups(tensors):
        names = [f"{name}.weight_global_scale" for name in group]
        largest = np.float32(max(read_scalar(tensors[name]) for name in names)).tobytes()
        values |= dict.fromkeys(names, largest)
    _write(out, values)
    return out


def _kl(reference: dict, folder: Path, encoded: list) -> float:
    with load_simulated(folder) as loaded:
        losses = [
            float((p.exp() * (p - logits.double().log_softmax(-1))).sum())
            for index, questions in option_logits(loaded, encoded)
            for p, logits in zip(reference[index], questions, strict=True)
        ]
    return float(np.mean(losses))


def test_repaired_scales_answer_like_shared_ones(nano, answered, tmp_path):
    loaded, encoded = answered
    reference = {i: [q.double().log_softmax(-1) for q in questions] for i, questions in option_logits(loaded, encoded)}
    statistics = collect_statistics(nano, encoded[:16])
    layout = uniform_layout(nano, "nvfp4")
    shared = write_checkpoint(nano, layout, to_nearest(nano, layout, statistics), tmp_path / "shared")
    amax = {name: value.amax for name, value in statistics.items()}
    unshared = _unshare(nano, shared, tmp_path / "unshared", amax)
    apart = _halve_first(unshared, tmp_path / "apart")
    repaired = {
        name: repair(folder, tmp_path / f"repaired-{name}")
        for name, folder in (("unshared", unshared), ("apart", apart))
    }
    assert all(done.left == [] for done in repaired.values())
    folders = {"shared": shared, "unshared": unshared, "apart": apart}
    folders |= {f"repaired {name}": done.path for name, done in repaired.items()}
    kl = {
        name: _kl(reference, _served(folder, tmp_path / f"served {name}"), encoded) for name, folder in folders.items()
    }
    for name in ("apart", "unshared"):
        assert kl[f"repaired {name}"] <= 1.1 * kl["shared"], kl
        assert kl[f"repaired {name}"] <= 0.7 * kl[name], kl

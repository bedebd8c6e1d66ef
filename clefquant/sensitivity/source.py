"""A unit's weights as the release stores them, where the loaded model is."""

import torch

from clefquant.quantize.dtypes import DTYPES
from clefquant.quantize.model import read_tensor
from clefquant.release.load import LoadedRelease
from clefquant.release.units import Unit


def source_weights(loaded: LoadedRelease, unit: Unit) -> dict[str, torch.Tensor]:
    """Copies of a unit's weights [O, I] in their stored dtype, by full linear name, on the model's device.

    Taken from the model when it holds them in that dtype, else read from disk; no unit may be simulated meanwhile.
    """
    found = {}
    for linear in unit.linears:
        info, weight = loaded.release.tensors[f"{linear.name}.weight"], loaded.module(linear.name).weight
        assert isinstance(weight, torch.Tensor)
        as_stored = DTYPES[info.dtype] == weight.dtype
        found[linear.name] = weight.detach().clone() if as_stored else read_tensor(info).to(weight.device)
    return found

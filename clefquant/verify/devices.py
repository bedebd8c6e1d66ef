"""Words of the command line for a device, a worker's share and an engine's arguments."""

import json
import re
from typing import Any

import torch

from clefquant.errors import InputError, PrerequisiteError
from clefquant.verify.chunks import Shard


def parse_device(text: str | None) -> torch.device | None:
    """``cpu``, ``cuda`` or ``cuda:1``; None leaves the choice to the library."""
    if text is None:
        return None
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise InputError(f"unknown device {text!r}; allowed: cpu, cuda, cuda:N.")
    device = torch.device(text)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise PrerequisiteError(f"--device {text}: this machine has no CUDA GPU that torch can use; use --device cpu.")
    return device


def parse_shard(text: str) -> Shard:
    """``2/8``: worker 2 of 8, counted from 0."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise InputError(f"--shard {text!r} is not WORKER/WORKERS with the worker counted from 0, such as 0/4.")
    return int(match[1]), int(match[2])


def parse_engine(text: str) -> dict[str, Any]:
    """A JSON object of keyword arguments."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"--engine {text!r} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InputError(f'--engine {text!r} is no JSON object, such as {{"tensor_parallel_size": 2}}.')
    return value

"""Number formats by lookup table, in numpy alone.

E4M3 (fn): 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinity; 0x7F and 0xFF are NaN; largest 448
E2M1: 1 sign, 2 exponent, 1 mantissa bit: 0 .5 1 1.5 2 3 4 6; two in a byte, the lower nibble first
BF16: the upper half of a float32
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def _e4m3() -> Floats:
    values = np.zeros(256, np.float32)
    for byte in range(256):
        exponent, mantissa = (byte >> 3) & 15, byte & 7
        size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        values[byte] = np.nan if byte & 127 == 127 else (-size if byte & 128 else size)
    return values


E4M3: Floats = _e4m3()
E4M3_MAX = 448.0
E2M1: Floats = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_POSITIVE = E4M3[:127].astype(np.float64)


def bf16_to_float(words: NDArray[np.uint16]) -> Floats:
    """Values of BF16 words."""
    return (words.astype(np.uint32) << 16).view(np.float32)


def nearest_e4m3(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Bytes of the E4M3 numbers nearest to non-negative ``values``, ties to even; above 448 the byte of 448."""
    middles = (_POSITIVE[1:] + _POSITIVE[:-1]) / 2
    below = np.searchsorted(middles, values, side="left")
    tie = (below < middles.size) & (values == middles[np.minimum(below, middles.size - 1)])
    nearest: NDArray[np.uint8] = (below + (tie & (below % 2 == 1))).astype(np.uint8)
    return nearest


def floats(data: bytes, dtype: str) -> Floats:
    """Flat float32 values of a tensor's bytes. ``dtype`` as in safetensors."""
    if dtype == "BF16":
        return bf16_to_float(np.frombuffer(data, "<u2"))
    if dtype == "F8_E4M3":
        return E4M3[np.frombuffer(data, np.uint8)]
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).astype(np.float32)

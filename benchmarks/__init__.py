"""Benchmarks of jit_passes against other post-training int8 quantizers on CPU.

Run ``python -m benchmarks.latency`` and ``python -m benchmarks.quantize_time`` from the
repository root; ``benchmarks/README.md`` says what is measured and how.
"""

// Plain loops, compiled once for each generation of x86 vector units; the loader picks at run time.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define JIT_PASSES_VECTORIZED __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define JIT_PASSES_VECTORIZED
#endif

// Compiles plain loops once for each level of x86 vector instructions. The loader picks one at run time.
#pragma once

#if defined(__linux__) && !defined(_OPENMP)
#error "compile kernels with -fopenmp: without it at::parallel_for runs on one thread"
#endif

// Levels rather than processors: "arch=haswell" would match only this model of processor.
#if defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__)
#define JIT_PASSES_VECTORIZED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define JIT_PASSES_VECTORIZED __attribute__((target_clones("avx2", "default")))
#else
#define JIT_PASSES_VECTORIZED
#endif

// Runs a TorchScript file from several threads at once, on ramps of changing batch sizes, and compares each
// result with that of a single thread. Prints these, one number a line, and the resident memory to stderr.
// Knows nothing of Python.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include <unistd.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/linspace.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

namespace {

constexpr int64_t kBatches = 4;

double residentMegabytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) / 1e6;
}

at::Tensor ramp(std::vector<int64_t> shape, int64_t batch) {
  shape.insert(shape.begin(), batch);
  return at::linspace(-2, 2, c10::multiply_integers(shape)).reshape(shape);
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: run_threads FILE THREADS CALLS SIZE... (of an input without its batch)\n");
    return 2;
  }
  torch::jit::Module module = torch::jit::load(argv[1]);
  const int64_t threads = std::atoll(argv[2]), calls = std::atoll(argv[3]);
  std::vector<int64_t> shape;
  for (int i = 4; i < argc; ++i) {
    shape.push_back(std::atoll(argv[i]));
  }
  std::vector<at::Tensor> inputs, expected;
  {
    const c10::InferenceMode guard;
    for (int64_t batch = 1; batch <= kBatches; ++batch) {
      inputs.push_back(ramp(shape, batch));
      expected.push_back(module.forward({inputs.back()}).toTensor().contiguous());
    }
  }
  std::atomic<int64_t> next{0}, wrong{0};
  const auto work = [&] {
    const c10::InferenceMode guard;
    for (int64_t call = next++; call < calls; call = next++) {
      const int64_t i = call % kBatches;
      wrong += !at::equal(module.forward({inputs[i]}).toTensor(), expected[i]);
      if (call == calls / 10 || call == calls - 1) {
        std::fprintf(stderr, "after %lld calls: %.1f MB resident\n", (long long)call, residentMegabytes());
      }
    }
  };
  std::vector<std::thread> pool;
  for (int64_t i = 0; i < threads; ++i) {
    pool.emplace_back(work);
  }
  for (std::thread& thread : pool) {
    thread.join();
  }
  for (const at::Tensor& result : expected) {
    for (int64_t i = 0; i < result.numel(); ++i) {
      std::printf("%.9g\n", static_cast<double>(result.const_data_ptr<float>()[i]));
    }
  }
  std::fprintf(stderr, "%lld of %lld results differ\n", (long long)wrong.load(), (long long)calls);
  return wrong > 0 ? 1 : 0;
}

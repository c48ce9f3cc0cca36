// Loads a TorchScript file, runs it on a ramp of the given shape and prints the result, one number
// a line. Knows nothing of jit_passes, and not of Python either.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <torch/script.h>

int main(int argc, char** argv) {
  torch::jit::Module module = torch::jit::load(argv[1]);
  std::vector<int64_t> shape;
  for (int i = 2; i < argc; ++i) {
    shape.push_back(std::atoll(argv[i]));
  }
  int64_t count = 1;
  for (const int64_t size : shape) {
    count *= size;
  }
  const torch::InferenceMode guard;
  const at::Tensor x = torch::linspace(-2, 2, count).reshape(shape);
  const at::Tensor y = module.forward({x}).toTensor().contiguous();
  for (int64_t i = 0; i < y.numel(); ++i) {
    std::printf("%.9g\n", static_cast<double>(y.const_data_ptr<float>()[i]));
  }
}

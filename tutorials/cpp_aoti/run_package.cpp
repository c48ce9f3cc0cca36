// Runs a package of AOTInductor on images in a file of float32 numbers, and writes the results to
// another. It knows nothing of Python, and nothing of jit_passes.
//
//   run_package PACKAGE IMAGES RESULTS N C H W
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include <ATen/ops/empty.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: run_package PACKAGE IMAGES RESULTS SIZES...\n");
    return 2;
  }
  std::vector<int64_t> sizes;
  for (int i = 4; i < argc; ++i) {
    sizes.push_back(std::atoll(argv[i]));
  }
  at::Tensor images = at::empty(sizes);
  std::ifstream in(argv[2], std::ios::binary);
  if (!in.read(static_cast<char*>(images.data_ptr()), images.nbytes())) {
    std::fprintf(stderr, "%s has fewer numbers than the sizes say\n", argv[2]);
    return 1;
  }
  torch::inductor::AOTIModelPackageLoader loader(argv[1]);
  const at::Tensor result = loader.run({images})[0].contiguous();
  std::ofstream out(argv[3], std::ios::binary);
  out.write(static_cast<const char*>(result.data_ptr()), result.nbytes());
  return out.good() ? 0 : 1;
}

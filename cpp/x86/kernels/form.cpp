// The level of instructions for which kernels are made.
#include <array>
#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "kernels.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace jit_passes::x86 {
namespace {

constexpr std::array<const char*, static_cast<size_t>(Form::Count)> kFormNames = {
    "plain", "avx2", "avx_vnni", "avx512_vnni", "amx_int8"};
constexpr const char* kLevelVariable = "JIT_PASSES_X86_LEVEL";

Form checked(Form form, const std::string& where) {
  if (!hasForm(form)) {
    throw std::invalid_argument(where + ": this processor does not have the instructions of " + nameOf(form));
  }
  return form;
}

Form formAtFirst() {
  if (const char* level = std::getenv(kLevelVariable); level && *level) {
    return checked(formNamed(level), kLevelVariable);
  }
  Form best = Form::Plain;
  for (Form form : {Form::Avx2, Form::AvxVnni, Form::Avx512, Form::Amx}) {
    best = hasForm(form) ? form : best;
  }
  return best;
}

std::atomic<Form>& formOfNewKernels() {
  static std::atomic<Form> form = formAtFirst();
  return form;
}

} // namespace

const char* nameOf(Form form) { return kFormNames.at(static_cast<size_t>(form)); }

Form formNamed(const std::string& name) {
  std::string all;
  for (size_t i = 0; i < kFormNames.size(); ++i) {
    if (name == kFormNames[i]) {
      return static_cast<Form>(i);
    }
    all += std::string(i ? ", " : "") + kFormNames[i];
  }
  throw std::invalid_argument(
      "the level of x86 instructions (" + std::string(kLevelVariable) + ") is one of " + all + ", not '" +
      name + "'");
}

namespace {

// Whether there are tile registers, and the system grants them to this process. A process must ask, since the saved
// state of its threads then takes 8 KB more.
bool mayUseTiles() {
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && __GNUC__ >= 11 && !defined(__clang__)
  static const bool allowed = [] {
    constexpr unsigned kInt8 = 1U << 25, kTile = 1U << 24;
    constexpr long kRequest = 0x1023, kTileData = 18; // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool has = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kInt8) && (d & kTile);
    return has && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  }();
  return allowed;
#else
  return false;
#endif
}

} // namespace

bool hasForm(Form form) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
                      __builtin_cpu_supports("avx512vbmi");
  switch (form) {
    case Form::Avx2: return avx2;
    case Form::AvxVnni: return avx2 && __builtin_cpu_supports("avxvnni");
    case Form::Avx512: return avx2 && avx512;
    case Form::Amx: return avx2 && avx512 && mayUseTiles();
    default: break;
  }
#endif
  return form == Form::Plain;
}

Form bestForm() { return formOfNewKernels(); }

void setBestForm(Form form) { formOfNewKernels() = checked(form, "setBestForm"); }

} // namespace jit_passes::x86

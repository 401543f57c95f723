// Runs the exported policy on 1000 states without Python, and compares it with what Python answered.
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <vector>

torch::Tensor read(const char* path, int64_t columns) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  const int64_t rows = static_cast<int64_t>(bytes.size() / sizeof(float)) / columns;
  return torch::from_blob(bytes.data(), {rows, columns}, torch::kFloat32).clone();
}

int main() {
  c10::InferenceMode guard;
  torch::set_num_threads(1);
  torch::inductor::AOTIModelPackageLoader policy("policy.pt2");
  const auto states = read("states.bin", 2), expected = read("expected.bin", 2);
  double worst = 0;
  std::vector<double> times;
  for (int64_t i = 0; i < states.size(0); ++i) {
    std::vector<torch::Tensor> input = {states.slice(0, i, i + 1).contiguous()};
    const auto began = std::chrono::steady_clock::now();
    const auto u = policy.run(input)[0];
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count());
    if (!u.isfinite().all().item<bool>() || u.abs().max().item<float>() > 0.5f) return 1;  // never outside the limits
    worst = std::max(worst, (u - expected.slice(0, i, i + 1)).abs().max().item<double>());
  }
  std::sort(times.begin(), times.end());
  std::cout << states.size(0) << " states, largest difference " << worst << ", median " << times[times.size() / 2]
            << " ms a state" << std::endl;
  return worst < 1e-5 ? 0 : 2;
}

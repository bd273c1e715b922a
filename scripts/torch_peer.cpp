// PyTorch's side of the CPU table: the neighbour folder's benchmark of the peers' contract, and with
// `--scen churn` gpucache's own churn scenario (benches/common/scene.rs), draw for draw.
#define main contract_main
#include "peer_torch.cpp"
#undef main

namespace {

struct Churn : bench::Runner<TorchPeer> {
  bench::Rng rng{0};
  std::vector<size_t> sizes;
  std::vector<std::pair<void*, size_t>> live;

  void replace(size_t slot) {
    auto& block = live[slot];
    if (block.first) peer.free(block.first, block.second, 0);
    block.second = sizes[rng.below(uint32_t(sizes.size()))];
    block.first = peer.alloc(block.second, 0);
  }

  void step() { replace(rng.below(uint32_t(live.size()))); }

  void churn(uint32_t count) {
    rng = bench::Rng(count);
    sizes.clear();
    for (int i = 0; i < 4096; i++) {
      const size_t octave = size_t(512) << rng.below(15);
      sizes.push_back(octave + rng.below(uint32_t(octave)));
    }
    live.assign(count, {nullptr, 0});
    for (size_t slot = 0; slot < count; slot++) replace(slot);
    for (uint32_t i = 0; i < std::max(20 * count, 20000u); i++) step();
    for (int rep = 0; rep < o.reps; rep++) {
      uint64_t steps = 0;
      const uint64_t start = bench::now_ns();
      uint64_t now = start;
      do {
        for (int k = 0; k < 64; k++) step();
        steps += 64;
        now = bench::now_ns();
      } while (double(now - start) < o.rep_ms * 1e6);
      csv.row("churn", std::to_string(count), 1, rep, "ns_per_pair", double(now - start) / double(steps));
    }
    for (auto& block : live) peer.free(block.first, block.second, 0);
    peer.trim();
  }
};

}  // namespace

int main(int argc, char** argv) {
  auto value = [&](const char* name) -> const char* {
    for (int i = 1; i + 1 < argc; i++)
      if (!std::strcmp(argv[i], name)) return argv[i + 1];
    return nullptr;
  };
  const char* scen = value("--scen");
  if (!scen || std::strcmp(scen, "churn")) return contract_main(argc, argv);

  Churn runner;
  if (const char* v = value("--impl")) runner.o.impl = v;
  if (const char* v = value("--out")) runner.o.out = v;
  if (const char* v = value("--reps")) runner.o.reps = atoi(v);
  if (const char* v = value("--rep-ms")) runner.o.rep_ms = atof(v);
  runner.o.scen = {"churn"};
  if (int error = runner.run()) return error;  // no such scenario in the contract: it only prepares
  for (uint32_t count : {64u, 1024u, 4096u, 32768u}) runner.churn(count);
  std::fflush(nullptr);
  std::_Exit(0);
}

// Counters, failures on request, what exists, settings, and the control interface (cusim_*).
#include "sim.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

namespace sim {

static std::recursive_mutex& mutex() {
    static auto* m = new std::recursive_mutex;
    return *m;
}
Lock::Lock() { mutex().lock(); }
Lock::~Lock() { mutex().unlock(); }

struct Failure {
    uint64_t nth;
    Code code;
};
struct Registry {
    std::map<std::string, Call*> calls;
    std::map<std::string, std::vector<Failure>> failures;
    std::set<std::pair<std::string, const void*>> alive;
    std::map<std::pair<std::string, const void*>, std::string> what;
    std::string diagnostics;
};
static Registry& registry() {
    static auto* r = new Registry;
    return *r;
}
Settings& settings() {
    static auto* s = new Settings;
    return *s;
}
std::vector<std::function<void(Context*)>>& on_reset() { return immortal<std::vector<std::function<void(Context*)>>>(); }
std::string& last_instantiated() {
    static auto* s = new std::string;
    return *s;
}

Context& context_of(int ordinal) {
    static Context* contexts = [] {
        auto* c = new Context[DEVICES];
        for (int i = 0; i < DEVICES; i++) c[i].ordinal = i;
        return c;
    }();
    return contexts[ordinal];
}
Context*& current() {
    static thread_local Context* ctx = nullptr;
    return ctx;
}

uint64_t random_below(uint64_t n) {
    uint64_t& s = settings().random;
    s += 0x9e3779b97f4a7c15ull;
    uint64_t z = s;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return n ? (z ^ (z >> 31)) % n : 0;
}

void diagnose(const std::string& text) {
    registry().diagnostics += text + "\n";
    if (getenv("STEPGRAPH_SIM_LOG")) fprintf(stderr, "cuda-sim: %s\n", text.c_str());
}
void born(const char* kind, const void* handle, const std::string& what) {
    registry().alive.insert({kind, handle});
    if (!what.empty()) registry().what[{kind, handle}] = what;
}
void died(const char* kind, const void* handle) {
    registry().alive.erase({kind, handle});
    registry().what.erase({kind, handle});
}

Call::Call(const char* name) : name(name) {
    Lock lock;
    registry().calls[name] = this;
}

static bool is_sticky(Code c) { return c == ILLEGAL_ADDRESS || c == LAUNCH_FAILED || c == MISALIGNED_ADDRESS; }

Code Call::enter(unsigned need) {
    count++;
    auto found = registry().failures.find(name);
    if (found != registry().failures.end()) {
        auto& list = found->second;
        for (size_t i = 0; i < list.size(); i++) {
            if (--list[i].nth == 0) {
                Code code = list[i].code;
                list.erase(list.begin() + i);
                if (is_sticky(code) && current() && !strncmp(name, "cu", 2) && strncmp(name, "cublas", 6))
                    current()->broken = code;
                return code;
            }
        }
    }
    if ((need & INIT) && !settings().initialised) return NOT_INITIALIZED;
    if ((need & CTX) == CTX) {
        if (!current() || !current()->retained) return INVALID_CONTEXT;
        if (current()->broken) return current()->broken;
    }
    return OK;
}

void forget_context(Context* c) {
    drop_pending(c);
    for (auto& f : on_reset()) f(c);
    release_all(c);
    c->broken = OK;
}

}  // namespace sim

using namespace sim;

static char* text(const std::string& s) { return strdup(s.c_str()); }

extern "C" {
void cusim_free(char* p) { free(p); }
char* cusim_counts() {
    Lock lock;
    std::string out;
    for (auto& [name, call] : registry().calls)
        if (call->count) out += name + " " + std::to_string(call->count) + "\n";
    return text(out);
}
void cusim_reset_counts() {
    Lock lock;
    for (auto& [name, call] : registry().calls) call->count = 0;
}
void cusim_fail(const char* name, uint64_t nth, int code) {
    Lock lock;
    registry().failures[name].push_back({nth, code});
}
void cusim_clear_failures() {
    Lock lock;
    registry().failures.clear();
}
char* cusim_outstanding() {
    Lock lock;
    std::string out;
    for (auto& key : registry().alive) {
        char line[64];
        snprintf(line, sizeof line, "%s %p", key.first.c_str(), key.second);
        auto what = registry().what.find(key);
        out += std::string(line) + (what == registry().what.end() ? "" : " " + what->second) + "\n";
    }
    return text(out);
}
char* cusim_diagnostics() {
    Lock lock;
    std::string out;
    out.swap(registry().diagnostics);
    return text(out);
}
char* cusim_graph() {
    Lock lock;
    return text(last_instantiated());
}
void cusim_set_order_seed(uint64_t seed) {
    Lock lock;
    settings().seed = settings().random = seed;
}
void cusim_reverse_fibers(int on) {
    Lock lock;
    settings().reverse = on;
}
void cusim_set_memory_limit(uint64_t bytes) {
    Lock lock;
    for (int i = 0; i < DEVICES; i++) context_of(i).limit = bytes;
}
void cusim_set_batching(int on) {
    Lock lock;
    settings().batching = on;
}
void cusim_set_version(const char* of, int major, int minor) {
    Lock lock;
    auto& s = settings();
    if (!strcmp(of, "driver")) s.driver_version = 1000 * major + 10 * minor;
    if (!strcmp(of, "nvrtc")) s.nvrtc_major = major, s.nvrtc_minor = minor;
    if (!strcmp(of, "compute")) s.cc_major = major, s.cc_minor = minor;
    if (!strcmp(of, "cublaslt")) s.cublaslt_version = 10000 * major + 100 * minor;
}
void cusim_set_device_count(int count) {
    Lock lock;
    settings().devices = count;
}
void cusim_set_attribute(int attribute, int value) {
    Lock lock;
    settings().attributes[attribute] = value;
}
void cusim_drop_edge(int64_t index) {
    Lock lock;
    settings().drop_edge = index;
    settings().edges_seen = 0;
}
uint64_t cusim_edges_seen() {
    Lock lock;
    return settings().edges_seen;
}
void cusim_set_path(const char* what, const char* path) {
    Lock lock;
    auto& s = settings();
    if (!strcmp(what, "cache")) s.cache = path;
    if (!strcmp(what, "compiler")) s.compiler = path;
    if (!strcmp(what, "nvrtc")) s.real_nvrtc = path;
}
void cusim_reset_device() {
    Lock lock;
    for (int i = 0; i < DEVICES; i++)
        if (context_of(i).broken) forget_context(&context_of(i));
}
}

// libcuda: modules, functions, launches.
#include "cuda_launch.h"
#include <cstring>

using namespace sim;

struct Module {
    Context* ctx;
    std::shared_ptr<Program> program;
    std::map<std::string, Kernel*> kernels;
};
static auto& modules = *new std::unordered_set<Module*>;
// Kernels of unloaded modules stay in memory, so that no handle means another kernel later.
static auto& kernels = *new std::unordered_map<Kernel*, Context*>;

static bool registered = [] {
    on_reset().push_back([](Context* c) {
        for (auto it = modules.begin(); it != modules.end();)
            if ((*it)->ctx == c) {
                for (auto& [name, k] : (*it)->kernels) kernels.erase(k);
                died("module", *it);
                it = modules.erase(it);
            } else {
                ++it;
            }
    });
    return true;
}();

namespace sim {
bool kernel_alive(Kernel* k) { return kernels.count(k) != 0; }
}  // namespace sim

static int attribute(int which, int otherwise) {
    auto set = settings().attributes.find(which);
    return set == settings().attributes.end() ? otherwise : set->second;
}
static size_t fixed_shared(const Kernel& k) { return k.code->shared_stop - k.code->shared_start; }

Code prepare_launch(const KernelLaunch& l, std::function<Code()>& run, std::string& name, Kernel*& kernel) {
    auto* k = (Kernel*)l.function;
    auto found = kernels.find(k);
    if (found == kernels.end() || found->second != current()) {
        diagnose("a launch of a function that does not exist, of an unloaded module, or of another context");
        return INVALID_HANDLE;
    }
    if (Code code = k->ready()) return code;
    auto refuse = [&](const std::string& why) {
        diagnose("launch of " + k->name + ": " + why);
        return INVALID_VALUE;
    };
    const unsigned most_grid[3] = {0x7fffffff, 65535, 65535}, most_block[3] = {1024, 1024, 64};
    uint64_t threads = 1;
    for (int i = 0; i < 3; i++) {
        if (!l.grid[i] || l.grid[i] > most_grid[i]) return refuse("grid of " + std::to_string(l.grid[i]) + " blocks");
        if (!l.block[i] || l.block[i] > most_block[i]) return refuse("block of " + std::to_string(l.block[i]) + " threads");
        threads *= l.block[i];
    }
    if (threads > 1024) return refuse("more than 1024 threads a block");
    if (k->code->bounds && threads > k->code->bounds) return refuse("more threads a block than its __launch_bounds__");
    if (l.shared > (unsigned)k->dynamic_limit || l.shared + fixed_shared(*k) > std::max<size_t>(49152, k->dynamic_limit + fixed_shared(*k)))
        return refuse("more shared memory than allowed (see CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)");
    size_t parameter_bytes = 0, most = settings().driver_version >= 12010 ? 32764 : 4096;
    for (unsigned i = 0; i < k->code->params; i++) parameter_bytes += k->code->sizes[i];
    if (parameter_bytes > most) return refuse("parameters of more than " + std::to_string(most) + " bytes");
    if (l.extra) {
        diagnose("launch parameters in a buffer (extra) are not simulated");
        return NOT_SUPPORTED;
    }
    if (k->code->params && !l.params) return refuse("no parameters");
    auto launch = std::make_shared<Launch>();
    launch->kernel = k;
    launch->code = k->code;
    launch->program = k->program;
    launch->name = k->name;
    launch->shared = l.shared;
    memcpy(launch->grid, l.grid, sizeof l.grid);
    memcpy(launch->block, l.block, sizeof l.block);
    for (unsigned i = 0; i < k->code->params; i++) {
        if (!l.params[i]) return refuse("a null pointer to a parameter");
        std::vector<uint64_t> value((k->code->sizes[i] + 7) / 8);
        memcpy(value.data(), l.params[i], k->code->sizes[i]);
        launch->params.push_back(std::move(value));
    }
    run = [launch]() -> Code {
        if (!kernel_alive(launch->kernel)) {
            diagnose("kernel " + launch->name + " ran after its module was unloaded");
            return ILLEGAL_ADDRESS;
        }
        return run_launch(*launch);
    };
    name = k->name;
    kernel = k;
    return OK;
}

extern "C" {

int cuModuleLoadData(void** out, const void* image) {
    ENTER(CTX);
    if (!out || !image) return INVALID_VALUE;
    Code code;
    auto program = program_of(image, code);
    if (!program) return code;
    auto* m = new Module{current(), program, {}};
    modules.insert(m);
    born("module", m, program->kernels.empty() ? "" : program->kernels[0]);
    *out = m;
    return OK;
}

int cuModuleUnload(void* h) {
    ENTER(CTX);
    auto* m = (Module*)h;
    if (!modules.count(m) || m->ctx != current()) return INVALID_HANDLE;
    for (auto& [name, k] : m->kernels) kernels.erase(k);
    modules.erase(m);
    died("module", m);
    delete m;
    return OK;
}

int cuModuleGetFunction(void** out, void* h, const char* name) {
    ENTER(CTX);
    auto* m = (Module*)h;
    if (!modules.count(m) || m->ctx != current()) return INVALID_HANDLE;
    if (!out || !name || !*name) return INVALID_VALUE;
    bool known = false;
    for (auto& k : m->program->kernels) known |= k == name;
    if (!known) return NOT_FOUND;
    Kernel*& k = m->kernels[name];
    if (!k) {
        k = new Kernel;
        k->program = m->program;
        k->name = name;
        kernels[k] = m->ctx;
    }
    *out = k;
    return OK;
}

int cuFuncGetAttribute(int* out, int which, void* function) {
    ENTER(CTX);
    auto* k = (Kernel*)function;
    if (!kernels.count(k)) return INVALID_HANDLE;
    if (!out) return INVALID_VALUE;
    if (Code code = k->ready()) return code;
    auto& s = settings();
    switch (which) {
    case 0: *out = k->code->bounds ? k->code->bounds : 1024; return OK;
    case 1: *out = fixed_shared(*k); return OK;
    case 2: case 3: case 7: *out = 0; return OK;
    case 4: *out = 32; return OK;
    case 5: case 6: *out = s.cc_major * 10 + s.cc_minor; return OK;
    case 8: *out = k->dynamic_limit; return OK;
    case 9: *out = k->carveout; return OK;
    default: return INVALID_VALUE;
    }
}

int cuFuncSetAttribute(void* function, int which, int value) {
    ENTER(CTX);
    auto* k = (Kernel*)function;
    if (!kernels.count(k)) return INVALID_HANDLE;
    if (Code code = k->ready()) return code;
    switch (which) {
    case 8:
        if (value < 0 || value + fixed_shared(*k) > size_t(attribute(97, 232448))) return INVALID_VALUE;
        k->dynamic_limit = value;
        return OK;
    case 9:
        if (value < -1 || value > 100) return INVALID_VALUE;
        k->carveout = value;
        return OK;
    default: return INVALID_VALUE;
    }
}

int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** params, void** extra) {
    ENTER(CTX);
    Stream* s = stream_of(stream);
    if (!s) return INVALID_HANDLE;
    std::function<Code()> run;
    std::string name;
    Kernel* kernel;
    KernelLaunch l{function, {gx, gy, gz}, {bx, by, bz}, shared, params, extra};
    if (Code code = prepare_launch(l, run, name, kernel)) return code;
    return submit(s, KERNEL, name, std::move(run), kernel);
}
}

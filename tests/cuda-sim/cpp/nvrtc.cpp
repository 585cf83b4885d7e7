// The simulated libnvrtc.
#include "sim.h"
#include <cstring>
#include <dlfcn.h>

using namespace sim;

enum Result {
    NVRTC_SUCCESS = 0, NVRTC_OUT_OF_MEMORY = 1, NVRTC_CREATION = 2, NVRTC_INVALID_INPUT = 3, NVRTC_INVALID_PROGRAM = 4,
    NVRTC_INVALID_OPTION = 5, NVRTC_COMPILATION = 6,
};

struct Handle {
    std::shared_ptr<Program> program = std::make_shared<Program>();
    bool compiled = false;
    std::string log, ptx, cubin;
};
static auto& programs = *new std::unordered_set<Handle*>;

// Unlike the driver's, these calls run beside each other: the lock is held only to count them.
static Code enter(Call& call) {
    Lock lock;
    return call.enter(ANY);
}
#define NVRTC_ENTER                     \
    static Call call_(__func__);        \
    if (Code code_ = enter(call_))      \
        return code_;

static Handle* handle_of(void* h) {
    Lock lock;
    return programs.count((Handle*)h) ? (Handle*)h : nullptr;
}

// The real compiler, where one is named: everything must pass it too.
struct Real {
    int (*create)(void**, const char*, const char*, int, const char* const*, const char* const*);
    int (*compile)(void*, int, const char* const*);
    int (*destroy)(void**);
    int (*log_size)(void*, size_t*);
    int (*log)(void*, char*);
    bool there = false;
};
static Real open_real(const std::string& path) {
    Real r;
    size_t slash = path.rfind('/');
    std::string dir = slash == std::string::npos ? "." : path.substr(0, slash), file = path.substr(slash + 1);
    std::string builtins = file;
    size_t at = builtins.find("libnvrtc");
    if (at != std::string::npos) builtins.insert(at + 8, "-builtins");
    std::vector<std::string> names = {dir + "/" + builtins};
    for (int major = 11; major <= 14; major++)
        for (int minor = 0; minor <= 9; minor++)
            names.push_back(dir + "/libnvrtc-builtins.so." + std::to_string(major) + "." + std::to_string(minor));
    for (auto& n : names)
        if (dlopen(n.c_str(), RTLD_NOW | RTLD_LOCAL)) break;
    void* lib = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (!lib) {
        Lock lock;
        diagnose(std::string("the real NVRTC does not load: ") + dlerror());
        return r;
    }
    *(void**)&r.create = dlsym(lib, "nvrtcCreateProgram");
    *(void**)&r.compile = dlsym(lib, "nvrtcCompileProgram");
    *(void**)&r.destroy = dlsym(lib, "nvrtcDestroyProgram");
    *(void**)&r.log_size = dlsym(lib, "nvrtcGetProgramLogSize");
    *(void**)&r.log = dlsym(lib, "nvrtcGetProgramLog");
    r.there = r.create && r.compile && r.destroy && r.log_size && r.log;
    return r;
}

static Code compile_for_real(const Program& p, int n, const char* const* options, std::string& log) {
    static auto& opened = *new std::map<std::string, Real>;
    std::string path;
    Real r;
    {
        Lock lock;
        path = settings().real_nvrtc;
        if (path.empty()) return NVRTC_SUCCESS;
        if (!opened.count(path)) opened[path] = open_real(path);
        r = opened[path];
    }
    if (!r.there) {
        log += "the real NVRTC at " + path + " does not load\n";
        return NVRTC_COMPILATION;
    }
    void* program = nullptr;
    if (int code = r.create(&program, p.source.c_str(), p.name.c_str(), 0, nullptr, nullptr)) return code;
    int code = r.compile(program, n, options);
    size_t bytes = 0;
    r.log_size(program, &bytes);
    if (bytes > 1) {
        std::string text(bytes, '\0');
        r.log(program, &text[0]);
        text.resize(strlen(text.c_str()));
        log += text;
    }
    r.destroy(&program);
    static Call counted("real nvrtcCompileProgram");
    enter(counted);
    return code;
}

static bool starts(const std::string& s, const char* prefix) { return s.compare(0, strlen(prefix), prefix) == 0; }

static bool read_option(Program& p, const std::string& o, const char* next, int& used) {
    auto value = [&] { return o.substr(o.find('=') + 1); };
    used = 1;
    if (starts(o, "--gpu-architecture=") || starts(o, "-arch=")) {
        p.arch = value();
        size_t bar = p.arch.find('_');
        std::string kind = p.arch.substr(0, bar);
        int digits = bar == std::string::npos ? 0 : atoi(p.arch.c_str() + bar + 1);
        return (kind == "sm" || kind == "compute") && digits >= 75 && digits <= 121;
    }
    if (starts(o, "--fmad=") || starts(o, "-fmad=")) {
        if (value() != "true" && value() != "false") return false;
        p.fmad = value() == "true";
        return true;
    }
    if (o == "-D" || o == "--define-macro") {
        if (!next) return false;
        used = 2;
        p.defines.push_back(next);
        return true;
    }
    if (starts(o, "--define-macro=") || starts(o, "-D")) {
        p.defines.push_back(starts(o, "-D") ? o.substr(2) : value());
        return true;
    }
    if (starts(o, "--std=") || starts(o, "-std=")) {
        std::string v = value();
        return v == "c++11" || v == "c++14" || v == "c++17" || v == "c++20";
    }
    // These change nothing here: denormals are kept, division and square root are exact.
    for (const char* same : {"--ftz=false", "-ftz=false", "--prec-div=true", "-prec-div=true", "--prec-sqrt=true",
                             "-prec-sqrt=true", "--generate-line-info", "-lineinfo", "--device-debug", "-G", "-w",
                             "--disable-warnings", "-default-device", "--device-as-default-execution-space",
                             "--restrict", "-restrict", "--extra-device-vectorization", "--no-source-include",
                             "--minimal", "-minimal", "--split-compile=0", "--use_fast_math", "-use_fast_math"})
        if (o == same) return true;
    for (const char* prefix : {"--maxrregcount=", "-maxrregcount=", "--ptxas-options=", "-Xptxas=", "--dopt=", "-dopt=",
                               "--diag-suppress=", "-diag-suppress="})
        if (starts(o, prefix)) return true;
    return false;
}

extern "C" {

int nvrtcVersion(int* major, int* minor) {
    NVRTC_ENTER;
    if (!major || !minor) return NVRTC_INVALID_INPUT;
    *major = settings().nvrtc_major;
    *minor = settings().nvrtc_minor;
    return NVRTC_SUCCESS;
}

const char* nvrtcGetErrorString(int code) {
    static Call call(__func__);
    enter(call);
    static const char* names[] = {
        "NVRTC_SUCCESS", "NVRTC_ERROR_OUT_OF_MEMORY", "NVRTC_ERROR_PROGRAM_CREATION_FAILURE", "NVRTC_ERROR_INVALID_INPUT",
        "NVRTC_ERROR_INVALID_PROGRAM", "NVRTC_ERROR_INVALID_OPTION", "NVRTC_ERROR_COMPILATION",
        "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE", "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
        "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION", "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
        "NVRTC_ERROR_INTERNAL_ERROR"};
    return code >= 0 && code < 12 ? names[code] : "NVRTC_ERROR unknown";
}

int nvrtcCreateProgram(void** out, const char* source, const char* name, int headers, const char* const*,
                       const char* const*) {
    NVRTC_ENTER;
    if (!out || !source || headers < 0) return NVRTC_INVALID_INPUT;
    if (headers) return NVRTC_CREATION;  // not simulated
    auto* h = new Handle;
    h->program->source = source;
    h->program->name = name && *name ? name : "default_program";
    Lock lock;
    programs.insert(h);
    born("program", h, h->program->name);
    *out = h;
    return NVRTC_SUCCESS;
}

int nvrtcDestroyProgram(void** h) {
    NVRTC_ENTER;
    if (!h || !handle_of(*h)) return NVRTC_INVALID_PROGRAM;
    Lock lock;
    programs.erase((Handle*)*h);
    died("program", *h);
    delete (Handle*)*h;
    *h = nullptr;
    return NVRTC_SUCCESS;
}

int nvrtcCompileProgram(void* handle, int n, const char* const* options) {
    NVRTC_ENTER;
    Handle* h = handle_of(handle);
    if (!h) return NVRTC_INVALID_PROGRAM;
    if (n < 0 || (n && !options)) return NVRTC_INVALID_INPUT;
    auto& p = *h->program;
    p.arch = "compute_75";
    h->log.clear();
    for (int i = 0, used; i < n; i += used) {
        if (!options[i]) return NVRTC_INVALID_INPUT;
        if (!read_option(p, options[i], i + 1 < n ? options[i + 1] : nullptr, used)) {
            h->log = std::string("nvrtc: error: invalid value or unrecognized option: ") + options[i] + "\n";
            return NVRTC_INVALID_OPTION;
        }
    }
    if (Code code = compile_for_real(p, n, options, h->log)) return code;
    if (!read_program(p, h->log)) return NVRTC_COMPILATION;
    if (settings().batching) {
        queue_program(h->program);
    } else {
        compile({h->program});
        h->log += p.log;
        if (p.failed) return NVRTC_COMPILATION;
    }
    h->compiled = true;
    h->ptx = image_of(p, false);
    if (starts(p.arch, "sm_")) h->cubin = image_of(p, true);
    return NVRTC_SUCCESS;
}

int nvrtcGetPTXSize(void* handle, size_t* out) {
    NVRTC_ENTER;
    Handle* h = handle_of(handle);
    if (!h || !h->compiled) return NVRTC_INVALID_PROGRAM;
    if (!out) return NVRTC_INVALID_INPUT;
    *out = h->ptx.size() + 1;
    return NVRTC_SUCCESS;
}
int nvrtcGetPTX(void* handle, char* out) {
    NVRTC_ENTER;
    Handle* h = handle_of(handle);
    if (!h || !h->compiled) return NVRTC_INVALID_PROGRAM;
    if (!out) return NVRTC_INVALID_INPUT;
    memcpy(out, h->ptx.c_str(), h->ptx.size() + 1);
    return NVRTC_SUCCESS;
}
// 0 bytes where the architecture was a virtual one.
int nvrtcGetCUBINSize(void* handle, size_t* out) {
    NVRTC_ENTER;
    Handle* h = handle_of(handle);
    if (!h || !h->compiled) return NVRTC_INVALID_PROGRAM;
    if (!out) return NVRTC_INVALID_INPUT;
    *out = h->cubin.size();
    return NVRTC_SUCCESS;
}
int nvrtcGetCUBIN(void* handle, char* out) {
    NVRTC_ENTER;
    Handle* h = handle_of(handle);
    if (!h || !h->compiled) return NVRTC_INVALID_PROGRAM;
    if (!out) return NVRTC_INVALID_INPUT;
    memcpy(out, h->cubin.data(), h->cubin.size());
    return NVRTC_SUCCESS;
}
int nvrtcGetProgramLogSize(void* handle, size_t* out) {
    NVRTC_ENTER;
    Handle* h = handle_of(handle);
    if (!h) return NVRTC_INVALID_PROGRAM;
    if (!out) return NVRTC_INVALID_INPUT;
    *out = h->log.size() + 1;
    return NVRTC_SUCCESS;
}
int nvrtcGetProgramLog(void* handle, char* out) {
    NVRTC_ENTER;
    Handle* h = handle_of(handle);
    if (!h) return NVRTC_INVALID_PROGRAM;
    if (!out) return NVRTC_INVALID_INPUT;
    memcpy(out, h->log.c_str(), h->log.size() + 1);
    return NVRTC_SUCCESS;
}
}

// Compiles programs with the machine's C++ compiler, many to a run, into a cache that processes share.
#include "sim.h"
#include <algorithm>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <fstream>
#include <mutex>
#include <set>
#include <spawn.h>
#include <sstream>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

extern char** environ;

namespace sim {

constexpr size_t CHUNK = 100;
// Beyond this many bytes of source the compiler's optimisations take minutes.
constexpr size_t LARGE = 32 << 10;

// Programs of one run are compiled with the same options.
static int variant(const Program& p) { return (p.fmad ? 1 : 0) + (p.source.size() > LARGE ? 2 : 0); }

struct Compiler {
    std::mutex mutex;
    std::map<std::string, const CusimKernel*> tables;  // by hash of the program
    std::map<std::string, void*> libraries;            // by name of the chunk
    std::vector<std::shared_ptr<Program>> queued;
    std::set<std::string> bad;
    uint64_t serial = 0;
};
static Compiler& compiler() {
    static auto* c = new Compiler;
    return *c;
}

static std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream s;
    s << in.rdbuf();
    return s.str();
}

// In place all at once, so that another process never sees a part.
static void write_file(const std::string& path, const std::string& text) {
    std::string part = path + "." + std::to_string(getpid()) + "." + std::to_string(this_thread());
    {
        std::ofstream out(part, std::ios::binary);
        out << text;
    }
    rename(part.c_str(), path.c_str());
}

static pid_t start(const std::vector<std::string>& command, const std::string& log) {
    std::vector<char*> argv;
    for (auto& a : command) argv.push_back((char*)a.c_str());
    argv.push_back(nullptr);
    std::vector<char*> env;
    for (char** e = environ; *e; e++)
        if (strncmp(*e, "LC_ALL=", 7)) env.push_back(*e);
    env.push_back((char*)"LC_ALL=C");
    env.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    pid_t pid = -1;
    if (posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), env.data())) pid = -1;
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

struct Job {
    std::vector<std::shared_ptr<Program>> programs;
    std::string name, source, part, log;
    pid_t pid = -1;
};

static void begin(Job& j) {
    auto& s = settings();
    std::string key;
    for (auto& p : j.programs) key += p->hash + "\n";
    j.name = hash_of(key);
    uint64_t serial;
    {
        std::lock_guard<std::mutex> guard(compiler().mutex);
        serial = compiler().serial++;
    }
    j.part = s.cache + "/" + j.name + "." + std::to_string(getpid()) + "." + std::to_string(serial);
    j.source = j.part + ".cpp";
    j.log = j.part + ".log";
    std::ofstream out(j.source);
    for (size_t i = 0; i < j.programs.size(); i++) out << rewritten(*j.programs[i], i);
    out.close();
    std::vector<std::string> command = {
        s.compiler, "-x", "c++", "-std=c++20", variant(*j.programs[0]) & 2 ? "-O0" : "-O1", "-shared", "-fPIC", "-march=native", "-fno-math-errno",
        "-fno-trapping-math", "-fno-strict-aliasing", "-fwrapv", "-fno-exceptions", "-fno-rtti",
        "-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fno-builtin-printf", "-w", "-fvisibility=hidden",
        "-U_FORTIFY_SOURCE", "-nostartfiles",
        j.programs[0]->fmad ? "-ffp-contract=fast" : "-ffp-contract=off",
        // At -O1 products are contracted only with this.
        j.programs[0]->fmad ? "-fexpensive-optimizations" : "-fno-expensive-optimizations", "-include", s.cache + "/device.h", j.source,
        "-o", j.part + ".so", "-lm"};
    j.pid = start(command, j.log);
}

static const CusimKernel* table_in(const std::string& chunk, unsigned index) {
    auto& c = compiler();
    void*& lib = c.libraries[chunk];
    if (!lib) lib = dlopen((settings().cache + "/" + chunk + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        diagnose(std::string("a compiled kernel does not load: ") + dlerror());
        return nullptr;
    }
    auto* at = (const CusimKernel**)dlsym(lib, ("cusim_table_" + std::to_string(index)).c_str());
    return at ? *at : nullptr;
}

// Whether it compiled.
static bool end(Job& j) {
    int status = 1;
    if (j.pid > 0) waitpid(j.pid, &status, 0);
    bool good = j.pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    auto& dir = settings().cache;
    if (good) {
        rename((j.part + ".so").c_str(), (dir + "/" + j.name + ".so").c_str());
        for (size_t i = 0; i < j.programs.size(); i++)
            write_file(dir + "/" + j.programs[i]->hash + ".ref", j.name + " " + std::to_string(i));
    } else if (j.programs.size() == 1) {
        auto& p = *j.programs[0];
        p.failed = true;
        p.log = read_file(j.log);
        const std::string own = "{anonymous}::cusim_k0::";
        for (size_t at; (at = p.log.find(own)) != std::string::npos;) p.log.erase(at, own.size());
        if (p.log.empty()) p.log = "the C++ compiler '" + settings().compiler + "' did not run";
    }
    unlink(j.log.c_str());
    unlink((j.part + ".so").c_str());
    if (!getenv("STEPGRAPH_SIM_KEEP")) unlink(j.source.c_str());
    return good;
}

static bool find(Program& p) {
    auto& c = compiler();
    std::lock_guard<std::mutex> guard(c.mutex);
    auto known = c.tables.find(p.hash);
    if (known == c.tables.end()) {
        std::string ref = read_file(settings().cache + "/" + p.hash + ".ref");
        size_t space = ref.find(' ');
        if (space == std::string::npos) return false;
        auto* table = table_in(ref.substr(0, space), atoi(ref.c_str() + space + 1));
        if (!table) return false;
        known = c.tables.emplace(p.hash, table).first;
    }
    p.table = known->second;
    for (p.table_count = 0; p.table[p.table_count].name;) p.table_count++;
    return true;
}

void compile(const std::vector<std::shared_ptr<Program>>& list) {
    std::vector<std::shared_ptr<Program>> todo;
    std::set<std::string> seen;
    for (auto& p : list)
        if (!p->table && !p->failed && !find(*p) && seen.insert(p->hash).second) todo.push_back(p);
    std::stable_sort(todo.begin(), todo.end(), [](auto& a, auto& b) { return variant(*a) < variant(*b); });
    std::vector<std::vector<std::shared_ptr<Program>>> chunks;
    size_t cores = std::max(1u, std::thread::hardware_concurrency());
    size_t chunk = std::clamp(todo.size() / (2 * cores), size_t(1), CHUNK);
    for (auto& p : todo) {
        if (chunks.empty() || chunks.back().size() >= chunk || variant(*chunks.back()[0]) != variant(*p)) chunks.emplace_back();
        chunks.back().push_back(p);
    }
    // A chunk that fails is cut in two, down to the program at fault.
    while (!chunks.empty()) {
        std::vector<Job> jobs;
        while (!chunks.empty() && jobs.size() < cores) {
            jobs.emplace_back();
            jobs.back().programs = std::move(chunks.back());
            chunks.pop_back();
        }
        for (auto& j : jobs) begin(j);
        for (auto& j : jobs) {
            if (end(j) || j.programs.size() == 1) continue;
            auto middle = j.programs.begin() + j.programs.size() / 2;
            chunks.emplace_back(j.programs.begin(), middle);
            chunks.emplace_back(middle, j.programs.end());
        }
    }
    std::map<std::string, std::string> logs;
    for (auto& p : todo)
        if (p->failed) logs[p->hash] = p->log;
    for (auto& p : list) {
        if (p->table || p->failed) continue;
        if (logs.count(p->hash)) p->failed = true, p->log = logs[p->hash];
        else if (!find(*p)) p->failed = true, p->log = "the compiled kernel does not load";
    }
}

void queue_program(const std::shared_ptr<Program>& p) {
    std::lock_guard<std::mutex> guard(compiler().mutex);
    compiler().queued.push_back(p);
}

void compile_queued() {
    std::vector<std::shared_ptr<Program>> list;
    {
        std::lock_guard<std::mutex> guard(compiler().mutex);
        list.swap(compiler().queued);
    }
    compile(list);
    for (auto& p : list)
        if (p->failed) compile_error(*p);
}

void compile_error(const Program& p) { diagnose("a queued program does not compile: " + p.log); }

Code Kernel::ready() {
    if (code) return OK;
    if (!program->table && !program->failed) {
        compile_queued();
        compile({program});
    }
    if (program->failed) {
        diagnose("kernel " + name + " does not compile: " + program->log);
        return INVALID_SOURCE;
    }
    for (unsigned i = 0; i < program->table_count; i++)
        if (name == program->table[i].name) code = &program->table[i];
    return code ? OK : NOT_FOUND;
}

}  // namespace sim

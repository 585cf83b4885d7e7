// The simulated CUDA driver: what its libraries share. One process, one lock, two devices.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace sim {

using Code = int;
enum : Code {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201, NO_BINARY_FOR_GPU = 209, INVALID_PTX = 218, UNSUPPORTED_PTX_VERSION = 222,
    INVALID_SOURCE = 300, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701, MISALIGNED_ADDRESS = 716, LAUNCH_FAILED = 719, NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_UNMATCHED = 903, CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905, CAPTURE_IMPLICIT = 906, CAPTURED_EVENT = 907, CAPTURE_WRONG_THREAD = 908,
};

// Held by every entry point while it runs; kernels run under it too.
struct Lock {
    Lock();
    ~Lock();
};

struct Stream;
struct Graph;
struct Node;

// A primary context: there is one per device, so it also stands for the device.
struct Context {
    int ordinal = 0;
    unsigned retained = 0;
    Code broken = OK;  // a sticky error; every later call on the context returns it
    size_t limit = size_t(8) << 30, used = 0, high = 0, pending = 0;
    uint64_t release_threshold = 0;
    int reuse[4] = {0, 1, 1, 1};
    Stream* legacy = nullptr;
};
constexpr int DEVICES = 2;
Context& context_of(int ordinal);
Context*& current();  // of the calling thread

enum Need : unsigned { ANY = 0, INIT = 1, CTX = 3 };

// One entry point: counted, may be made to fail, refuses to run without what it needs.
struct Call {
    const char* name;
    uint64_t count = 0;
    explicit Call(const char* name);
    Code enter(unsigned need);
};

#define ENTER(need)                          \
    static sim::Call call_(__func__);        \
    sim::Lock lock_;                         \
    if (sim::Code code_ = call_.enter(need)) \
        return code_;

struct Settings {
    int driver_version = 13000, nvrtc_major = 13, nvrtc_minor = 0, cc_major = 9, cc_minor = 0;
    size_t cublaslt_version = 130001;
    int devices = DEVICES;
    bool batching = false, reverse = false, initialised = false;
    uint64_t seed = 1, random = 1;
    int64_t drop_edge = -1, edges_seen = 0;
    std::map<int, int> attributes;
    std::string cache, compiler, real_nvrtc;
};
Settings& settings();
uint64_t random_below(uint64_t n);

// What the sim has to say about an error (which allocation was overrun, which barrier diverged ...).
void diagnose(const std::string& text);
// What exists now, by kind: for the list of leaks.
void born(const char* kind, const void* handle, const std::string& what = "");
void died(const char* kind, const void* handle);

// ---- memory ----
struct Block {
    uintptr_t base, bytes;   // what the user got
    uintptr_t map, map_bytes;  // the readable pages around it; guard pages beyond
    Context* owner;          // null: pinned host memory
    bool dying = false;      // a free of it is enqueued
    bool async = false;
};
uintptr_t allocate(Context*, size_t bytes, bool async, bool pinned);  // 0: beyond the limit
void release(uintptr_t base);
Block* block_of(uintptr_t address);  // the live block that holds the address
// Null, or why [address, address + bytes) is not inside one live block of the device (pinned: of the host).
const char* range_error(uintptr_t address, size_t bytes, bool pinned = false);
Code check_guards();  // ILLEGAL_ADDRESS if something was written around a block
void release_all(Context*);

// ---- the lazy queue ----
struct Op {
    Context* ctx;
    std::function<Code()> run;
    std::vector<std::shared_ptr<Op>> deps, next;
    int waiting = 0;
    bool done = false;
    uint64_t mark = 0;
};
using OpRef = std::shared_ptr<Op>;
OpRef enqueue(Context*, std::vector<OpRef> deps, std::function<Code()> run);
void complete(const OpRef&);    // runs until it has run; others may run too
void complete_all(Context*);
void progress();                // something may run
void drop_pending(Context*);

struct Capture {
    Stream* origin;
    Graph* graph;
    int mode;
    uint64_t thread;
    bool invalid = false;
    std::vector<Stream*> streams;
};
struct Stream {
    Context* ctx;
    bool blocking = true;  // ordered with the legacy stream
    OpRef last;
    std::shared_ptr<Capture> capture;
    std::vector<Node*> tips;  // capture: what the next node depends on
};
OpRef stream_enqueue(Stream*, std::function<Code()> run);
void stream_after(Stream*, const OpRef&);  // what is enqueued later waits for the op
std::unordered_set<Stream*>& streams();
// A handle as callers write it (null, 1: the legacy stream), in the current context; null: invalid.
Stream* stream_of(void* handle);
// Refuses a call that may not be made while a capture forbids it; invalidates those captures.
Code capture_forbids();
uint64_t this_thread();
int& thread_capture_mode();

// ---- kernels ----
extern "C" struct CusimKernel {  // as compiled programs export them
    const char* name;
    unsigned params;
    const unsigned* sizes;
    void (*plain)(void** params);   // all threads of a block, one after the other
    void (*thread)(void** params);  // one thread; the block runs on fibers
    unsigned bounds;                // __launch_bounds__, or 0
    unsigned char *shared_start, *shared_stop;
};
struct Program;
struct Kernel {
    std::shared_ptr<Program> program;
    std::string name;
    const CusimKernel* code = nullptr;  // null: not compiled yet (batch mode)
    int dynamic_limit = 48 * 1024;
    int carveout = -1;
    Code ready();  // compiles what is queued
};
struct Launch {
    Kernel* kernel = nullptr;
    const CusimKernel* code = nullptr;
    std::shared_ptr<Program> program;
    std::string name;
    unsigned grid[3], block[3], shared = 0;
    std::vector<std::vector<uint64_t>> params;
};
Code run_launch(const Launch&);

struct Program {
    std::string source, name, arch;
    std::vector<std::string> defines, kernels;
    bool fmad = true, fibers = false, failed = false;
    std::string hash, log;
    const CusimKernel* table = nullptr;
    unsigned table_count = 0;
};
// Reads the text's kernels; false, with a log: not acceptable.
bool read_program(Program&, std::string& log);
std::string rewritten(const Program&, unsigned index);
// Compiles and loads now, in few compiler runs; a program that does not compile is marked failed, with its log.
void compile(const std::vector<std::shared_ptr<Program>>&);
void queue_program(const std::shared_ptr<Program>&);
void compile_queued();
std::string image_of(const Program&, bool cubin);
// The program of an image; null with a code: it is none, or damaged, or for another device.
std::shared_ptr<Program> program_of(const void* image, Code& code);
std::string hash_of(const std::string&);
void compile_error(const Program&);

// ---- graphs ----
enum NodeKind { KERNEL = 0, MEMCPY = 1, MEMSET = 2, CHILD = 4, EMPTY = 5 };
struct Node {
    Graph* graph;
    NodeKind kind;
    std::string name;
    Context* ctx;
    std::vector<Node*> deps;
    std::function<Code()> run;
    Kernel* kernel = nullptr;          // must still be loaded when launched
    std::unique_ptr<Graph> child;
};
struct Graph {
    std::vector<std::unique_ptr<Node>> nodes;
    std::unique_ptr<Graph> clone() const;
};
// Into a stream: an op, or a node of the graph it captures.
Code submit(Stream*, NodeKind, const std::string& name, std::function<Code()> run, Kernel* kernel = nullptr);
Node* add_node(Graph*, NodeKind, const std::string& name, Context*, const std::vector<Node*>& deps,
               std::function<Code()> run);
std::string describe(const Graph&, int depth = 0);
std::string& last_instantiated();
bool kernel_alive(Kernel*);
void forget_context(Context*);  // every object of a reset context
// A set that outlives the process's exit handlers: others may call late.
template <class T> T& immortal() {
    static T* all = new T;
    return *all;
}
std::vector<std::function<void(Context*)>>& on_reset();

}  // namespace sim

// Runs kernels: a block's threads one after the other where nothing synchronises, else on fibers.
#include "sim.h"
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <sys/mman.h>

extern "C" {
struct cusim_uint3 {
    unsigned x, y, z;
};
// What compiled kernels see (device.h declares the same).
cusim_uint3 threadIdx, blockIdx, blockDim, gridDim;
unsigned char* cusim_dyn;
int cusim_reversed;
[[noreturn]] void cusim_trap(const char* why);
int cusim_barrier(int id, int value, int mode);
uint64_t cusim_warp(int id, unsigned mask, uint64_t value, int source, int mode);
}

namespace sim {

enum State { READY, BARRIER, WARP, DONE };
struct Fiber {
    void* sp;
    State state;
    cusim_uint3 index;
    int id, mode, source;
    unsigned mask;
    uint64_t value, result;
};

constexpr size_t STACK = 128 << 10, PAGE = 4096, SHARED = 256 << 10;
static Fiber fibers[1024];
static unsigned fiber_count, running;
static void* scheduler_sp;
static const CusimKernel* active_code;
static void** active_params;
static char* stacks;
static unsigned char* arena;

static thread_local sigjmp_buf* escape;
static thread_local Code escape_code;
static thread_local std::string* escape_why;
static struct sigaction previous[32];

#if defined(__x86_64__)
extern "C" void cusim_switch(void** save, void* to);
asm(R"(
.text
.globl cusim_switch
.type cusim_switch,@function
cusim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cusim_switch,.-cusim_switch
)");
static void* fresh_stack(char* top, void (*entry)()) {
    auto** sp = (void**)top;
    *--sp = nullptr;  // keeps the alignment a call leaves
    *--sp = (void*)entry;
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    return sp;
}
#elif defined(__aarch64__)
extern "C" void cusim_switch(void** save, void* to);
asm(R"(
.text
.globl cusim_switch
.type cusim_switch,%function
cusim_switch:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size cusim_switch,.-cusim_switch
)");
static void* fresh_stack(char* top, void (*entry)()) {
    auto** sp = (void**)top - 20;
    memset(sp, 0, 160);
    sp[11] = (void*)entry;  // x30
    return sp;
}
#else
#error "the simulated CUDA driver knows x86-64 and AArch64"
#endif

static void suspend() { cusim_switch(&fibers[running].sp, scheduler_sp); }

static void fiber_main() {
    active_code->thread(active_params);
    fibers[running].state = DONE;
    suspend();
    __builtin_unreachable();
}

static void on_signal(int sig, siginfo_t* info, void* context) {
    if (escape) {
        escape_code = sig == SIGFPE ? LAUNCH_FAILED : ILLEGAL_ADDRESS;
#ifdef SI_KERNEL
        if (sig == SIGSEGV && info->si_code == SI_KERNEL) escape_code = MISALIGNED_ADDRESS;
#endif
        siglongjmp(*escape, 1);
    }
    auto& old = previous[sig];
    if (old.sa_flags & SA_SIGINFO) {
        old.sa_sigaction(sig, info, context);
    } else if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) {
        old.sa_handler(sig);
    } else {
        signal(sig, SIG_DFL);
    }
}

static void prepare() {
    static bool done = false;
    if (!done) {
        done = true;
        struct sigaction action = {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        for (int sig : {SIGSEGV, SIGBUS, SIGFPE}) sigaction(sig, &action, &previous[sig]);
        stacks = (char*)mmap(nullptr, 1024 * STACK, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        for (int i = 0; i < 1024; i++) mprotect(stacks + i * STACK, PAGE, PROT_NONE);
        arena = (unsigned char*)mmap(nullptr, SHARED + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + PAGE;
        mprotect(arena, SHARED, PROT_READ | PROT_WRITE);
    }
    stack_t now;
    if (!sigaltstack(nullptr, &now) && (now.ss_flags & SS_DISABLE)) {
        static thread_local char* alternative = nullptr;
        if (!alternative) alternative = new char[64 << 10];
        stack_t mine = {};
        mine.ss_sp = alternative;
        mine.ss_size = 64 << 10;
        sigaltstack(&mine, nullptr);
    }
}

[[noreturn]] static void fail_block(const std::string& why) {
    escape_code = LAUNCH_FAILED;
    if (!escape_why) escape_why = new std::string;
    *escape_why = why;
    siglongjmp(*escape, 1);
}

static void release_barrier() {
    int any = 0, all = 1, count = 0, id = -1;
    for (unsigned i = 0; i < fiber_count; i++) {
        Fiber& f = fibers[i];
        if (f.state == DONE) continue;
        if (f.state == WARP) fail_block("a warp operation waits for threads that never come");
        if (id >= 0 && f.id != id) fail_block("divergent __syncthreads: threads wait at different barriers");
        id = f.id;
        any |= f.value != 0;
        all &= f.value != 0;
        count += f.value != 0;
    }
    for (unsigned i = 0; i < fiber_count; i++) {
        Fiber& f = fibers[i];
        if (f.state != BARRIER) continue;
        f.result = f.mode == 1 ? any : f.mode == 2 ? all : count;
        f.state = READY;
    }
}

static void block_on_fibers() {
    fiber_count = blockDim.x * blockDim.y * blockDim.z;
    unsigned i = 0;
    for (unsigned z = 0; z < blockDim.z; z++)
        for (unsigned y = 0; y < blockDim.y; y++)
            for (unsigned x = 0; x < blockDim.x; x++, i++) {
                fibers[i].state = READY;
                fibers[i].index = {x, y, z};
                fibers[i].sp = fresh_stack(stacks + (i + 1) * STACK, fiber_main);
            }
    while (true) {
        bool ran = false, left = false;
        for (unsigned n = 0; n < fiber_count; n++) {
            unsigned at = cusim_reversed ? fiber_count - 1 - n : n;
            if (fibers[at].state == READY) {
                ran = true;
                running = at;
                threadIdx = fibers[at].index;
                cusim_switch(&scheduler_sp, fibers[at].sp);
            }
            left |= fibers[at].state != DONE;
        }
        if (!left) return;
        if (!ran) release_barrier();
    }
}

Code run_launch(const Launch& l) {
    prepare();
    std::vector<void*> params;
    for (auto& p : l.params) params.push_back((void*)p.data());
    blockDim = {l.block[0], l.block[1], l.block[2]};
    gridDim = {l.grid[0], l.grid[1], l.grid[2]};
    cusim_reversed = settings().reverse;
    unsigned dynamic = (l.shared + 15) / 16 * 16;
    cusim_dyn = arena + SHARED - dynamic;
    active_code = l.code;
    active_params = params.data();
    size_t fixed = l.code->shared_stop - l.code->shared_start;
    sigjmp_buf here;
    escape_code = OK;
    if (!sigsetjmp(here, 0)) {
        escape = &here;
        uint64_t blocks = uint64_t(l.grid[0]) * l.grid[1] * l.grid[2];
        for (uint64_t n = 0; n < blocks; n++) {
            uint64_t at = cusim_reversed ? blocks - 1 - n : n;
            blockIdx = {unsigned(at % l.grid[0]), unsigned(at / l.grid[0] % l.grid[1]),
                        unsigned(at / l.grid[0] / l.grid[1])};
            if (dynamic) memset(cusim_dyn, 0xff, dynamic);
            if (fixed) memset(l.code->shared_start, 0xff, fixed);
            if (l.program->fibers) block_on_fibers();
            else l.code->plain(active_params);
        }
    }
    escape = nullptr;
    if (escape_code) {
        std::string why = escape_code == ILLEGAL_ADDRESS ? "illegal address"
                        : escape_code == MISALIGNED_ADDRESS ? "misaligned address"
                        : escape_why && !escape_why->empty() ? *escape_why : "integer division by zero";
        diagnose("kernel " + l.name + ", block " + std::to_string(blockIdx.x) + ", thread " +
                 std::to_string(threadIdx.x) + ": " + why);
        if (escape_why) escape_why->clear();
    }
    return escape_code;
}

enum WarpMode { SHUFFLE, BALLOT, ADD, MIN, MAX, MIN_SIGNED, MAX_SIGNED, AND, OR, XOR, MATCH };

static uint64_t warp_result(Fiber* warp, unsigned lanes, const Fiber& f) {
    auto each = [&](auto step) {
        uint64_t r = 0;
        bool first = true;
        for (unsigned lane = 0; lane < 32; lane++)
            if (lanes >> lane & 1) {
                r = first ? warp[lane].value : step(r, warp[lane].value);
                first = false;
            }
        return r;
    };
    uint64_t bits = 0;
    switch (f.mode) {
    case SHUFFLE:
        // A lane that takes no part has no value: what comes is undefined.
        return (unsigned)f.source < 32 && (lanes >> f.source & 1) ? warp[f.source].value : ~uint64_t(0);
    case BALLOT:
        for (unsigned lane = 0; lane < 32; lane++)
            if ((lanes >> lane & 1) && warp[lane].value) bits |= 1u << lane;
        return bits;
    case MATCH:
        for (unsigned lane = 0; lane < 32; lane++)
            if ((lanes >> lane & 1) && warp[lane].value == f.value) bits |= 1u << lane;
        return bits;
    case ADD: return each([](uint64_t a, uint64_t b) { return uint64_t(unsigned(a + b)); });
    case MIN: return each([](uint64_t a, uint64_t b) { return a < b ? a : b; });
    case MAX: return each([](uint64_t a, uint64_t b) { return a > b ? a : b; });
    case MIN_SIGNED: return each([](uint64_t a, uint64_t b) { return int(a) < int(b) ? a : b; });
    case MAX_SIGNED: return each([](uint64_t a, uint64_t b) { return int(a) > int(b) ? a : b; });
    case AND: return each([](uint64_t a, uint64_t b) { return a & b; });
    case OR: return each([](uint64_t a, uint64_t b) { return a | b; });
    default: return each([](uint64_t a, uint64_t b) { return a ^ b; });
    }
}

}  // namespace sim

using namespace sim;

extern "C" {
void cusim_trap(const char* why) { fail_block(why); }

int cusim_barrier(int id, int value, int mode) {
    Fiber& f = fibers[running];
    f.state = BARRIER;
    f.id = id;
    f.value = value;
    f.mode = mode;
    suspend();
    return f.result;
}

// The last thread of the mask to arrive computes everybody's result and runs on.
uint64_t cusim_warp(int id, unsigned mask, uint64_t value, int source, int mode) {
    unsigned lane = running % 32;
    Fiber* warp = fibers + (running - lane);
    Fiber& f = fibers[running];
    if (!(mask >> lane & 1)) fail_block("a warp operation whose mask lacks the calling thread");
    f.state = WARP;
    f.id = id;
    f.mask = mask;
    f.value = value;
    f.source = source;
    f.mode = mode;
    unsigned lanes = 0;
    bool complete = true;
    for (unsigned other = 0; other < 32 && running - lane + other < fiber_count; other++) {
        if (!(mask >> other & 1) || warp[other].state == DONE) continue;
        lanes |= 1u << other;
        complete &= warp[other].state == WARP && warp[other].mask == mask && warp[other].id == id;
    }
    if (complete) {
        for (unsigned other = 0; other < 32; other++)
            if (lanes >> other & 1) warp[other].result = warp_result(warp, lanes, warp[other]);
        for (unsigned other = 0; other < 32; other++)
            if (lanes >> other & 1) warp[other].state = READY;
    } else {
        suspend();
    }
    return f.result;
}
}

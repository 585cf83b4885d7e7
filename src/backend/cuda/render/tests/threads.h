// What a rendered kernel needs from CUDA, for g++: thread blocks one after the other, threads as fibers that switch where
// they synchronise.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <ucontext.h>
#include <vector>

#define __device__
#define __global__
#define __noinline__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(n)

struct Dim { unsigned x; };
static Dim threadIdx, blockIdx, blockDim, gridDim;

struct Fiber { ucontext_t context; std::vector<char> stack; bool ended; };
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static std::function<void()> work;
static unsigned arrived, live, generation;
static bool backwards;

static void yield() {
    unsigned me = threadIdx.x;
    swapcontext(&fibers[me].context, &scheduler);
    threadIdx.x = me;
}
static void fiber_main() {
    unsigned me = threadIdx.x;
    work();
    fibers[me].ended = true;
    --live;
    if (live && arrived == live) { arrived = 0; ++generation; }
    swapcontext(&fibers[me].context, &scheduler);
}
static void __syncthreads() {
    unsigned mine = generation;
    if (++arrived == live) { arrived = 0; ++generation; return; }
    while (generation == mine) yield();
}
static void __syncwarp(unsigned = ~0u) { yield(); }
static unsigned long long slots[1024];
template <class T> static T shuffle(T v, unsigned from) {
    unsigned me = threadIdx.x;
    slots[me] = 0;
    memcpy(&slots[me], &v, sizeof v);
    yield();
    T r;
    memcpy(&r, &slots[me / 32 * 32 + from % 32], sizeof r);
    yield();
    return r;
}
template <class T> static T __shfl_xor_sync(unsigned, T v, int by) { return shuffle(v, threadIdx.x % 32 ^ by); }
template <class T> static T __shfl_sync(unsigned, T v, int from) { return shuffle(v, from); }
template <class T> static T __shfl_up_sync(unsigned, T v, unsigned by) { return shuffle(v, threadIdx.x % 32 < by ? threadIdx.x % 32 : threadIdx.x % 32 - by); }

static void launch(unsigned grid, unsigned threads, bool synchronises, std::function<void()> f) {
    work = f;
    gridDim.x = grid;
    blockDim.x = threads;
    for (unsigned b = 0; b < grid; ++b) {
        blockIdx.x = b;
        if (!synchronises) {
            for (unsigned t = 0; t < threads; ++t) { threadIdx.x = backwards ? threads - 1 - t : t; f(); }
            continue;
        }
        if (fibers.size() < threads) fibers.resize(threads);
        live = threads;
        arrived = 0;
        for (unsigned t = 0; t < threads; ++t) {
            Fiber& fiber = fibers[t];
            fiber.ended = false;
            fiber.stack.resize(65536);
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.data();
            fiber.context.uc_stack.ss_size = fiber.stack.size();
            fiber.context.uc_link = &scheduler;
            makecontext(&fiber.context, fiber_main, 0);
        }
        while (live) {
            for (unsigned t = 0; t < threads; ++t) {
                unsigned me = backwards ? threads - 1 - t : t;
                if (fibers[me].ended) continue;
                threadIdx.x = me;
                swapcontext(&scheduler, &fibers[me].context);
            }
        }
    }
}

template <class T, class U> static T bits(U u) { T t; static_assert(sizeof t == sizeof u, ""); memcpy(&t, &u, sizeof t); return t; }
static float __uint_as_float(unsigned u) { return bits<float>(u); }
static unsigned __float_as_uint(float f) { return bits<unsigned>(f); }
static double __longlong_as_double(long long u) { return bits<double>(u); }
static long long __double_as_longlong(double f) { return bits<long long>(f); }
static unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static unsigned atomicOr(unsigned* p, unsigned v) { unsigned o = *p; *p |= v; return o; }
static unsigned atomicAdd(unsigned* p, unsigned v) { unsigned o = *p; *p += v; return o; }
static long long atomicMax(long long* p, long long v) { long long o = *p; if (v > o) *p = v; return o; }
static int __popc(unsigned v) { return __builtin_popcount(v); }
static int __clz(unsigned v) { return v ? __builtin_clz(v) : 32; }

// Memory with room around it that must stay as it was.
static unsigned char* input;
static FILE* output;
struct Pointer {
    unsigned char* p;
    template <class T> operator T*() const { return (T*)p; }
};
struct Buffer {
    std::vector<unsigned char> bytes;
    size_t size, start;
    Buffer(size_t size, size_t shift, bool read) : bytes(size + 512, 0x5a), size(size) {
        start = 256 - (size_t)bytes.data() % 64 + shift;
        if (read) { memcpy(&bytes[start], input, size); input += size; }
    }
    Pointer at() { return Pointer{&bytes[start]}; }
    void check(const char* name) {
        for (size_t i = 0; i < bytes.size(); ++i)
            if ((i < start || i >= start + size) && bytes[i] != 0x5a) { printf("%s: memory outside a buffer was written\n", name); exit(1); }
    }
    void write() { fwrite(&bytes[start], 1, size, output); }
};

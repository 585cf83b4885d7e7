// libcuda: memory, copies, pools.
#include "sim.h"
#include <cstring>

using namespace sim;

static Code not_in_block(const char* call, const char* why) {
    diagnose(std::string(call) + ": an address is " + why);
    return INVALID_VALUE;
}
#define IN_DEVICE(p, n) \
    if (const char* why_ = range_error(p, n)) return not_in_block(__func__, why_);

static bool is_pinned(const void* p) {
    Block* b = block_of(uintptr_t(p));
    return b && !b->owner;
}
static bool is_device(const void* p) {
    Block* b = block_of(uintptr_t(p));
    return b && b->owner;
}

// A copy as it runs: what was freed meanwhile is an illegal address.
static std::function<Code()> copy(void* to, const void* from, size_t n, bool pinned_to, bool pinned_from,
                                  bool device_to, bool device_from) {
    return [=]() -> Code {
        const char* why = nullptr;
        if (device_to || pinned_to) why = range_error(uintptr_t(to), n, pinned_to);
        if (!why && (device_from || pinned_from)) why = range_error(uintptr_t(from), n, pinned_from);
        // A stream-ordered free comes later in order, so what is dying is still there.
        if (why && !strstr(why, "being freed")) {
            diagnose(std::string("a copy that was enqueued: an address is ") + why);
            return ILLEGAL_ADDRESS;
        }
        memmove(to, from, n);
        return OK;
    };
}

static Code host_to_device(uintptr_t to, const void* from, size_t n, Stream* s, bool wait) {
    bool pinned = is_pinned(from);
    std::function<Code()> run;
    if (pinned || s->capture) {
        run = copy((void*)to, from, n, false, pinned, true, false);
    } else {
        auto staged = std::make_shared<std::vector<char>>((const char*)from, (const char*)from + n);
        run = [=]() -> Code { return copy((void*)to, staged->data(), n, false, false, true, false)(); };
    }
    if (Code code = submit(s, MEMCPY, "", run)) return code;
    if (wait) complete(s->last);
    return wait ? s->ctx->broken : OK;
}

static Code device_to_host(void* to, uintptr_t from, size_t n, Stream* s, bool wait) {
    bool pinned = is_pinned(to);
    if (Code code = submit(s, MEMCPY, "", copy(to, (void*)from, n, pinned, false, false, true))) return code;
    if ((wait || !pinned) && !s->capture) {
        complete(s->last);
        return s->ctx->broken;
    }
    return OK;
}

// Runs what the capture of its own stream, or one elsewhere, does not allow.
#define NO_CAPTURE \
    if (Code code_ = capture_forbids()) return code_;

extern "C" {

int cuMemAlloc_v2(uintptr_t* out, size_t bytes) {
    ENTER(CTX);
    if (!out || !bytes) return INVALID_VALUE;
    NO_CAPTURE;
    uintptr_t p = allocate(current(), bytes, false, false);
    if (!p) {
        complete_all(current());
        p = allocate(current(), bytes, false, false);
    }
    if (!p) return OUT_OF_MEMORY;
    *out = p;
    return current()->broken;
}

int cuMemFree_v2(uintptr_t p) {
    ENTER(CTX);
    if (!p) return OK;
    NO_CAPTURE;
    Block* b = block_of(p);
    if (!b || b->base != p || b->dying || b->owner != current()) return not_in_block(__func__, "not that of an allocation");
    complete_all(current());
    release(p);
    return current()->broken;
}

int cuMemAllocAsync(uintptr_t* out, size_t bytes, void* stream) {
    ENTER(CTX);
    if (!out || !bytes) return INVALID_VALUE;
    Stream* s = stream_of(stream);
    if (!s) return INVALID_HANDLE;
    if (s->capture) {
        s->capture->invalid = true;
        diagnose("cuMemAllocAsync in a capture would make a memory node: not simulated");
        return NOT_SUPPORTED;
    }
    uintptr_t p = allocate(current(), bytes, true, false);
    if (!p) {
        // What this stream frees before is there to be used again.
        complete(s->last);
        p = allocate(current(), bytes, true, false);
    }
    if (!p) return current()->broken ? current()->broken : OUT_OF_MEMORY;
    *out = p;
    return OK;
}

int cuMemFreeAsync(uintptr_t p, void* stream) {
    ENTER(CTX);
    if (!p) return OK;
    Stream* s = stream_of(stream);
    if (!s) return INVALID_HANDLE;
    if (s->capture) {
        s->capture->invalid = true;
        diagnose("cuMemFreeAsync in a capture would make a memory node: not simulated");
        return NOT_SUPPORTED;
    }
    Block* b = block_of(p);
    if (!b || b->base != p || b->dying || b->owner != current()) return not_in_block(__func__, "not that of an allocation");
    b->dying = true;
    stream_enqueue(s, [p]() -> Code {
        Block* b = block_of(p);
        Context* owner = b ? b->owner : nullptr;
        release(p);
        return owner ? owner->broken : OK;
    });
    return OK;
}

int cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
    ENTER(CTX);
    if (!out || !bytes || flags > 7) return INVALID_VALUE;
    NO_CAPTURE;
    uintptr_t p = allocate(current(), bytes, false, true);
    if (!p) return OUT_OF_MEMORY;
    *out = (void*)p;
    return OK;
}

int cuMemFreeHost(void* p) {
    ENTER(CTX);
    NO_CAPTURE;
    Block* b = block_of(uintptr_t(p));
    if (!p || !b || b->base != uintptr_t(p) || b->owner) return not_in_block(__func__, "not that of a host allocation");
    complete_all(current());
    release(uintptr_t(p));
    return current()->broken;
}

int cuMemHostGetDevicePointer_v2(uintptr_t* out, void* p, unsigned flags) {
    ENTER(CTX);
    if (!out || flags || !is_pinned(p)) return INVALID_VALUE;
    *out = uintptr_t(p);
    return OK;
}

int cuMemcpyHtoDAsync_v2(uintptr_t to, const void* from, size_t n, void* stream) {
    ENTER(CTX);
    Stream* s = stream_of(stream);
    if (!s) return INVALID_HANDLE;
    if (!n) return OK;
    if (!from || is_device(from)) return INVALID_VALUE;
    IN_DEVICE(to, n);
    return host_to_device(to, from, n, s, false);
}

int cuMemcpyDtoHAsync_v2(void* to, uintptr_t from, size_t n, void* stream) {
    ENTER(CTX);
    Stream* s = stream_of(stream);
    if (!s) return INVALID_HANDLE;
    if (!n) return OK;
    if (!to || is_device(to)) return INVALID_VALUE;
    IN_DEVICE(from, n);
    return device_to_host(to, from, n, s, false);
}

int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t n, void* stream) {
    ENTER(CTX);
    Stream* s = stream_of(stream);
    if (!s) return INVALID_HANDLE;
    if (!n) return OK;
    IN_DEVICE(to, n);
    IN_DEVICE(from, n);
    return submit(s, MEMCPY, "", copy((void*)to, (void*)from, n, false, false, true, true));
}

int cuMemcpyHtoD_v2(uintptr_t to, const void* from, size_t n) {
    ENTER(CTX);
    if (!n) return OK;
    if (!from || is_device(from)) return INVALID_VALUE;
    IN_DEVICE(to, n);
    NO_CAPTURE;
    return host_to_device(to, from, n, current()->legacy, true);
}

int cuMemcpyDtoH_v2(void* to, uintptr_t from, size_t n) {
    ENTER(CTX);
    if (!n) return OK;
    if (!to || is_device(to)) return INVALID_VALUE;
    IN_DEVICE(from, n);
    NO_CAPTURE;
    return device_to_host(to, from, n, current()->legacy, true);
}

int cuMemsetD8Async(uintptr_t to, unsigned char value, size_t n, void* stream) {
    ENTER(CTX);
    Stream* s = stream_of(stream);
    if (!s) return INVALID_HANDLE;
    if (!n) return OK;
    IN_DEVICE(to, n);
    return submit(s, MEMSET, "", [=]() -> Code {
        const char* why = range_error(to, n);
        if (why && !strstr(why, "being freed")) return diagnose("an enqueued memset: freed memory"), ILLEGAL_ADDRESS;
        memset((void*)to, value, n);
        return OK;
    });
}

int cuMemGetInfo_v2(size_t* free, size_t* total) {
    ENTER(CTX);
    if (!free || !total) return INVALID_VALUE;
    Context* c = current();
    *free = c->limit > c->used ? c->limit - c->used : 0;
    *total = c->limit;
    return OK;
}

// The only pool of a device; its handle.
static void* pool_of(Context& c) { return &c.release_threshold; }
static Context* context_of_pool(void* pool) {
    for (int i = 0; i < DEVICES; i++)
        if (pool == pool_of(context_of(i))) return &context_of(i);
    return nullptr;
}

int cuDeviceGetDefaultMemPool(void** out, int device) {
    ENTER(INIT);
    if (!out) return INVALID_VALUE;
    if (device < 0 || device >= DEVICES) return INVALID_DEVICE;
    *out = pool_of(context_of(device));
    return OK;
}

int cuMemPoolSetAttribute(void* pool, int attribute, void* value) {
    ENTER(INIT);
    Context* c = context_of_pool(pool);
    if (!c || !value) return INVALID_VALUE;
    switch (attribute) {
    case 1: case 2: case 3: c->reuse[attribute] = *(int*)value; return OK;
    case 4: c->release_threshold = *(uint64_t*)value; return OK;
    case 8:
        if (*(uint64_t*)value) return INVALID_VALUE;
        c->high = c->used;
        return OK;
    default: return INVALID_VALUE;
    }
}

// The simulated pool holds nothing back, so what is reserved is what is used.
int cuMemPoolGetAttribute(void* pool, int attribute, void* value) {
    ENTER(INIT);
    Context* c = context_of_pool(pool);
    if (!c || !value) return INVALID_VALUE;
    switch (attribute) {
    case 1: case 2: case 3: *(int*)value = c->reuse[attribute]; return OK;
    case 4: *(uint64_t*)value = c->release_threshold; return OK;
    case 5: case 7: *(uint64_t*)value = c->used; return OK;
    case 6: case 8: *(uint64_t*)value = c->high; return OK;
    default: return INVALID_VALUE;
    }
}

int cuMemPoolTrimTo(void* pool, size_t) {
    ENTER(INIT);
    return context_of_pool(pool) ? OK : INVALID_VALUE;
}
}

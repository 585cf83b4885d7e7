// Device and pinned memory: addresses are never used twice, fresh memory is poisoned, guard pages stand around each
// block, and the bytes between a block and its guard pages hold a pattern that is checked.
#include "sim.h"
#include <cstring>
#include <sys/mman.h>

namespace sim {

constexpr uintptr_t PAGE = 4096;
constexpr unsigned char POISON = 0xff;  // a NaN in every float format
constexpr unsigned char GUARD = 0xfe;
constexpr size_t MANY = 8000;
constexpr uintptr_t NEAR = 256;  // bytes before a block that each synchronisation checks

static std::map<uintptr_t, Block>& blocks() {
    static auto* b = new std::map<uintptr_t, Block>;
    return *b;
}

static uintptr_t reserve(uintptr_t bytes) {
    static uintptr_t next = 0, end = 0;
    if (next + bytes > end) {
        for (uintptr_t size = uintptr_t(16) << 40; size >= bytes + PAGE; size >>= 2) {
            void* p = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (p != MAP_FAILED) {
                next = uintptr_t(p), end = next + size;
                break;
            }
        }
        if (next + bytes > end) return 0;
    }
    uintptr_t at = next;
    next += bytes;
    return at;
}

uintptr_t allocate(Context* ctx, size_t bytes, bool async, bool pinned) {
    if (!pinned && (bytes > ctx->limit || ctx->used + bytes > ctx->limit)) return 0;
    if (bytes > uintptr_t(1) << 42) return 0;
    uintptr_t rounded = (bytes + 255) / 256 * 256;
    uintptr_t map_bytes = (rounded + PAGE - 1) / PAGE * PAGE;
    uintptr_t at = reserve(map_bytes + 2 * PAGE);
    if (!at) return 0;
    uintptr_t map = at + PAGE;
    // Each guard page is a mapping of its own, and a process may have some 65,000: beyond so many blocks they are
    // ordinary pages whose pattern is checked.
    uintptr_t after = 0;
    if (blocks().size() >= MANY) map = at, after = PAGE, map_bytes += 2 * PAGE;
    if (mmap((void*)map, map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
             -1, 0) == MAP_FAILED)
        return 0;
    uintptr_t base = map + map_bytes - after - rounded;
    memset((void*)map, GUARD, base - map);
    memset((void*)base, POISON, bytes);
    memset((void*)(base + bytes), GUARD, map + map_bytes - base - bytes);
    blocks()[base] = Block{base, bytes, map, map_bytes, pinned ? nullptr : ctx, false, async};
    if (!pinned) {
        ctx->used += bytes;
        if (ctx->used > ctx->high) ctx->high = ctx->used;
    }
    born(pinned ? "host memory" : "memory", (void*)base, std::to_string(bytes) + " bytes");
    return base;
}

static bool intact(const Block& b, uintptr_t from) {
    static const auto* pattern = (const unsigned char*)memset(new unsigned char[3 * PAGE], GUARD, 3 * PAGE);
    uintptr_t end = b.base + b.bytes;
    return !memcmp((void*)from, pattern, b.base - from) && !memcmp((void*)end, pattern, b.map + b.map_bytes - end);
}

static Code overrun(const Block& b) {
    diagnose("guard zone of an allocation of " + std::to_string(b.bytes) + " bytes was written to");
    if (b.owner) b.owner->broken = ILLEGAL_ADDRESS;
    // Said once.
    memset((void*)b.map, GUARD, b.base - b.map);
    memset((void*)(b.base + b.bytes), GUARD, b.map + b.map_bytes - b.base - b.bytes);
    return ILLEGAL_ADDRESS;
}

Code check_guards() {
    Code code = OK;
    for (auto& [base, b] : blocks())
        if (!intact(b, std::max(b.map, base - NEAR))) code = overrun(b);
    return code;
}

void release(uintptr_t base) {
    auto it = blocks().find(base);
    if (it == blocks().end()) return;
    Block b = it->second;
    blocks().erase(it);
    if (!intact(b, b.map)) overrun(b);
    mmap((void*)b.map, b.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (b.owner) b.owner->used -= b.bytes;
    died(b.owner ? "memory" : "host memory", (void*)base);
}

Block* block_of(uintptr_t address) {
    auto it = blocks().upper_bound(address);
    if (it == blocks().begin()) return nullptr;
    --it;
    Block& b = it->second;
    return address < b.base + std::max<uintptr_t>(b.bytes, 1) ? &b : nullptr;
}

const char* range_error(uintptr_t address, size_t bytes, bool pinned) {
    Block* b = block_of(address);
    if (!b) return "not inside an allocation, or freed";
    if (b->dying) return "inside an allocation that is being freed";
    if (pinned != !b->owner) return pinned ? "device memory" : "host memory";
    if (bytes > b->base + b->bytes - address) return "longer than its allocation";
    return nullptr;
}

void release_all(Context* ctx) {
    std::vector<uintptr_t> list;
    for (auto& [base, b] : blocks())
        if (b.owner == ctx) list.push_back(base);
    for (auto base : list) release(base);
}

}  // namespace sim

// The lazy queue. Enqueued work runs only when somebody waits, in a seeded arbitrary order that the dependencies allow:
// half of the waits run nothing but what they wait for, the others let anything else overtake.
#include "sim.h"
#include <unistd.h>
#include <sys/syscall.h>

namespace sim {

constexpr size_t MOST_PENDING = 4096;

struct Queue {
    std::vector<OpRef> ready;
    size_t pending = 0;
    uint64_t mark = 0;
    bool guards_dirty = false;
};
static Queue& queue() {
    static auto* q = new Queue;
    return *q;
}
std::unordered_set<Stream*>& streams() {
    static auto* s = new std::unordered_set<Stream*>;
    return *s;
}

static void run(const OpRef& op) {
    auto& q = queue();
    if (!op->ctx->broken) {
        Code code = op->run ? op->run() : OK;
        q.guards_dirty = true;
        if (code && !op->ctx->broken) op->ctx->broken = code;
    }
    op->done = true;
    op->run = nullptr;
    op->deps.clear();
    q.pending--;
    op->ctx->pending--;
    for (auto& next : op->next)
        if (--next->waiting == 0) q.ready.push_back(next);
    op->next.clear();
}

static OpRef take(size_t index) {
    auto& ready = queue().ready;
    OpRef op = ready[index];
    ready[index] = ready.back();
    ready.pop_back();
    return op;
}

OpRef enqueue(Context* ctx, std::vector<OpRef> deps, std::function<Code()> body) {
    auto& q = queue();
    auto op = std::make_shared<Op>();
    op->ctx = ctx;
    op->run = std::move(body);
    for (auto& dep : deps) {
        if (!dep || dep->done) continue;
        dep->next.push_back(op);
        op->deps.push_back(dep);
        op->waiting++;
    }
    q.pending++;
    ctx->pending++;
    if (!op->waiting) q.ready.push_back(op);
    while (q.pending > MOST_PENDING && !q.ready.empty()) run(take(random_below(q.ready.size())));
    return op;
}

static void mark_needed(const OpRef& target, uint64_t mark) {
    std::vector<Op*> stack{target.get()};
    while (!stack.empty()) {
        Op* op = stack.back();
        stack.pop_back();
        if (op->mark == mark) continue;
        op->mark = mark;
        for (auto& dep : op->deps)
            if (!dep->done) stack.push_back(dep.get());
    }
}

void complete(const OpRef& target) {
    auto& q = queue();
    if (!target) return;
    bool needed_only = random_below(2) == 0;
    uint64_t mark = ++q.mark;
    if (needed_only && !target->done) mark_needed(target, mark);
    while (!target->done && !q.ready.empty()) {
        size_t n = q.ready.size(), at = random_below(n);
        for (size_t tries = 0; needed_only && q.ready[at]->mark != mark && tries < n; tries++) at = (at + 1) % n;
        run(take(at));
    }
    if (q.guards_dirty) {
        q.guards_dirty = false;
        check_guards();
    }
}

void complete_all(Context* ctx) {
    auto& q = queue();
    while (ctx->pending && !q.ready.empty()) run(take(random_below(q.ready.size())));
    if (q.guards_dirty) {
        q.guards_dirty = false;
        check_guards();
    }
}

void progress() {
    auto& q = queue();
    for (uint64_t n = 1 + random_below(4); n > 0 && !q.ready.empty(); n--) run(take(random_below(q.ready.size())));
}

void drop_pending(Context* ctx) {
    if (!ctx->broken) ctx->broken = LAUNCH_FAILED;  // nothing runs
    complete_all(ctx);
}

OpRef stream_enqueue(Stream* s, std::function<Code()> body) {
    std::vector<OpRef> deps{s->last};
    if (s == s->ctx->legacy) {
        for (Stream* other : streams())
            if (other->ctx == s->ctx && other->blocking) deps.push_back(other->last);
    } else if (s->blocking) {
        deps.push_back(s->ctx->legacy->last);
    }
    s->last = enqueue(s->ctx, std::move(deps), std::move(body));
    return s->last;
}

void stream_after(Stream* s, const OpRef& op) {
    if (op && !op->done) s->last = enqueue(s->ctx, {s->last, op}, nullptr);
}

Stream* stream_of(void* handle) {
    Context* ctx = current();
    if (!handle || handle == (void*)1) return ctx->legacy;
    auto* s = (Stream*)handle;
    if (!streams().count(s) || s->ctx != ctx) {
        diagnose("a stream that does not exist, or of another context");
        return nullptr;
    }
    return s;
}

uint64_t this_thread() {
    static thread_local uint64_t id = syscall(SYS_gettid);
    return id;
}
int& thread_capture_mode() {
    static thread_local int mode = 0;  // CU_STREAM_CAPTURE_MODE_GLOBAL
    return mode;
}

// cuStreamBeginCapture: in mode "global" a capture forbids potentially unsafe calls of every thread, in mode "thread
// local" those of its own thread; a thread's own mode (cuThreadExchangeStreamCaptureMode) can lift either.
Code capture_forbids() {
    int own = thread_capture_mode();
    if (own == 2) return OK;
    Code code = OK;
    for (Stream* s : streams()) {
        auto& c = s->capture;
        if (!c || c->mode == 2) continue;
        bool mine = c->thread == this_thread();
        if (mine || (c->mode == 0 && own == 0)) {
            c->invalid = true;
            code = CAPTURE_UNSUPPORTED;
        }
    }
    if (code) diagnose("a call that a capture in progress forbids");
    return code;
}

}  // namespace sim

// libcuda: streams, events, capture.
#include "sim.h"
#include <algorithm>
#include <ctime>

using namespace sim;

constexpr Code ILLEGAL_STATE = 401;

struct Event {
    Context* ctx;
    bool timing;
    OpRef op;
    std::shared_ptr<double> at = std::make_shared<double>(0);
    std::shared_ptr<Capture> capture;  // recorded in a capture, of which these are the nodes
    std::vector<Node*> tips;
};
static auto& events = *new std::unordered_set<Event*>;

static Event* event_of(void* h) { return events.count((Event*)h) && ((Event*)h)->ctx == current() ? (Event*)h : nullptr; }

static bool in_capture(const Event* e) { return e->capture != nullptr; }

static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

static void leave(const std::shared_ptr<Capture>& c) {
    for (Stream* s : c->streams) {
        s->capture = nullptr;
        s->tips.clear();
    }
}

static bool registered = [] {
    on_reset().push_back([](Context* c) {
        for (auto it = events.begin(); it != events.end();)
            if ((*it)->ctx == c) died("event", *it), it = events.erase(it);
            else ++it;
        for (auto it = streams().begin(); it != streams().end();)
            if ((*it)->ctx == c) died("stream", *it), it = streams().erase(it);
            else ++it;
    });
    return true;
}();

extern "C" {

int cuStreamCreate(void** out, unsigned flags) {
    ENTER(CTX);
    if (!out || flags > 1) return INVALID_VALUE;
    auto* s = new Stream;
    s->ctx = current();
    s->blocking = flags == 0;
    streams().insert(s);
    born("stream", s);
    *out = s;
    return OK;
}

// What is enqueued still runs.
int cuStreamDestroy_v2(void* h) {
    ENTER(CTX);
    auto* s = (Stream*)h;
    if (!streams().count(s) || s->ctx != current()) return INVALID_HANDLE;
    if (s->capture) {
        auto c = s->capture;
        c->invalid = true;
        c->streams.erase(std::find(c->streams.begin(), c->streams.end(), s));
        if (c->origin == s) leave(c);
    }
    if (s->blocking && s->last && !s->last->done) stream_after(s->ctx->legacy, s->last);
    streams().erase(s);
    died("stream", s);
    delete s;
    return OK;
}

int cuStreamSynchronize(void* h) {
    ENTER(CTX);
    Stream* s = stream_of(h);
    if (!s) return INVALID_HANDLE;
    if (s->capture) {
        s->capture->invalid = true;
        return CAPTURE_UNSUPPORTED;
    }
    if (s == s->ctx->legacy)
        if (Code code = submit(s, EMPTY, "", nullptr)) return code;
    complete(s->last);
    return s->ctx->broken;
}

int cuStreamQuery(void* h) {
    ENTER(CTX);
    Stream* s = stream_of(h);
    if (!s) return INVALID_HANDLE;
    if (s->capture) {
        s->capture->invalid = true;
        return CAPTURE_UNSUPPORTED;
    }
    if (Code code = capture_forbids()) return code;
    if (s == s->ctx->legacy)
        if (Code code = submit(s, EMPTY, "", nullptr)) return code;
    if (s->last && !s->last->done) progress();
    if (s->ctx->broken) return s->ctx->broken;
    return s->last && !s->last->done ? NOT_READY : OK;
}

int cuStreamWaitEvent(void* h, void* event, unsigned flags) {
    ENTER(CTX);
    Stream* s = stream_of(h);
    auto* e = (Event*)event;  // of any context
    if (!s || !events.count(e)) return INVALID_HANDLE;
    if (flags > 1) return INVALID_VALUE;
    if (in_capture(e)) {
        if (e->capture->invalid) return CAPTURE_INVALIDATED;
        if (e->capture->streams.empty() || !e->capture->origin->capture) return INVALID_VALUE;
        if (s == s->ctx->legacy) return e->capture->invalid = true, CAPTURE_IMPLICIT;
        if (s->capture && s->capture != e->capture) {
            s->capture->invalid = e->capture->invalid = true;
            return 902;
        }
        if (!s->capture) {
            s->capture = e->capture;
            s->capture->streams.push_back(s);
        }
        for (Node* n : e->tips)
            if (std::find(s->tips.begin(), s->tips.end(), n) == s->tips.end()) s->tips.push_back(n);
        return OK;
    }
    if (s->capture) {
        s->capture->invalid = true;
        return CAPTURE_ISOLATION;
    }
    stream_after(s, e->op);
    return OK;
}

int cuStreamBeginCapture_v2(void* h, int mode) {
    ENTER(CTX);
    Stream* s = stream_of(h);
    if (!s) return INVALID_HANDLE;
    if (mode < 0 || mode > 2) return INVALID_VALUE;
    if (s == s->ctx->legacy) return CAPTURE_UNSUPPORTED;
    if (s->capture) return ILLEGAL_STATE;
    auto c = std::make_shared<Capture>();
    c->origin = s;
    c->graph = new Graph;
    c->mode = mode;
    c->thread = this_thread();
    c->streams = {s};
    s->capture = c;
    s->tips.clear();
    return OK;
}

extern "C" void cusim_own_graph(Graph*);

int cuStreamEndCapture(void* h, void** out) {
    ENTER(CTX);
    Stream* s = stream_of(h);
    if (!s) return INVALID_HANDLE;
    if (!out) return INVALID_VALUE;
    *out = nullptr;
    auto c = s->capture;
    if (!c) return ILLEGAL_STATE;
    if (c->origin != s) return c->invalid = true, CAPTURE_UNMATCHED;
    if (c->mode != 2 && c->thread != this_thread()) return CAPTURE_WRONG_THREAD;
    Code code = c->invalid ? CAPTURE_INVALIDATED : OK;
    std::unordered_set<Node*> reached;
    std::vector<Node*> stack = s->tips;
    while (!stack.empty()) {
        Node* n = stack.back();
        stack.pop_back();
        if (reached.insert(n).second) stack.insert(stack.end(), n->deps.begin(), n->deps.end());
    }
    for (Stream* other : c->streams)
        for (Node* n : other->tips)
            if (!code && !reached.count(n)) code = CAPTURE_UNJOINED;
    leave(c);
    if (code) {
        delete c->graph;
        return code;
    }
    cusim_own_graph(c->graph);
    *out = c->graph;
    return OK;
}

int cuStreamIsCapturing(void* h, int* out) {
    ENTER(CTX);
    Stream* s = stream_of(h);
    if (!s) return INVALID_HANDLE;
    if (!out) return INVALID_VALUE;
    *out = !s->capture ? 0 : s->capture->invalid ? 2 : 1;
    return OK;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
    ENTER(INIT);
    if (!mode || *mode < 0 || *mode > 2) return INVALID_VALUE;
    std::swap(*mode, thread_capture_mode());
    return OK;
}

int cuEventCreate(void** out, unsigned flags) {
    ENTER(CTX);
    if (!out || flags > 3) return INVALID_VALUE;  // interprocess events are not simulated
    auto* e = new Event;
    e->ctx = current();
    e->timing = !(flags & 2);
    events.insert(e);
    born("event", e);
    *out = e;
    return OK;
}

int cuEventDestroy_v2(void* h) {
    ENTER(CTX);
    Event* e = event_of(h);
    if (!e) return INVALID_HANDLE;
    events.erase(e);
    died("event", e);
    delete e;
    return OK;
}

int cuEventRecord(void* h, void* stream) {
    ENTER(CTX);
    Event* e = event_of(h);
    Stream* s = stream_of(stream);
    if (!e || !s) return INVALID_HANDLE;
    if (s->capture) {
        if (s->capture->invalid) return CAPTURE_INVALIDATED;
        e->capture = s->capture;
        e->tips = s->tips;
        e->op = nullptr;
        return OK;
    }
    e->capture = nullptr;
    e->tips.clear();
    auto at = e->at = std::make_shared<double>(0);
    if (Code code = submit(s, EMPTY, "", [at]() -> Code { return *at = now(), OK; })) return code;
    e->op = s->last;
    return OK;
}

int cuEventQuery(void* h) {
    ENTER(CTX);
    Event* e = event_of(h);
    if (!e) return INVALID_HANDLE;
    if (in_capture(e)) return e->capture->invalid = true, CAPTURED_EVENT;
    if (Code code = capture_forbids()) return code;
    if (e->op && !e->op->done) progress();
    if (e->ctx->broken) return e->ctx->broken;
    return e->op && !e->op->done ? NOT_READY : OK;
}

int cuEventSynchronize(void* h) {
    ENTER(CTX);
    Event* e = event_of(h);
    if (!e) return INVALID_HANDLE;
    if (in_capture(e)) return e->capture->invalid = true, CAPTURED_EVENT;
    complete(e->op);
    return e->ctx->broken;
}

static Code elapsed(float* out, void* start, void* end) {
    Event *a = event_of(start), *b = event_of(end);
    if (!out) return INVALID_VALUE;
    if (!a || !b || !a->timing || !b->timing || !a->op || !b->op) return INVALID_HANDLE;
    if (!a->op->done || !b->op->done) return NOT_READY;
    *out = float(*b->at - *a->at);
    return OK;
}
int cuEventElapsedTime(float* out, void* start, void* end) {
    ENTER(CTX);
    return elapsed(out, start, end);
}
int cuEventElapsedTime_v2(float* out, void* start, void* end) {
    ENTER(CTX);
    return elapsed(out, start, end);
}
}

// libcuda: graphs and their launches.
#include "cuda_launch.h"
#include <cstring>

using namespace sim;

struct Exec {
    Context* ctx;
    std::unique_ptr<Graph> graph;
    OpRef last;  // launches of one executable graph run one after the other
};
static auto& graphs = *new std::unordered_set<Graph*>;
static auto& execs = *new std::unordered_set<Exec*>;

static bool registered = [] {
    on_reset().push_back([](Context* c) {
        for (auto it = execs.begin(); it != execs.end();)
            if ((*it)->ctx == c) died("graph exec", *it), it = execs.erase(it);
            else ++it;
    });
    return true;
}();

extern "C" void cusim_own_graph(Graph* g) {
    graphs.insert(g);
    born("graph", g);
}

struct KernelParams {
    void* func;
    unsigned grid[3], block[3], shared;
    void **params, **extra, *kern, *ctx;
};
struct MemsetParams {
    uintptr_t dst;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
};
struct Side {
    size_t x, y, z, lod;
    unsigned type;
    void* host;
    uintptr_t device;
    void *array, *reserved;
    size_t pitch, height;
};
struct CopyParams {
    Side src, dst;
    size_t width, height, depth;
};

// The dependencies of a node to be; INVALID_VALUE if one is not of the graph, or is named twice.
static Code dependencies(Graph* g, void* const* list, size_t n, std::vector<Node*>& out) {
    if (!graphs.count(g) || (n && !list)) return INVALID_VALUE;
    auto& s = settings();
    for (size_t i = 0; i < n; i++) {
        bool found = false;
        for (auto& node : g->nodes) found |= node.get() == list[i];
        if (!found) return diagnose("a dependency is not a node of the graph"), INVALID_VALUE;
        for (size_t j = 0; j < i; j++)
            if (list[i] == list[j]) return diagnose("a dependency is named twice"), INVALID_VALUE;
    }
    for (size_t i = 0; i < n; i++)
        if (s.edges_seen++ != s.drop_edge) out.push_back((Node*)list[i]);
    return OK;
}

static void expand(const Graph& g, const OpRef& head, std::vector<OpRef>& all) {
    std::unordered_map<const Node*, OpRef> ops;
    for (auto& n : g.nodes) {
        std::vector<OpRef> deps;
        for (Node* d : n->deps) deps.push_back(ops[d]);
        if (deps.empty()) deps.push_back(head);
        OpRef op;
        if (n->child) {
            std::vector<OpRef> inner;
            OpRef start = enqueue(n->ctx, deps, nullptr);
            expand(*n->child, start, inner);
            inner.push_back(start);
            op = enqueue(n->ctx, inner, nullptr);
        } else {
            op = enqueue(n->ctx, deps, n->run);
        }
        ops[n.get()] = op;
        all.push_back(op);
    }
}

static bool loaded(const Graph& g) {
    for (auto& n : g.nodes) {
        if (n->kernel && !kernel_alive(n->kernel)) return diagnose("a graph's kernel " + n->name + " was unloaded"), false;
        if (n->child && !loaded(*n->child)) return false;
    }
    return true;
}

extern "C" {

int cuGraphCreate(void** out, unsigned flags) {
    ENTER(INIT);
    if (!out || flags) return INVALID_VALUE;
    auto* g = new Graph;
    cusim_own_graph(g);
    *out = g;
    return OK;
}

int cuGraphDestroy(void* h) {
    ENTER(INIT);
    auto* g = (Graph*)h;
    if (!graphs.erase(g)) return INVALID_VALUE;
    died("graph", g);
    delete g;
    return OK;
}

int cuGraphAddKernelNode_v2(void** out, void* graph, void* const* deps, size_t n, const KernelParams* p) {
    ENTER(CTX);
    if (!out || !p) return INVALID_VALUE;
    std::vector<Node*> list;
    if (Code code = dependencies((Graph*)graph, deps, n, list)) return code;
    if (!p->func && p->kern) return diagnose("kernel nodes of a CUkernel are not simulated"), NOT_SUPPORTED;
    if (p->ctx && p->ctx != current()) return INVALID_CONTEXT;
    KernelLaunch l{p->func, {}, {}, p->shared, p->params, p->extra};
    memcpy(l.grid, p->grid, sizeof l.grid);
    memcpy(l.block, p->block, sizeof l.block);
    std::function<Code()> run;
    std::string name;
    Kernel* kernel;
    if (Code code = prepare_launch(l, run, name, kernel)) return code;
    Node* node = add_node((Graph*)graph, KERNEL, name, current(), list, run);
    node->kernel = kernel;
    *out = node;
    return OK;
}

int cuGraphAddMemsetNode(void** out, void* graph, void* const* deps, size_t n, const MemsetParams* p, void* ctx) {
    ENTER(CTX);
    if (!out || !p || ctx != current()) return INVALID_VALUE;
    std::vector<Node*> list;
    if (Code code = dependencies((Graph*)graph, deps, n, list)) return code;
    MemsetParams m = *p;
    if ((m.element != 1 && m.element != 2 && m.element != 4) || !m.width || !m.height || m.dst % m.element)
        return INVALID_VALUE;
    if (m.height > 1 && m.pitch < m.width * m.element) return INVALID_VALUE;
    size_t span = (m.height - 1) * (m.height > 1 ? m.pitch : 0) + m.width * m.element;
    if (range_error(m.dst, span)) return diagnose("a memset node outside an allocation"), INVALID_VALUE;
    *out = add_node((Graph*)graph, MEMSET, "", current(), list, [m, span]() -> Code {
        if (range_error(m.dst, span)) return diagnose("a memset node: freed memory"), ILLEGAL_ADDRESS;
        for (size_t y = 0; y < m.height; y++)
            for (size_t x = 0; x < m.width; x++)
                memcpy((char*)m.dst + y * m.pitch + x * m.element, &m.value, m.element);
        return OK;
    });
    return OK;
}

// One row: host (1) or device (2) to host or device.
int cuGraphAddMemcpyNode(void** out, void* graph, void* const* deps, size_t n, const CopyParams* p, void* ctx) {
    ENTER(CTX);
    if (!out || !p || ctx != current()) return INVALID_VALUE;
    std::vector<Node*> list;
    if (Code code = dependencies((Graph*)graph, deps, n, list)) return code;
    if (!p->width || p->height != 1 || p->depth != 1) return diagnose("copies of several rows are not simulated"), NOT_SUPPORTED;
    uintptr_t at[2];
    bool device[2], pinned[2];
    for (int i = 0; i < 2; i++) {
        const Side& s = i ? p->dst : p->src;
        if ((s.type != 1 && s.type != 2) || s.y || s.z || s.lod || s.reserved) return INVALID_VALUE;
        at[i] = (s.type == 1 ? uintptr_t(s.host) : s.device) + s.x;
        device[i] = s.type == 2;
        Block* b = block_of(at[i]);
        pinned[i] = !device[i] && b && !b->owner;
        if (!at[i] || (device[i] && range_error(at[i], p->width))) return diagnose("a copy node outside an allocation"), INVALID_VALUE;
    }
    size_t bytes = p->width;
    auto run = [=]() -> Code {
        for (int i = 0; i < 2; i++)
            if ((device[i] || pinned[i]) && range_error(at[i], bytes, pinned[i]))
                return diagnose("a copy node: freed memory"), ILLEGAL_ADDRESS;
        memmove((void*)at[1], (void*)at[0], bytes);
        return OK;
    };
    *out = add_node((Graph*)graph, MEMCPY, "", current(), list, run);
    return OK;
}

// The child is copied: what happens to it later does not matter.
int cuGraphAddChildGraphNode(void** out, void* graph, void* const* deps, size_t n, void* child) {
    ENTER(CTX);
    if (!out || !graphs.count((Graph*)child) || child == graph) return INVALID_VALUE;
    std::vector<Node*> list;
    if (Code code = dependencies((Graph*)graph, deps, n, list)) return code;
    Node* node = add_node((Graph*)graph, CHILD, "", current(), list, nullptr);
    node->child = ((Graph*)child)->clone();
    *out = node;
    return OK;
}

int cuGraphAddEmptyNode(void** out, void* graph, void* const* deps, size_t n) {
    ENTER(INIT);
    if (!out) return INVALID_VALUE;
    std::vector<Node*> list;
    if (Code code = dependencies((Graph*)graph, deps, n, list)) return code;
    *out = add_node((Graph*)graph, EMPTY, "", current() ? current() : &context_of(0), list, nullptr);
    return OK;
}

int cuGraphGetNodes(void* graph, void** out, size_t* n) {
    ENTER(INIT);
    auto* g = (Graph*)graph;
    if (!graphs.count(g) || !n) return INVALID_VALUE;
    if (out) {
        for (size_t i = 0; i < *n; i++) out[i] = i < g->nodes.size() ? g->nodes[i].get() : nullptr;
        *n = std::min(*n, g->nodes.size());
    } else {
        *n = g->nodes.size();
    }
    return OK;
}

int cuGraphInstantiateWithFlags(void** out, void* graph, unsigned long long flags) {
    ENTER(CTX);
    auto* g = (Graph*)graph;
    if (!out || !graphs.count(g)) return INVALID_VALUE;
    // Memory nodes to free (1) there are none; node priorities (8) order nothing.
    if (flags & ~9ull) return INVALID_VALUE;
    auto* e = new Exec{current(), g->clone(), nullptr};
    execs.insert(e);
    born("graph exec", e);
    last_instantiated() = describe(*e->graph);
    *out = e;
    return OK;
}

int cuGraphUpload(void* exec, void* stream) {
    ENTER(CTX);
    auto* e = (Exec*)exec;
    Stream* s = stream_of(stream);
    if (!execs.count(e)) return INVALID_VALUE;
    if (!s) return INVALID_HANDLE;
    if (s->capture) return s->capture->invalid = true, CAPTURE_UNSUPPORTED;
    stream_after(s, e->last);
    return submit(s, EMPTY, "", nullptr);
}

int cuGraphLaunch(void* exec, void* stream) {
    ENTER(CTX);
    auto* e = (Exec*)exec;
    Stream* s = stream_of(stream);
    if (!execs.count(e)) return diagnose("a launch of an executable graph that does not exist"), INVALID_VALUE;
    if (!s) return INVALID_HANDLE;
    if (!loaded(*e->graph)) return INVALID_HANDLE;
    if (s->capture) {
        if (Code code = submit(s, CHILD, "", nullptr)) return code;
        s->tips[0]->child = e->graph->clone();
        return OK;
    }
    stream_after(s, e->last);
    if (Code code = submit(s, EMPTY, "", nullptr)) return code;
    std::vector<OpRef> all{s->last};
    expand(*e->graph, s->last, all);
    e->last = s->last = enqueue(s->ctx, all, nullptr);
    return OK;
}

int cuGraphExecDestroy(void* exec) {
    ENTER(INIT);
    auto* e = (Exec*)exec;
    if (!execs.erase(e)) return INVALID_VALUE;
    died("graph exec", e);
    delete e;
    return OK;
}
}

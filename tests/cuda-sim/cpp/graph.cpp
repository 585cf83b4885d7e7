// Graphs as data, and the one way work takes into a stream: an op, or a node of what the stream captures.
#include "sim.h"

namespace sim {

Node* add_node(Graph* g, NodeKind kind, const std::string& name, Context* ctx, const std::vector<Node*>& deps,
               std::function<Code()> run) {
    auto node = std::make_unique<Node>();
    node->graph = g;
    node->kind = kind;
    node->name = name;
    node->ctx = ctx;
    node->deps = deps;
    node->run = std::move(run);
    g->nodes.push_back(std::move(node));
    return g->nodes.back().get();
}

std::unique_ptr<Graph> Graph::clone() const {
    auto out = std::make_unique<Graph>();
    std::unordered_map<const Node*, Node*> twin;
    for (auto& n : nodes) {
        std::vector<Node*> deps;
        for (Node* d : n->deps) deps.push_back(twin[d]);
        Node* m = add_node(out.get(), n->kind, n->name, n->ctx, deps, n->run);
        m->kernel = n->kernel;
        if (n->child) m->child = n->child->clone();
        twin[n.get()] = m;
    }
    return out;
}

// One line a node: depth, kind, name, positions of what it depends on; the nodes of a child follow it, one deeper.
std::string describe(const Graph& g, int depth) {
    static const char* kinds[] = {"kernel", "memcpy", "memset", "host", "child", "empty"};
    std::unordered_map<const Node*, size_t> at;
    std::string out;
    for (auto& n : g.nodes) {
        size_t position = at.size();
        at[n.get()] = position;
        out += std::to_string(depth) + " " + kinds[n->kind] + " " + (n->name.empty() ? "-" : n->name);
        for (Node* d : n->deps) out += " " + std::to_string(at[d]);
        out += "\n";
        if (n->child) out += describe(*n->child, depth + 1);
    }
    return out;
}

Code submit(Stream* s, NodeKind kind, const std::string& name, std::function<Code()> run, Kernel* kernel) {
    if (auto& c = s->capture) {
        if (c->invalid) return CAPTURE_INVALIDATED;
        Node* node = add_node(c->graph, kind, name, s->ctx, s->tips, std::move(run));
        node->kernel = kernel;
        s->tips = {node};
        return OK;
    }
    if (s == s->ctx->legacy) {
        // The legacy stream would wait for a stream that runs nothing.
        for (Stream* other : streams())
            if (other->ctx == s->ctx && other->blocking && other->capture) {
                other->capture->invalid = true;
                return CAPTURE_IMPLICIT;
            }
    }
    stream_enqueue(s, std::move(run));
    return OK;
}

}  // namespace sim

// The simulated libcublasLt: descriptors, one algorithm, matrix products through the driver's streams.
#include "gemm.h"
#include "sim.h"
#include <cstring>

using namespace sim;

enum Status {
    SUCCESS = 0, NO_INIT = 1, ALLOC_FAILED = 3, BAD_VALUE = 7, ARCH_MISMATCH = 8, EXECUTION_FAILED = 13,
    INTERNAL_ERROR = 14, UNSUPPORTED = 15,
};
enum Type { F32 = 0, F64 = 1, F16 = 2, BF16 = 14 };
enum Compute { C32F = 68, C32F_PEDANTIC = 69, C64F = 70, C64F_PEDANTIC = 71, C32F_TF32 = 77 };
constexpr size_t WORKSPACE = 1024;

struct Desc {
    int compute, scale, transposed[2] = {0, 0};
};
struct Layout {
    int type, row_order = 0, batch = 1;
    uint64_t rows, columns;
    int64_t ld, stride = 0;
};
struct Preference {
    uint64_t workspace = 0;
    unsigned alignment[4] = {256, 256, 256, 256};
};
// What the 64 opaque bytes of an algorithm hold.
struct Algo {
    uint64_t magic, shape, workspace;
    unsigned alignment[4];
    uint64_t unused[3];
};
static_assert(sizeof(Algo) == 64);
constexpr uint64_t MAGIC = 0x6d69736c62756375;

struct HeuristicResult {
    Algo algo;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

static auto& handles = *new std::unordered_set<void*>;
static auto& descs = *new std::unordered_set<void*>;
static auto& layouts = *new std::unordered_set<void*>;
static auto& preferences = *new std::unordered_set<void*>;

static Status refuse(Status s, const std::string& why) {
    diagnose("cublasLt: " + why);
    return s;
}

static size_t size_of(int type) { return type == F64 ? 8 : type == F32 ? 4 : 2; }

struct Shape {
    uint64_t m, n, k;
};

// Whether the product is one that exists, and how large it is.
static Status check(void* desc, void* const layout[4], Shape& shape) {
    if (!descs.count(desc)) return refuse(BAD_VALUE, "not an operation descriptor");
    for (int i = 0; i < 4; i++)
        if (!layouts.count(layout[i])) return refuse(BAD_VALUE, "not a matrix layout");
    auto& d = *(Desc*)desc;
    const Layout *l[4];
    for (int i = 0; i < 4; i++) l[i] = (const Layout*)layout[i];
    for (int i = 0; i < 4; i++) {
        if (!l[i]->rows || !l[i]->columns) return refuse(BAD_VALUE, "an empty matrix");
        if (l[i]->ld < int64_t(l[i]->row_order ? l[i]->columns : l[i]->rows))
            return refuse(BAD_VALUE, "a leading dimension below the matrix's own");
        if (l[i]->batch != l[3]->batch || l[i]->batch < 1) return refuse(BAD_VALUE, "batch counts differ");
    }
    auto rows = [&](int i) { return d.transposed[i] ? l[i]->columns : l[i]->rows; };
    auto columns = [&](int i) { return d.transposed[i] ? l[i]->rows : l[i]->columns; };
    shape = {rows(0), columns(1), columns(0)};
    if (rows(1) != shape.k) return refuse(BAD_VALUE, "the inner dimensions of A and B differ");
    for (int i = 2; i < 4; i++)
        if (l[i]->rows != shape.m || l[i]->columns != shape.n) return refuse(BAD_VALUE, "C or D has another shape");
    int ab = l[0]->type, cd = l[3]->type;
    bool good = l[1]->type == ab && l[2]->type == cd;
    switch (d.compute) {
    case C32F: case C32F_PEDANTIC:
        good &= d.scale == F32 && ((ab == F32 && cd == F32) || ((ab == BF16 || ab == F16) && (cd == ab || cd == F32)));
        break;
    case C32F_TF32: good &= d.scale == F32 && ab == F32 && cd == F32; break;
    case C64F: case C64F_PEDANTIC: good &= d.scale == F64 && ab == F64 && cd == F64; break;
    default: good = false;
    }
    return good ? SUCCESS : refuse(UNSUPPORTED, "a combination of types that is not simulated");
}

static uint64_t fingerprint(void* desc, void* const layout[4]) {
    auto& d = *(Desc*)desc;
    uint64_t h = 0xcbf29ce484222325ull;
    auto add = [&](uint64_t v) { h = (h ^ v) * 0x100000001b3ull; };
    add(d.compute), add(d.transposed[0]), add(d.transposed[1]);
    for (int i = 0; i < 4; i++) {
        auto& l = *(Layout*)layout[i];
        add(l.type), add(l.row_order), add(l.rows), add(l.columns), add(l.ld), add(l.batch);
    }
    return h;
}

template <class T> static Status set(T& field, const void* value, size_t bytes) {
    if (bytes != sizeof(T)) return refuse(BAD_VALUE, "an attribute of another size");
    memcpy(&field, value, bytes);
    return SUCCESS;
}
// For attributes of which one value is simulated.
template <class T> static Status only(T allowed, const void* value, size_t bytes) {
    T given;
    if (Status s = set(given, value, bytes)) return s;
    return given == allowed ? SUCCESS : refuse(UNSUPPORTED, "a value of an attribute that is not simulated");
}

template <class T> static Status destroy(std::unordered_set<void*>& all, const char* kind, void* h) {
    if (!all.erase(h)) return refuse(BAD_VALUE, std::string("not a ") + kind);
    died(kind, h);
    delete (T*)h;
    return SUCCESS;
}
template <class T> static Status create(std::unordered_set<void*>& all, const char* kind, T* made, void** out) {
    all.insert(made);
    born(kind, made);
    *out = made;
    return SUCCESS;
}

extern "C" {

int cublasLtCreate(void** out) {
    ENTER(ANY);
    if (!out) return BAD_VALUE;
    if (!current() || !current()->retained) return refuse(NO_INIT, "no current context");
    return create(handles, "cublasLt handle", new int(0), out);
}
int cublasLtDestroy(void* h) {
    ENTER(ANY);
    return destroy<int>(handles, "cublasLt handle", h);
}

size_t cublasLtGetVersion() {
    static Call call(__func__);
    Lock lock;
    call.enter(ANY);
    return settings().cublaslt_version;
}

static const struct {
    int code;
    const char *name, *text;
} statuses[] = {
    {0, "CUBLAS_STATUS_SUCCESS", "success"},
    {1, "CUBLAS_STATUS_NOT_INITIALIZED", "the library was not initialized"},
    {3, "CUBLAS_STATUS_ALLOC_FAILED", "the resource allocation failed"},
    {7, "CUBLAS_STATUS_INVALID_VALUE", "an invalid value was used as input"},
    {8, "CUBLAS_STATUS_ARCH_MISMATCH", "an absent device architectural feature is required"},
    {11, "CUBLAS_STATUS_MAPPING_ERROR", "an access to GPU memory space failed"},
    {13, "CUBLAS_STATUS_EXECUTION_FAILED", "the function failed to launch on the GPU"},
    {14, "CUBLAS_STATUS_INTERNAL_ERROR", "an internal operation failed"},
    {15, "CUBLAS_STATUS_NOT_SUPPORTED", "the functionality is not supported"},
    {16, "CUBLAS_STATUS_LICENSE_ERROR", "a license error was detected"},
};
const char* cublasLtGetStatusName(int status) {
    static Call call(__func__);
    Lock lock;
    call.enter(ANY);
    for (auto& s : statuses)
        if (s.code == status) return s.name;
    return "CUBLAS_STATUS unknown";
}
const char* cublasLtGetStatusString(int status) {
    static Call call(__func__);
    Lock lock;
    call.enter(ANY);
    for (auto& s : statuses)
        if (s.code == status) return s.text;
    return "unknown";
}

int cublasLtMatmulDescCreate(void** out, int compute, int scale) {
    ENTER(ANY);
    if (!out) return BAD_VALUE;
    auto* d = new Desc;
    d->compute = compute;
    d->scale = scale;
    return create(descs, "cublasLt descriptor", d, out);
}
int cublasLtMatmulDescDestroy(void* h) {
    ENTER(ANY);
    return destroy<Desc>(descs, "cublasLt descriptor", h);
}
int cublasLtMatmulDescSetAttribute(void* h, int which, const void* value, size_t bytes) {
    ENTER(ANY);
    if (!descs.count(h) || !value) return BAD_VALUE;
    auto& d = *(Desc*)h;
    switch (which) {
    case 0: return set(d.compute, value, bytes);
    case 1: return set(d.scale, value, bytes);
    case 2: return only(0, value, bytes);  // alpha and beta in host memory
    case 3: case 4: {
        int t;
        if (Status s = set(t, value, bytes)) return s;
        if (t < 0 || t > 2) return BAD_VALUE;
        d.transposed[which - 3] = t != 0;
        return SUCCESS;
    }
    case 5: return only(0, value, bytes);  // C as it is
    case 7: return only(1, value, bytes);  // no epilogue
    default: return refuse(UNSUPPORTED, "operation attribute " + std::to_string(which));
    }
}

int cublasLtMatrixLayoutCreate(void** out, int type, uint64_t rows, uint64_t columns, int64_t ld) {
    ENTER(ANY);
    if (!out) return BAD_VALUE;
    auto* l = new Layout;
    l->type = type;
    l->rows = rows;
    l->columns = columns;
    l->ld = ld;
    return create(layouts, "cublasLt layout", l, out);
}
int cublasLtMatrixLayoutDestroy(void* h) {
    ENTER(ANY);
    return destroy<Layout>(layouts, "cublasLt layout", h);
}
int cublasLtMatrixLayoutSetAttribute(void* h, int which, const void* value, size_t bytes) {
    ENTER(ANY);
    if (!layouts.count(h) || !value) return BAD_VALUE;
    auto& l = *(Layout*)h;
    switch (which) {
    case 0: return set(l.type, value, bytes);
    case 1: {
        int order;
        if (Status s = set(order, value, bytes)) return s;
        if (order != 0 && order != 1) return refuse(UNSUPPORTED, "an order other than columns or rows");
        l.row_order = order;
        return SUCCESS;
    }
    case 2: return set(l.rows, value, bytes);
    case 3: return set(l.columns, value, bytes);
    case 4: return set(l.ld, value, bytes);
    case 5: return set(l.batch, value, bytes);
    case 6: return set(l.stride, value, bytes);
    default: return refuse(UNSUPPORTED, "layout attribute " + std::to_string(which));
    }
}

int cublasLtMatmulPreferenceCreate(void** out) {
    ENTER(ANY);
    if (!out) return BAD_VALUE;
    return create(preferences, "cublasLt preference", new Preference, out);
}
int cublasLtMatmulPreferenceDestroy(void* h) {
    ENTER(ANY);
    return destroy<Preference>(preferences, "cublasLt preference", h);
}
int cublasLtMatmulPreferenceSetAttribute(void* h, int which, const void* value, size_t bytes) {
    ENTER(ANY);
    if (!preferences.count(h) || !value) return BAD_VALUE;
    auto& p = *(Preference*)h;
    unsigned any;
    switch (which) {
    case 1: return set(p.workspace, value, bytes);
    case 3: return set(any, value, bytes);  // of how parts are added there is one way here
    case 5: case 6: case 7: case 8: {
        if (Status s = set(any, value, bytes)) return s;
        if (!any || (any & (any - 1))) return BAD_VALUE;
        p.alignment[which - 5] = any;
        return SUCCESS;
    }
    default: return refuse(UNSUPPORTED, "preference attribute " + std::to_string(which));
    }
}

int cublasLtMatmulAlgoGetHeuristic(void* h, void* desc, void* a, void* b, void* c, void* d, void* preference,
                                   int requested, HeuristicResult* out, int* found) {
    ENTER(ANY);
    if (!handles.count(h)) return refuse(NO_INIT, "not a handle");
    if (!preferences.count(preference) || requested < 1 || !out || !found) return BAD_VALUE;
    *found = 0;
    void* const layout[4] = {a, b, c, d};
    Shape shape;
    if (Status s = check(desc, layout, shape)) return s;
    auto& p = *(Preference*)preference;
    if (p.workspace < WORKSPACE) return refuse(UNSUPPORTED, "every algorithm needs 1 KiB of workspace");
    memset(out, 0, sizeof *out);
    out->algo.magic = MAGIC;
    out->algo.shape = fingerprint(desc, layout);
    out->algo.workspace = out->workspace = WORKSPACE;
    memcpy(out->algo.alignment, p.alignment, sizeof p.alignment);
    out->waves = 1;
    *found = 1;
    return SUCCESS;
}

int cublasLtMatmul(void* h, void* desc, const void* alpha, const void* a, void* a_layout, const void* b, void* b_layout,
                   const void* beta, const void* c, void* c_layout, void* d, void* d_layout, const Algo* algo,
                   void* workspace, size_t workspace_bytes, void* stream) {
    ENTER(ANY);
    if (!handles.count(h)) return refuse(NO_INIT, "not a handle");
    if (!current() || current()->broken) return refuse(EXECUTION_FAILED, "no current context, or a broken one");
    if (!alpha || !beta) return BAD_VALUE;
    void* const layout[4] = {a_layout, b_layout, c_layout, d_layout};
    Shape shape;
    if (Status s = check(desc, layout, shape)) return s;
    auto& op = *(Desc*)desc;
    if (!algo) return refuse(UNSUPPORTED, "a product without an algorithm from the heuristic");
    if (algo->magic != MAGIC || algo->shape != fingerprint(desc, layout))
        return refuse(BAD_VALUE, "an algorithm that was found for another product");
    if (!workspace || workspace_bytes < algo->workspace) return refuse(BAD_VALUE, "a workspace that is too small");
    if (const char* why = range_error(uintptr_t(workspace), workspace_bytes))
        return refuse(BAD_VALUE, std::string("workspace: ") + why);
    if (uintptr_t(workspace) % 16) return refuse(BAD_VALUE, "workspace: not aligned to 16 bytes");
    Stream* s = stream_of(stream);
    if (!s) return refuse(BAD_VALUE, "not a stream");

    Gemm g{};
    g.m = shape.m, g.n = shape.n, g.k = shape.k;
    g.alpha = op.scale == F64 ? *(const double*)alpha : *(const float*)alpha;
    g.beta = op.scale == F64 ? *(const double*)beta : *(const float*)beta;
    g.tf32 = op.compute == C32F_TF32;
    GemmMatrix* matrices[4] = {&g.a, &g.b, &g.c, &g.d};
    const void* at[4] = {a, b, c, d};
    int64_t strides[4];
    size_t spans[4];
    bool skip[4] = {false, false, g.beta == 0, false};
    int batch = ((Layout*)d_layout)->batch;
    for (int i = 0; i < 4; i++) {
        auto& l = *(Layout*)layout[i];
        matrices[i]->at = (char*)at[i];
        matrices[i]->type = l.type;
        matrices[i]->row_step = l.row_order ? l.ld : 1;
        matrices[i]->column_step = l.row_order ? 1 : l.ld;
        if (i < 2 && op.transposed[i]) std::swap(matrices[i]->row_step, matrices[i]->column_step);
        size_t element = size_of(l.type);
        strides[i] = batch > 1 ? l.stride * int64_t(element) : 0;
        uint64_t lines = l.row_order ? l.rows : l.columns, length = l.row_order ? l.columns : l.rows;
        if (strides[i] < 0) return refuse(UNSUPPORTED, "a negative distance of batches");
        spans[i] = ((lines - 1) * l.ld + length) * element + size_t(strides[i]) * (batch - 1);
        if (skip[i]) continue;
        static const char* names[4] = {"A", "B", "C", "D"};
        if (uintptr_t(at[i]) % std::max<size_t>(algo->alignment[i], element))
            return refuse(BAD_VALUE, std::string(names[i]) + " is aligned worse than the heuristic was told");
        if (const char* why = range_error(uintptr_t(at[i]), spans[i]))
            return refuse(BAD_VALUE, std::string(names[i]) + ": " + why);
    }
    auto run = [=]() -> Code {
        const void* all[5] = {a, b, c, d, workspace};
        for (int i = 0; i < 5; i++) {
            if (i < 4 && skip[i]) continue;
            const char* why = range_error(uintptr_t(all[i]), i < 4 ? spans[i] : workspace_bytes);
            if (why && !strstr(why, "being freed")) return diagnose(std::string("a matrix product ran: ") + why), ILLEGAL_ADDRESS;
        }
        memset(workspace, 0xff, WORKSPACE);
        for (int i = 0; i < batch; i++) {
            Gemm one = g;
            one.a.at += i * strides[0];
            one.b.at += i * strides[1];
            one.c.at += i * strides[2];
            one.d.at += i * strides[3];
            gemm(one);
        }
        memset(workspace, 0xff, WORKSPACE);
        return OK;
    };
    return submit(s, KERNEL, "cublasLt_matmul", run) ? EXECUTION_FAILED : SUCCESS;
}
}

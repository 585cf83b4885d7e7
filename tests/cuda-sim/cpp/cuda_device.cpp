// libcuda: initialisation, devices, contexts, error names.
#include "sim.h"
#include <cstring>

using namespace sim;

static bool device_ok(int device) { return device >= 0 && device < DEVICES; }

static void prepare(Context& c) {
    if (!c.legacy) {
        c.legacy = new Stream;
        c.legacy->ctx = &c;
    }
}
static Context* context_from(void* handle) {
    for (int i = 0; i < DEVICES; i++)
        if (handle == &context_of(i) && context_of(i).retained) return &context_of(i);
    return nullptr;
}

extern "C" {

int cuInit(unsigned flags) {
    ENTER(ANY);
    if (flags) return INVALID_VALUE;
    settings().initialised = true;
    return OK;
}

int cuDriverGetVersion(int* out) {
    ENTER(ANY);
    if (!out) return INVALID_VALUE;
    *out = settings().driver_version;
    return OK;
}

int cuDeviceGetCount(int* out) {
    ENTER(INIT);
    if (!out) return INVALID_VALUE;
    *out = settings().devices;
    return OK;
}

int cuDeviceGet(int* out, int ordinal) {
    ENTER(INIT);
    if (!out) return INVALID_VALUE;
    if (!device_ok(ordinal)) return INVALID_DEVICE;
    *out = ordinal;
    return OK;
}

int cuDeviceGetName(char* out, int bytes, int device) {
    ENTER(INIT);
    if (!out || bytes < 1) return INVALID_VALUE;
    if (!device_ok(device)) return INVALID_DEVICE;
    strncpy(out, "Simulated GPU", bytes);
    out[bytes - 1] = 0;
    return OK;
}

int cuDeviceGetAttribute(int* out, int attribute, int device) {
    ENTER(INIT);
    if (!out) return INVALID_VALUE;
    if (!device_ok(device)) return INVALID_DEVICE;
    auto& s = settings();
    static const std::map<int, int> values = {
        {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 0x7fffffff}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536},
        {10, 32}, {11, 0x7fffffff}, {12, 65536}, {13, 1755000}, {14, 512}, {15, 1}, {16, 132}, {17, 0}, {18, 0},
        {19, 1}, {20, 0}, {31, 1}, {32, 1}, {33, 1}, {34, 0}, {35, 0}, {36, 2619000}, {37, 5120}, {38, 50 << 20},
        {39, 2048}, {40, 3}, {41, 1}, {50, 0}, {78, 1}, {79, 1}, {80, 1}, {81, 233472}, {82, 65536}, {83, 1}, {84, 0},
        {85, 0}, {86, 1}, {87, 2}, {88, 0}, {89, 1}, {90, 1}, {91, 1}, {95, 1}, {97, 232448}, {98, 1}, {99, 1},
        {100, 0}, {101, 1}, {106, 32}, {108, 134217728}, {109, 134217728 / 4}, {111, 1024}, {115, 1}, {119, 1},
        {120, 1}, {122, 0}};
    auto set = s.attributes.find(attribute);
    if (set != s.attributes.end()) return *out = set->second, OK;
    if (attribute == 75) return *out = s.cc_major, OK;
    if (attribute == 76) return *out = s.cc_minor, OK;
    auto known = values.find(attribute);
    if (known == values.end()) return INVALID_VALUE;
    *out = known->second;
    return OK;
}

int cuDeviceTotalMem_v2(size_t* out, int device) {
    ENTER(INIT);
    if (!out) return INVALID_VALUE;
    if (!device_ok(device)) return INVALID_DEVICE;
    *out = context_of(device).limit;
    return OK;
}

int cuDevicePrimaryCtxRetain(void** out, int device) {
    ENTER(INIT);
    if (!out) return INVALID_VALUE;
    if (!device_ok(device)) return INVALID_DEVICE;
    Context& c = context_of(device);
    prepare(c);
    if (!c.retained++) born("context", &c);
    *out = &c;
    return OK;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER(INIT);
    if (!device_ok(device)) return INVALID_DEVICE;
    Context& c = context_of(device);
    if (!c.retained) return INVALID_CONTEXT;
    if (!--c.retained) {
        complete_all(&c);
        died("context", &c);
        c.broken = OK;
    }
    return OK;
}

int cuCtxSetCurrent(void* handle) {
    ENTER(INIT);
    if (handle && !context_from(handle)) return INVALID_CONTEXT;
    current() = context_from(handle);
    return OK;
}

int cuCtxGetCurrent(void** out) {
    ENTER(INIT);
    if (!out) return INVALID_VALUE;
    *out = current();
    return OK;
}

int cuCtxSynchronize() {
    ENTER(CTX);
    for (Stream* s : streams())
        if (s->ctx == current() && s->capture) {
            s->capture->invalid = true;
            return CAPTURE_UNSUPPORTED;
        }
    complete_all(current());
    return current()->broken;
}

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {300, "CUDA_ERROR_INVALID_SOURCE", "device kernel image is invalid"},
    {301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

int cuGetErrorName(int code, const char** out) {
    ENTER(ANY);
    if (!out) return INVALID_VALUE;
    *out = nullptr;
    for (auto& e : errors)
        if (e.code == code) return *out = e.name, OK;
    return INVALID_VALUE;
}

int cuGetErrorString(int code, const char** out) {
    ENTER(ANY);
    if (!out) return INVALID_VALUE;
    *out = nullptr;
    for (auto& e : errors)
        if (e.code == code) return *out = e.text, OK;
    return INVALID_VALUE;
}
}

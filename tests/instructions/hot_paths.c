/* Makes each hot call many times, for callgrind to count what it costs: run as `hot_paths LIBRARY`.
 *
 * Nothing but the driver is linked, and that by dlopen: what is counted is the client library alone. Collection is on
 * inside `measure` only, when every path has been taken before.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { WARM = 50, TIMES = 200, THREADS = 32, SMALL_BYTES = 64 };

typedef struct {
    unsigned grid[3], block[3], shared_bytes;
    void *stream, *attributes;
    unsigned attribute_count;
} LaunchConfig;

static const char PTX[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry nothing(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n) { ret; }\n";

static void *library;

static void *find(const char *name) {
    void *function = dlsym(library, name);
    if (!function) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        exit(1);
    }
    return function;
}

#define CALL(name, types, ...)                                          \
    do {                                                                \
        static int(*name) types;                                        \
        if (!name) name = (int(*) types)find(#name);                    \
        int status = name(__VA_ARGS__);                                 \
        if (status) {                                                   \
            fprintf(stderr, #name " (line %d): %d\n", __LINE__, status); \
            exit(1);                                                    \
        }                                                               \
    } while (0)

static void *kernel, *stream, *other, *event;
static uint64_t data;

/* Each path by itself, so that no call finds caches warm that a real program would find cold only by luck. */
__attribute__((noinline)) void measure(int times) {
    char bytes[SMALL_BYTES] = {0};
    int number;
    void *pointer;
    uint64_t address = data;
    unsigned count = 0;
    void *arguments[] = {&address, &address, &address, &count};
    LaunchConfig config = {{1, 1, 1}, {THREADS, 1, 1}, 0, stream, NULL, 0};
    for (int i = 0; i < times; i++) {
        CALL(cuLaunchKernel,
             (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **), kernel,
             1, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL);
        CALL(cuLaunchKernelEx, (LaunchConfig *, void *, void **, void **), &config, kernel, arguments, NULL);
        CALL(cuMemcpyHtoDAsync_v2, (uint64_t, void *, size_t, void *), data, bytes, sizeof bytes, stream);
        CALL(cuMemcpyDtoDAsync_v2, (uint64_t, uint64_t, size_t, void *), data, data + 4096, 1024, stream);
        CALL(cuMemsetD8Async, (uint64_t, unsigned char, size_t, void *), data, 0, 1024, stream);
        CALL(cuEventRecord, (void *, void *), event, stream);
        CALL(cuStreamWaitEvent, (void *, void *, unsigned), other, event, 0);
        CALL(cuCtxGetCurrent, (void **), &pointer);
        CALL(cuCtxGetDevice, (int *), &number);
        CALL(cuStreamIsCapturing, (void *, int *), stream, &number);
        CALL(cuMemAllocAsync, (uint64_t *, size_t, void *), &address, 4096, stream);
        CALL(cuMemFreeAsync, (uint64_t, void *), address, stream);
        address = data;
    }
    CALL(cuCtxSynchronize, (void));
    for (int i = 0; i < times; i++) {
        CALL(cuStreamSynchronize, (void *), stream);
        CALL(cuStreamQuery, (void *), stream);
        CALL(cuEventQuery, (void *), event);
        CALL(cuMemAlloc_v2, (uint64_t *, size_t), &address, 4096);
        CALL(cuMemFree_v2, (uint64_t), address);
    }
}

int main(int argc, char **argv) {
    void *context, *module;
    if (argc != 2 || !(library = dlopen(argv[1], RTLD_NOW))) {
        fprintf(stderr, "usage: hot_paths LIBRARY: %s\n", argc == 2 ? dlerror() : "");
        return 2;
    }
    CALL(cuInit, (unsigned), 0);
    CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, 0);
    CALL(cuCtxSetCurrent, (void *), context);
    CALL(cuModuleLoadData, (void **, const char *), &module, PTX);
    CALL(cuModuleGetFunction, (void **, void *, const char *), &kernel, module, "nothing");
    CALL(cuStreamCreate, (void **, unsigned), &stream, 1);
    CALL(cuStreamCreate, (void **, unsigned), &other, 1);
    CALL(cuEventCreate, (void **, unsigned), &event, 2);
    CALL(cuMemAlloc_v2, (uint64_t *, size_t), &data, 1 << 20);
    measure(WARM);
    /* The name tells callgrind when to count. */
    extern void measured(void);
    measured();
    puts("done");
    return 0;
}

__attribute__((noinline)) void measured(void) { measure(TIMES); }

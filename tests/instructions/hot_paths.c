/* Makes each hot call many times, for callgrind to count what it costs: run as `hot_paths LIBRARY [HISTORY]`.
 * A history is memory that kernels were given before, and are given no more.
 *
 * Nothing but the driver is linked, and that by dlopen: what is counted is the client library alone. Collection is on
 * inside `measure` only, when every path has been taken before.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WARM = 50, TIMES = 200, THREADS = 32, SMALL_BYTES = 64, HISTORY_BYTES = 4 << 20 };
/* Waits after which a mirror is closed that only an argument opened; more than the client's UNNAMED_WAITS_MAX. */
enum { WAITS = 20 };

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

static void launch_with(uint64_t address) {
    unsigned count = 0;
    void *arguments[] = {&address, &data, &data, &count};
    CALL(cuLaunchKernel,
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **), kernel, 1,
         1, 1, THREADS, 1, 1, 0, stream, arguments, NULL);
}

static void play(const char *history) {
    char *memory = NULL;
    uint64_t managed = 0;
    if (!strcmp(history, "pinned") || !strcmp(history, "freed") || !strcmp(history, "forked")) {
        CALL(cuMemHostAlloc, (void **, size_t, unsigned), (void **)&memory, HISTORY_BYTES, 0);
        launch_with((uint64_t)memory);
    } else if (!strcmp(history, "registered")) {
        memory = aligned_alloc(4096, HISTORY_BYTES);
        CALL(cuMemHostRegister_v2, (void *, size_t, unsigned), memory, HISTORY_BYTES, 0);
        launch_with((uint64_t)memory);
    } else if (!strcmp(history, "managed")) {
        CALL(cuMemAllocManaged, (uint64_t *, size_t, unsigned), &managed, HISTORY_BYTES, 1);
        launch_with(managed);
    } else {
        fprintf(stderr, "no history %s\n", history);
        exit(2);
    }
    CALL(cuCtxSynchronize, (void));
    if (!strcmp(history, "freed")) CALL(cuMemFreeHost, (void *), memory);
    if (managed) CALL(cuMemFree_v2, (uint64_t), managed);
    if (!strcmp(history, "forked")) {
        pid_t child = fork();
        /* Callgrind would write a profile of a child that ends by itself. */
        if (child == 0) raise(SIGKILL);
        waitpid(child, NULL, 0);
    }
    for (int i = 0; i < WAITS; i++) {
        launch_with(data);
        CALL(cuCtxSynchronize, (void));
    }
}

int main(int argc, char **argv) {
    void *context, *module;
    if ((argc != 2 && argc != 3) || !(library = dlopen(argv[1], RTLD_NOW))) {
        fprintf(stderr, "usage: hot_paths LIBRARY [HISTORY]: %s\n", argc >= 2 ? dlerror() : "");
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
    if (argc == 3) play(argv[2]);
    measure(WARM);
    /* The name tells callgrind when to count. */
    extern void measured(void);
    measured();
    puts("done");
    return 0;
}

__attribute__((noinline)) void measured(void) { measure(TIMES); }

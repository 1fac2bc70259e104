/* What CUPTI does as far as the recorder needs it, without a GPU. It is the driver too, in front of a real one with which it is
 * linked (DRIVER): for each call that starts work it calls back, as CUPTI does, and has a kernel of 7 us that starts 1 us later.
 * The records are laid out as cupti_activity.h of CUDA 12.9 has them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef VERSION
#define VERSION 28
#endif
#define KERNEL_BYTES 208
#define RECORDS_MAX 10000
#define DRIVER_API 1

typedef void (*request_t)(uint8_t **, size_t *, size_t *);
typedef void (*complete_t)(void *, uint32_t, uint8_t *, size_t, size_t);
struct called {
    uint32_t site;
    const char *function_name;
    const void *function_params;
    void *function_result;
    const char *symbol_name;
    void *context;
    uint32_t context_number;
    uint64_t *correlation_data;
    uint32_t correlation;
};
typedef void (*callback_t)(void *, uint32_t, uint32_t, const struct called *);

/* The functions that are called back for, numbered from 1. */
static const char *const names[] = {
    0, "cuLaunchKernel", "cuLaunchKernel_ptsz", "cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuCtxGetDevice",
};
#define NAMES (sizeof names / sizeof *names)

static request_t request;
static complete_t complete;
static callback_t callback;
static struct { uint32_t correlation; uint64_t at; } calls[RECORDS_MAX];
static unsigned count, enabled, is_enabled[NAMES];
static uint32_t correlation = 5000;

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

/* As CUPTI does: the driver is called, which is none of the program's calls. */
extern int cuDeviceGetCount(int *);

static void begins(unsigned number)
{
    struct called called = {0, names[number], 0, 0, 0, 0, 0, 0, ++correlation};

    if (!callback || !is_enabled[number]) return;
    callback(0, DRIVER_API, number, &called);
    if (enabled && count < RECORDS_MAX) {
        calls[count].correlation = correlation;
        calls[count++].at = now();
    }
    called.site = 1;
    callback(0, DRIVER_API, number, &called);
}

/* A function of the driver's that starts work; more arguments than it has do no harm. */
#define IN_FRONT_OF(number, name) \
    int name(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k) \
    { \
        static int (*real)(long, long, long, long, long, long, long, long, long, long, long); \
        if (!real) *(void **)&real = dlsym(dlopen(DRIVER, RTLD_NOW), #name); \
        begins(number); \
        return real(a, b, c, d, e, f, g, h, i, j, k); \
    }

IN_FRONT_OF(1, cuLaunchKernel)
IN_FRONT_OF(2, cuLaunchKernel_ptsz)
IN_FRONT_OF(3, cuMemcpyHtoD_v2)
IN_FRONT_OF(4, cuMemcpyHtoDAsync_v2)
IN_FRONT_OF(5, cuMemcpyDtoHAsync_v2)
IN_FRONT_OF(6, cuCtxGetDevice)

int cuptiGetVersion(uint32_t *version) { *version = VERSION; return 0; }
int cuptiGetTimestamp(uint64_t *at) { *at = now(); return 0; }
int cuptiActivityRegisterCallbacks(request_t r, complete_t c) { request = r; complete = c; return 0; }
int cuptiActivityEnable(uint32_t kind) { enabled |= kind == 10; return 0; }

int cuptiSubscribe(void **subscriber, callback_t c, void *data)
{
    int n;

    if (callback || data) return 39; /* CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED */
    callback = c;
    *subscriber = &callback;
    /* As CUPTI does: the driver is called, which is none of the program's calls. */
    return cuDeviceGetCount(&n);
}

int cuptiGetCallbackName(uint32_t domain, uint32_t number, const char **name)
{
    *name = number < NAMES ? names[number] : 0;
    return domain == DRIVER_API && *name ? 0 : 1;
}

int cuptiEnableCallback(uint32_t enable, void *subscriber, uint32_t domain, uint32_t number)
{
    if (subscriber != &callback || domain != DRIVER_API || number >= NAMES) return 1;
    is_enabled[number] = enable;
    return 0;
}

static void put(uint8_t *to, uint64_t value, size_t bytes) { memcpy(to, &value, bytes); }

int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record)
{
    uint8_t *next = *record ? *record + KERNEL_BYTES : buffer;
    if (next >= buffer + valid) return 12;
    *record = next;
    return 0;
}

int cuptiActivityFlushAll(uint32_t flag)
{
    uint8_t *buffer;
    size_t size, records_max, used = 0;
    unsigned i;

    (void)flag;
    request(&buffer, &size, &records_max);
    for (i = 0; i < count; i++) {
        uint8_t *kernel;
        if (used + KERNEL_BYTES > size) {
            complete(0, 0, buffer, size, used);
            request(&buffer, &size, &records_max);
            used = 0;
        }
        kernel = buffer + used;
        used += KERNEL_BYTES;
        memset(kernel, 0, KERNEL_BYTES);
        put(kernel, 10, 4);
        put(kernel + 16, calls[i].at + 1000, 8);
        put(kernel + 24, calls[i].at + 8000, 8);
        put(kernel + 48, 99, 4);
        put(kernel + 92, calls[i].correlation, 4);
        put(kernel + 104, (uint64_t)(uintptr_t)"a_kernel", 8);
    }
    complete(0, 0, buffer, size, used);
    count = 0;
    return 0;
}

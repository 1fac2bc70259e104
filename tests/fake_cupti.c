/* What CUPTI does as far as the recorder needs it, without a GPU: for each call that is announced there is a kernel of 7 us that
 * starts 1 us after the announcement. The records are laid out as cupti_activity.h of CUDA 12.9 has them. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef VERSION
#define VERSION 28
#endif
#define KERNEL_BYTES 208
#define EXTERNAL_BYTES 24
#define RECORDS_MAX 10000

typedef void (*request_t)(uint8_t **, size_t *, size_t *);
typedef void (*complete_t)(void *, uint32_t, uint8_t *, size_t, size_t);

static request_t request;
static complete_t complete;
static struct { uint64_t id, at; } calls[RECORDS_MAX];
static unsigned count, enabled;

/* As CUPTI does: the driver is called, which is none of the program's calls. */
static void call_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*count)(int *) = driver ? (int (*)(int *))dlsym(driver, "cuDeviceGetCount") : 0;
    int n;

    if (count) count(&n);
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

int cuptiGetVersion(uint32_t *version) { *version = VERSION; return 0; }
int cuptiGetTimestamp(uint64_t *at) { *at = now(); return 0; }
int cuptiActivityRegisterCallbacks(request_t r, complete_t c) { request = r; complete = c; return 0; }
int cuptiActivityEnable(uint32_t kind) { enabled |= kind == 10 ? 1 : kind == 39 ? 2 : 0; return 0; }
int cuptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t *id) { *id = 0; return kind == 3 ? 0 : 1; }

int cuptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t id)
{
    call_driver();
    if (kind != 3 || enabled != 3 || count == RECORDS_MAX) return 1;
    calls[count].id = id;
    calls[count++].at = now();
    return 0;
}

static void put(uint8_t *to, uint64_t value, size_t bytes) { memcpy(to, &value, bytes); }

static size_t length(const uint8_t *record) { return *record == 10 ? KERNEL_BYTES : EXTERNAL_BYTES; }

int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record)
{
    uint8_t *next = *record ? *record + length(*record) : buffer;
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
        uint8_t *kernel, *external;
        if (used + KERNEL_BYTES + EXTERNAL_BYTES > size) {
            complete(0, 0, buffer, size, used);
            request(&buffer, &size, &records_max);
            used = 0;
        }
        /* Every other kernel comes before what says whose it is. */
        kernel = buffer + used + (i % 2 ? EXTERNAL_BYTES : 0);
        external = buffer + used + (i % 2 ? 0 : KERNEL_BYTES);
        used += KERNEL_BYTES + EXTERNAL_BYTES;
        memset(kernel, 0, KERNEL_BYTES);
        put(kernel, 10, 4);
        put(kernel + 16, calls[i].at + 1000, 8);
        put(kernel + 24, calls[i].at + 8000, 8);
        put(kernel + 48, 99, 4);
        put(kernel + 92, 5000 + i, 4);
        put(kernel + 104, (uint64_t)(uintptr_t)"a_kernel", 8);
        memset(external, 0, EXTERNAL_BYTES);
        put(external, 39, 4);
        put(external + 4, 3, 4);
        put(external + 8, calls[i].id, 8);
        put(external + 16, 5000 + i, 4);
    }
    complete(0, 0, buffer, size, used);
    count = 0;
    return 0;
}

// Cancels threads in the midst of driver calls, one after the other: each ends, and another thread's calls go on.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long address;
int cuInit(unsigned int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(address *, size_t);
int cuMemFree_v2(address);
int cuMemsetD8Async(address, unsigned char, size_t, void *);
int cuMemcpyHtoD_v2(address, const void *, size_t);
int cuMemcpyDtoH_v2(void *, address, size_t);
int cuStreamCreate(void **, unsigned int);
int cuStreamDestroy_v2(void *);
int cuStreamSynchronize(void *);
int cuModuleLoadData(void **, const void *);
int cuModuleUnload(void *);

enum { THREADS = 50, BYTES = 4 << 20, SHORT_BYTES = 4096, DELAY_US_MAX = 30000, WAIT_S_MAX = 20 };
static const char MODULE[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry none() { ret; }\n";
static void *context;
static atomic_int rounds, is_over;

static void must(int status, const char *what)
{
    if (status == 0) return;
    printf("%s: %d\n", what, status);
    exit(1);
}

#define MUST(call) must(call, #call)

static void *goes_on(void *unused)
{
    (void)unused;
    char sent[SHORT_BYTES], got[SHORT_BYTES];
    address memory;
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAlloc_v2(&memory, SHORT_BYTES));
    while (!is_over) {
        memset(sent, rounds, SHORT_BYTES);
        MUST(cuMemcpyHtoD_v2(memory, sent, SHORT_BYTES));
        MUST(cuMemcpyDtoH_v2(got, memory, SHORT_BYTES));
        must(memcmp(sent, got, SHORT_BYTES), "other bytes");
        rounds++;
    }
    return NULL;
}

static void *is_cancelled(void *place)
{
    address memory = *(address *)place, own;
    char *got = (char *)place + sizeof(address);
    void *stream, *module;
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, 1));
    for (;;) {
        MUST(cuMemAlloc_v2(&own, SHORT_BYTES));
        MUST(cuMemsetD8Async(memory, 1, BYTES, stream));
        MUST(cuStreamSynchronize(stream));
        MUST(cuModuleLoadData(&module, MODULE));
        MUST(cuMemcpyDtoH_v2(got, memory, BYTES));
        MUST(cuModuleUnload(module));
        MUST(cuMemFree_v2(own));
        pthread_testcancel();
    }
    return NULL;
}

static struct timespec soon(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    time.tv_sec += WAIT_S_MAX;
    return time;
}

int main(void)
{
    pthread_t other;
    setvbuf(stdout, NULL, _IOLBF, 0);
    srand(1);
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    char *place = malloc(sizeof(address) + BYTES);
    MUST(cuMemAlloc_v2((address *)place, BYTES));
    pthread_create(&other, NULL, goes_on, NULL);
    for (int number = 0; number < THREADS; number++) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, NULL, is_cancelled, place);
        usleep(rand() % DELAY_US_MAX);
        pthread_cancel(thread);
        struct timespec end = soon();
        if (pthread_timedjoin_np(thread, &result, &end) != 0) return printf("thread %d does not end\n", number), 1;
        must(result != PTHREAD_CANCELED, "a thread that was not cancelled");
        int before = rounds;
        for (int look = 0; rounds < before + 2; look++) {
            if (look > WAIT_S_MAX * 1000) return printf("after %d threads the rest stands still\n", number + 1), 1;
            usleep(1000);
        }
    }
    is_over = 1;
    pthread_join(other, NULL);
    MUST(cuStreamSynchronize(NULL));
    printf("%d cancelled, the rest goes on\n", THREADS);
    return 0;
}

/* Uses CUPTI's activity interface as a profiler does, and prints every record: what tests/test_profiler.py reads. Types are
 * declared here, so that no header of CUPTI's is needed; offsets are those of cupti_activity.h. */
#include <cuda.h>
#include <cuda_runtime.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef void (*request_t)(uint8_t **, size_t *, size_t *);
typedef void (*complete_t)(void *, uint32_t, uint8_t *, size_t, size_t);
extern int cuptiActivityRegisterCallbacks(request_t, complete_t);
extern int cuptiActivityEnable(uint32_t), cuptiActivityDisable(uint32_t), cuptiActivityFlushAll(uint32_t);
extern int cuptiActivityGetNextRecord(uint8_t *, size_t, uint8_t **);
extern int cuptiActivityGetNumDroppedRecords(void *, uint32_t, size_t *);
extern int cuptiActivityPushExternalCorrelationId(uint32_t, uint64_t);
extern int cuptiActivityPopExternalCorrelationId(uint32_t, uint64_t *);
extern int cuptiGetTimestamp(uint64_t *), cuptiGetVersion(uint32_t *), cuptiFinalize(void);
extern int cuptiSubscribe(void **, void *, void *), cuptiUnsubscribe(void *);
extern int cuptiEnableCallback(uint32_t, void *, uint32_t, uint32_t);
extern int cuptiEventGroupCreate(void), cuptiActivitySetAttribute(uint32_t, size_t *, void *);
extern int cuptiActivityEnableCudaEventDeviceTimestamps(uint8_t);
extern int cuptiGetStreamIdEx(CUcontext, CUstream, uint8_t, uint32_t *), cuptiGetContextId(CUcontext, uint32_t *);

#define DO(call) do { int s = (int)(call); if (s) { printf("failed %s: %d\n", #call, s); exit(1); } } while (0)
#define U32(r, at) (*(uint32_t *)((r) + (at)))
#define U64(r, at) (*(uint64_t *)((r) + (at)))

static const char *const ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry fill(.param .u64 p, .param .u32 v) {\n"
    ".reg .b64 %d<4>; .reg .b32 %r<4>;\n"
    "ld.param.u64 %d1, [p]; ld.param.u32 %r1, [v]; cvta.to.global.u64 %d2, %d1;\n"
    "mov.u32 %r2, %tid.x; mul.wide.u32 %d3, %r2, 4; add.s64 %d2, %d2, %d3; st.global.u32 [%d2], %r1; ret; }\n";

static size_t buffer_bytes = 1 << 16;
static int is_stingy;
/* The two functions call CUDA, and the second one CUPTI. */
static int is_calling, flushed_inside = -1;

/* Bytes by which buffers miss their alignment; threads that ask for one at the same moment; buffers given and returned. */
static unsigned skewed, crowd;
static _Atomic unsigned given, returned;
static pthread_barrier_t crowded;

static void request(uint8_t **buffer, size_t *bytes, size_t *records_max)
{
    *buffer = is_stingy ? 0 : (uint8_t *)aligned_alloc(8, buffer_bytes + 8) + skewed;
    *bytes = is_stingy ? 0 : buffer_bytes;
    *records_max = 0;
    if (!is_stingy && given++ < crowd) pthread_barrier_wait(&crowded);
    if (is_calling) cudaDeviceSynchronize();
}

static void complete(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid)
{
    uint8_t *r = 0;
    (void)context, (void)stream, (void)bytes;
    returned++;
    if (is_calling) {
        cudaDeviceSynchronize();
        flushed_inside = cuptiActivityFlushAll(0);
    }
    while (!cuptiActivityGetNextRecord(buffer, valid, &r)) switch (U32(r, 0)) {
        case 1:
            printf("copy call %u bytes %lu kind %u from %u to %u stream %u at %lu %lu\n", U32(r, 44), U64(r, 8), r[4], r[5], r[6],
                   U32(r, 40), U64(r, 16), U64(r, 24));
            break;
        case 2:
            printf("memset call %u bytes %lu value %u stream %u graph %u node %lu at %lu %lu\n", U32(r, 44), U64(r, 8), U32(r, 4), U32(r, 40),
                   U32(r, 72), U64(r, 64), U64(r, 16), U64(r, 24));
            break;
        case 10:
            printf("kernel call %u name %s grid %u block %u stream %u at %lu %lu\n", U32(r, 92), *(char **)(r + 104), U32(r, 52),
                   U32(r, 64), U32(r, 48), U64(r, 16), U64(r, 24));
            break;
        case 4: case 5:
            printf("%s call %u cbid %u result %u at %lu %lu\n", U32(r, 0) == 4 ? "driver" : "runtime", U32(r, 32), U32(r, 4),
                   U32(r, 36), U64(r, 8), U64(r, 16));
            break;
        case 36:
            printf("event call %u context %u stream %u event %u record %lu passed %lu\n", U32(r, 4), U32(r, 8), U32(r, 12), U32(r, 16),
                   U64(r, 48), U64(r, 40));
            break;
        case 38:
            printf("wait call %u type %u context %u stream %d event %d record %ld result %u at %lu %lu\n", U32(r, 24), U32(r, 4),
                   U32(r, 28), (int)U32(r, 32), (int)U32(r, 36), (long)U64(r, 40), U32(r, 48), U64(r, 8), U64(r, 16));
            break;
        case 39: printf("external call %u kind %u id %lu\n", U32(r, 16), U32(r, 4), U64(r, 8)); break;
        default: printf("other %u\n", U32(r, 0));
    }
    free(buffer - skewed);
}

static void called(void *user, uint32_t domain, uint32_t cbid, const void *data)
{
    printf("called %s domain %u cbid %u site %u\n", (char *)user, domain, cbid, *(const uint32_t *)data);
}

static CUfunction fill;
static void *there;

static void launch(unsigned value)
{
    void *arguments[] = {&there, &value};
    DO(cuLaunchKernel(fill, 2, 1, 1, 32, 1, 1, 0, 0, arguments, 0));
}

static void work(void)
{
    static char here[100000];
    uint64_t id = 0;

    DO(cuptiActivityPushExternalCorrelationId(3, 77));
    DO(cudaMemset(there, 7, 4096));
    DO(cuptiActivityPopExternalCorrelationId(3, &id));
    DO(id != 77);
    DO(cudaMemcpy(there, here, sizeof here, cudaMemcpyHostToDevice));
    launch(5);
    DO(cudaMemcpy(here, there, 128, cudaMemcpyDeviceToHost));
    DO(here[4] != 5);
}

static void replay(void)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    DO(cudaStreamCreate(&stream));
    DO(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    DO(cudaMemsetAsync(there, 1, 64, stream));
    DO(cudaMemsetAsync(there, 2, 32, stream));
    DO(cudaStreamEndCapture(stream, &graph));
    DO(cudaGraphInstantiate(&exec, graph, 0));
    DO(cudaGraphLaunch(exec, stream));
    DO(cudaStreamSynchronize(stream));
}

/* Waits of all four kinds, on streams whose kernels and copies have records too. */
static void wait_for_everything(void)
{
    cudaStream_t first, second;
    cudaEvent_t event;
    CUcontext context;
    uint32_t id, numbers[3];

    DO(cudaStreamCreate(&first));
    DO(cudaStreamCreate(&second));
    DO(cudaEventCreate(&event));
    DO(cudaMemsetAsync(there, 1, 11, first));
    DO(cudaEventRecord(event, first));
    DO(cudaStreamWaitEvent(second, event, 0));
    DO(cudaMemsetAsync(there, 2, 22, second));
    DO(cudaStreamSynchronize(second));
    DO(cudaEventSynchronize(event));
    DO(cudaEventRecord(event, second));
    DO(cudaEventSynchronize(event));
    DO(cudaDeviceSynchronize());
    DO(cuCtxGetCurrent(&context));
    DO(cuptiGetContextId(context, &id));
    DO(cuptiGetStreamIdEx(context, 0, 0, &numbers[0]));
    DO(cuptiGetStreamIdEx(context, (CUstream)first, 0, &numbers[1]));
    DO(cuptiGetStreamIdEx(context, (CUstream)second, 0, &numbers[2]));
    printf("numbers %u %u %u %u wrong %d\n", id, numbers[0], numbers[1], numbers[2],
           cuptiGetStreamIdEx(context, (CUstream)0x1234560, 0, &id));
    /* A stream's handle may come again, and is another stream then. */
    DO(cudaStreamDestroy(first));
    DO(cudaStreamCreate(&first));
    DO(cudaMemsetAsync(there, 3, 33, first));
    DO(cudaStreamSynchronize(first));
}

static void *one_call(void *unused)
{
    (void)unused;
    DO(cudaMemset(there, 7, 64));
    return 0;
}

/* So many threads make their first call, and none has a buffer until all have asked for one. */
static void crowd_in(void)
{
    pthread_t threads[100];
    unsigned i;
    for (i = 0; i < crowd; i++) DO(pthread_create(threads + i, 0, one_call, 0));
    for (i = 0; i < crowd; i++) DO(pthread_join(threads[i], 0));
}

/* Flushes while the reader has stopped the server, and again when it goes on. */
static void flush_while_stopped(void)
{
    struct timespec begin, end;
    int status;

    printf("ready\n");
    getchar();
    clock_gettime(CLOCK_MONOTONIC, &begin);
    status = cuptiActivityFlushAll(1);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("flush %d after %ld s\n", status, end.tv_sec - begin.tv_sec);
    getchar();
}

int main(int count, char **arguments)
{
    static const uint32_t kinds[] = {1, 2, 10, 39, 5, 4, 36, 38};
    const char *what = count > 1 ? arguments[1] : "all";
    CUmodule module;
    uint64_t before, after;
    uint32_t version;
    size_t dropped, i;
    void *subscriber;

    setvbuf(stdout, 0, _IOLBF, 0);
    DO(cuptiGetVersion(&version));
    printf("version %u\n", version);
    if (!strcmp(what, "alone")) {
        printf("enable %d flush %d\n", cuptiActivityEnable(10), cuptiActivityFlushAll(0));
        return 0;
    }
    DO(cudaMalloc(&there, 100000));
    DO(cuModuleLoadData(&module, ptx));
    DO(cuModuleGetFunction(&fill, module, "fill"));
    launch(1);
    DO(cudaDeviceSynchronize());
    printf("unsupported %d kind %d wrong %d\n", cuptiEventGroupCreate(), cuptiActivityEnable(12), cuptiActivityEnable(1000));
    is_stingy = !strcmp(what, "stingy");
    if (!strcmp(what, "small")) buffer_bytes = 300;
    if (!strcmp(what, "calling")) is_calling = 1, buffer_bytes = 300;
    if (!strcmp(what, "skewed")) skewed = 4;
    if (!strcmp(what, "crowd")) crowd = 70, pthread_barrier_init(&crowded, 0, crowd);
    DO(cuptiActivityRegisterCallbacks(request, complete));
    DO(cuptiGetTimestamp(&before));
    if (!strcmp(what, "dropped")) {
        /* Memory for some work, and no more. */
        size_t word = sizeof word, bytes = 20000, buffers = 1;
        DO(cuptiActivitySetAttribute(0, &word, &bytes));
        DO(cuptiActivitySetAttribute(2, &word, &buffers));
    }
    if (!strcmp(what, "times")) DO(cuptiActivityEnableCudaEventDeviceTimestamps(1));
    for (i = 0; i < (strcmp(what, "waits") && strcmp(what, "times") ? 6 : 8); i++) DO(cuptiActivityEnable(kinds[i]));
    if (!strcmp(what, "many")) {
        for (i = 0; i < 10000; i++) launch(i);
        for (i = 0; i < 6; i++) DO(cuptiActivityDisable(kinds[i]));
    } else if (!strcmp(what, "dropped")) {
        for (i = 0; i < 1000; i++) launch(i);
    } else if (!strcmp(what, "waits") || !strcmp(what, "times")) {
        wait_for_everything();
    } else if (!strcmp(what, "graph")) {
        replay();
    } else if (!strcmp(what, "callbacks")) {
        DO(cuptiSubscribe(&subscriber, called, "user"));
        printf("second %d\n", cuptiSubscribe(&subscriber, called, "user"));
        DO(cuptiEnableCallback(1, subscriber, 2, 49));
        printf("nvtx %d unknown %d\n", cuptiEnableCallback(1, subscriber, 5, 1), cuptiEnableCallback(1, subscriber, 1, 1023));
        work();
        DO(cuptiUnsubscribe(subscriber));
        work();
    } else if (!strcmp(what, "fork")) {
        int status;
        pid_t child = fork();
        if (!child) _exit(cuptiActivityFlushAll(0) == 15 && cuptiActivityEnable(10) == 15 ? 0 : 1);
        waitpid(child, &status, 0);
        printf("child %d\n", status);
        work();
    } else if (crowd) {
        crowd_in();
    } else if (!strcmp(what, "stopped")) {
        work();
        flush_while_stopped();
    } else {
        work();
    }
    DO(cudaDeviceSynchronize());
    DO(cuptiActivityFlushAll(1));
    DO(cuptiGetTimestamp(&after));
    DO(cuptiActivityGetNumDroppedRecords(0, 0, &dropped));
    if (is_calling) printf("inside %d\n", flushed_inside);
    printf("given %u returned %u\n", given, returned);
    printf("between %lu %lu dropped %zu\n", before, after, dropped);
    if (!strcmp(what, "twice")) {
        DO(cuptiFinalize());
        launch(3);
        DO(cuptiActivityRegisterCallbacks(request, complete));
        DO(cuptiActivityEnable(10));
        launch(4);
        DO(cudaDeviceSynchronize());
        DO(cuptiActivityFlushAll(0));
    }
    printf("done\n");
    return 0;
}

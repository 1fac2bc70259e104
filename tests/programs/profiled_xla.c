/* Profiles as XLA does (its GpuTracer, under JAX and TensorFlow): the same calls in the same order, and as there the first
 * one that fails ends the profile. What its callbacks read of a call is printed for tests/test_profiler.py. */
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*request_t)(uint8_t **, size_t *, size_t *);
typedef void (*complete_t)(CUcontext, uint32_t, uint8_t *, size_t, size_t);
extern int cuptiSubscribe(void **, void *, void *), cuptiUnsubscribe(void *);
extern int cuptiEnableCallback(uint32_t, void *, uint32_t, uint32_t);
extern int cuptiSetThreadIdType(uint32_t), cuptiActivitySetAttribute(uint32_t, size_t *, void *);
extern int cuptiActivityRegisterCallbacks(request_t, complete_t);
extern int cuptiActivityEnable(uint32_t), cuptiActivityDisable(uint32_t), cuptiActivityFlushAll(uint32_t);
extern int cuptiActivityGetNextRecord(uint8_t *, size_t, uint8_t **);
extern int cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t *);
extern int cuptiGetTimestamp(uint64_t *), cuptiFinalize(void);
extern int cuptiGetDeviceId(CUcontext, uint32_t *), cuptiGetGraphId(CUgraph, uint32_t *);
extern int cuptiGetGraphExecId(CUgraphExec, uint32_t *), cuptiGetGraphNodeId(CUgraphNode, uint64_t *);

#define DO(call) do { int s = (int)(call); if (s) { printf("failed %s: %d\n", #call, s); exit(1); } } while (0)
#define U32(r, at) (*(uint32_t *)((r) + (at)))
#define U64(r, at) (*(uint64_t *)((r) + (at)))
enum { DRIVER_API = 1, RESOURCE = 3 };

/* CUpti_CallbackData, CUpti_ResourceData, CUpti_GraphData. */
struct called {
    uint32_t site;
    const char *name;
    const void *params;
    CUresult *result;
    const char *symbol;
    CUcontext context;
    uint32_t context_uid;
    uint64_t *data;
    uint32_t correlation;
};
struct resource {
    CUcontext context;
    CUstream stream;
    const struct graph_data *descriptor;
};
struct graph_data {
    CUgraph graph, original;
    CUgraphNode node, original_node;
    uint32_t type;
    CUgraphNode dependency;
    CUgraphExec exec;
};

/* Driver calls that XLA asks for. */
static const uint32_t cbids[] = {
    307, 477, 480, 276, 277, 278, 279, 280, 281, 282, 283, 284, 285, 286, 287, 288, 289, 290, 291, 292, 293, 305, 306, 318, 319, 243,
    244, 371, 294, 39, 245, 38, 379, 302, 216, 218, 220, 222, 224, 226, 249, 250, 251, 252, 253, 254, 501, 513, 514, 515, 523, 578,
    502, 504, 506, 525, 526, 530, 643, 652, 656, 689,
};
/* CONCURRENT_KERNEL, MEMCPY, MEMCPY2, OVERHEAD, MEMSET. */
static const uint32_t kinds[] = {10, 1, 22, 17, 2};
static const uint32_t resources[] = {9, 11, 13, 18, 20};

static int is_ours;
static uint64_t times[1 << 10];
static size_t calls;

static void on_resource(uint32_t cbid, const struct resource *resource)
{
    const struct graph_data *data = resource->descriptor;
    uint64_t node = 0;
    uint32_t graph = 0, exec = 0;

    if (data->graph) DO(cuptiGetGraphId(data->graph, &graph));
    if (data->exec) DO(cuptiGetGraphExecId(data->exec, &exec));
    if (data->node) DO(cuptiGetGraphNodeId(data->node, &node));
    printf("resource %u graph %u exec %u node %lu type %u\n", cbid, graph, exec, node, data->type);
}

static void on_exit_of(uint32_t cbid, const struct called *called)
{
    const uint64_t *params = called->params;
    uint32_t device = ~0u, exec = 0;
    uint64_t what = 0;

    switch (cbid) {
        case 277: case 279: what = params[2]; break; /* bytes of a copy */
        case 243: what = *(CUdeviceptr *)params[0] ? params[1] : 0; break; /* bytes of an allocation */
        case 216: what = params[2]; break; /* cuMemsetD8Async */
        case 307: what = ((const uint32_t *)params)[2]; break; /* the grid of a launch */
        case 514: DO(cuptiGetGraphId((CUgraph)params[0], &exec)); what = exec; break; /* an executable graph, as XLA passes it */
    }
    DO(cuptiGetDeviceId(called->context, &device));
    printf("exit call %u cbid %u name %s symbol %s what %lu device %u context %u result %d\n", called->correlation, cbid, called->name,
           called->symbol ? called->symbol : "-", what, device, called->context_uid, *called->result);
}

static void called(void *user, uint32_t domain, uint32_t cbid, const void *data)
{
    const struct called *called = data;
    uint64_t now;

    if (strcmp(user, "xla")) abort();
    if (is_ours) return;
    if (domain == RESOURCE) {
        on_resource(cbid, data);
        return;
    }
    if (!called->context) return;
    DO(cuptiGetTimestamp(&now));
    if (called->site == 0) {
        /* Whatever is written here is there at the call's end. */
        times[calls % 1024] = now;
        *called->data = ++calls;
        return;
    }
    if (*called->data == 0 || times[(*called->data - 1) % 1024] > now) printf("the word of %s is lost\n", called->name);
    on_exit_of(cbid, called);
}

static void request(uint8_t **buffer, size_t *bytes, size_t *records_max)
{
    *buffer = aligned_alloc(8, 1 << 20);
    *bytes = 1 << 20;
    *records_max = 0;
}

static void complete(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid)
{
    uint8_t *r = 0;
    size_t dropped;
    (void)bytes;
    DO(cuptiActivityGetNumDroppedRecords(context, stream, &dropped));
    if (dropped) printf("dropped %zu\n", dropped);
    while (!cuptiActivityGetNextRecord(buffer, valid, &r)) switch (U32(r, 0)) {
        case 1: printf("copy call %u bytes %lu context %u\n", U32(r, 44), U64(r, 8), U32(r, 36)); break;
        case 2: printf("memset call %u bytes %lu\n", U32(r, 44), U64(r, 8)); break;
        case 10: printf("kernel call %u name %s graph %u node %lu\n", U32(r, 92), *(char **)(r + 104), U32(r, 156), U64(r, 144)); break;
        case 17: printf("overhead\n"); break;
        default: printf("other %u\n", U32(r, 0));
    }
    free(buffer);
}

static void *subscriber;

static void enable(void)
{
    uint64_t now;
    uint8_t on = 1;
    size_t bytes = sizeof on, i;

    DO(cuptiGetTimestamp(&now));
    DO(cuptiSubscribe(&subscriber, called, "xla"));
    for (i = 0; i < sizeof resources / 4; i++) DO(cuptiEnableCallback(1, subscriber, RESOURCE, resources[i]));
    for (i = 0; i < sizeof cbids / 4; i++) DO(cuptiEnableCallback(1, subscriber, DRIVER_API, cbids[i]));
    DO(cuptiSetThreadIdType(1));
    DO(cuptiActivitySetAttribute(9, &bytes, &on)); /* a buffer for each thread */
    DO(cuptiActivityRegisterCallbacks(request, complete));
    for (i = 0; i < sizeof kinds / 4; i++) DO(cuptiActivityEnable(kinds[i]));
}

static void disable(void)
{
    uint64_t now;
    size_t i;

    for (i = 0; i < sizeof resources / 4; i++) DO(cuptiEnableCallback(0, subscriber, RESOURCE, resources[i]));
    for (i = 0; i < sizeof cbids / 4; i++) DO(cuptiEnableCallback(0, subscriber, DRIVER_API, cbids[i]));
    DO(cuptiUnsubscribe(subscriber));
    /* Not of kernels, as XLA has it. */
    for (i = 1; i < sizeof kinds / 4; i++) DO(cuptiActivityDisable(kinds[i]));
    DO(cuptiActivityFlushAll(1));
    DO(cuptiFinalize());
    is_ours = 1;
    DO(cuCtxSynchronize());
    is_ours = 0;
    DO(cuptiGetTimestamp(&now));
}

static const char *const ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry fill(.param .u64 p) {\n.reg .b64 %d<3>;\n"
    "ld.param.u64 %d1, [p]; cvta.to.global.u64 %d2, %d1; st.global.u32 [%d2], 7; ret; }\n";

static CUfunction fill;
static CUstream stream;

static void work(void)
{
    CUdeviceptr there;
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode nodes[2];
    char here[300] = {0};
    void *arguments[] = {&there};
    CUDA_KERNEL_NODE_PARAMS node = {.gridDimX = 2, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};

    DO(cuMemAlloc(&there, 4096));
    DO(cuMemcpyHtoDAsync(there, here, sizeof here, stream));
    DO(cuMemsetD8Async(there, 3, 77, stream));
    DO(cuLaunchKernel(fill, 5, 1, 1, 1, 1, 1, 0, stream, arguments, 0));
    DO(cuMemcpyDtoHAsync(here, there, 200, stream));
    DO(cuStreamSynchronize(stream));
    if (here[0] != 7) printf("wrong %d\n", here[0]);
    node.func = fill;
    node.kernelParams = arguments;
    DO(cuGraphCreate(&graph, 0));
    DO(cuGraphAddKernelNode(&nodes[0], graph, 0, 0, &node));
    DO(cuGraphAddKernelNode(&nodes[1], graph, nodes, 1, &node));
    DO(cuGraphInstantiate(&exec, graph, 0));
    DO(cuGraphLaunch(exec, stream));
    DO(cuStreamSynchronize(stream));
    DO(cuGraphExecDestroy(exec));
    DO(cuGraphDestroy(graph));
    DO(cuMemFree(there));
}

int main(void)
{
    CUcontext context;
    CUmodule module;

    setvbuf(stdout, 0, _IOLBF, 0);
    DO(cuInit(0));
    DO(cuDevicePrimaryCtxRetain(&context, 0));
    DO(cuCtxSetCurrent(context));
    DO(cuModuleLoadData(&module, ptx));
    DO(cuModuleGetFunction(&fill, module, "fill"));
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    enable();
    work();
    disable();
    /* Of nobody's interest. */
    work();
    printf("again\n");
    enable();
    work();
    disable();
    printf("done\n");
    return 0;
}

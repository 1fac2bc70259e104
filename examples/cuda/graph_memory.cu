// Graphs that allocate: memory nodes built and captured, freed inside, by the program and by the next launch.
#include "check.h"

constexpr int COUNT = 1 << 16;
constexpr size_t BYTES = COUNT * sizeof(int);

__global__ void fill(int* to, int value)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < COUNT) to[i] = value + i;
}

__global__ void sum_into(int* out, const int* a, const int* b)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < COUNT) out[i] = a[i] + b[i];
}

static std::vector<int> want(int start, int step)
{
    std::vector<int> values(COUNT);
    for (int i = 0; i < COUNT; ++i) values[i] = start + i * step;
    return values;
}

static std::vector<int> download(const int* from)
{
    std::vector<int> values(COUNT);
    CHECK(cudaMemcpy(values.data(), from, BYTES, cudaMemcpyDeviceToHost));
    return values;
}

template <class... Arguments>
static cudaGraphNode_t add_kernel(cudaGraph_t graph, const std::vector<cudaGraphNode_t>& after, void (*kernel)(Arguments...),
                                  Arguments... arguments)
{
    void* pointers[] = {&arguments...};
    cudaKernelNodeParams params = {};
    params.func = (void*)kernel;
    params.gridDim = dim3(blocks_for(COUNT, 256));
    params.blockDim = dim3(256);
    params.kernelParams = pointers;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &params));
    return node;
}

static cudaGraphNode_t add_allocation(cudaGraph_t graph, const std::vector<cudaGraphNode_t>& after, int** out)
{
    cudaMemAllocNodeParams params = {};
    params.poolProps.allocType = cudaMemAllocationTypePinned;
    params.poolProps.location.type = cudaMemLocationTypeDevice;
    params.bytesize = BYTES;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddMemAllocNode(&node, graph, after.data(), after.size(), &params));
    *out = (int*)params.dptr;
    return node;
}

static unsigned long long used(cudaGraphMemAttributeType attribute)
{
    unsigned long long value = 0;
    CHECK(cudaDeviceGetGraphMemAttribute(0, attribute, &value));
    return value;
}

// Two allocations, a sum of both in memory of the program's, both freed in the graph.
static void built(cudaStream_t stream, int* out)
{
    cudaGraph_t graph, clone;
    cudaGraphExec_t executable, second;
    cudaGraphNode_t nodes[2], frees[2];
    int *a, *b;
    CHECK(cudaGraphCreate(&graph, 0));
    nodes[0] = add_allocation(graph, {}, &a);
    nodes[1] = add_allocation(graph, {}, &b);
    expect(a != b && a != nullptr && b != nullptr, "the nodes' memory has addresses");
    cudaGraphNode_t first = add_kernel(graph, {nodes[0]}, fill, a, 1);
    cudaGraphNode_t other = add_kernel(graph, {nodes[1]}, fill, b, 1000);
    cudaGraphNode_t sum = add_kernel(graph, {first, other}, sum_into, out, (const int*)a, (const int*)b);
    CHECK(cudaGraphAddMemFreeNode(&frees[0], graph, &sum, 1, a));
    CHECK(cudaGraphAddMemFreeNode(&frees[1], graph, &sum, 1, b));

    cudaGraphNodeType type;
    CHECK(cudaGraphNodeGetType(nodes[0], &type));
    expect(type == cudaGraphNodeTypeMemAlloc, "a node that allocates");
    CHECK(cudaGraphNodeGetType(frees[0], &type));
    expect(type == cudaGraphNodeTypeMemFree, "a node that frees");
    cudaMemAllocNodeParams params = {};
    CHECK(cudaGraphMemAllocNodeGetParams(nodes[1], &params));
    expect(params.dptr == b && params.bytesize == BYTES, "its parameters: %zu bytes", params.bytesize);
    void* freed = nullptr;
    CHECK(cudaGraphMemFreeNodeGetParams(frees[0], &freed));
    expect(freed == a, "what a node frees");

    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    for (int round = 0; round < 3; ++round) {
        CHECK(cudaMemsetAsync(out, 0, BYTES, stream));
        CHECK(cudaGraphLaunch(executable, stream));
        CHECK(cudaStreamSynchronize(stream));
        expect_equal(download(out), want(1001, 2), "a launch");
    }
    expect(used(cudaGraphMemAttrReservedMemCurrent) >= 2 * BYTES, "memory is kept between launches");

    EXPECT_ERROR(cudaErrorNotSupported, cudaGraphClone(&clone, graph));
    EXPECT_ERROR(cudaErrorNotSupported, cudaGraphInstantiate(&second, graph, 0));
    EXPECT_ERROR(cudaErrorNotSupported, cudaGraphDestroyNode(nodes[0]));
    cudaGraphNode_t extra;
    EXPECT_ERROR(cudaErrorInvalidValue, cudaGraphAddMemFreeNode(&extra, graph, nullptr, 0, a));
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaDeviceGraphMemTrim(0));
    expect(used(cudaGraphMemAttrReservedMemCurrent) == 0, "trimmed");
    unsigned long long none = 0;
    CHECK(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &none));
    expect(used(cudaGraphMemAttrUsedMemHigh) == 0, "the mark of the most used is taken back");
}

// Captured allocations: one freed in the capture, one that the program keeps and frees in its own stream.
static void captured(cudaStream_t stream)
{
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    int *scratch, *kept;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaMallocAsync(&scratch, BYTES, stream));
    CHECK(cudaMallocAsync(&kept, BYTES, stream));
    fill<<<blocks_for(COUNT, 256), 256, 0, stream>>>(scratch, 3);
    sum_into<<<blocks_for(COUNT, 256), 256, 0, stream>>>(kept, scratch, scratch);
    CHECK_LAUNCH();
    CHECK(cudaFreeAsync(scratch, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    size_t nodes = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
    expect(nodes == 5, "%zu nodes", nodes);
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    for (int round = 0; round < 2; ++round) {
        CHECK(cudaGraphLaunch(executable, stream));
        CHECK(cudaStreamSynchronize(stream));
        expect_equal(download(kept), want(6, 2), "memory that outlives its graph's launch");
        EXPECT_ERROR(cudaErrorInvalidValue, cudaGraphLaunch(executable, stream));
        CHECK(cudaFreeAsync(kept, stream));
    }
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaFree(kept));
    CHECK(cudaGraphExecDestroy(executable));

    CHECK(cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
    for (int round = 0; round < 3; ++round) CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaStreamSynchronize(stream));
    expect_equal(download(kept), want(6, 2), "freed by the next launch");
    CHECK(cudaFree(kept));
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
}

// One graph allocates, another one frees.
static void across(cudaStream_t stream)
{
    cudaGraph_t giver, taker;
    cudaGraphExec_t gives, takes;
    int* memory;
    CHECK(cudaGraphCreate(&giver, 0));
    CHECK(cudaGraphCreate(&taker, 0));
    cudaGraphNode_t node = add_allocation(giver, {}, &memory);
    add_kernel(giver, {node}, fill, memory, 9);
    cudaGraphNode_t freed;
    CHECK(cudaGraphAddMemFreeNode(&freed, taker, nullptr, 0, memory));
    CHECK(cudaGraphInstantiate(&gives, giver, 0));
    CHECK(cudaGraphInstantiate(&takes, taker, 0));
    for (int round = 0; round < 2; ++round) {
        CHECK(cudaGraphLaunch(gives, stream));
        CHECK(cudaStreamSynchronize(stream));
        expect_equal(download(memory), want(9, 1), "allocated by one graph");
        CHECK(cudaGraphLaunch(takes, stream));
    }
    CHECK(cudaStreamSynchronize(stream));
    EXPECT_ERROR(cudaErrorInvalidValue, cudaGraphLaunch(takes, stream));
    CHECK(cudaGraphExecDestroy(gives));
    CHECK(cudaGraphExecDestroy(takes));
    CHECK(cudaGraphDestroy(giver));
    CHECK(cudaGraphDestroy(taker));
}

int main()
{
    std::printf("graph_memory: graphs that allocate and free\n");
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    {
        DeviceBuffer<int> out(COUNT);
        built(stream, out.data());
    }
    captured(stream);
    across(stream);
    CHECK(cudaStreamDestroy(stream));
    return verdict("graph_memory");
}

// A graph built node by node, asked what it is made of, changed after it is instantiated; and what captures forbid.
#include <cuda.h>

#include <algorithm>
#include <thread>

#include "check.h"

constexpr int COUNT = 1000;
constexpr size_t BYTES = COUNT * sizeof(int);
constexpr unsigned THREADS = 128;

__global__ void multiply_add(int* out, const int* in, int factor, int addend)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < COUNT) out[i] += in[i] * factor + addend;
}

struct KernelArguments {
    int* out;
    const int* in;
    int factor, addend;
    void* pointers[4] = {&out, &in, &factor, &addend};

    cudaKernelNodeParams node()
    {
        cudaKernelNodeParams params = {};
        params.func = (void*)multiply_add;
        params.gridDim = dim3(blocks_for(COUNT, THREADS));
        params.blockDim = dim3(THREADS);
        params.kernelParams = pointers;
        return params;
    }
};

static void count_call(void* calls) { ++*(int*)calls; }

// in = host_in; out = 7; out += in * 3 + 1; child: out += in; host function; host_out = out
struct Built {
    int *host_in, *host_out;  // pinned
    int *in, *out;            // on the device
    int calls = 0;
    cudaStream_t stream;
    cudaEvent_t finished;
    cudaGraph_t graph, child;
    cudaGraphNode_t up, fill, kernel, nested, host, down, record;

    Built()
    {
        for (int** pointer : {&host_in, &host_out}) CHECK(cudaMallocHost(pointer, BYTES));
        for (int** pointer : {&in, &out}) CHECK(cudaMalloc(pointer, BYTES));
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CHECK(cudaEventCreate(&finished));
        for (int i = 0; i < COUNT; ++i) host_in[i] = i % 11;
        build();
    }
    ~Built()
    {
        CHECK(cudaGraphDestroy(graph));
        CHECK(cudaGraphDestroy(child));
        CHECK(cudaEventDestroy(finished));
        CHECK(cudaStreamDestroy(stream));
        for (int* pointer : {in, out}) CHECK(cudaFree(pointer));
        for (int* pointer : {host_in, host_out}) CHECK(cudaFreeHost(pointer));
    }

    void build()
    {
        CHECK(cudaGraphCreate(&child, 0));
        KernelArguments add_in = {out, in, 1, 0};
        cudaKernelNodeParams params = add_in.node();
        cudaGraphNode_t inner;
        CHECK(cudaGraphAddKernelNode(&inner, child, nullptr, 0, &params));

        CHECK(cudaGraphCreate(&graph, 0));
        CHECK(cudaGraphAddMemcpyNode1D(&up, graph, nullptr, 0, in, host_in, BYTES, cudaMemcpyHostToDevice));
        cudaMemsetParams sevens = {};
        sevens.dst = out;
        sevens.value = 7;
        sevens.elementSize = sizeof(int);
        sevens.width = COUNT;
        sevens.height = 1;
        CHECK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &sevens));
        // The arguments are taken when the node is added.
        KernelArguments arguments = {out, in, 3, 1};
        params = arguments.node();
        cudaGraphNode_t before_kernel[] = {up, fill};
        CHECK(cudaGraphAddKernelNode(&kernel, graph, before_kernel, 2, &params));
        arguments.factor = -1;
        CHECK(cudaGraphAddChildGraphNode(&nested, graph, &kernel, 1, child));
        cudaHostNodeParams counting = {count_call, &calls};
        CHECK(cudaGraphAddHostNode(&host, graph, &nested, 1, &counting));
        CHECK(cudaGraphAddMemcpyNode1D(&down, graph, nullptr, 0, host_out, out, BYTES, cudaMemcpyDeviceToHost));
        CHECK(cudaGraphAddDependencies(graph, &host, &down, nullptr, 1));
        CHECK(cudaGraphAddEventRecordNode(&record, graph, &down, 1, finished));
    }

    std::vector<int> launch(cudaGraphExec_t executable)
    {
        std::fill(host_out, host_out + COUNT, -1);
        CHECK(cudaGraphLaunch(executable, stream));
        CHECK(cudaEventSynchronize(finished));
        return std::vector<int>(host_out, host_out + COUNT);
    }

    std::vector<int> want(int start, int factor, int addend) const
    {
        std::vector<int> values(COUNT);
        for (int i = 0; i < COUNT; ++i) values[i] = start + host_in[i] * factor + addend;
        return values;
    }
};

static void questions(Built& built)
{
    size_t nodes = 0, roots = 0, edges = 0;
    CHECK(cudaGraphGetNodes(built.graph, nullptr, &nodes));
    CHECK(cudaGraphGetRootNodes(built.graph, nullptr, &roots));
    CHECK(cudaGraphGetEdges(built.graph, nullptr, nullptr, nullptr, &edges));
    expect(nodes == 7 && roots == 2 && edges == 6, "%zu nodes, %zu roots, %zu edges", nodes, roots, edges);

    std::vector<cudaGraphNode_t> found(nodes + 1, built.up);
    size_t room = found.size();
    CHECK(cudaGraphGetNodes(built.graph, found.data(), &room));
    bool known = room == nodes && found[nodes] == nullptr;
    for (cudaGraphNode_t node : {built.up, built.fill, built.kernel, built.nested, built.host, built.down, built.record})
        known = known && std::find(found.begin(), found.end(), node) != found.end();
    expect(known, "nodes have the handles that they were added under; room to spare is cleared");

    std::vector<cudaGraphNode_t> from(edges), to(edges);
    CHECK(cudaGraphGetEdges(built.graph, from.data(), to.data(), nullptr, &edges));
    bool joined = false;
    for (size_t i = 0; i < edges; ++i) joined = joined || (from[i] == built.host && to[i] == built.down);
    expect(joined, "an edge leads from the host function to the copy after it");

    cudaGraphNode_t before[2], after[1];
    size_t befores = 2, afters = 1;
    CHECK(cudaGraphNodeGetDependencies(built.kernel, before, nullptr, &befores));
    CHECK(cudaGraphNodeGetDependentNodes(built.kernel, after, nullptr, &afters));
    bool both = std::find(before, before + 2, built.up) != before + 2 && std::find(before, before + 2, built.fill) != before + 2;
    expect(befores == 2 && both && afters == 1 && after[0] == built.nested, "the kernel's neighbours");

    cudaGraphNodeType type;
    CHECK(cudaGraphNodeGetType(built.nested, &type));
    expect(type == cudaGraphNodeTypeGraph, "the child graph's node says so");
    cudaKernelNodeParams params = {};
    CHECK(cudaGraphKernelNodeGetParams(built.kernel, &params));
    expect(params.blockDim.x == THREADS && *(int*)params.kernelParams[2] == 3, "the kernel's parameters are kept");
    cudaMemsetParams fill = {};
    CHECK(cudaGraphMemsetNodeGetParams(built.fill, &fill));
    expect(fill.dst == built.out && fill.value == 7 && fill.width == COUNT, "the memset's parameters are kept");
}

static void launches_and_changes(Built& built)
{
    cudaGraphExec_t executable = nullptr;
    CHECK(cudaGraphInstantiate(&executable, built.graph, 0));
    for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < COUNT; ++i) built.host_in[i] = (i + round) % 13;
        expect_equal(built.launch(executable), built.want(7, 4, 1), "a launch");
    }
    expect(built.calls == 3, "the host function ran %d times", built.calls);

    KernelArguments arguments = {built.out, built.in, 10, 5};
    cudaKernelNodeParams params = arguments.node();
    CHECK(cudaGraphExecKernelNodeSetParams(executable, built.kernel, &params));
    expect_equal(built.launch(executable), built.want(7, 11, 5), "other arguments for the kernel");

    cudaMemsetParams fill = {};
    CHECK(cudaGraphMemsetNodeGetParams(built.fill, &fill));
    fill.value = 100;
    CHECK(cudaGraphExecMemsetNodeSetParams(executable, built.fill, &fill));
    expect_equal(built.launch(executable), built.want(100, 11, 5), "another value for the memset");

    CHECK(cudaGraphNodeSetEnabled(executable, built.kernel, 0));
    unsigned enabled = 1;
    CHECK(cudaGraphNodeGetEnabled(executable, built.kernel, &enabled));
    expect(enabled == 0, "a node is disabled");
    expect_equal(built.launch(executable), built.want(100, 1, 0), "without the kernel");
    CHECK(cudaGraphNodeSetEnabled(executable, built.kernel, 1));

    // Back to what the graph says, which nothing above has changed.
    cudaGraphExecUpdateResultInfo info = {};
    CHECK(cudaGraphExecUpdate(executable, built.graph, &info));
    expect_equal(built.launch(executable), built.want(7, 4, 1), "updated from the graph");

    cudaGraph_t clone;
    CHECK(cudaGraphClone(&clone, built.graph));
    cudaGraphNode_t extra;
    CHECK(cudaGraphAddEmptyNode(&extra, clone, nullptr, 0));
    EXPECT_ERROR(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(executable, clone, &info));
    expect(info.result == cudaGraphExecUpdateErrorTopologyChanged, "a graph of another shape is no update");
    CHECK(cudaGraphDestroyNode(extra));
    cudaGraphExec_t cloned;
    CHECK(cudaGraphInstantiate(&cloned, clone, 0));
    expect_equal(built.launch(cloned), built.want(7, 4, 1), "a clone");
    CHECK(cudaGraphExecDestroy(cloned));
    CHECK(cudaGraphDestroy(clone));
    CHECK(cudaGraphExecDestroy(executable));
}

// Nodes are added to a capture by hand, and what follows depends on them.
static void capture_meets_nodes(Built& built)
{
    cudaGraphExec_t executable = nullptr;
    cudaGraph_t graph = nullptr, shown = nullptr;
    cudaStreamCaptureStatus status;
    unsigned long long id = 0, again = 0;
    const cudaGraphNode_t* dependencies = nullptr;
    const cudaGraphEdgeData* edges = nullptr;
    size_t count = 9;
    CHECK(cudaStreamGetCaptureInfo(built.stream, &status));
    expect(status == cudaStreamCaptureStatusNone, "no capture yet");
    CHECK(cudaStreamBeginCapture(built.stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaStreamGetCaptureInfo(built.stream, &status, &id, &shown, &dependencies, &edges, &count));
    expect(status == cudaStreamCaptureStatusActive && id != 0 && count == 0, "a capture begins with nothing");
    CHECK(cudaMemsetAsync(built.out, 0, BYTES, built.stream));
    CHECK(cudaStreamGetCaptureInfo(built.stream, &status, &again, &graph, &dependencies, &edges, &count));
    expect(again == id && graph == shown && count == 1, "the next node depends on the memset");

    KernelArguments arguments = {built.out, built.in, 2, 0};
    cudaKernelNodeParams params = arguments.node();
    cudaGraphNode_t added;
    CHECK(cudaGraphAddKernelNode(&added, graph, dependencies, count, &params));
    CHECK(cudaStreamUpdateCaptureDependencies(built.stream, &added, nullptr, 1, cudaStreamSetCaptureDependencies));
    CHECK(cudaStreamGetCaptureInfo(built.stream, &status, nullptr, nullptr, &dependencies, nullptr, &count));
    expect(count == 1 && dependencies[0] == added, "now it depends on the node added by hand");
    CHECK(cudaMemcpyAsync(built.host_out, built.out, BYTES, cudaMemcpyDeviceToHost, built.stream));
    CHECK(cudaEventRecordWithFlags(built.finished, built.stream, cudaEventRecordExternal));
    CHECK(cudaStreamEndCapture(built.stream, &graph));
    expect(graph == shown, "the graph is the one that the capture showed");
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    expect_equal(built.launch(executable), built.want(0, 2, 0), "captured and added nodes in one graph");

    // The same capture, behind the nodes of a graph that is there already.
    cudaGraphNode_t last[1];
    size_t lasts = 0;
    std::vector<cudaGraphNode_t> nodes(4);
    size_t room = nodes.size();
    CHECK(cudaGraphGetNodes(graph, nodes.data(), &room));
    for (cudaGraphNode_t node : nodes) {
        size_t after = 0;
        CHECK(cudaGraphNodeGetDependentNodes(node, nullptr, nullptr, &after));
        if (after == 0) last[lasts++ % 1] = node;
    }
    expect(room == 4 && lasts == 1, "the graph ends in one node");
    cudaGraph_t same = nullptr;
    CHECK(cudaStreamBeginCaptureToGraph(built.stream, graph, last, nullptr, 1, cudaStreamCaptureModeRelaxed));
    CHECK(cudaMemsetAsync(built.out, 0, BYTES, built.stream));
    CHECK(cudaMemcpyAsync(built.host_out, built.out, BYTES, cudaMemcpyDeviceToHost, built.stream));
    CHECK(cudaStreamEndCapture(built.stream, &same));
    expect(same == graph, "a capture into a graph gives that graph back");
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaGraphLaunch(executable, built.stream));
    CHECK(cudaStreamSynchronize(built.stream));
    expect_equal(std::vector<int>(built.host_out, built.host_out + COUNT), std::vector<int>(COUNT, 0), "what was captured later runs later");
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
}

static void spoilt(cudaStream_t stream, const char* by)
{
    cudaStreamCaptureStatus status;
    CHECK(cudaStreamIsCapturing(stream, &status));
    expect(status == cudaStreamCaptureStatusInvalidated, "%s spoils the capture", by);
    cudaGraph_t graph = (cudaGraph_t)1;
    EXPECT_ERROR(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
    expect(graph == nullptr, "there is no graph");
    CHECK(cudaStreamSynchronize(stream));
}

static void what_captures_forbid(Built& built)
{
    cudaStream_t stream = built.stream, other, blocking;
    cudaEvent_t event;
    cudaGraph_t graph = nullptr;
    void* memory = nullptr;
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CHECK(cudaStreamCreate(&blocking));
    CHECK(cudaEventCreate(&event));

    EXPECT_ERROR(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(cudaStreamLegacy, cudaStreamCaptureModeGlobal));
    EXPECT_ERROR(cudaErrorIllegalState, cudaStreamEndCapture(stream, &graph));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EXPECT_ERROR(cudaErrorIllegalState, cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EXPECT_ERROR(cudaErrorStreamCaptureUnsupported, cudaStreamQuery(stream));
    EXPECT_ERROR(cudaErrorStreamCaptureInvalidated, cudaMemsetAsync(built.out, 0, BYTES, stream));
    spoilt(stream, "a query");

    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EXPECT_ERROR(cudaErrorStreamCaptureUnsupported, cudaMalloc(&memory, 1 << 20));
    spoilt(stream, "an allocation");

    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    CHECK(cudaMalloc(&memory, 1 << 20));
    CHECK(cudaFree(memory));
    CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    expect(mode == cudaStreamCaptureModeRelaxed, "the thread's mode is exchanged");
    CHECK(cudaStreamEndCapture(stream, &graph));
    expect(graph != nullptr, "a relaxed thread may allocate during a capture");
    CHECK(cudaGraphDestroy(graph));

    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaEventRecord(event, stream));
    EXPECT_ERROR(cudaErrorCapturedEvent, cudaEventSynchronize(event));
    spoilt(stream, "waiting for a captured event");

    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    std::thread([&] { EXPECT_ERROR(cudaErrorStreamCaptureWrongThread, cudaStreamEndCapture(stream, &graph)); }).join();
    EXPECT_ERROR(cudaErrorIllegalState, cudaStreamEndCapture(stream, &graph));

    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    CHECK(cudaEventRecord(event, stream));
    CHECK(cudaStreamWaitEvent(other, event, 0));
    CHECK(cudaMemsetAsync(built.out, 0, BYTES, other));
    EXPECT_ERROR(cudaErrorStreamCaptureUnjoined, cudaStreamEndCapture(stream, &graph));
    CHECK(cudaStreamSynchronize(other));

    CHECK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
    EXPECT_ERROR(cudaErrorStreamCaptureImplicit, cudaMemsetAsync(built.out, 0, BYTES, cudaStreamLegacy));
    spoilt(blocking, "work for the legacy stream");

    CHECK(cudaEventDestroy(event));
    CHECK(cudaStreamDestroy(blocking));
    CHECK(cudaStreamDestroy(other));
}

int main()
{
    std::printf("graph_nodes: a graph built by hand, asked, changed; what captures forbid\n");
    {
        Built built;
        questions(built);
        launches_and_changes(built);
        capture_meets_nodes(built);
        what_captures_forbid(built);
    }
    return verdict("graph_nodes");
}

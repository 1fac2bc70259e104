// Nodes asked what they do and given something else to do, captured ones too; before and after instantiation.
#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "check.h"

constexpr int COUNT = 1000;
constexpr size_t BYTES = COUNT * sizeof(int);
constexpr unsigned THREADS = 128;

__global__ void add(int* to, const int* from, int value)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < COUNT) to[i] += from[i] + value;
}

__global__ void spare(int* to)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < COUNT) to[i] *= 2;
}

static void count_one(void* calls) { ++*(int*)calls; }
static void count_ten(void* calls) { *(int*)calls += 10; }

template <class F>
static F entry(const char* name)
{
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status;
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, 13000, cudaEnableDefault, &status));
    return (F)found;
}

static std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph, cudaGraphNodeType wanted)
{
    size_t count = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &count));
    std::vector<cudaGraphNode_t> all(count), found;
    if (count > 0) CHECK(cudaGraphGetNodes(graph, all.data(), &count));
    for (cudaGraphNode_t node : all) {
        cudaGraphNodeType type;
        CHECK(cudaGraphNodeGetType(node, &type));
        if (type == wanted) found.push_back(node);
    }
    return found;
}

struct Buffers {
    int *device, *other, *pinned;
    std::vector<int> pageable = std::vector<int>(COUNT, 0);
    cudaStream_t stream;
    Buffers()
    {
        CHECK(cudaMalloc(&device, BYTES));
        CHECK(cudaMalloc(&other, BYTES));
        CHECK(cudaMallocHost(&pinned, BYTES));
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        for (int i = 0; i < COUNT; ++i) pinned[i] = i;
        CHECK(cudaMemcpy(other, pinned, BYTES, cudaMemcpyHostToDevice));
    }
    ~Buffers()
    {
        CHECK(cudaStreamDestroy(stream));
        CHECK(cudaFreeHost(pinned));
        CHECK(cudaFree(other));
        CHECK(cudaFree(device));
    }
    std::vector<int> want(int times, int plus) const
    {
        std::vector<int> values(COUNT);
        for (int i = 0; i < COUNT; ++i) values[i] = times * i + plus;
        return values;
    }
    std::vector<int> run(cudaGraphExec_t executable)
    {
        std::fill(pageable.begin(), pageable.end(), -1);
        CHECK(cudaGraphLaunch(executable, stream));
        CHECK(cudaStreamSynchronize(stream));
        return pageable;
    }
};

// memset, kernel, copy to pageable memory, host function: all captured, then asked and changed.
static void captured(Buffers& b)
{
    int calls = 0;
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeRelaxed));
    CHECK(cudaMemsetAsync(b.device, 0, BYTES, b.stream));
    add<<<blocks_for(COUNT, THREADS), THREADS, 0, b.stream>>>(b.device, b.other, 5);
    CHECK_LAUNCH();
    CHECK(cudaMemcpyAsync(b.pageable.data(), b.device, BYTES, cudaMemcpyDeviceToHost, b.stream));
    CHECK(cudaLaunchHostFunc(b.stream, count_one, &calls));
    CHECK(cudaStreamEndCapture(b.stream, &graph));
    auto kernels = nodes_of(graph, cudaGraphNodeTypeKernel), sets = nodes_of(graph, cudaGraphNodeTypeMemset);
    auto copies = nodes_of(graph, cudaGraphNodeTypeMemcpy), hosts = nodes_of(graph, cudaGraphNodeTypeHost);
    expect(kernels.size() == 1 && sets.size() == 1 && copies.size() == 1 && hosts.size() == 1,
           "a kernel, a memset, a copy, a host function");

    cudaKernelNodeParams kernel = {};
    CHECK(cudaGraphKernelNodeGetParams(kernels[0], &kernel));
    expect(kernel.func == (void*)add && kernel.blockDim.x == THREADS && *(int**)kernel.kernelParams[0] == b.device &&
               *(int*)kernel.kernelParams[2] == 5,
           "the captured kernel's parameters");
    cudaMemsetParams set = {};
    CHECK(cudaGraphMemsetNodeGetParams(sets[0], &set));
    expect(set.dst == b.device && set.value == 0 && set.width * set.elementSize * set.height == BYTES, "the captured memset's");
    cudaMemcpy3DParms copy = {};
    CHECK(cudaGraphMemcpyNodeGetParams(copies[0], &copy));
    expect(copy.srcPtr.ptr == b.device && copy.dstPtr.ptr == b.pageable.data() && copy.extent.width == BYTES, "the captured copy's");
    cudaHostNodeParams host = {};
    CHECK(cudaGraphHostNodeGetParams(hosts[0], &host));
    expect(host.fn == count_one && host.userData == &calls, "the captured host function's");

    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    expect_equal(b.run(executable), b.want(1, 5), "as captured");

    // The graph's nodes: an executable graph made before keeps what it does.
    int value = 7;
    void* pointers[] = {&b.device, &b.other, &value};
    kernel.kernelParams = pointers;
    CHECK(cudaGraphKernelNodeSetParams(kernels[0], &kernel));
    set.value = 1;
    set.elementSize = 4;
    set.width = COUNT;
    CHECK(cudaGraphMemsetNodeSetParams(sets[0], &set));
    host.fn = count_ten;
    CHECK(cudaGraphHostNodeSetParams(hosts[0], &host));
    expect_equal(b.run(executable), b.want(1, 5), "an executable graph keeps what it does");
    expect(calls == 2, "%d calls", calls);
    CHECK(cudaGraphKernelNodeGetParams(kernels[0], &kernel));
    expect(*(int*)kernel.kernelParams[2] == 7, "the node has its new parameters");
    cudaGraphExecUpdateResultInfo info = {};
    CHECK(cudaGraphExecUpdate(executable, graph, &info));
    expect_equal(b.run(executable), b.want(1, 8), "updated");
    expect(calls == 12, "%d calls", calls);

    // The executable graph's own.
    host.fn = count_one;
    CHECK(cudaGraphExecHostNodeSetParams(executable, hosts[0], &host));
    value = 100;
    kernel.kernelParams = pointers;
    CHECK(cudaGraphExecKernelNodeSetParams(executable, kernels[0], &kernel));
    expect_equal(b.run(executable), b.want(1, 101), "set in the executable graph");
    expect(calls == 13, "%d calls", calls);

    // The copy's other end, first in the graph, then in the executable one.
    std::vector<int> elsewhere(COUNT, -1);
    CHECK(cudaGraphMemcpyNodeSetParams1D(copies[0], elsewhere.data(), b.device, BYTES, cudaMemcpyDeviceToHost));
    CHECK(cudaGraphMemcpyNodeGetParams(copies[0], &copy));
    expect(copy.dstPtr.ptr == elsewhere.data(), "the copy has another end");
    CHECK(cudaGraphExecMemcpyNodeSetParams1D(executable, copies[0], elsewhere.data(), b.device, BYTES, cudaMemcpyDeviceToHost));
    b.run(executable);
    expect_equal(elsewhere, b.want(1, 101), "and writes there");
    expect(b.pageable[0] == -1, "and no longer here");
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
}

static void parts(Buffers& b)
{
    cudaGraph_t child, graph, inside, clone;
    cudaGraphNode_t leaf, nested, empty, in_clone, first, second;
    int value = 1;
    void* pointers[] = {&b.device, &b.other, &value};
    cudaKernelNodeParams params = {};
    params.func = (void*)add;
    params.gridDim = dim3(blocks_for(COUNT, THREADS));
    params.blockDim = dim3(THREADS);
    params.kernelParams = pointers;
    CHECK(cudaGraphCreate(&child, 0));
    CHECK(cudaGraphAddKernelNode(&leaf, child, nullptr, 0, &params));
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphAddMemsetNode(&first, graph, nullptr, 0, [&] {
        static cudaMemsetParams set = {};
        set.dst = b.device;
        set.elementSize = 4;
        set.width = COUNT;
        set.height = 1;
        return &set;
    }()));
    CHECK(cudaGraphAddChildGraphNode(&nested, graph, &first, 1, child));
    CHECK(cudaGraphDestroy(child));
    CHECK(cudaGraphChildGraphNodeGetGraph(nested, &inside));
    auto kernels = nodes_of(inside, cudaGraphNodeTypeKernel);
    expect(kernels.size() == 1 && kernels[0] != leaf, "a child graph is a copy, with nodes of its own");
    value = 3;
    CHECK(cudaGraphKernelNodeSetParams(kernels[0], &params));
    CHECK(cudaGraphAddMemcpyNode1D(&second, graph, &nested, 1, b.pageable.data(), b.device, BYTES, cudaMemcpyDeviceToHost));
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    expect_equal(b.run(executable), b.want(1, 3), "changed inside the child graph");

    // Events: asked, set, in both kinds of graph.
    cudaEvent_t one, other, told;
    CHECK(cudaEventCreate(&one));
    CHECK(cudaEventCreate(&other));
    cudaGraphNode_t record, wait;
    CHECK(cudaGraphAddEventRecordNode(&record, graph, &second, 1, one));
    CHECK(cudaGraphAddEventWaitNode(&wait, graph, nullptr, 0, one));
    CHECK(cudaGraphEventRecordNodeGetEvent(record, &told));
    expect(told == one, "the event that a node records");
    CHECK(cudaGraphEventRecordNodeSetEvent(record, other));
    CHECK(cudaGraphEventRecordNodeGetEvent(record, &told));
    expect(told == other, "another event");
    CHECK(cudaGraphEventWaitNodeSetEvent(wait, other));
    CHECK(cudaGraphEventWaitNodeGetEvent(wait, &told));
    expect(told == other, "the event that a node waits for");
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaGraphExecEventRecordNodeSetEvent(executable, record, one));
    CHECK(cudaGraphExecEventWaitNodeSetEvent(executable, wait, one));
    b.run(executable);
    CHECK(cudaEventSynchronize(one));
    CHECK(cudaEventQuery(one));
    expect_equal(b.pageable, b.want(1, 3), "with events");

    // A clone's nodes are found by the originals; edges are taken away.
    CHECK(cudaGraphClone(&clone, graph));
    CHECK(cudaGraphNodeFindInClone(&in_clone, second, clone));
    cudaGraphNodeType type;
    CHECK(cudaGraphNodeGetType(in_clone, &type));
    expect(in_clone != second && type == cudaGraphNodeTypeMemcpy, "a node of a clone");
    EXPECT_ERROR(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&in_clone, second, graph));
    CHECK(cudaGraphAddEmptyNode(&empty, clone, nullptr, 0));
    size_t edges = 0, fewer = 0;
    CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
    CHECK(cudaGraphRemoveDependencies(graph, &second, &record, nullptr, 1));
    CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &fewer));
    expect(edges == 3 && fewer == 2, "%zu edges, then %zu", edges, fewer);
    EXPECT_ERROR(cudaErrorInvalidValue, cudaGraphRemoveDependencies(graph, &second, &record, nullptr, 1));
    cudaGraphExecUpdateResultInfo info = {};
    cudaError_t update = cudaGraphExecUpdate(executable, graph, &info);
    expect(update == cudaErrorGraphExecUpdateFailure && info.result == cudaGraphExecUpdateErrorTopologyChanged, "an edge less is no update");
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(clone));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaEventDestroy(one));
    CHECK(cudaEventDestroy(other));
}

static const char* result_name(cudaGraphExecUpdateResult result)
{
    const char* names[] = {"success", "error", "topology", "type", "function", "parameters", "unsupported", "function change", "attributes"};
    return (unsigned)result < 9 ? names[result] : "?";
}

static cudaGraph_t two_nodes(Buffers& b, void* kernel, bool second_is_memset, bool joined, cudaGraphNode_t* out)
{
    int value = 1;
    void* pointers[] = {&b.device, &b.other, &value};
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaKernelNodeParams params = {};
    params.func = kernel;
    params.gridDim = dim3(blocks_for(COUNT, THREADS));
    params.blockDim = dim3(THREADS);
    params.kernelParams = pointers;
    CHECK(cudaGraphAddKernelNode(&out[0], graph, nullptr, 0, &params));
    if (second_is_memset) {
        cudaMemsetParams set = {};
        set.dst = b.device;
        set.elementSize = 4;
        set.width = COUNT;
        set.height = 1;
        CHECK(cudaGraphAddMemsetNode(&out[1], graph, out, joined ? 1 : 0, &set));
    } else {
        CHECK(cudaGraphAddKernelNode(&out[1], graph, out, joined ? 1 : 0, &params));
    }
    return graph;
}

static void updates(Buffers& b)
{
    struct Case {
        const char* name;
        void* kernel;
        bool memset, joined;
    } cases[] = {{"the same", (void*)add, true, true},
                 {"another kernel", (void*)spare, true, true},
                 {"another type", (void*)add, false, true},
                 {"an edge less", (void*)add, true, false}};
    cudaGraphNode_t own[2];
    cudaGraph_t original = two_nodes(b, (void*)add, true, true, own);
    for (const Case& c : cases) {
        cudaGraphExec_t executable;
        CHECK(cudaGraphInstantiate(&executable, original, 0));
        cudaGraphNode_t nodes[2];
        cudaGraph_t graph = two_nodes(b, c.kernel, c.memset, c.joined, nodes);
        cudaGraphExecUpdateResultInfo info = {};
        cudaError_t status = cudaGraphExecUpdate(executable, graph, &info);
        auto which = [&](cudaGraphNode_t node) { return node == nullptr ? "none" : node == nodes[0] ? "first" : node == nodes[1] ? "second" : node == own[0] ? "own first" : node == own[1] ? "own second" : "another"; };
        std::printf("  %s: %s, %s, node %s, from %s\n", c.name, cudaGetErrorName(status), result_name(info.result), which(info.errorNode),
                    which(info.errorFromNode));
        (void)cudaGetLastError();
        CHECK(cudaGraphExecDestroy(executable));
        CHECK(cudaGraphDestroy(graph));
    }
    CHECK(cudaGraphDestroy(original));
}

static void attributes(Buffers& b)
{
    cudaGraphNode_t nodes[2];
    cudaGraph_t graph = two_nodes(b, (void*)add, false, true, nodes);
    cudaKernelNodeAttrValue value = {}, read = {};
    CHECK(cudaGraphKernelNodeGetAttribute(nodes[0], cudaLaunchAttributePriority, &read));
    std::printf("  priority %d\n", read.priority);
    value.priority = -3;
    CHECK(cudaGraphKernelNodeSetAttribute(nodes[0], cudaLaunchAttributePriority, &value));
    CHECK(cudaGraphKernelNodeGetAttribute(nodes[0], cudaLaunchAttributePriority, &read));
    expect(read.priority == -3, "a kernel node's priority");
    CHECK(cudaGraphKernelNodeCopyAttributes(nodes[1], nodes[0]));
    read.priority = 0;
    CHECK(cudaGraphKernelNodeGetAttribute(nodes[1], cudaLaunchAttributePriority, &read));
    expect(read.priority == -3, "copied to another");
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagUseNodePriority));
    CHECK(cudaGraphLaunch(executable, b.stream));
    CHECK(cudaStreamSynchronize(b.stream));
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
}

// Words that the graph waits for and writes.
static void memory_operations(Buffers& b)
{
    auto create = entry<CUresult (*)(CUgraphNode*, CUgraph, const CUgraphNode*, size_t, const CUDA_BATCH_MEM_OP_NODE_PARAMS*)>("cuGraphAddBatchMemOpNode");
    auto get = entry<CUresult (*)(CUgraphNode, CUDA_BATCH_MEM_OP_NODE_PARAMS*)>("cuGraphBatchMemOpNodeGetParams");
    auto set = entry<CUresult (*)(CUgraphNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS*)>("cuGraphBatchMemOpNodeSetParams");
    auto exec_set = entry<CUresult (*)(CUgraphExec, CUgraphNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS*)>("cuGraphExecBatchMemOpNodeSetParams");
    auto current = entry<CUresult (*)(CUcontext*)>("cuCtxGetCurrent");
    CUstreamBatchMemOpParams ops[2] = {};
    for (int i = 0; i < 2; ++i) {
        ops[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        ops[i].writeValue.address = (CUdeviceptr)(b.device + i);
        ops[i].writeValue.value = 40 + i;
    }
    CUDA_BATCH_MEM_OP_NODE_PARAMS params = {};
    current(&params.ctx);
    params.count = 2;
    params.paramArray = ops;
    cudaGraph_t graph;
    CUgraphNode node;
    cudaGraphExec_t executable;
    CHECK(cudaGraphCreate(&graph, 0));
    expect(create(&node, graph, nullptr, 0, &params) == CUDA_SUCCESS, "a node of two writes");
    CUDA_BATCH_MEM_OP_NODE_PARAMS told = {};
    expect(get(node, &told) == CUDA_SUCCESS && told.count == 2 && told.paramArray[1].writeValue.value == 41, "its parameters");
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    auto first_two = [&] {
        int words[2] = {-1, -1};
        CHECK(cudaGraphLaunch(executable, b.stream));
        CHECK(cudaStreamSynchronize(b.stream));
        CHECK(cudaMemcpy(words, b.device, sizeof words, cudaMemcpyDeviceToHost));
        return words[0] * 1000 + words[1];
    };
    int written = first_two();
    expect(written == 40041, "both are written: %d", written);
    ops[0].writeValue.value = 50;
    expect(exec_set(executable, node, &params) == CUDA_SUCCESS, "others in the executable graph");
    written = first_two();
    expect(written == 50041, "they are written: %d", written);
    ops[1].writeValue.value = 51;
    expect(set(node, &params) == CUDA_SUCCESS, "others in the graph");
    cudaGraphExecUpdateResultInfo info = {};
    CHECK(cudaGraphExecUpdate(executable, graph, &info));
    written = first_two();
    expect(written == 50051, "and updated: %d", written);
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
}

static void programmatic_edges(Buffers& b)
{
    cudaGraphNode_t nodes[2], from[1], to[1];
    cudaGraph_t graph = two_nodes(b, (void*)add, false, false, nodes);
    cudaGraphEdgeData edge = {}, told[1] = {};
    edge.type = cudaGraphDependencyTypeProgrammatic;
    edge.from_port = cudaGraphKernelNodePortProgrammatic;
    CHECK(cudaGraphAddDependencies(graph, &nodes[0], &nodes[1], &edge, 1));
    size_t count = 1;
    CHECK(cudaGraphGetEdges(graph, from, to, told, &count));
    expect(count == 1 && from[0] == nodes[0] && told[0].type == edge.type && told[0].from_port == edge.from_port, "an edge with data");
    count = 1;
    cudaError_t lossy = cudaGraphGetEdges(graph, from, to, nullptr, &count);
    std::printf("  asked without data: %s\n", cudaGetErrorName(lossy));
    count = 1;
    CHECK(cudaGraphNodeGetDependencies(nodes[1], from, told, &count));
    expect(from[0] == nodes[0] && told[0].from_port == edge.from_port, "and from its end");
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaMemset(b.device, 0, BYTES));
    CHECK(cudaGraphLaunch(executable, b.stream));
    CHECK(cudaStreamSynchronize(b.stream));
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphRemoveDependencies(graph, &nodes[0], &nodes[1], &edge, 1));
    CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
    expect(count == 0, "taken away");
    CHECK(cudaGraphDestroy(graph));
}

static void user_objects(Buffers& b)
{
    int destroyed = 0;
    cudaUserObject_t object;
    cudaGraph_t graph, clone;
    cudaGraphExec_t executable;
    CHECK(cudaUserObjectCreate(&object, &destroyed, count_one, 2, cudaUserObjectNoDestructorSync));
    CHECK(cudaUserObjectRetain(object, 1));
    CHECK(cudaUserObjectRelease(object, 2));
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    CHECK(cudaGraphClone(&clone, graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphLaunch(executable, b.stream));
    CHECK(cudaStreamSynchronize(b.stream));
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaDeviceSynchronize());
    expect(destroyed == 0, "a clone holds the object");
    CHECK(cudaGraphReleaseUserObject(clone, object, 1));
    for (int i = 0; i < 5000 && ((volatile int&)destroyed) == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    expect(destroyed == 1, "destroyed with its last reference");
    CHECK(cudaGraphDestroy(clone));
    (void)b;
}

int main()
{
    std::printf("graph_params: what nodes do, asked and changed\n");
    {
        Buffers buffers;
        captured(buffers);
        parts(buffers);
        updates(buffers);
        attributes(buffers);
        memory_operations(buffers);
        programmatic_edges(buffers);
        user_objects(buffers);
    }
    return verdict("graph_params");
}

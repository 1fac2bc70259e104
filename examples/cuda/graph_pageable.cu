// Graphs that copy from and to ordinary memory: it is read and written whenever the graph is launched, captured or built by hand.
#include "check.h"

#include <cstring>

constexpr int COUNT = 70'000;
constexpr unsigned THREADS = 256;

__global__ void add(int* values, int count, int more)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] += more;
}

__global__ void sum(const int* values, int count, unsigned long long* total)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) atomicAdd(total, (unsigned long long)values[i]);
}

struct Filled {
    int* values;
    int count, next;
};

static void fill(void* data)
{
    auto* filled = (Filled*)data;
    for (int i = 0; i < filled->count; ++i) filled->values[i] = filled->next + i;
    filled->next += 1000;
}

static bool holds(const std::vector<int>& values, int first)
{
    for (size_t i = 0; i < values.size(); ++i)
        if (values[i] != first + (int)i) return false;
    return true;
}

static size_t node_count(cudaGraph_t graph)
{
    size_t count = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &count));
    return count;
}

// Copy, kernel, copy: each launch takes what the memory holds then.
static void captured(cudaStream_t stream, int* device)
{
    std::vector<int> in(COUNT), out(COUNT);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t bytes = COUNT * sizeof(int);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaMemcpyAsync(device, in.data(), bytes, cudaMemcpyHostToDevice, stream));
    add<<<blocks_for(COUNT, THREADS), THREADS, 0, stream>>>(device, COUNT, 5);
    CHECK(cudaMemcpyAsync(out.data(), device, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    expect(node_count(graph) == 3, "a captured copy is one node");
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    bool right = true;
    for (int round = 1; round <= 3; ++round) {
        Filled filled{in.data(), COUNT, round * 100};
        fill(&filled);
        out.assign(COUNT, -1);
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaStreamSynchronize(stream));
        right &= holds(out, round * 100 + 5);
    }
    expect(right, "each launch copies what the memory holds then");
    // The same result again: what the program has overwritten meanwhile is written all the same.
    out.assign(COUNT, -1);
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    expect(holds(out, 305), "a result that is what it was before");
    // The same graph captured again, with other memory.
    std::vector<int> second(COUNT, 50), result(COUNT);
    cudaGraph_t again;
    cudaGraphExecUpdateResultInfo info;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaMemcpyAsync(device, second.data(), bytes, cudaMemcpyHostToDevice, stream));
    add<<<blocks_for(COUNT, THREADS), THREADS, 0, stream>>>(device, COUNT, 6);
    CHECK(cudaMemcpyAsync(result.data(), device, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamEndCapture(stream, &again));
    cudaGraphExec_t updated;
    CHECK(cudaGraphInstantiate(&updated, graph, 0));
    CHECK(cudaGraphExecUpdate(updated, again, &info));
    CHECK(cudaGraphLaunch(updated, stream));
    CHECK(cudaStreamSynchronize(stream));
    expect(result == std::vector<int>(COUNT, 56), "a graph updated to other memory");
    CHECK(cudaGraphExecDestroy(updated));
    CHECK(cudaGraphDestroy(again));
    // Memory that the program pins later is still its own to pin.
    CHECK(cudaHostRegister(in.data(), bytes, cudaHostRegisterDefault));
    Filled filled{in.data(), COUNT, 7000};
    fill(&filled);
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    expect(holds(out, 7005), "memory pinned after the capture");
    CHECK(cudaHostUnregister(in.data()));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
}

// A function of the graph writes what a later node of it copies.
static void fed_by_a_host_function(cudaStream_t stream, int* device, int* in, const char* what)
{
    bool is_pageable = std::strcmp(what, "pageable") == 0;
    std::vector<int> out(COUNT);
    Filled filled{in, COUNT, 1000};
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t bytes = COUNT * sizeof(int);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaLaunchHostFunc(stream, fill, &filled));
    CHECK(cudaMemcpyAsync(device, in, bytes, cudaMemcpyHostToDevice, stream));
    add<<<blocks_for(COUNT, THREADS), THREADS, 0, stream>>>(device, COUNT, 3);
    CHECK(cudaMemcpyAsync(out.data(), device, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    bool right = true;
    for (int round = 1; round <= 2; ++round) {
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaStreamSynchronize(stream));
        right &= holds(out, round * 1000 + 3);
    }
    // When a graph's copy of pageable memory reads it, CUDA leaves open: an H100's driver does before the function has run.
    if (!is_pageable) expect(right, "copies of %s memory that a host function of the graph has written", what);
    else observe(right, "copies of %s memory that a host function of the graph has written", what);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
}

// Rows with gaps between them.
static void rows(cudaStream_t stream, int* device)
{
    const size_t width = 40, height = 50, pitch = 64;
    std::vector<unsigned char> in(pitch * height), out(pitch * height, 9);
    for (size_t i = 0; i < in.size(); ++i) in[i] = (unsigned char)(i * 7);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaMemcpy2DAsync(device, width, in.data(), pitch, width, height, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemcpy2DAsync(out.data(), pitch, device, width, width, height, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    bool right = true;
    for (size_t i = 0; i < out.size(); ++i) right &= out[i] == (i % pitch < width ? in[i] : 9);
    expect(right, "rows, and what lies between them");
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
}

// Nodes added by hand, the results in variables of this function; then other memory for the same graph, and a clone.
static void by_hand(cudaStream_t stream, int* device, unsigned long long* total)
{
    std::vector<int> in(COUNT, 2), other(COUNT, 3);
    unsigned long long result = 0, want = 2ull * COUNT;
    size_t bytes = COUNT * sizeof(int);
    cudaGraph_t graph, clone;
    cudaGraphExec_t exec, cloned;
    cudaGraphNode_t upload, clear, kernel, download;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphAddMemcpyNode1D(&upload, graph, nullptr, 0, device, in.data(), bytes, cudaMemcpyHostToDevice));
    cudaMemsetParams zero = {};
    zero.dst = total;
    zero.elementSize = 4;
    zero.width = 2;
    zero.height = 1;
    CHECK(cudaGraphAddMemsetNode(&clear, graph, nullptr, 0, &zero));
    int count = COUNT;
    void* arguments[] = {&device, &count, &total};
    cudaKernelNodeParams launch = {};
    launch.func = (void*)sum;
    launch.gridDim = dim3(blocks_for(COUNT, THREADS));
    launch.blockDim = dim3(THREADS);
    launch.kernelParams = arguments;
    cudaGraphNode_t before[] = {upload, clear};
    CHECK(cudaGraphAddKernelNode(&kernel, graph, before, 2, &launch));
    CHECK(cudaGraphAddMemcpyNode1D(&download, graph, &kernel, 1, &result, total, sizeof result, cudaMemcpyDeviceToHost));
    expect(node_count(graph) == 4, "four nodes");
    CHECK(cudaGraphClone(&clone, graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphInstantiate(&cloned, clone, 0));
    for (cudaGraphExec_t each : {exec, cloned}) {
        result = 0;
        CHECK(cudaGraphLaunch(each, stream));
        CHECK(cudaStreamSynchronize(stream));
        expect(result == want, "the sum that a graph%s has copied", each == exec ? "" : "'s clone");
    }
    CHECK(cudaGraphExecMemcpyNodeSetParams1D(exec, upload, device, other.data(), bytes, cudaMemcpyHostToDevice));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    expect(result == 3ull * COUNT, "other memory for the same node");
    CHECK(cudaGraphDestroy(clone));
    CHECK(cudaGraphDestroy(graph));
    for (cudaGraphExec_t each : {exec, cloned}) {
        in.assign(COUNT, 4);
        other.assign(COUNT, 4);
        CHECK(cudaGraphLaunch(each, stream));
        CHECK(cudaStreamSynchronize(stream));
        expect(result == 4ull * COUNT, "what is instantiated needs no graph");
        result = 0;
        CHECK(cudaGraphExecDestroy(each));
    }
}

int main()
{
    std::printf("graph_pageable: copies of ordinary memory in graphs\n");
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    DeviceBuffer<int> device(COUNT);
    DeviceBuffer<unsigned long long> total(1);
    captured(stream, device.data());
    std::vector<int> pageable(COUNT);
    fed_by_a_host_function(stream, device.data(), pageable.data(), "pageable");
    int* pinned = nullptr;
    CHECK(cudaMallocHost(&pinned, COUNT * sizeof(int)));
    fed_by_a_host_function(stream, device.data(), pinned, "pinned");
    CHECK(cudaFreeHost(pinned));
    rows(stream, device.data());
    by_hand(stream, device.data(), total.data());
    CHECK(cudaStreamDestroy(stream));
    return verdict("graph_pageable");
}

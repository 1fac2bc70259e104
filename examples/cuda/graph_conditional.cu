// Conditional nodes: if, if with else, while, switch; nested, captured, run again and again.
#include "check.h"

constexpr int STEPS = 10;

__global__ void set_condition(cudaGraphConditionalHandle handle, const int* value)
{
    cudaGraphSetConditional(handle, (unsigned)*value);
}

__global__ void count_down(cudaGraphConditionalHandle handle, int* left, int* steps)
{
    ++*steps;
    cudaGraphSetConditional(handle, --*left > 0);
}

__global__ void add(int* to, int value) { *to += value; }

__global__ void refill(cudaGraphConditionalHandle handle, int* inner, int value)
{
    *inner = value;
    cudaGraphSetConditional(handle, value > 0);
}

struct Bodies {
    cudaGraphNode_t node;
    std::vector<cudaGraph_t> graphs;
};

static Bodies add_conditional(cudaGraph_t graph, const std::vector<cudaGraphNode_t>& after, cudaGraphConditionalHandle handle,
                              cudaGraphConditionalNodeType type, unsigned size)
{
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = size;
    Bodies bodies;
    CHECK(cudaGraphAddNode(&bodies.node, graph, after.data(), nullptr, after.size(), &params));
    bodies.graphs.assign(params.conditional.phGraph_out, params.conditional.phGraph_out + size);
    return bodies;
}

template <class... Arguments>
static cudaGraphNode_t add_kernel(cudaGraph_t graph, const std::vector<cudaGraphNode_t>& after, void (*kernel)(Arguments...),
                                  Arguments... arguments)
{
    void* pointers[] = {&arguments...};
    cudaKernelNodeParams params = {};
    params.func = (void*)kernel;
    params.gridDim = params.blockDim = dim3(1);
    params.kernelParams = pointers;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &params));
    return node;
}

// Memory that the host writes before a launch and reads after it.
struct Words {
    int* at;
    Words() { CHECK(cudaMalloc(&at, 8 * sizeof(int))); }
    ~Words() { CHECK(cudaFree(at)); }
    void set(int index, int value) { CHECK(cudaMemcpy(at + index, &value, sizeof value, cudaMemcpyHostToDevice)); }
    int get(int index)
    {
        int value = -1;
        CHECK(cudaMemcpy(&value, at + index, sizeof value, cudaMemcpyDeviceToHost));
        return value;
    }
};

static void launch(cudaGraphExec_t executable, cudaStream_t stream)
{
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaStreamSynchronize(stream));
}

static void if_else(cudaStream_t stream)
{
    Words words;
    cudaGraph_t graph;
    cudaGraphConditionalHandle one, other;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphConditionalHandleCreate(&one, graph, 0, 0));
    CHECK(cudaGraphConditionalHandleCreate(&other, graph, 0, 0));
    cudaGraphNode_t set = add_kernel(graph, {}, set_condition, one, (const int*)words.at);
    cudaGraphNode_t set_other = add_kernel(graph, {set}, set_condition, other, (const int*)words.at);
    Bodies only = add_conditional(graph, {set_other}, one, cudaGraphCondTypeIf, 1);
    Bodies both = add_conditional(graph, {only.node}, other, cudaGraphCondTypeIf, 2);
    add_kernel(only.graphs[0], {}, add, words.at + 1, 1);
    add_kernel(both.graphs[0], {}, add, words.at + 2, 10);
    add_kernel(both.graphs[1], {}, add, words.at + 2, 100);
    cudaGraphNodeType type;
    CHECK(cudaGraphNodeGetType(only.node, &type));
    expect(type == cudaGraphNodeTypeConditional, "the node is a conditional one");
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    const int conditions[] = {0, 1, 7, 0};
    int ones = 0, sums = 0;
    words.set(1, 0);
    words.set(2, 0);
    for (int condition : conditions) {
        words.set(0, condition);
        launch(executable, stream);
        ones += condition != 0;
        sums += condition != 0 ? 10 : 100;
        expect(words.get(1) == ones && words.get(2) == sums, "condition %d: %d and %d", condition, words.get(1), words.get(2));
    }
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
}

static void loops(cudaStream_t stream)
{
    Words words;
    cudaGraph_t graph;
    cudaGraphConditionalHandle handle;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
    Bodies loop = add_conditional(graph, {}, handle, cudaGraphCondTypeWhile, 1);
    add_kernel(loop.graphs[0], {}, count_down, handle, words.at, words.at + 1);
    add_kernel(graph, {loop.node}, add, words.at + 2, 1);
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    words.set(2, 0);
    for (int round = 1; round <= 3; ++round) {
        words.set(0, STEPS * round);
        words.set(1, 0);
        launch(executable, stream);
        expect(words.get(1) == STEPS * round && words.get(2) == round, "a loop of %d steps, then what follows", words.get(1));
    }
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
}

static void nested_loops(cudaStream_t stream)
{
    Words words;
    cudaGraph_t graph;
    cudaGraphConditionalHandle outer, inner;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphConditionalHandleCreate(&outer, graph, 1, cudaGraphCondAssignDefault));
    Bodies loop = add_conditional(graph, {}, outer, cudaGraphCondTypeWhile, 1);
    cudaGraph_t body = loop.graphs[0];
    CHECK(cudaGraphConditionalHandleCreate(&inner, body, 1, cudaGraphCondAssignDefault));
    cudaGraphNode_t fill = add_kernel(body, {}, refill, inner, words.at + 1, 3);
    Bodies nested = add_conditional(body, {fill}, inner, cudaGraphCondTypeWhile, 1);
    add_kernel(nested.graphs[0], {}, count_down, inner, words.at + 1, words.at + 2);
    add_kernel(body, {nested.node}, count_down, outer, words.at, words.at + 3);
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    words.set(0, 4);
    words.set(2, 0);
    words.set(3, 0);
    launch(executable, stream);
    expect(words.get(2) == 12 && words.get(3) == 4, "a loop in a loop: %d and %d steps", words.get(2), words.get(3));
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
}

static void switches(cudaStream_t stream)
{
    Words words;
    cudaGraph_t graph;
    cudaGraphConditionalHandle handle;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 0, 0));
    cudaGraphNode_t set = add_kernel(graph, {}, set_condition, handle, (const int*)words.at);
    Bodies cases = add_conditional(graph, {set}, handle, cudaGraphCondTypeSwitch, 3);
    for (int i = 0; i < 3; ++i) add_kernel(cases.graphs[i], {}, add, words.at + 1, 1 << (4 * i));
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    words.set(1, 0);
    const int chosen[] = {2, 0, 1, 1, 3, 2};
    for (int choice : chosen) {
        words.set(0, choice);
        launch(executable, stream);
    }
    expect(words.get(1) == 0x221, "a switch took its bodies %x times", words.get(1));
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
}

// A capture goes on behind a conditional node that is added by hand, whose body is captured from another stream.
static void captured(cudaStream_t stream)
{
    Words words;
    cudaStream_t inside;
    CHECK(cudaStreamCreateWithFlags(&inside, cudaStreamNonBlocking));
    cudaGraph_t graph, same;
    cudaGraphConditionalHandle handle;
    cudaStreamCaptureStatus status;
    const cudaGraphNode_t* dependencies;
    size_t count = 0;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    CHECK(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, &dependencies, nullptr, &count));
    CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 0, 0));
    set_condition<<<1, 1, 0, stream>>>(handle, words.at);
    CHECK_LAUNCH();
    CHECK(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, &dependencies, nullptr, &count));
    std::vector<cudaGraphNode_t> after(dependencies, dependencies + count);
    Bodies taken = add_conditional(graph, after, handle, cudaGraphCondTypeIf, 1);
    CHECK(cudaStreamUpdateCaptureDependencies(stream, &taken.node, nullptr, 1, cudaStreamSetCaptureDependencies));
    CHECK(cudaStreamBeginCaptureToGraph(inside, taken.graphs[0], nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed));
    add<<<1, 1, 0, inside>>>(words.at + 1, 5);
    CHECK_LAUNCH();
    CHECK(cudaMemcpyAsync(words.at + 2, words.at + 1, sizeof(int), cudaMemcpyDeviceToDevice, inside));
    CHECK(cudaStreamEndCapture(inside, &same));
    expect(same == taken.graphs[0], "the body was captured");
    add<<<1, 1, 0, stream>>>(words.at + 3, 1);
    CHECK_LAUNCH();
    CHECK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 1; i < 4; ++i) words.set(i, 0);
    for (int condition : {1, 0, 1}) {
        words.set(0, condition);
        launch(executable, stream);
    }
    expect(words.get(1) == 10 && words.get(2) == 10 && words.get(3) == 3, "a captured body: %d, %d, %d", words.get(1),
           words.get(2), words.get(3));

    // Inside another graph, and changed as a whole.
    size_t nodes = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
    expect(nodes == 3, "%zu nodes", nodes);
    cudaGraphExecUpdateResultInfo info = {};
    CHECK(cudaGraphExecUpdate(executable, graph, &info));
    expect(info.result == cudaGraphExecUpdateSuccess, "updated from itself");
    words.set(0, 1);
    launch(executable, stream);
    expect(words.get(1) == 15, "and run: %d", words.get(1));
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(inside));
}

// A graph whose body adds to a word, if it runs, which it does by default.
static cudaGraph_t adding(int* at, int value)
{
    cudaGraph_t graph, same;
    cudaGraphConditionalHandle handle;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
    Bodies bodies = add_conditional(graph, {}, handle, cudaGraphCondTypeIf, 1);
    cudaStream_t inside;
    CHECK(cudaStreamCreateWithFlags(&inside, cudaStreamNonBlocking));
    CHECK(cudaStreamBeginCaptureToGraph(inside, bodies.graphs[0], nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed));
    add<<<1, 1, 0, inside>>>(at, value);
    CHECK_LAUNCH();
    CHECK(cudaStreamEndCapture(inside, &same));
    CHECK(cudaStreamDestroy(inside));
    return graph;
}

// An update replaces the operations of bodies, and the condition, of which each graph has its own.
static void updated(cudaStream_t stream)
{
    Words words;
    words.set(0, 0);
    words.set(1, 0);
    cudaGraph_t first = adding(words.at, 1), second = adding(words.at + 1, 10);
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, first, 0));
    launch(executable, stream);
    cudaGraphExecUpdateResultInfo info = {};
    CHECK(cudaGraphExecUpdate(executable, second, &info));
    expect(info.result == cudaGraphExecUpdateSuccess, "updated from another graph");
    CHECK(cudaGraphDestroy(second));
    launch(executable, stream);
    expect(words.get(0) == 1 && words.get(1) == 10, "an updated body: %d, %d", words.get(0), words.get(1));
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(first));
}

static void refused()
{
    cudaGraph_t graph, clone;
    cudaGraphConditionalHandle handle;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 0, 0));
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = cudaGraphCondTypeWhile;
    params.conditional.size = 2;
    cudaGraphNode_t node;
    EXPECT_ERROR(cudaErrorInvalidValue, cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
    params.conditional.size = 0;
    EXPECT_ERROR(cudaErrorInvalidValue, cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
    params.conditional.size = 1;
    CHECK(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
    cudaError_t twice = cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params);
    std::printf("  a second node for a handle: %s\n", cudaGetErrorName(twice));
    cudaError_t cloned = cudaGraphClone(&clone, graph);
    std::printf("  a clone: %s\n", cudaGetErrorName(cloned));
    cudaGraph_t outer;
    CHECK(cudaGraphCreate(&outer, 0));
    cudaError_t child = cudaGraphAddChildGraphNode(&node, outer, nullptr, 0, graph);
    std::printf("  as a child: %s\n", cudaGetErrorName(child));
    (void)cudaGetLastError();
    CHECK(cudaGraphDestroy(outer));
    CHECK(cudaGraphDestroy(graph));
}

int main()
{
    std::printf("graph_conditional: nodes that run their graphs or not, or again\n");
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if_else(stream);
    loops(stream);
    nested_loops(stream);
    switches(stream);
    captured(stream);
    updated(stream);
    refused();
    CHECK(cudaStreamDestroy(stream));
    return verdict("graph_conditional");
}

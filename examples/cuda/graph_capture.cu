// A graph captured from two streams, launched many times, and updated by capturing again.
#include "check.h"

constexpr int COUNT = 2000;
constexpr unsigned THREADS = 128;

__global__ void add_scaled(float* out, const float* in, float factor)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < COUNT) out[i] += in[i] * factor;
}

__global__ void add_constant(float* out, const float* in, float constant)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < COUNT) out[i] = in[i] + constant;
}

__global__ void multiply_add(float* sum, const float* a, const float* b)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < COUNT) sum[i] += a[i] * b[i];
}

// sum += (factor * x) * (x + constant), the two factors in two branches. All values are small integers: exact in fp32.
struct Pipeline {
    float *host_x, *host_sum;           // pinned
    float *x, *scaled, *shifted, *sum;  // on the device
    cudaStream_t stream, branch;
    cudaEvent_t fork, join;

    Pipeline()
    {
        for (float** pointer : {&host_x, &host_sum}) CHECK(cudaMallocHost(pointer, COUNT * sizeof(float)));
        for (float** pointer : {&x, &scaled, &shifted, &sum}) CHECK(cudaMalloc(pointer, COUNT * sizeof(float)));
        for (cudaStream_t* created : {&stream, &branch}) CHECK(cudaStreamCreateWithFlags(created, cudaStreamNonBlocking));
        for (cudaEvent_t* created : {&fork, &join}) CHECK(cudaEventCreateWithFlags(created, cudaEventDisableTiming));
        CHECK(cudaMemset(sum, 0, COUNT * sizeof(float)));
        CHECK(cudaDeviceSynchronize());
        for (int i = 0; i < COUNT; ++i) host_sum[i] = -1;
    }
    ~Pipeline()
    {
        for (float* pointer : {host_x, host_sum}) CHECK(cudaFreeHost(pointer));
        for (float* pointer : {x, scaled, shifted, sum}) CHECK(cudaFree(pointer));
        for (cudaStream_t created : {stream, branch}) CHECK(cudaStreamDestroy(created));
        for (cudaEvent_t created : {fork, join}) CHECK(cudaEventDestroy(created));
    }

    // Six operations: memset, copy up, two branches, join, copy down.
    void enqueue(float factor, float constant)
    {
        const size_t bytes = COUNT * sizeof(float);
        const unsigned blocks = blocks_for(COUNT, THREADS);
        CHECK(cudaMemsetAsync(scaled, 0, bytes, stream));
        CHECK(cudaMemcpyAsync(x, host_x, bytes, cudaMemcpyHostToDevice, stream));
        CHECK(cudaEventRecord(fork, stream));
        CHECK(cudaStreamWaitEvent(branch, fork, 0));
        add_scaled<<<blocks, THREADS, 0, stream>>>(scaled, x, factor);
        CHECK_LAUNCH();
        add_constant<<<blocks, THREADS, 0, branch>>>(shifted, x, constant);
        CHECK_LAUNCH();
        CHECK(cudaEventRecord(join, branch));
        CHECK(cudaStreamWaitEvent(stream, join, 0));
        multiply_add<<<blocks, THREADS, 0, stream>>>(sum, scaled, shifted);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(host_sum, sum, bytes, cudaMemcpyDeviceToHost, stream));
    }

    cudaGraph_t capture(float factor, float constant)
    {
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        enqueue(factor, constant);
        for (cudaStream_t captured : {stream, branch}) {
            cudaStreamCaptureStatus status;
            CHECK(cudaStreamIsCapturing(captured, &status));
            if (status != cudaStreamCaptureStatusActive) expect(false, "both streams are being captured");
        }
        cudaGraph_t graph = nullptr;
        CHECK(cudaStreamEndCapture(stream, &graph));
        return graph;
    }

    // The host changes its input before each launch; the graph reads it when it runs.
    void launch_rounds(cudaGraphExec_t executable, int rounds, float factor, float constant, std::vector<float>& want)
    {
        for (int round = 0; round < rounds; ++round) {
            for (int i = 0; i < COUNT; ++i) {
                float value = (float)((i + round) % 5);
                host_x[i] = value;
                want[i] += factor * value * (value + constant);
            }
            CHECK(cudaGraphLaunch(executable, stream));
            CHECK(cudaStreamSynchronize(stream));
        }
    }

    std::vector<float> result() const { return std::vector<float>(host_sum, host_sum + COUNT); }
};

static void capture_launch_update()
{
    Pipeline pipeline;
    std::vector<float> want(COUNT, 0);
    cudaGraph_t graph = pipeline.capture(2, 1);
    CHECK(cudaDeviceSynchronize());
    expect_equal(pipeline.result(), std::vector<float>(COUNT, -1.0f), "a capture runs nothing");
    size_t nodes = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
    expect(nodes == 6, "the graph has %zu nodes", nodes);

    cudaGraphExec_t executable = nullptr;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    pipeline.launch_rounds(executable, 10, 2, 1, want);
    expect_equal(pipeline.result(), want, "10 launches, each awaited");

    for (int launch = 0; launch < 50; ++launch) CHECK(cudaGraphLaunch(executable, pipeline.stream));
    CHECK(cudaStreamSynchronize(pipeline.stream));
    for (int i = 0; i < COUNT; ++i) want[i] += 50 * 2 * pipeline.host_x[i] * (pipeline.host_x[i] + 1);
    expect_equal(pipeline.result(), want, "50 launches in a row");

    // Other parameters, same shape: the executable graph takes them over without a new instantiation.
    cudaGraph_t recaptured = pipeline.capture(3, 4);
    cudaGraphExecUpdateResultInfo info = {};
    CHECK(cudaGraphExecUpdate(executable, recaptured, &info));
    expect(info.result == cudaGraphExecUpdateSuccess, "the executable graph is updated");
    pipeline.launch_rounds(executable, 5, 3, 4, want);
    expect_equal(pipeline.result(), want, "5 launches after the update");

    // The streams are ordinary streams again.
    pipeline.enqueue(1, 1);
    CHECK(cudaStreamSynchronize(pipeline.stream));
    for (int i = 0; i < COUNT; ++i) want[i] += pipeline.host_x[i] * (pipeline.host_x[i] + 1);
    expect_equal(pipeline.result(), want, "the same work without a graph");

    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphDestroy(recaptured));
}

// Waiting for a stream under capture is a mistake that spoils the capture, not the stream.
static void spoilt_capture()
{
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    EXPECT_ERROR(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(stream));
    cudaGraph_t graph = nullptr;
    EXPECT_ERROR(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaStreamDestroy(stream));
}

int main()
{
    std::printf("graph_capture: a graph of two streams, launched and updated\n");
    capture_launch_update();
    spoilt_capture();
    return verdict("graph_capture");
}

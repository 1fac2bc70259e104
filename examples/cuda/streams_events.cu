// Work in several streams: copies and kernels in chunks, dependencies by events, times between events.
#include "check.h"

constexpr int STREAMS = 4;
constexpr unsigned THREADS = 128;

__global__ void scale(float* values, int count, float factor)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] *= factor;
}

__global__ void add_into(float* sum, const float* values, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) sum[i] += values[i];
}

// Every stream uploads, scales and downloads its own chunk.
static void chunks_in_streams(cudaStream_t* streams)
{
    const int chunk = 4096, count = STREAMS * chunk;
    std::vector<float> want = random_floats(count, 9);
    float *host = nullptr, *device = nullptr;
    CHECK(cudaMallocHost(&host, count * sizeof(float)));
    CHECK(cudaMalloc(&device, count * sizeof(float)));
    for (int i = 0; i < count; ++i) host[i] = want[i];

    cudaEvent_t start, stop;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&stop));
    CHECK(cudaEventRecord(start, streams[0]));
    for (int s = 0; s < STREAMS; ++s) {
        size_t offset = (size_t)s * chunk, bytes = chunk * sizeof(float);
        CHECK(cudaMemcpyAsync(device + offset, host + offset, bytes, cudaMemcpyHostToDevice, streams[s]));
        scale<<<blocks_for(chunk, THREADS), THREADS, 0, streams[s]>>>(device + offset, chunk, (float)(s + 2));
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(host + offset, device + offset, bytes, cudaMemcpyDeviceToHost, streams[s]));
    }
    // The stop event waits for all streams: each records an event, the first stream waits for them.
    for (int s = 1; s < STREAMS; ++s) {
        cudaEvent_t done;
        CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
        CHECK(cudaEventRecord(done, streams[s]));
        CHECK(cudaStreamWaitEvent(streams[0], done, 0));
        CHECK(cudaEventDestroy(done));  // legal before it completes
    }
    CHECK(cudaEventRecord(stop, streams[0]));
    CHECK(cudaEventSynchronize(stop));
    expect(cudaEventQuery(stop) == cudaSuccess, "a synchronised event is complete");

    float elapsed_ms = -1;
    CHECK(cudaEventElapsedTime(&elapsed_ms, start, stop));
    std::printf("# upload, kernel and download in %d streams: %.3f ms\n", STREAMS, elapsed_ms);
    expect(elapsed_ms >= 0 && elapsed_ms < 60'000, "the elapsed time is plausible");
    for (int i = 0; i < count; ++i) want[i] *= (float)(i / chunk + 2);
    expect_equal(std::vector<float>(host, host + count), want, "chunks scaled in four streams");

    CHECK(cudaEventDestroy(start));
    CHECK(cudaEventDestroy(stop));
    CHECK(cudaFree(device));
    CHECK(cudaFreeHost(host));
}

// One buffer handed around all streams in a ring: the result depends on the order that the events give.
static void ring_of_dependencies(cudaStream_t* streams)
{
    const int count = 1000, rounds = 24;
    DeviceBuffer<float> value(std::vector<float>(count, 1.0f)), one(std::vector<float>(count, 1.0f));
    CHECK(cudaDeviceSynchronize());  // streams without default-stream order do not wait for the uploads above
    cudaEvent_t turn;
    CHECK(cudaEventCreateWithFlags(&turn, cudaEventDisableTiming));
    float want = 1;
    for (int round = 0; round < rounds; ++round) {
        cudaStream_t stream = streams[round % STREAMS];
        if (round > 0) CHECK(cudaStreamWaitEvent(stream, turn, 0));
        if (round % 3 == 2) {
            scale<<<blocks_for(count, THREADS), THREADS, 0, stream>>>(value.data(), count, 0.5f);
            want *= 0.5f;
        } else {
            add_into<<<blocks_for(count, THREADS), THREADS, 0, stream>>>(value.data(), one.data(), count);
            want += 1.0f;
        }
        CHECK_LAUNCH();
        CHECK(cudaEventRecord(turn, stream));  // a wait already enqueued keeps the earlier record
    }
    CHECK(cudaEventSynchronize(turn));
    expect_equal(value.download(), std::vector<float>(count, want), "24 steps around a ring of streams");
    CHECK(cudaEventDestroy(turn));
}

// The legacy default stream and blocking streams wait for each other without any event.
static void default_stream_order()
{
    const int count = 1000;
    DeviceBuffer<float> value(std::vector<float>(count, 1.0f));
    cudaStream_t blocking;
    CHECK(cudaStreamCreate(&blocking));
    scale<<<blocks_for(count, THREADS), THREADS, 0, blocking>>>(value.data(), count, 3.0f);
    scale<<<blocks_for(count, THREADS), THREADS>>>(value.data(), count, 5.0f);
    scale<<<blocks_for(count, THREADS), THREADS, 0, blocking>>>(value.data(), count, 7.0f);
    CHECK_LAUNCH();
    expect_equal(value.download(), std::vector<float>(count, 105.0f), "default and blocking stream in order");
    CHECK(cudaStreamSynchronize(blocking));
    expect(cudaStreamQuery(blocking) == cudaSuccess, "a synchronised stream is idle");
    CHECK(cudaStreamDestroy(blocking));
}

static void bad_uses()
{
    cudaEvent_t never, untimed;
    CHECK(cudaEventCreate(&never));
    CHECK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    expect(cudaEventQuery(never) == cudaSuccess, "an event that was never recorded counts as complete");
    CHECK(cudaEventRecord(untimed));
    CHECK(cudaEventSynchronize(untimed));
    float elapsed_ms;
    EXPECT_ERROR(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&elapsed_ms, untimed, untimed));
    CHECK(cudaEventDestroy(never));
    CHECK(cudaEventDestroy(untimed));
}

int main()
{
    std::printf("streams_events: %d streams, ordered by events and by the default stream\n", STREAMS);
    int least = 0, greatest = 0;
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    expect(greatest <= least, "the priority range is well formed");
    cudaStream_t streams[STREAMS];
    for (int s = 0; s < STREAMS; ++s)
        CHECK(cudaStreamCreateWithPriority(&streams[s], cudaStreamNonBlocking, s == 0 ? greatest : least));
    int priority = 0;
    unsigned flags = 0;
    CHECK(cudaStreamGetPriority(streams[0], &priority));
    CHECK(cudaStreamGetFlags(streams[0], &flags));
    expect(priority == greatest && flags == cudaStreamNonBlocking, "a stream knows its priority and flags");

    chunks_in_streams(streams);
    ring_of_dependencies(streams);
    default_stream_order();
    bad_uses();
    for (cudaStream_t stream : streams) CHECK(cudaStreamDestroy(stream));
    return verdict("streams_events");
}

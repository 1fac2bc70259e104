// Two host threads share the work: one uploads, the other computes. What they hand over goes through a mutex and a
// condition variable, which CUDA knows nothing of.
#include "check.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

constexpr int CHUNK = 2048;
constexpr int CHUNKS = 24;
constexpr int SLOTS = 3;  // device buffers in circulation
constexpr unsigned THREADS = 128;

__global__ void sum_of_squares(const int* values, unsigned long long* sum)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < CHUNK) atomicAdd(sum, (unsigned long long)values[i] * (unsigned long long)values[i]);
}

struct Slot {
    int* values;        // on the device
    cudaEvent_t ready;  // recorded behind the upload
    int chunk;
};

class Queue {
public:
    void push(Slot* slot)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        slots_.push_back(slot);
        changed_.notify_one();
    }
    Slot* pop()
    {
        std::unique_lock<std::mutex> guard(mutex_);
        changed_.wait(guard, [this] { return !slots_.empty(); });
        Slot* slot = slots_.front();
        slots_.pop_front();
        return slot;
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Slot*> slots_;
};

static int input(int chunk, int i) { return (chunk * 31 + i) % 1009; }

static void upload(Queue* empty, Queue* full)
{
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    int* staging = nullptr;
    CHECK(cudaMallocHost(&staging, CHUNK * sizeof(int)));
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        Slot* slot = empty->pop();
        for (int i = 0; i < CHUNK; ++i) staging[i] = input(chunk, i);
        slot->chunk = chunk;
        CHECK(cudaMemcpyAsync(slot->values, staging, CHUNK * sizeof(int), cudaMemcpyHostToDevice, stream));
        CHECK(cudaEventRecord(slot->ready, stream));
        full->push(slot);
        CHECK(cudaStreamSynchronize(stream));  // before the staging memory is written again
    }
    CHECK(cudaFreeHost(staging));
    CHECK(cudaStreamDestroy(stream));
}

static void compute(Queue* empty, Queue* full, std::vector<unsigned long long>* sums)
{
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    DeviceBuffer<unsigned long long> sum(1);
    for (int done = 0; done < CHUNKS; ++done) {
        Slot* slot = full->pop();
        CHECK(cudaStreamWaitEvent(stream, slot->ready, 0));
        CHECK(cudaMemsetAsync(sum.data(), 0, sum.bytes(), stream));
        sum_of_squares<<<CHUNK / THREADS, THREADS, 0, stream>>>(slot->values, sum.data());
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(&(*sums)[slot->chunk], sum.data(), sum.bytes(), cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        empty->push(slot);
    }
    CHECK(cudaStreamDestroy(stream));
}

// Errors belong to the thread that made them.
static void errors_stay_with_their_thread()
{
    const unsigned too_many_threads = 4096;
    sum_of_squares<<<1, too_many_threads>>>(nullptr, nullptr);
    cudaError_t elsewhere = cudaErrorUnknown;
    std::thread([&] { elsewhere = cudaPeekAtLastError(); }).join();
    expect(elsewhere == cudaSuccess, "another thread does not see this thread's error");
    EXPECT_ERROR(cudaErrorInvalidValue, cudaGetLastError());
    expect(cudaGetLastError() == cudaSuccess, "asking for the last error clears it");
}

int main()
{
    std::printf("two_threads: %d chunks through %d buffers, uploaded by one thread, summed by another\n", CHUNKS, SLOTS);
    Queue empty, full;
    std::vector<Slot> slots(SLOTS);
    for (Slot& slot : slots) {
        CHECK(cudaMalloc(&slot.values, CHUNK * sizeof(int)));
        CHECK(cudaEventCreateWithFlags(&slot.ready, cudaEventDisableTiming));
        empty.push(&slot);
    }
    std::vector<unsigned long long> sums(CHUNKS, 0), want(CHUNKS, 0);
    std::thread uploader(upload, &empty, &full), computer(compute, &empty, &full, &sums);
    uploader.join();
    computer.join();
    for (int chunk = 0; chunk < CHUNKS; ++chunk)
        for (int i = 0; i < CHUNK; ++i) want[chunk] += (unsigned long long)input(chunk, i) * input(chunk, i);
    expect_equal(sums, want, "sums of squares");
    for (Slot& slot : slots) {
        CHECK(cudaFree(slot.values));
        CHECK(cudaEventDestroy(slot.ready));
    }
    errors_stay_with_their_thread();
    return verdict("two_threads");
}

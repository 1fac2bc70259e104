// Processes that fork, before CUDA is used and after: no child disturbs the parent.
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

#include <functional>

__global__ void add(int* values, int count, int amount)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] += amount;
}

constexpr int COUNT = 10'000;

// The exit code of a child that does `work`; -1 when it was killed.
static int exit_code_of_child(const std::function<int()>& work, bool run_exit_handlers)
{
    std::fflush(stdout);
    pid_t child = fork();
    if (child < 0) {
        std::perror("fork_child: fork");
        std::exit(1);
    }
    if (child == 0) {
        int code = work();
        if (run_exit_handlers) std::exit(code);
        _exit(code);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool add_works(int* device, std::vector<int>& want, int amount)
{
    add<<<blocks_for(COUNT, 128), 128>>>(device, COUNT, amount);
    CHECK_LAUNCH();
    std::vector<int> got(COUNT);
    CHECK(cudaMemcpy(got.data(), device, COUNT * sizeof(int), cudaMemcpyDeviceToHost));
    for (int& value : want) value += amount;
    return got == want;
}

// A whole use of CUDA in one process.
static int use_cuda()
{
    std::vector<int> want(COUNT, 3);
    DeviceBuffer<int> device(want);
    return add_works(device.data(), want, 4) ? 23 : 1;
}

int main()
{
    std::printf("fork_child: children forked before and after the first use of CUDA\n");
    expect(exit_code_of_child(use_cuda, true) == 23, "a child forked before CUDA may use it");

    std::vector<int> want(COUNT);
    for (int i = 0; i < COUNT; ++i) want[i] = i;
    DeviceBuffer<int> device(want);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    expect(add_works(device.data(), want, 1), "the parent uses it too");

    expect(exit_code_of_child([] { return 7; }, false) == 7, "a child that leaves by _exit");
    expect(add_works(device.data(), want, 10), "the parent goes on");
    expect(exit_code_of_child([] { return 8; }, true) == 8, "a child that leaves by exit, with all exit handlers");
    expect(add_works(device.data(), want, 100), "the parent goes on");

    // A child that computes on its own while the parent's work is in flight.
    add<<<blocks_for(COUNT, 128), 128, 0, stream>>>(device.data(), COUNT, 1000);
    CHECK_LAUNCH();
    int code = exit_code_of_child([&want] {
        long long sum = 0;
        for (int value : want) sum += value;
        return sum == (long long)COUNT * (COUNT - 1) / 2 + 111ll * COUNT ? 9 : 1;
    }, false);
    expect(code == 9, "a child with work of its own");
    for (int& value : want) value += 1000;
    CHECK(cudaStreamSynchronize(stream));
    expect_equal(device.download(), want, "the parent's work in flight");
    CHECK(cudaStreamDestroy(stream));
    return verdict("fork_child");
}

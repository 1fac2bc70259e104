// Memory that kernels take and give back themselves: malloc, free, new, delete; what is left over for another kernel;
// and what happens when there is no more.
#include "check.h"

constexpr int THREADS = 256;

struct Node {
    int value;
    Node* next;
};

// Each thread keeps a list of its own for the next kernel.
__global__ void make_lists(Node** lists, int length)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    Node* list = nullptr;
    for (int k = 0; k < length; ++k) {
        Node* node = new Node;
        if (node == nullptr) break;
        node->value = i * 100 + k;
        node->next = list;
        list = node;
    }
    lists[i] = list;
}

__global__ void take_lists(Node** lists, int* sums)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, sum = 0;
    for (Node* node = lists[i]; node != nullptr;) {
        Node* next = node->next;
        sum += node->value;
        delete node;
        node = next;
    }
    sums[i] = sum;
}

// A buffer for a whole block, sized at run time.
__global__ void scratch(int count, int* out)
{
    __shared__ int* buffer;
    if (threadIdx.x == 0) buffer = (int*)malloc(count * sizeof(int));
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) buffer[i] = i * (int)(blockIdx.x + 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int i = 0; i < count; ++i) sum += buffer[i];
        out[blockIdx.x] = sum;
        free(buffer);
    }
}

// Takes more than the heap has, piece by piece, and gives everything back.
__global__ void exhaust(int bytes, int pieces_max, int* found)
{
    char** pieces = (char**)malloc(pieces_max * sizeof(char*));
    int count = 0;
    while (pieces != nullptr && count < pieces_max && (pieces[count] = (char*)malloc(bytes)) != nullptr) {
        pieces[count][bytes - 1] = 1;
        ++count;
    }
    found[0] = count;
    for (int i = 0; i < count; ++i) free(pieces[i]);
    free(pieces);
    void* again = malloc(bytes);
    found[1] = again != nullptr;
    free(again);
}

int main()
{
    std::printf("device_heap: malloc and free in kernels\n");
    const size_t heap_bytes = 16 << 20;
    CHECK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, heap_bytes));
    const int length = 7;
    DeviceBuffer<Node*> lists(THREADS);
    DeviceBuffer<int> sums(THREADS);
    make_lists<<<2, THREADS / 2>>>(lists.data(), length);
    take_lists<<<2, THREADS / 2>>>(lists.data(), sums.data());
    CHECK_LAUNCH();
    std::vector<int> want(THREADS);
    for (int i = 0; i < THREADS; ++i)
        for (int k = 0; k < length; ++k) want[i] += i * 100 + k;
    expect_equal(sums.download(), want, "lists made by one kernel, taken by another");

    const int blocks = 8, count = 1000;
    DeviceBuffer<int> out(blocks);
    scratch<<<blocks, 64>>>(count, out.data());
    CHECK_LAUNCH();
    std::vector<int> products(blocks);
    for (int block = 0; block < blocks; ++block) products[block] = count * (count - 1) / 2 * (block + 1);
    expect_equal(out.download(), products, "buffers of whole blocks");

    DeviceBuffer<int> found(2);
    const int megabyte = 1 << 20;
    exhaust<<<1, 1>>>(megabyte, 1000, found.data());
    CHECK_LAUNCH();
    std::vector<int> seen = found.download();
    std::printf("# %d pieces of 1 MiB\n", seen[0]);
    expect(seen[0] >= 8 && seen[0] < 1000, "a heap of 16 MiB gives at least 8 pieces of 1 MiB, and then none");
    expect(seen[1] == 1, "what was given back can be had again");
    return verdict("device_heap");
}

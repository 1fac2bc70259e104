// Matrix product with tiles in shared memory: every element of A and B is read from global memory once a tile.
#include "check.h"

constexpr int TILE = 16;

// c[m][n] = a[m][k] * b[k][n], row-major. Threads outside the matrices load zeros, so that all reach the barriers.
__global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k)
{
    __shared__ float tile_a[TILE][TILE];
    __shared__ float tile_b[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y;
    int column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int first = 0; first < k; first += TILE) {
        int inner_a = first + threadIdx.x, inner_b = first + threadIdx.y;
        tile_a[threadIdx.y][threadIdx.x] = row < m && inner_a < k ? a[row * k + inner_a] : 0.0f;
        tile_b[threadIdx.y][threadIdx.x] = inner_b < k && column < n ? b[inner_b * n + column] : 0.0f;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}

static void multiply(int m, int n, int k)
{
    std::vector<float> a = random_floats((size_t)m * k, 3), b = random_floats((size_t)k * n, 4);
    DeviceBuffer<float> device_a(a), device_b(b), device_c((size_t)m * n);
    dim3 grid(blocks_for(n, TILE), blocks_for(m, TILE)), block(TILE, TILE);
    matmul<<<grid, block>>>(device_a.data(), device_b.data(), device_c.data(), m, n, k);
    CHECK_LAUNCH();

    std::vector<float> want((size_t)m * n);
    for (int row = 0; row < m; ++row)
        for (int column = 0; column < n; ++column) {
            double sum = 0;
            for (int i = 0; i < k; ++i) sum += (double)a[row * k + i] * b[i * n + column];
            want[row * n + column] = (float)sum;
        }
    char what[64];
    std::snprintf(what, sizeof what, "%dx%d * %dx%d", m, k, k, n);
    // k products of at most 1 summed in fp32: the error stays below k * k * 2^-24 in the worst case.
    expect_close(device_c.download(), want, (double)k * k * 0x1p-24, 0, what);
}

int main()
{
    std::printf("matmul_tiled: fp32 matrix products through %dx%d tiles in shared memory\n", TILE, TILE);
    multiply(64, 64, 64);
    multiply(130, 97, 70);  // no multiples of the tile
    multiply(1, 257, 33);
    return verdict("matmul_tiled");
}

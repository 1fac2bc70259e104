// The kernels of driver_ctypes.py, compiled to PTX with plain names.

extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) c[i] = a[i] + b[i];
}

// c[m][n] = a[m][k] * b[k][n], row-major.
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= m || column >= n) return;
    float sum = 0;
    for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + column];
    c[row * n + column] = sum;
}

// Adds all values to *sum: dynamic shared memory of one double a thread, blockDim.x a power of two.
extern "C" __global__ void reduce(const double* values, double* sum, int count)
{
    extern __shared__ double partial[];
    double own = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) own += values[i];
    partial[threadIdx.x] = own;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(sum, partial[0]);
}

extern "C" __global__ void histogram(const unsigned char* bytes, unsigned* bins, int count)
{
    __shared__ unsigned block_bins[256];
    for (int bin = threadIdx.x; bin < 256; bin += blockDim.x) block_bins[bin] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) atomicAdd(&block_bins[bytes[i]], 1u);
    __syncthreads();
    for (int bin = threadIdx.x; bin < 256; bin += blockDim.x) atomicAdd(&bins[bin], block_bins[bin]);
}

extern "C" __global__ void softmax_rows(const float* in, float* out, int columns)
{
    __shared__ float shared[128];
    const float* row = in + (size_t)blockIdx.x * columns;
    float largest = -INFINITY;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) largest = fmaxf(largest, row[i]);
    shared[threadIdx.x] = largest;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + half]);
        __syncthreads();
    }
    largest = shared[0];
    __syncthreads();
    float sum = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(row[i] - largest);
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    sum = shared[0];
    for (int i = threadIdx.x; i < columns; i += blockDim.x) out[(size_t)blockIdx.x * columns + i] = expf(row[i] - largest) / sum;
}

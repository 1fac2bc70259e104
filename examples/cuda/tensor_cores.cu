// Matrix products on tensor cores: through wmma in every type, and through mma with ldmatrix as libraries do it.
// Inputs are small whole numbers, so that every sum is exact in whatever order it is taken.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include "check.h"

using namespace nvcuda;

constexpr int M = 64, N = 96, K = 48;

// One warp a tile of c = a * b; a by rows, b by columns or rows.
template <int TM, int TN, int TK, class In, class Stored, class Sum, class LayoutB>
__global__ void by_wmma(const Stored* a, const Stored* b, Sum* c)
{
    int row = blockIdx.y * TM, column = blockIdx.x * TN;
    wmma::fragment<wmma::matrix_a, TM, TN, TK, In, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, TM, TN, TK, In, LayoutB> fb;
    wmma::fragment<wmma::accumulator, TM, TN, TK, Sum> sum;
    wmma::fill_fragment(sum, (Sum)1);
    const bool by_columns = std::is_same<LayoutB, wmma::col_major>::value;
    for (int k = 0; k < K; k += TK) {
        wmma::load_matrix_sync(fa, a + row * K + k, K);
        wmma::load_matrix_sync(fb, by_columns ? b + column * K + k : b + k * N + column, by_columns ? K : N);
        wmma::mma_sync(sum, fa, fb, sum);
    }
    for (int i = 0; i < (int)sum.num_elements; ++i) sum.x[i] = sum.x[i] * (Sum)2;
    wmma::store_matrix_sync(c + row * N + column, sum, N, wmma::mem_row_major);
}

__device__ unsigned shared_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

// A block of one warp computes 16 x 8 of c: tiles go to shared memory, from there to registers by ldmatrix.
__global__ void by_mma(const __half* a, const __half* b, float* c)
{
    __shared__ __align__(16) __half tile_a[16][16];
    __shared__ __align__(16) __half tile_b[16][8];
    int lane = threadIdx.x, row = blockIdx.y * 16, column = blockIdx.x * 8;
    float d[4] = {1, 1, 1, 1};
    for (int k = 0; k < K; k += 16) {
        for (int i = lane; i < 16 * 16; i += 32) tile_a[i / 16][i % 16] = a[(row + i / 16) * K + k + i % 16];
        for (int i = lane; i < 16 * 8; i += 32) tile_b[i / 8][i % 8] = b[(k + i / 8) * N + column + i % 8];
        __syncwarp();
        unsigned fa[4], fb[2];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3])
                     : "r"(shared_address(&tile_a[lane % 16][lane / 16 * 8])));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(fb[0]), "=r"(fb[1])
                     : "r"(shared_address(&tile_b[lane % 16][0])));
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
        __syncwarp();
    }
    float* to = c + (row + lane / 4) * N + column + lane % 4 * 2;
    to[0] = d[0] * 2, to[1] = d[1] * 2;
    to[8 * N] = d[2] * 2, to[8 * N + 1] = d[3] * 2;
}

// c = 2 * (a * b + 1), and the inputs.
template <class Stored, class Sum>
struct Product {
    std::vector<Stored> a, b_by_rows, b_by_columns;
    std::vector<Sum> want;

    Product(int lowest, int highest) : a(M * K), b_by_rows(K * N), b_by_columns(K * N), want(M * N)
    {
        Random random(31);
        std::vector<int> x(M * K), y(K * N);
        for (int& value : x) value = lowest + (int)random.below(highest - lowest + 1);
        for (int& value : y) value = lowest + (int)random.below(highest - lowest + 1);
        for (int i = 0; i < M * K; ++i) a[i] = (Stored)(float)x[i];
        for (int k = 0; k < K; ++k)
            for (int j = 0; j < N; ++j) b_by_rows[k * N + j] = b_by_columns[j * K + k] = (Stored)(float)y[k * N + j];
        for (int i = 0; i < M; ++i)
            for (int j = 0; j < N; ++j) {
                int sum = 1;
                for (int k = 0; k < K; ++k) sum += x[i * K + k] * y[k * N + j];
                want[i * N + j] = (Sum)(float)(2 * sum);
            }
    }
};

template <class Sum>
static std::vector<float> as_floats(const std::vector<Sum>& values)
{
    std::vector<float> out;
    for (const Sum& value : values) out.push_back((float)value);
    return out;
}

template <int TM, int TN, int TK, class In, class Stored, class Sum>
static void check_wmma(const char* name, int lowest, int highest)
{
    Product<Stored, Sum> product(lowest, highest);
    DeviceBuffer<Stored> a(product.a), rows(product.b_by_rows), columns(product.b_by_columns);
    DeviceBuffer<Sum> c(M * N);
    dim3 grid(N / TN, M / TM);
    by_wmma<TM, TN, TK, In, Stored, Sum, wmma::row_major><<<grid, 32>>>(a.data(), rows.data(), c.data());
    CHECK_LAUNCH();
    expect(as_floats(c.download()) == as_floats(product.want), "wmma %dx%dx%d %s, b by rows", TM, TN, TK, name);
    CHECK(cudaMemset(c.data(), 0, c.bytes()));
    by_wmma<TM, TN, TK, In, Stored, Sum, wmma::col_major><<<grid, 32>>>(a.data(), columns.data(), c.data());
    CHECK_LAUNCH();
    expect(as_floats(c.download()) == as_floats(product.want), "wmma %dx%dx%d %s, b by columns", TM, TN, TK, name);
}

static void check_mma()
{
    Product<__half, float> product(-8, 8);
    DeviceBuffer<__half> a(product.a), b(product.b_by_rows);
    DeviceBuffer<float> c(M * N);
    by_mma<<<dim3(N / 8, M / 16), 32>>>(a.data(), b.data(), c.data());
    CHECK_LAUNCH();
    expect_equal(c.download(), product.want, "mma m16n8k16 with ldmatrix");
}

int main()
{
    std::printf("tensor_cores: %d x %d x %d products\n", M, N, K);
    check_wmma<16, 16, 16, __half, __half, float>("fp16 to fp32", -8, 8);
    check_wmma<32, 8, 16, __half, __half, float>("fp16 to fp32", -8, 8);
    check_wmma<8, 32, 16, __half, __half, float>("fp16 to fp32", -8, 8);
    // Sums below 2048 are exact in fp16.
    check_wmma<16, 16, 16, __half, __half, __half>("fp16 to fp16", -3, 3);
    check_wmma<16, 16, 16, __nv_bfloat16, __nv_bfloat16, float>("bf16 to fp32", -8, 8);
    check_wmma<16, 16, 8, wmma::precision::tf32, float, float>("tf32 to fp32", -8, 8);
    check_wmma<8, 8, 4, double, double, double>("fp64", -1000, 1000);
    check_wmma<16, 16, 16, signed char, signed char, int>("int8", -128, 127);
    check_wmma<32, 8, 16, unsigned char, unsigned char, int>("uint8", 0, 255);
    check_mma();
    return verdict("tensor_cores");
}

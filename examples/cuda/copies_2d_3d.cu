// Copies and memsets of rectangles and boxes between pitched memory and plain arrays.
#include "check.h"

constexpr int WIDTH = 37, HEIGHT = 23, DEPTH = 5;  // elements, rows, slices

__global__ void transform(float* image, size_t pitch_bytes)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= WIDTH || y >= HEIGHT) return;
    float* row = (float*)((char*)image + y * pitch_bytes);
    row[x] = row[x] * 2 + (float)y;
}

__global__ void transform_box(cudaPitchedPtr box)
{
    int x = threadIdx.x, y = blockIdx.x, z = blockIdx.y;
    int* row = (int*)((char*)box.ptr + ((size_t)z * HEIGHT + y) * box.pitch);
    row[x] += z * 10000 + y * 100 + x;
}

static void rectangles()
{
    const size_t row_bytes = WIDTH * sizeof(float);
    std::vector<float> image = random_floats((size_t)WIDTH * HEIGHT, 14), got(image.size(), 0.0f), want(image);
    float* device = nullptr;
    size_t pitch = 0;
    CHECK(cudaMallocPitch(&device, &pitch, row_bytes, HEIGHT));
    std::printf("# pitch %zu bytes for rows of %zu\n", pitch, row_bytes);
    expect(pitch >= row_bytes && pitch % 32 == 0, "the pitch holds a row and keeps rows aligned");
    CHECK(cudaMemcpy2D(device, pitch, image.data(), row_bytes, row_bytes, HEIGHT, cudaMemcpyHostToDevice));
    dim3 block(16, 8), grid(blocks_for(WIDTH, 16), blocks_for(HEIGHT, 8));
    transform<<<grid, block>>>(device, pitch);
    CHECK_LAUNCH();
    CHECK(cudaMemcpy2D(got.data(), row_bytes, device, pitch, row_bytes, HEIGHT, cudaMemcpyDeviceToHost));
    for (int y = 0; y < HEIGHT; ++y)
        for (int x = 0; x < WIDTH; ++x) want[y * WIDTH + x] = std::fmaf(image[y * WIDTH + x], 2.0f, (float)y);
    expect_equal(got, want, "a pitched image up, transformed and down");

    // A window of 10 x 7 at (5, 3) into the middle of a larger host image, in a stream; around it nothing changes.
    std::vector<float> frame(50 * 40, -1.0f), want_frame(frame);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    const float* window = (const float*)((const char*)device + 3 * pitch) + 5;
    CHECK(cudaMemcpy2DAsync(&frame[11 * 50 + 20], 50 * sizeof(float), window, pitch, 10 * sizeof(float), 7, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (int y = 0; y < 7; ++y)
        for (int x = 0; x < 10; ++x) want_frame[(11 + y) * 50 + 20 + x] = want[(3 + y) * WIDTH + 5 + x];
    expect_equal(frame, want_frame, "a window into a frame");

    // Rectangle memset, then a copy between two pitches on the device.
    CHECK(cudaMemset2D(device + 2, pitch, 0, 4 * sizeof(float), 6));
    float* plain = nullptr;
    CHECK(cudaMalloc(&plain, row_bytes * HEIGHT));
    CHECK(cudaMemcpy2DAsync(plain, row_bytes, device, pitch, row_bytes, HEIGHT, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaMemcpyAsync(got.data(), plain, row_bytes * HEIGHT, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (int y = 0; y < 6; ++y)
        for (int x = 2; x < 6; ++x) want[y * WIDTH + x] = 0;
    expect_equal(got, want, "a cleared rectangle, copied between two pitches");
    EXPECT_ERROR(cudaErrorInvalidPitchValue, cudaMemcpy2D(device, 8, image.data(), row_bytes, row_bytes, HEIGHT, cudaMemcpyHostToDevice));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(plain));
    CHECK(cudaFree(device));
}

static void boxes()
{
    const size_t row_bytes = WIDTH * sizeof(int);
    const cudaExtent extent = make_cudaExtent(row_bytes, HEIGHT, DEPTH);
    std::vector<int> values((size_t)WIDTH * HEIGHT * DEPTH), got(values.size(), 0), want(values.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = (int)i * 7;

    cudaPitchedPtr box;
    CHECK(cudaMalloc3D(&box, extent));
    cudaMemcpy3DParms up = {};
    up.srcPtr = make_cudaPitchedPtr(values.data(), row_bytes, WIDTH, HEIGHT);
    up.dstPtr = box;
    up.extent = extent;
    up.kind = cudaMemcpyHostToDevice;
    CHECK(cudaMemcpy3D(&up));
    transform_box<<<dim3(HEIGHT, DEPTH), WIDTH>>>(box);
    CHECK_LAUNCH();
    cudaMemcpy3DParms down = {};
    down.srcPtr = box;
    down.dstPtr = make_cudaPitchedPtr(got.data(), row_bytes, WIDTH, HEIGHT);
    down.extent = extent;
    down.kind = cudaMemcpyDeviceToHost;
    CHECK(cudaMemcpy3D(&down));
    auto at = [](int x, int y, int z) { return ((size_t)z * HEIGHT + y) * WIDTH + x; };
    for (int z = 0; z < DEPTH; ++z)
        for (int y = 0; y < HEIGHT; ++y)
            for (int x = 0; x < WIDTH; ++x) want[at(x, y, z)] = values[at(x, y, z)] + z * 10000 + y * 100 + x;
    expect_equal(got, want, "a box up, transformed and down");

    // The last slice to zero bytes, then an inner box of 8 x 5 x 2 from (4, 6, 1) to (20, 9, 3) of the host's box.
    cudaPitchedPtr last = box;
    last.ptr = (char*)box.ptr + 4 * box.pitch * HEIGHT;
    CHECK(cudaMemset3D(last, 0, make_cudaExtent(row_bytes, HEIGHT, 1)));
    for (int y = 0; y < HEIGHT; ++y)
        for (int x = 0; x < WIDTH; ++x) want[at(x, y, 4)] = 0;
    CHECK(cudaMemcpy3DAsync(&down, nullptr));
    CHECK(cudaDeviceSynchronize());
    expect_equal(got, want, "a cleared slice");

    down.srcPos = make_cudaPos(4 * sizeof(int), 6, 1);
    down.dstPos = make_cudaPos(20 * sizeof(int), 9, 3);
    down.extent = make_cudaExtent(8 * sizeof(int), 5, 2);
    CHECK(cudaMemcpy3D(&down));
    std::vector<int> moved(want);
    for (int z = 0; z < 2; ++z)
        for (int y = 0; y < 5; ++y)
            for (int x = 0; x < 8; ++x) moved[at(20 + x, 9 + y, 3 + z)] = want[at(4 + x, 6 + y, 1 + z)];
    expect_equal(got, moved, "an inner box to another place");
    CHECK(cudaFree(box.ptr));
}

int main()
{
    std::printf("copies_2d_3d: images of %dx%d, boxes of %dx%dx%d\n", WIDTH, HEIGHT, WIDTH, HEIGHT, DEPTH);
    rectangles();
    boxes();
    return verdict("copies_2d_3d");
}

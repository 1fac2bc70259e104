// Mipmaps by level and by gradient, cubemaps by direction, with layers and across edges; sRGB; formatted stores.
#include "check.h"

#include <algorithm>
#include <cmath>
#include <cstring>

constexpr int SIZE = 16, LEVELS = 5, EDGE = 8, CUBES = 2;

__global__ void by_level(cudaTextureObject_t texture, const float4* at, int count, float* out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = tex2DLod<float>(texture, at[i].x, at[i].y, at[i].z);
}

__global__ void by_gradient(cudaTextureObject_t texture, const float4* at, int count, float* out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = tex2DGrad<float>(texture, at[i].x, at[i].y, make_float2(at[i].z, 0), make_float2(0, at[i].w));
}

__global__ void by_direction(cudaTextureObject_t texture, const float4* at, int count, float* out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = texCubemap<float>(texture, at[i].x, at[i].y, at[i].z);
}

__global__ void of_layers(cudaTextureObject_t texture, const float4* at, int count, float* out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = texCubemapLayered<float>(texture, at[i].x, at[i].y, at[i].z, (int)at[i].w);
}

__global__ void write_faces(cudaSurfaceObject_t surface)
{
    for (int face = 0; face < 6; ++face)
        surfCubemapwrite((float)(face * 100 + threadIdx.y * 10 + threadIdx.x), surface, threadIdx.x * (int)sizeof(float), threadIdx.y, face);
}

__global__ void colours(cudaTextureObject_t texture, float4* out)
{
    out[threadIdx.x] = tex2D<float4>(texture, threadIdx.x + 0.5f, 0.5f);
}

// By texels, whatever they are: numbers stop at the borders of bytes.
__global__ void write_formatted(cudaSurfaceObject_t surface, int width)
{
    int x = (int)threadIdx.x - 1, red = x * 40, green = 255 - x, blue = 1000, alpha = x == width ? 77 : 7;
    asm volatile("sust.p.2d.v4.b32.zero [%0, {%1, 0}], {%2, %3, %4, %5};" ::"l"(surface), "r"(x), "r"(red), "r"(green), "r"(blue), "r"(alpha) : "memory");
}

static cudaTextureDesc sampler(cudaTextureFilterMode filter, cudaTextureFilterMode between)
{
    cudaTextureDesc desc = {};
    std::fill(desc.addressMode, desc.addressMode + 3, cudaAddressModeClamp);
    desc.filterMode = filter;
    desc.mipmapFilterMode = between;
    desc.maxMipmapLevelClamp = LEVELS;
    desc.normalizedCoords = true;
    return desc;
}

template <class Kernel>
static std::vector<float> read(Kernel kernel, const cudaResourceDesc& resource, const cudaTextureDesc& sampler, const std::vector<float4>& at)
{
    cudaTextureObject_t texture = 0;
    CHECK(cudaCreateTextureObject(&texture, &resource, &sampler, nullptr));
    DeviceBuffer<float4> where(at);
    DeviceBuffer<float> out(at.size());
    kernel<<<blocks_for(at.size(), 64), 64>>>(texture, where.data(), (int)at.size(), out.data());
    CHECK_LAUNCH();
    std::vector<float> got = out.download();
    CHECK(cudaDestroyTextureObject(texture));
    return got;
}

static void fill(cudaArray_t array, const std::vector<float>& from, int width, int height, int depth)
{
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(const_cast<float*>(from.data()), width * sizeof(float), width, height);
    copy.dstArray = array;
    copy.extent = make_cudaExtent(width, height, depth);
    copy.kind = cudaMemcpyHostToDevice;
    CHECK(cudaMemcpy3D(&copy));
}

static void mipmaps()
{
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaMipmappedArray_t mipmap = nullptr;
    CHECK(cudaMallocMipmappedArray(&mipmap, &format, make_cudaExtent(SIZE, SIZE, 0), LEVELS));
    std::vector<float> images[LEVELS];
    for (int level = 0; level < LEVELS; ++level) {
        const int size = SIZE >> level;
        images[level] = random_floats((size_t)size * size, 51 + level);
        cudaArray_t array = nullptr;
        CHECK(cudaGetMipmappedArrayLevel(&array, mipmap, level));
        cudaExtent extent = {};
        CHECK(cudaArrayGetInfo(nullptr, &extent, nullptr, array));
        expect(extent.width == (size_t)size && extent.height == (size_t)size && extent.depth == 0, "level %d is %d texels wide", level, size);
        fill(array, images[level], size, size, 1);
    }
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeMipmappedArray;
    resource.res.mipmap.mipmap = mipmap;
    // The middle of every texel of every level; half way between two levels, their mean.
    std::vector<float4> at, between, gradients;
    std::vector<float> want, means;
    for (int level = 0; level < LEVELS; ++level) {
        const int size = SIZE >> level;
        for (int i = 0; i < size * size; ++i) {
            float x = (i % size + 0.5f) / size, y = (i / size + 0.5f) / size;
            at.push_back(make_float4(x, y, (float)level, 0));
            want.push_back(images[level][i]);
            // A step of 2^level texels.
            float step = (float)(1 << level) / SIZE;
            gradients.push_back(i % 2 ? make_float4(x, y, step, step / 4) : make_float4(x, y, 0, step));
            if (level + 1 < LEVELS) {
                between.push_back(make_float4(x, y, level + 0.5f, 0));
                means.push_back((images[level][i] + images[level + 1][i / size / 2 * (size / 2) + i % size / 2]) / 2);
            }
        }
    }
    expect_equal(read(by_level, resource, sampler(cudaFilterModePoint, cudaFilterModePoint), at), want, "texels of each level");
    expect_equal(read(by_gradient, resource, sampler(cudaFilterModePoint, cudaFilterModePoint), gradients), want, "levels by gradients");
    expect_close(read(by_level, resource, sampler(cudaFilterModeLinear, cudaFilterModeLinear), at), want, 1e-6, 0.0, "filtered, in the middle of texels");
    expect_close(read(by_level, resource, sampler(cudaFilterModePoint, cudaFilterModeLinear), between), means, 1.0 / 256, 0.0, "half way between levels");
    // All levels moved by one, none behind the second.
    cudaTextureDesc moved = sampler(cudaFilterModePoint, cudaFilterModePoint);
    moved.mipmapLevelBias = 1;
    std::vector<float4> first(at.begin(), at.begin() + SIZE * SIZE);
    std::vector<float> second(first.size());
    for (size_t i = 0; i < second.size(); ++i) second[i] = images[1][i / SIZE / 2 * (SIZE / 2) + i % SIZE / 2];
    expect_equal(read(by_level, resource, moved, first), second, "a bias of one level");
    cudaTextureDesc clamped = sampler(cudaFilterModePoint, cudaFilterModePoint);
    clamped.minMipmapLevelClamp = clamped.maxMipmapLevelClamp = 1;
    for (float4& point : first) point.z = (float)(&point - first.data()) / 64;
    expect_equal(read(by_level, resource, clamped, first), second, "no level but the second");
    CHECK(cudaFreeMipmappedArray(mipmap));
}

// The middle of texel x, y of a face: +x, -x, +y, -y, +z, -z.
static float4 direction(int face, int x, int y, float scale, int layer)
{
    float s = (2 * x + 1.0f) / EDGE - 1, t = (2 * y + 1.0f) / EDGE - 1;
    const float3 directions[6] = {{1, -t, -s}, {-1, -t, s}, {s, 1, t}, {s, -1, -t}, {s, -t, 1}, {-s, -t, -1}};
    return make_float4(scale * directions[face].x, scale * directions[face].y, scale * directions[face].z, (float)layer);
}

static void cubemaps()
{
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t cubes = nullptr, cube = nullptr;
    CHECK(cudaMalloc3DArray(&cubes, &format, make_cudaExtent(EDGE, EDGE, 6 * CUBES), cudaArrayCubemap | cudaArrayLayered));
    std::vector<float> texels = random_floats((size_t)EDGE * EDGE * 6 * CUBES, 61), want;
    fill(cubes, texels, EDGE, EDGE, 6 * CUBES);
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = cubes;
    std::vector<float4> at;
    for (size_t i = 0; i < texels.size(); ++i) {
        int face = (int)i / (EDGE * EDGE), place = (int)i % (EDGE * EDGE);
        at.push_back(direction(face % 6, place % EDGE, place / EDGE, i % 2 ? 1.0f : 4.0f, face / 6));
    }
    const cudaTextureDesc nearest = sampler(cudaFilterModePoint, cudaFilterModePoint);
    expect_equal(read(of_layers, resource, nearest, at), texels, "every texel of cubes in layers");
    CHECK(cudaFreeArray(cubes));

    CHECK(cudaMalloc3DArray(&cube, &format, make_cudaExtent(EDGE, EDGE, 6), cudaArrayCubemap | cudaArraySurfaceLoadStore));
    resource.res.array.array = cube;
    cudaSurfaceObject_t surface = 0;
    CHECK(cudaCreateSurfaceObject(&surface, &resource));
    write_faces<<<1, dim3(EDGE, EDGE)>>>(surface);
    CHECK_LAUNCH();
    at.resize(6 * EDGE * EDGE);
    for (int i = 0; i < 6 * EDGE * EDGE; ++i) want.push_back((float)(i / (EDGE * EDGE) * 100 + i / EDGE % EDGE * 10 + i % EDGE));
    expect_equal(read(by_direction, resource, nearest, at), want, "faces that a kernel wrote");
    // On the edge between +x and +z, half of what is on either side of it.
    cudaTextureDesc seamless = sampler(cudaFilterModeLinear, cudaFilterModePoint);
    seamless.seamlessCubemap = 1;
    std::vector<float4> edge;
    std::vector<float> halves;
    for (int y = 0; y < EDGE; ++y) {
        float t = (2 * y + 1.0f) / EDGE - 1;
        edge.push_back(make_float4(1, -t, 1, 0));
        halves.push_back((want[y * EDGE] + want[(4 * EDGE + y) * EDGE + EDGE - 1]) / 2);
    }
    expect_close(read(by_direction, resource, seamless, edge), halves, 3.0, 0.0, "filtered across an edge");
    CHECK(cudaDestroySurfaceObject(surface));
    CHECK(cudaFreeArray(cube));
}

static void colours_and_formats()
{
    const int width = 8;
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<uchar4>();
    cudaArray_t array = nullptr;
    CHECK(cudaMallocArray(&array, &format, width, 1, cudaArraySurfaceLoadStore));
    std::vector<uchar4> bytes(width), want(width);
    CHECK(cudaMemcpy2DToArray(array, 0, 0, bytes.data(), width * 4, width * 4, 1, cudaMemcpyHostToDevice));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaSurfaceObject_t surface = 0;
    CHECK(cudaCreateSurfaceObject(&surface, &resource));
    // One before the row and one behind it write nothing.
    write_formatted<<<1, width + 2>>>(surface, width);
    CHECK_LAUNCH();
    CHECK(cudaMemcpy2DFromArray(bytes.data(), width * 4, array, 0, 0, width * 4, 1, cudaMemcpyDeviceToHost));
    for (int x = 0; x < width; ++x) want[x] = make_uchar4((unsigned char)std::min(x * 40, 255), (unsigned char)(255 - x), 255, 7);
    expect(std::memcmp(bytes.data(), want.data(), width * 4) == 0, "numbers stored as bytes");
    CHECK(cudaDestroySurfaceObject(surface));
    cudaTextureDesc desc = sampler(cudaFilterModePoint, cudaFilterModePoint);
    desc.normalizedCoords = false;
    desc.readMode = cudaReadModeNormalizedFloat;
    desc.sRGB = 1;
    cudaTextureObject_t texture = 0;
    CHECK(cudaCreateTextureObject(&texture, &resource, &desc, nullptr));
    DeviceBuffer<float4> out(width);
    colours<<<1, width>>>(texture, out.data());
    CHECK_LAUNCH();
    std::vector<float4> got = out.download();
    std::vector<float> flat((const float*)got.data(), (const float*)(got.data() + got.size())), linear;
    for (uchar4 b : want) {
        for (unsigned char c : {b.x, b.y, b.z}) linear.push_back(c <= 10 ? c / 255.0f / 12.92f : std::pow((c / 255.0f + 0.055f) / 1.055f, 2.4f));
        linear.push_back(b.w / 255.0f);
    }
    expect_close(flat, linear, 0.01, 0.0, "sRGB made linear, but for alpha");
    CHECK(cudaDestroyTextureObject(texture));
    CHECK(cudaFreeArray(array));
}

int main()
{
    std::printf("mipmaps_cubemaps: levels, cubes, colours\n");
    mipmaps();
    cubemaps();
    colours_and_formats();
    return verdict("mipmaps_cubemaps");
}

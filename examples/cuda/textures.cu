// Textures and surfaces: arrays of one to three dimensions and with layers, linear and pitched memory; address modes, filtering,
// conversions; what surfaces write, textures and copies read.
#include "check.h"

#include <algorithm>
#include <cstring>

constexpr int WIDTH = 13, HEIGHT = 7, DEPTH = 5;

// A texture object that destroys itself.
class TextureObject {
public:
    TextureObject(const cudaResourceDesc& resource, const cudaTextureDesc& sampler)
    {
        CHECK(cudaCreateTextureObject(&object_, &resource, &sampler, nullptr));
    }
    TextureObject(const TextureObject&) = delete;
    TextureObject& operator=(const TextureObject&) = delete;
    ~TextureObject() { CHECK(cudaDestroyTextureObject(object_)); }
    operator cudaTextureObject_t() const { return object_; }

private:
    cudaTextureObject_t object_ = 0;
};

static cudaResourceDesc of_array(cudaArray_t array)
{
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    return resource;
}

static cudaTextureDesc sampler(cudaTextureAddressMode address, cudaTextureFilterMode filter, bool normalised, cudaTextureReadMode read = cudaReadModeElementType)
{
    cudaTextureDesc desc = {};
    std::fill(desc.addressMode, desc.addressMode + 3, address);
    desc.filterMode = filter;
    desc.readMode = read;
    desc.normalizedCoords = normalised;
    return desc;
}

__global__ void fetch_1d(cudaTextureObject_t texture, const int* at, int count, int* out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = tex1Dfetch<int>(texture, at[i]);
}

__global__ void read_1d(cudaTextureObject_t texture, const float* x, int count, float* out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = tex1D<float>(texture, x[i]);
}

__global__ void read_2d(cudaTextureObject_t texture, const float2* at, int count, float* out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = tex2D<float>(texture, at[i].x, at[i].y);
}

__global__ void read_2d_bytes(cudaTextureObject_t texture, const float2* at, int count, uchar4* out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = tex2D<uchar4>(texture, at[i].x, at[i].y);
}

__global__ void read_2d_fractions(cudaTextureObject_t texture, const float2* at, int count, float4* out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = tex2D<float4>(texture, at[i].x, at[i].y);
}

__global__ void gather_2d(cudaTextureObject_t texture, const float2* at, int count, float4* out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = tex2Dgather<float4>(texture, at[i].x, at[i].y, 0);
}

__global__ void read_3d(cudaTextureObject_t texture, const float4* at, int count, float* out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = tex3D<float>(texture, at[i].x, at[i].y, at[i].z);
}

__global__ void read_layers(cudaTextureObject_t lines, cudaTextureObject_t planes, const float2* at, int count, float* out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    out[2 * i] = tex1DLayered<float>(lines, at[i].x, i % DEPTH);
    out[2 * i + 1] = tex2DLayered<float>(planes, at[i].x, at[i].y, i % DEPTH);
}

__global__ void shade(cudaSurfaceObject_t surface, cudaSurfaceObject_t layers, cudaSurfaceObject_t box)
{
    int x = threadIdx.x, y = threadIdx.y, z = blockIdx.x;
    if (z == 0) surf2Dwrite(make_float2(x + 0.5f, y * 10.0f), surface, x * (int)sizeof(float2), y);
    surf2DLayeredwrite((short)(z * 100 + y * 10 + x), layers, x * (int)sizeof(short), y, z);
    surf3Dwrite((unsigned char)(z * 50 + y * 5 + x), box, x, y, z);
}

// Reads beyond the borders as well: zero there, or the nearest.
__global__ void borders(cudaSurfaceObject_t surface, float2* zero, float2* nearest)
{
    int x = (int)threadIdx.x - 1, y = (int)threadIdx.y - 1;
    int i = threadIdx.y * blockDim.x + threadIdx.x;
    surf2Dread(&zero[i], surface, x * (int)sizeof(float2), y, cudaBoundaryModeZero);
    surf2Dread(&nearest[i], surface, x * (int)sizeof(float2), y, cudaBoundaryModeClamp);
    surf2Dwrite(make_float2(-1, -1), surface, (x < 0 ? -8 : WIDTH * 8), y, cudaBoundaryModeZero);
}

// The guide's coordinate of one axis, and then its texel: by number, -1 for the border.
struct Axis {
    cudaTextureAddressMode mode;
    bool normalised;
    int count;

    double place(double x) const
    {
        if (!normalised) return x;
        double whole = std::floor(x), fraction = x - whole;
        if (mode == cudaAddressModeWrap) return fraction * count;
        if (mode == cudaAddressModeMirror) return (std::fmod(whole, 2) == 0 ? fraction : 1 - fraction) * count;
        return x * count;
    }
    int texel(int i) const
    {
        if (i >= 0 && i < count) return i;
        if (mode == cudaAddressModeBorder) return -1;
        if (mode == cudaAddressModeWrap && normalised) return ((i % count) + count) % count;
        return std::min(std::max(i, 0), count - 1);
    }
    // The two texels of linear filtering, and the second one's weight.
    void neighbours(double x, int texels[2], double& weight) const
    {
        double before = place(x) - 0.5, first = std::floor(before);
        weight = before - first;
        texels[0] = texel((int)first);
        texels[1] = texel((int)first + 1);
    }
};

static cudaArray_t make_array(int width, int height, int depth, unsigned flags, const cudaChannelFormatDesc& format)
{
    cudaArray_t array = nullptr;
    CHECK(cudaMalloc3DArray(&array, &format, make_cudaExtent(width, height, depth), flags));
    return array;
}

static void fill(cudaArray_t array, const void* from, size_t element, int width, int height, int depth)
{
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(const_cast<void*>(from), width * element, width, height);
    copy.dstArray = array;
    copy.extent = make_cudaExtent(width, height, depth);
    copy.kind = cudaMemcpyHostToDevice;
    CHECK(cudaMemcpy3D(&copy));
}

template <class T>
static std::vector<T> contents(cudaArray_t array, int width, int height, int depth)
{
    std::vector<T> values((size_t)width * height * depth);
    cudaMemcpy3DParms copy = {};
    copy.srcArray = array;
    copy.dstPtr = make_cudaPitchedPtr(values.data(), width * sizeof(T), width, height);
    copy.extent = make_cudaExtent(width, height, depth);
    copy.kind = cudaMemcpyDeviceToHost;
    CHECK(cudaMemcpy3D(&copy));
    return values;
}

static void linear_memory()
{
    std::vector<int> data(100), at, want;
    for (int i = 0; i < 100; ++i) data[i] = i * i - 50;
    DeviceBuffer<int> device(data);
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = device.data();
    resource.res.linear.desc = cudaCreateChannelDesc<int>();
    resource.res.linear.sizeInBytes = device.bytes();
    TextureObject texture(resource, sampler(cudaAddressModeClamp, cudaFilterModePoint, false));
    for (int i = -3; i < 104; ++i) {
        at.push_back(i);
        want.push_back(i >= 0 && i < 100 ? data[i] : 0);
    }
    DeviceBuffer<int> where(at), out(at.size());
    fetch_1d<<<blocks_for(at.size(), 64), 64>>>(texture, where.data(), (int)at.size(), out.data());
    CHECK_LAUNCH();
    expect_equal(out.download(), want, "linear memory, zero beyond it");
}

static const char* name_of(cudaTextureAddressMode mode)
{
    static const char* const names[] = {"wrap", "clamp", "mirror", "border"};
    return names[mode];
}

// Coordinates within and around: multiples of 1/8 of a texel, whose weights are exact, none on a border between texels.
static std::vector<float2> around(bool normalised)
{
    std::vector<float2> at;
    for (int i = 0; i < 2000; ++i) {
        float x = (float)((i * 37) % 400 - 140) / 8 + 1.0f / 16, y = (float)((i * 53) % 260 - 90) / 8 + 1.0f / 16;
        at.push_back(normalised ? make_float2(x / 16, y / 8) : make_float2(x, y));
    }
    return at;
}

static void planes()
{
    // Powers of two for extents, so that normalised coordinates are exact.
    const int width = 16, height = 8;
    std::vector<float> image = random_floats((size_t)width * height, 31);
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t array = nullptr;
    CHECK(cudaMallocArray(&array, &format, width, height));
    CHECK(cudaMemcpy2DToArray(array, 0, 0, image.data(), width * sizeof(float), width * sizeof(float), height, cudaMemcpyHostToDevice));

    cudaChannelFormatDesc found;
    cudaExtent extent;
    unsigned flags = 1;
    CHECK(cudaArrayGetInfo(&found, &extent, &flags, array));
    expect(found.x == 32 && found.y == 0 && found.f == cudaChannelFormatKindFloat && extent.width == (size_t)width
               && extent.height == (size_t)height && extent.depth == 0 && flags == 0,
           "the array says what it is");

    for (int normalised = 0; normalised < 2; ++normalised)
        for (cudaTextureAddressMode mode : {cudaAddressModeWrap, cudaAddressModeClamp, cudaAddressModeMirror, cudaAddressModeBorder})
            for (cudaTextureFilterMode filter : {cudaFilterModePoint, cudaFilterModeLinear}) {
                if (!normalised && (mode == cudaAddressModeWrap || mode == cudaAddressModeMirror)) continue;
                std::vector<float2> at = around(normalised);
                cudaTextureDesc desc = sampler(mode, filter, normalised);
                desc.borderColor[0] = 0.75f;
                TextureObject texture(of_array(array), desc);
                DeviceBuffer<float2> where(at);
                DeviceBuffer<float> out(at.size());
                read_2d<<<blocks_for(at.size(), 128), 128>>>(texture, where.data(), (int)at.size(), out.data());
                CHECK_LAUNCH();
                const Axis x = {mode, (bool)normalised, width}, y = {mode, (bool)normalised, height};
                auto texel = [&](int i, int j) { return i < 0 || j < 0 ? 0.75 : (double)image[j * width + i]; };
                std::vector<float> want;
                for (float2 p : at) {
                    if (filter == cudaFilterModePoint) {
                        want.push_back((float)texel(x.texel((int)std::floor(x.place(p.x))), y.texel((int)std::floor(y.place(p.y)))));
                        continue;
                    }
                    int i[2], j[2];
                    double a, b;
                    x.neighbours(p.x, i, a);
                    y.neighbours(p.y, j, b);
                    want.push_back((float)((1 - a) * (1 - b) * texel(i[0], j[0]) + a * (1 - b) * texel(i[1], j[0])
                                           + (1 - a) * b * texel(i[0], j[1]) + a * b * texel(i[1], j[1])));
                }
                // Weights have 8 bits: where the device rounds them otherwise, two of them are off by a step.
                double tolerance = filter == cudaFilterModePoint ? 0 : 2.0 / 256 + 1e-6;
                char what[96];
                std::snprintf(what, sizeof what, "%s, %s, %s coordinates", name_of(mode), filter == cudaFilterModePoint ? "point" : "linear", normalised ? "normalised" : "texel");
                expect_close(out.download(), want, tolerance, 0.0, what);
            }
    CHECK(cudaFreeArray(array));
}

static void bytes_and_fractions()
{
    std::vector<uchar4> image((size_t)WIDTH * HEIGHT);
    for (size_t i = 0; i < image.size(); ++i) image[i] = make_uchar4((unsigned char)i, (unsigned char)(3 * i), (unsigned char)(255 - i), 255);
    uchar4* pitched = nullptr;
    size_t pitch = 0;
    CHECK(cudaMallocPitch(&pitched, &pitch, WIDTH * sizeof(uchar4), HEIGHT));
    CHECK(cudaMemcpy2D(pitched, pitch, image.data(), WIDTH * sizeof(uchar4), WIDTH * sizeof(uchar4), HEIGHT, cudaMemcpyHostToDevice));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypePitch2D;
    resource.res.pitch2D.devPtr = pitched;
    resource.res.pitch2D.desc = cudaCreateChannelDesc<uchar4>();
    resource.res.pitch2D.width = WIDTH;
    resource.res.pitch2D.height = HEIGHT;
    resource.res.pitch2D.pitchInBytes = pitch;

    std::vector<float2> at;
    std::vector<uchar4> want;
    std::vector<float> want_fractions;
    for (int y = 0; y < HEIGHT; ++y)
        for (int x = 0; x < WIDTH; ++x) {
            at.push_back(make_float2(x + 0.5f, y + 0.5f));
            const uchar4 v = image[y * WIDTH + x];
            want.push_back(v);
            for (unsigned char part : {v.x, v.y, v.z, v.w}) want_fractions.push_back(part / 255.0f);
        }
    DeviceBuffer<float2> where(at);
    DeviceBuffer<uchar4> out(at.size());
    DeviceBuffer<float4> fractions(at.size());
    {
        TextureObject texture(resource, sampler(cudaAddressModeClamp, cudaFilterModePoint, false));
        read_2d_bytes<<<blocks_for(at.size(), 64), 64>>>(texture, where.data(), (int)at.size(), out.data());
        CHECK_LAUNCH();
        std::vector<uchar4> got = out.download();
        expect(std::memcmp(got.data(), want.data(), want.size() * sizeof(uchar4)) == 0, "bytes of pitched memory");
    }
    // Fractions may be filtered; in the middle of texels that changes nothing.
    TextureObject texture(resource, sampler(cudaAddressModeClamp, cudaFilterModeLinear, false, cudaReadModeNormalizedFloat));
    read_2d_fractions<<<blocks_for(at.size(), 64), 64>>>(texture, where.data(), (int)at.size(), fractions.data());
    CHECK_LAUNCH();
    std::vector<float4> got = fractions.download();
    std::vector<float> flat((const float*)got.data(), (const float*)(got.data() + got.size()));
    expect_close(flat, want_fractions, 1e-6, 0.0, "bytes as fractions");
    cudaResourceDesc crooked = resource;
    crooked.res.pitch2D.devPtr = (char*)pitched + 4;
    const cudaTextureDesc plain = sampler(cudaAddressModeClamp, cudaFilterModePoint, false);
    cudaTextureObject_t none = 0;
    EXPECT_ERROR(cudaErrorInvalidValue, cudaCreateTextureObject(&none, &crooked, &plain, nullptr));
    CHECK(cudaFree(pitched));
}

static void gathers()
{
    std::vector<float> image = random_floats((size_t)WIDTH * HEIGHT, 32), want;
    cudaArray_t array = make_array(WIDTH, HEIGHT, 0, cudaArrayTextureGather, cudaCreateChannelDesc<float>());
    fill(array, image.data(), sizeof(float), WIDTH, HEIGHT, 1);
    TextureObject texture(of_array(array), sampler(cudaAddressModeClamp, cudaFilterModePoint, false));
    std::vector<float2> at;
    for (int y = 1; y < HEIGHT; ++y)
        for (int x = 1; x < WIDTH; ++x) {
            at.push_back(make_float2((float)x, (float)y));
            for (int i : {y * WIDTH + x - 1, y * WIDTH + x, (y - 1) * WIDTH + x, (y - 1) * WIDTH + x - 1}) want.push_back(image[i]);
        }
    DeviceBuffer<float2> where(at);
    DeviceBuffer<float4> out(at.size());
    gather_2d<<<blocks_for(at.size(), 64), 64>>>(texture, where.data(), (int)at.size(), out.data());
    CHECK_LAUNCH();
    std::vector<float4> got = out.download();
    expect_equal(std::vector<float>((const float*)got.data(), (const float*)(got.data() + got.size())), want, "four texels around a corner");
    CHECK(cudaFreeArray(array));
}

static void boxes_and_layers()
{
    std::vector<float> box = random_floats((size_t)WIDTH * HEIGHT * DEPTH, 33);
    cudaArray_t array = make_array(WIDTH, HEIGHT, DEPTH, 0, cudaCreateChannelDesc<float>());
    fill(array, box.data(), sizeof(float), WIDTH, HEIGHT, DEPTH);
    expect_equal(contents<float>(array, WIDTH, HEIGHT, DEPTH), box, "a box into an array and out of it");
    TextureObject texture(of_array(array), sampler(cudaAddressModeClamp, cudaFilterModeLinear, false));
    std::vector<float4> at;
    std::vector<float> want;
    for (int i = 0; i < 500; ++i) {
        float x = (float)(i * 7 % (8 * WIDTH + 16) - 8) / 8, y = (float)(i * 11 % (8 * HEIGHT + 16) - 8) / 8, z = (float)(i * 13 % (8 * DEPTH + 16) - 8) / 8;
        at.push_back(make_float4(x, y, z, 0));
        const Axis axes[3] = {{cudaAddressModeClamp, false, WIDTH}, {cudaAddressModeClamp, false, HEIGHT}, {cudaAddressModeClamp, false, DEPTH}};
        int texels[3][2];
        double weights[3], sum = 0;
        axes[0].neighbours(x, texels[0], weights[0]);
        axes[1].neighbours(y, texels[1], weights[1]);
        axes[2].neighbours(z, texels[2], weights[2]);
        for (int corner = 0; corner < 8; ++corner) {
            double weight = 1;
            int index[3];
            for (int axis = 0; axis < 3; ++axis) {
                int side = corner >> axis & 1;
                weight *= side ? weights[axis] : 1 - weights[axis];
                index[axis] = texels[axis][side];
            }
            sum += weight * box[((size_t)index[2] * HEIGHT + index[1]) * WIDTH + index[0]];
        }
        want.push_back((float)sum);
    }
    DeviceBuffer<float4> where(at);
    DeviceBuffer<float> out(at.size());
    read_3d<<<blocks_for(at.size(), 64), 64>>>(texture, where.data(), (int)at.size(), out.data());
    CHECK_LAUNCH();
    expect_close(out.download(), want, 3.0 / 256 + 1e-6, 0.0, "a box, filtered in three dimensions");
    CHECK(cudaFreeArray(array));

    cudaArray_t planes = make_array(WIDTH, HEIGHT, DEPTH, cudaArrayLayered, cudaCreateChannelDesc<float>());
    cudaArray_t lines = make_array(WIDTH, 0, DEPTH, cudaArrayLayered, cudaCreateChannelDesc<float>());
    fill(planes, box.data(), sizeof(float), WIDTH, HEIGHT, DEPTH);
    fill(lines, box.data(), sizeof(float), WIDTH, 1, DEPTH);
    TextureObject of_planes(of_array(planes), sampler(cudaAddressModeClamp, cudaFilterModePoint, false));
    TextureObject of_lines(of_array(lines), sampler(cudaAddressModeClamp, cudaFilterModePoint, false));
    std::vector<float2> places;
    std::vector<float> want_layers;
    for (int i = 0; i < 200; ++i) {
        int x = i % WIDTH, y = i % HEIGHT, layer = i % DEPTH;
        places.push_back(make_float2(x + 0.25f, y + 0.75f));
        want_layers.push_back(box[layer * WIDTH + x]);
        want_layers.push_back(box[((size_t)layer * HEIGHT + y) * WIDTH + x]);
    }
    DeviceBuffer<float2> device_places(places);
    DeviceBuffer<float> layers_out(2 * places.size());
    read_layers<<<blocks_for(places.size(), 64), 64>>>(of_lines, of_planes, device_places.data(), (int)places.size(), layers_out.data());
    CHECK_LAUNCH();
    expect_equal(layers_out.download(), want_layers, "layers of lines and of planes");
    CHECK(cudaFreeArray(planes));
    CHECK(cudaFreeArray(lines));
}

static void surfaces()
{
    cudaArray_t pairs = make_array(WIDTH, HEIGHT, 0, cudaArraySurfaceLoadStore, cudaCreateChannelDesc<float2>());
    cudaArray_t layers = make_array(WIDTH, HEIGHT, DEPTH, cudaArraySurfaceLoadStore | cudaArrayLayered, cudaCreateChannelDesc<short>());
    cudaArray_t box = make_array(WIDTH, HEIGHT, DEPTH, cudaArraySurfaceLoadStore, cudaCreateChannelDesc<unsigned char>());
    cudaSurfaceObject_t objects[3];
    cudaArray_t arrays[3] = {pairs, layers, box};
    for (int i = 0; i < 3; ++i) {
        cudaResourceDesc resource = of_array(arrays[i]);
        CHECK(cudaCreateSurfaceObject(&objects[i], &resource));
    }
    shade<<<DEPTH, dim3(WIDTH, HEIGHT)>>>(objects[0], objects[1], objects[2]);
    CHECK_LAUNCH();
    std::vector<float> want;
    std::vector<short> want_layers;
    std::vector<unsigned char> want_box;
    for (int z = 0; z < DEPTH; ++z)
        for (int y = 0; y < HEIGHT; ++y)
            for (int x = 0; x < WIDTH; ++x) {
                if (z == 0) want.insert(want.end(), {x + 0.5f, y * 10.0f});
                want_layers.push_back((short)(z * 100 + y * 10 + x));
                want_box.push_back((unsigned char)(z * 50 + y * 5 + x));
            }
    auto flat = [](const std::vector<float2>& v) { return std::vector<float>((const float*)v.data(), (const float*)(v.data() + v.size())); };
    expect_equal(flat(contents<float2>(pairs, WIDTH, HEIGHT, 1)), want, "pairs of floats, written by a kernel");
    expect(contents<short>(layers, WIDTH, HEIGHT, DEPTH) == want_layers, "layers of shorts");
    expect(contents<unsigned char>(box, WIDTH, HEIGHT, DEPTH) == want_box, "a box of bytes");

    const int wide = WIDTH + 2, high = HEIGHT + 2;
    DeviceBuffer<float2> zero((size_t)wide * high), nearest((size_t)wide * high);
    borders<<<1, dim3(wide, high)>>>(objects[0], zero.data(), nearest.data());
    CHECK_LAUNCH();
    std::vector<float> want_zero, want_nearest;
    for (int y = -1; y <= HEIGHT; ++y)
        for (int x = -1; x <= WIDTH; ++x) {
            bool inside = x >= 0 && x < WIDTH && y >= 0 && y < HEIGHT;
            int i = 2 * (std::min(std::max(y, 0), HEIGHT - 1) * WIDTH + std::min(std::max(x, 0), WIDTH - 1));
            want_zero.insert(want_zero.end(), {inside ? want[i] : 0.0f, inside ? want[i + 1] : 0.0f});
            want_nearest.insert(want_nearest.end(), {want[i], want[i + 1]});
        }
    expect_equal(flat(zero.download()), want_zero, "zero beyond the borders");
    expect_equal(flat(nearest.download()), want_nearest, "the nearest beyond the borders");
    expect_equal(flat(contents<float2>(pairs, WIDTH, HEIGHT, 1)), want, "nothing written beyond the borders");

    // From array to array, a window of it, and into pitched memory of the device.
    cudaArray_t other = make_array(WIDTH, HEIGHT, 0, 0, cudaCreateChannelDesc<float2>());
    CHECK(cudaMemcpy2DArrayToArray(other, 0, 0, pairs, 0, 0, WIDTH * sizeof(float2), HEIGHT, cudaMemcpyDeviceToDevice));
    CHECK(cudaMemcpy2DArrayToArray(other, 8, 1, pairs, 16, 2, 24, 3, cudaMemcpyDeviceToDevice));
    std::vector<float> moved = want;
    for (int y = 0; y < 3; ++y)
        for (int x = 0; x < 6; ++x) moved[2 * WIDTH * (1 + y) + 2 + x] = want[2 * WIDTH * (2 + y) + 4 + x];
    DeviceBuffer<float2> plain((size_t)WIDTH * HEIGHT);
    CHECK(cudaMemcpy2DFromArray(plain.data(), WIDTH * sizeof(float2), other, 0, 0, WIDTH * sizeof(float2), HEIGHT, cudaMemcpyDeviceToDevice));
    expect_equal(flat(plain.download()), moved, "a window from array to array");
    for (cudaSurfaceObject_t object : objects) CHECK(cudaDestroySurfaceObject(object));
    for (cudaArray_t array : {pairs, layers, box, other}) CHECK(cudaFreeArray(array));
}

static void one_after_the_other()
{
    std::vector<float> data = random_floats(256, 34), at(256), want;
    for (int i = 0; i < 256; ++i) at[i] = i + 0.5f;
    DeviceBuffer<float> where(at), out(256);
    for (int round = 0; round < 20; ++round) {
        const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
        cudaArray_t array = nullptr;
        CHECK(cudaMallocArray(&array, &format, 256));
        CHECK(cudaMemcpy2DToArray(array, 0, 0, data.data(), 1024, 1024, 1, cudaMemcpyHostToDevice));
        {
            TextureObject texture(of_array(array), sampler(cudaAddressModeClamp, cudaFilterModePoint, false));
            read_1d<<<4, 64>>>(texture, where.data(), 256, out.data());
            CHECK_LAUNCH();
            CHECK(cudaDeviceSynchronize());
        }
        CHECK(cudaFreeArray(array));
    }
    expect_equal(out.download(), data, "twenty arrays and textures, one after the other");
}

int main()
{
    std::printf("textures: texture and surface objects\n");
    linear_memory();
    planes();
    bytes_and_fractions();
    gathers();
    boxes_and_layers();
    surfaces();
    one_after_the_other();
    return verdict("textures");
}

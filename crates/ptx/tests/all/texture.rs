//! Textures and surfaces against the CUDA programming guide and the PTX manual. Expected values are
//! written out or follow from formulas here; none come from the interpreter.

use crate::common::{Arg, Device};
use outboard_ptx::array::Array;
use outboard_ptx::texture::{AddressMode, Bound, Channel, Cube, Mips, Sampler, Texels, Texture};
use outboard_ptx::{FaultKind, LaunchError};

const NUMBER: u64 = 0x0d00_0000_0000_0007;

/// Writes a kernel for each instruction: thread `i` takes its coordinates from `in[4 * i..]` and
/// writes four words.
fn kernels(instructions: &[&str]) -> String {
    let mut text = String::from(".version 8.0\n.target sm_80\n.address_size 64\n");
    for (i, instruction) in instructions.iter().enumerate() {
        text += &format!(
            "
    .visible .entry k{i}(.param .u64 object, .param .u64 in, .param .u64 out) {{
        .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .b32 %c<4>; .reg .b32 %d<4>; .reg .b16 %h<4>; .reg .b64 %w<2>;
        ld.param.u64 %rd0, [object]; ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
        mov.u32 %r0, %tid.x; mul.wide.u32 %rd3, %r0, 16; add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;
        ld.global.v4.b32 {{%c0, %c1, %c2, %c3}}, [%rd1];
        mov.b32 %d0, 0; mov.b32 %d1, 0; mov.b32 %d2, 0; mov.b32 %d3, 0;
        {instruction}
        st.global.v4.b32 [%rd2], {{%d0, %d1, %d2, %d3}};
        ret;
    }}"
        );
    }
    text
}

struct Bench {
    device: Device,
}

impl Bench {
    fn new(instructions: &[&str]) -> Bench {
        Bench {
            device: Device::new(&kernels(instructions)),
        }
    }

    /// Runs kernel `k` on coordinates; returns four words for each.
    fn try_words(&self, k: usize, at: &[[u32; 4]]) -> Result<Vec<[u32; 4]>, LaunchError> {
        let flat: Vec<u32> = at.iter().flatten().copied().collect();
        let (input, output) = (self.device.upload(&flat), self.device.alloc(flat.len() * 4));
        let args = [Arg::Ptr(NUMBER), Arg::Ptr(input), Arg::Ptr(output)];
        let block = [at.len() as u32, 1, 1];
        self.device
            .try_run(&format!("k{k}"), [1; 3], block, 0, &args)?;
        let words: Vec<u32> = self.device.download(output, flat.len());
        Ok(words.as_chunks::<4>().0.to_vec())
    }

    fn floats(&self, k: usize, at: &[[f32; 4]]) -> Vec<[f32; 4]> {
        let at: Vec<[u32; 4]> = at.iter().map(|c| c.map(f32::to_bits)).collect();
        let words = self.try_words(k, &at).unwrap();
        words.iter().map(|w| w.map(f32::from_bits)).collect()
    }

    /// Returns the first results for one-dimensional coordinates.
    fn line(&self, at: &[f32]) -> Vec<f32> {
        let at: Vec<[f32; 4]> = at.iter().map(|x| [*x, 0.0, 0.0, 0.0]).collect();
        self.floats(0, &at).iter().map(|texel| texel[0]).collect()
    }

    fn texture(&self, texels: Texels, sampler: Sampler) {
        self.device.memory.bind(
            NUMBER,
            Bound::Texture(Texture {
                texels,
                sampler,
                linear_memory: false,
            }),
        );
    }
}

fn line(address: u64, channel: Channel, channels: u32, count: u64) -> Texels {
    Texels {
        address,
        channel,
        channels,
        size: [count, 1, 1],
        dimensions: 1,
        layers: None,
        cube: Cube::No,
        levels: 1,
        pitch_bytes: count * u64::from(channel.bytes() * channels),
    }
}

fn sampler(address: AddressMode, linear: bool, normalised: bool) -> Sampler {
    Sampler {
        address: [address; 3],
        linear,
        normalised,
        as_integers: false,
        srgb: false,
        seamless: false,
        border: [0.0; 4],
        mips: Mips::NONE,
    }
}

const TEX_1D: &str = "tex.1d.v4.f32.f32 {%d0, %d1, %d2, %d3}, [%rd0, {%c0}];";
const TEX_1D_INDEX: &str = "tex.1d.v4.f32.s32 {%d0, %d1, %d2, %d3}, [%rd0, {%c0}];";
const TEX_2D: &str = "tex.2d.v4.f32.f32 {%d0, %d1, %d2, %d3}, [%rd0, {%c0, %c1}];";

#[test]
fn points_take_the_texel_that_a_coordinate_is_in() {
    let bench = Bench::new(&[TEX_1D]);
    let data = bench.device.upload(&[10.0f32, 20.0, 30.0, 40.0]);
    let texels = line(data, Channel::Float, 1, 4);
    let at = [
        0.0,
        0.99,
        1.0,
        3.5,
        -0.1,
        -7.0,
        4.0,
        99.0,
        f32::NAN,
        f32::INFINITY,
    ];
    bench.texture(texels, sampler(AddressMode::Clamp, false, false));
    assert_eq!(
        bench.line(&at),
        [10.0, 10.0, 20.0, 40.0, 10.0, 10.0, 40.0, 40.0, 10.0, 40.0]
    );
    let mut border = sampler(AddressMode::Border, false, false);
    border.border = [5.0, 6.0, 7.0, 8.0];
    bench.texture(texels, border);
    assert_eq!(
        bench.line(&at[..8]),
        [10.0, 10.0, 20.0, 40.0, 5.0, 5.0, 5.0, 5.0]
    );
    // Wrap and mirror apply to normalised coordinates; others are clamped.
    for mode in [AddressMode::Wrap, AddressMode::Mirror] {
        bench.texture(texels, sampler(mode, false, false));
        assert_eq!(bench.line(&[-3.0, 5.0]), [10.0, 40.0]);
    }
    // Missing channels are 0, the fourth as well.
    assert_eq!(bench.floats(0, &[[0.5; 4]]), [[10.0, 0.0, 0.0, 0.0]]);
}

#[test]
fn normalised_coordinates_wrap_and_mirror() {
    let bench = Bench::new(&[TEX_1D]);
    let data = bench.device.upload(&[10.0f32, 20.0, 30.0, 40.0]);
    let texels = line(data, Channel::Float, 1, 4);
    // x - floor(x); if floor(x) is odd, a mirror has 1 minus that.
    let at = [0.0, 0.125, 0.9, 1.125, 2.375, -0.125, -1.125];
    bench.texture(texels, sampler(AddressMode::Wrap, false, true));
    assert_eq!(bench.line(&at), [10.0, 10.0, 40.0, 10.0, 20.0, 40.0, 40.0]);
    bench.texture(texels, sampler(AddressMode::Mirror, false, true));
    assert_eq!(bench.line(&at), [10.0, 10.0, 40.0, 40.0, 20.0, 10.0, 40.0]);
    bench.texture(texels, sampler(AddressMode::Clamp, false, true));
    assert_eq!(bench.line(&at), [10.0, 10.0, 40.0, 40.0, 40.0, 10.0, 10.0]);
    // Between the last and the first texel.
    bench.texture(texels, sampler(AddressMode::Wrap, true, true));
    assert_eq!(bench.line(&[0.0, 1.0, 0.125]), [25.0, 25.0, 10.0]);
    bench.texture(texels, sampler(AddressMode::Mirror, true, true));
    assert_eq!(bench.line(&[0.0, 1.0, 2.0]), [10.0, 40.0, 10.0]);
}

#[test]
fn filtering_weighs_by_eight_bits() {
    let bench = Bench::new(&[TEX_1D]);
    let data = bench.device.upload(&[0.0f32, 256.0, 1024.0, f32::INFINITY]);
    bench.texture(
        line(data, Channel::Float, 1, 4),
        sampler(AddressMode::Clamp, true, false),
    );
    // Texels are at .5; a weight is the nearest multiple of 1/256.
    let at = [
        0.0,
        0.5,
        1.0,
        1.5,
        1.75,
        0.5 + 1.0 / 256.0,
        0.5 + 1.4 / 256.0,
        0.5 + 1.6 / 256.0,
        0.5 + 255.7 / 256.0,
        2.5,
        4.0,
    ];
    let infinity = f32::INFINITY;
    assert_eq!(
        bench.line(&at),
        [
            0.0, 0.0, 128.0, 256.0, 448.0, 1.0, 1.0, 2.0, 256.0, 1024.0, infinity
        ]
    );
}

/// Texels of value 100 z + 10 y + x, and kernels that read them.
struct Boxes {
    bench: Bench,
    plane: Texels,
}

fn value(x: u64, y: u64, z: u64) -> f32 {
    (100 * z + 10 * y + x) as f32
}

fn clamp() -> Sampler {
    sampler(AddressMode::Clamp, false, false)
}

fn linear() -> Sampler {
    sampler(AddressMode::Clamp, true, false)
}

impl Boxes {
    fn new() -> Boxes {
        let bench = Bench::new(&[
            TEX_2D,
            "tex.3d.v4.f32.f32 {%d0, %d1, %d2, %d3}, [%rd0, {%c0, %c1, %c2, %c2}];",
            "tex.a1d.v4.f32.f32 {%d0, %d1, %d2, %d3}, [%rd0, {%c2, %c0}];",
            "tex.a2d.v4.f32.f32 {%d0, %d1, %d2, %d3}, [%rd0, {%c2, %c0, %c1, %c1}];",
            "tld4.r.2d.v4.f32.f32 {%d0, %d1, %d2, %d3}, [%rd0, {%c0, %c1}];",
            "txq.width.b32 %d0, [%rd0]; txq.height.b32 %d1, [%rd0]; txq.depth.b32 %d2, [%rd0]; txq.array_size.b32 %d3, [%rd0];",
            "tex.level.2d.v4.f32.f32 {%d0, %d1, %d2, %d3}, [%rd0, {%c0, %c1}], %c2;",
        ]);
        let mut data = Vec::new();
        for z in 0..3 {
            for y in 0..4 {
                // A pitch of 8 texels for 5.
                data.extend((0..8).map(|x| if x < 5 { value(x, y, z) } else { f32::NAN }));
            }
        }
        let address = bench.device.upload(&data);
        let plane = Texels {
            address,
            channel: Channel::Float,
            channels: 1,
            size: [5, 4, 1],
            dimensions: 2,
            layers: None,
            cube: Cube::No,
            levels: 1,
            pitch_bytes: 32,
        };
        Boxes { bench, plane }
    }

    /// Gives the kernels a texture.
    fn texture(&self, texels: Texels, sampler: Sampler) {
        self.bench.texture(texels, sampler);
    }

    /// Returns the first channel at these coordinates, as kernel `k` reads it.
    fn first(&self, k: usize, at: [f32; 3]) -> f32 {
        self.bench.floats(k, &[[at[0], at[1], at[2], 0.0]])[0][0]
    }

    fn layer(&self, k: usize, at: [f32; 2], layer: u32) -> f32 {
        let at = [at[0].to_bits(), at[1].to_bits(), layer, 0];
        f32::from_bits(self.bench.try_words(k, &[at]).unwrap()[0][0])
    }

    /// Returns width, height, depth and layers.
    fn size(&self) -> [u32; 4] {
        self.bench.try_words(5, &[[0; 4]]).unwrap()[0]
    }
}

#[test]
fn planes() {
    let boxes = Boxes::new();
    let plane = boxes.plane;
    boxes.texture(plane, clamp());
    assert_eq!(boxes.first(0, [2.5, 1.5, 0.0]), value(2, 1, 0));
    assert_eq!(boxes.first(0, [9.0, -2.0, 0.0]), value(4, 0, 0));
    assert_eq!(boxes.first(6, [2.5, 1.5, 7.0]), value(2, 1, 0));
    boxes.texture(plane, linear());
    // The values are linear in x and y, so filtering returns the coordinates.
    assert_eq!(boxes.first(0, [2.75, 1.5, 0.0]), value(2, 1, 0) + 0.25);
    assert_eq!(
        boxes.first(0, [2.75, 2.0, 0.0]),
        value(2, 1, 0) + 0.25 + 5.0
    );
    // Counter-clockwise from the lower left, with y pointing down.
    assert_eq!(
        boxes.bench.floats(4, &[[2.9, 1.7, 0.0, 0.0]])[0],
        [
            value(2, 2, 0),
            value(3, 2, 0),
            value(3, 1, 0),
            value(2, 1, 0)
        ]
    );
    assert_eq!(boxes.size(), [5, 4, 0, 0]);
}

#[test]
fn boxes() {
    let boxes = Boxes::new();
    let cube = Texels {
        size: [5, 4, 3],
        dimensions: 3,
        ..boxes.plane
    };
    boxes.texture(cube, clamp());
    assert_eq!(boxes.first(1, [4.5, 3.5, 2.5]), value(4, 3, 2));
    boxes.texture(cube, linear());
    assert_eq!(boxes.first(1, [1.0, 2.0, 1.5]), value(0, 1, 1) + 0.5 + 5.0);
    assert_eq!(
        boxes.first(1, [1.0, 2.0, 2.25]),
        value(0, 1, 1) + 0.5 + 5.0 + 75.0
    );
    assert_eq!(boxes.size(), [5, 4, 3, 0]);
}

#[test]
fn layers() {
    let boxes = Boxes::new();
    let plane = boxes.plane;
    let layers = Texels {
        layers: Some(3),
        ..plane
    };
    boxes.texture(layers, linear());
    assert_eq!(boxes.layer(3, [2.75, 1.5], 2), value(2, 1, 2) + 0.25);
    assert_eq!(boxes.layer(3, [2.5, 1.5], 9), value(2, 1, 2));
    assert_eq!(boxes.size(), [5, 4, 0, 3]);
    let lines = Texels {
        size: [5, 1, 1],
        dimensions: 1,
        layers: Some(12),
        ..plane
    };
    boxes.texture(lines, linear());
    assert_eq!(boxes.layer(2, [3.0, 0.0], 5), value(2, 1, 1) + 0.5);
    // A plane of one row is a line: at its middle for points, at its upper edge if filtered.
    let row = Texels {
        size: [5, 1, 1],
        ..plane
    };
    let as_line = Bench::new(&[TEX_1D, TEX_1D_INDEX]);
    let values = as_line.device.upload(&[10.0f32, 20.0, 30.0, 40.0, 50.0]);
    let row = Texels {
        address: values,
        ..row
    };
    as_line.texture(row, clamp());
    assert_eq!(as_line.line(&[0.5, 4.9, 7.0]), [10.0, 50.0, 50.0]);
    as_line.texture(row, linear());
    assert_eq!(as_line.line(&[1.0, 2.25]), [15.0, 27.5]);
    as_line.texture(plane, clamp());
    assert!(as_line.try_words(0, &[[0; 4]]).is_err());
    // Any other geometry than the texture's is a fault.
    let fault = boxes.bench.try_words(0, &[[0; 4]]).unwrap_err();
    assert!(
        matches!(&fault, LaunchError::Fault(f) if matches!(&f.kind, FaultKind::Trap { reason } if reason.contains("dimensions"))),
        "{fault}"
    );
}

#[test]
fn channels_of_every_type() {
    let bench = Bench::new(&[
        TEX_1D,
        "tex.1d.v4.s32.f32 {%d0, %d1, %d2, %d3}, [%rd0, {%c0}];",
    ]);
    let mut clamp = sampler(AddressMode::Clamp, false, false);
    let mut check = |channel, channels, bytes: &[u8], fractions: [f32; 4], integers: [u32; 4]| {
        let data = bench.device.upload(bytes);
        clamp.as_integers = false;
        bench.texture(line(data, channel, channels, 1), clamp);
        assert_eq!(bench.floats(0, &[[0.5; 4]])[0], fractions, "{channel:?}");
        clamp.as_integers = true;
        bench.texture(line(data, channel, channels, 1), clamp);
        let words = bench.try_words(1, &[[0.5f32.to_bits(); 4]]).unwrap()[0];
        assert_eq!(words, integers, "{channel:?}");
    };
    let all = [0xff, 0x7f, 0x80, 0x01];
    check(
        Channel::U8,
        4,
        &all,
        [1.0, 127.0 / 255.0, 128.0 / 255.0, 1.0 / 255.0],
        [255, 127, 128, 1],
    );
    // The most negative value is -1, like the one above it.
    check(
        Channel::S8,
        4,
        &all,
        [-1.0 / 127.0, 1.0, -1.0, 1.0 / 127.0],
        [u32::MAX, 127, -128i32 as u32, 1],
    );
    check(
        Channel::U16,
        2,
        &[0xff, 0xff, 0x00, 0x80],
        [1.0, 32768.0 / 65535.0, 0.0, 0.0],
        [65535, 32768, 0, 0],
    );
    check(
        Channel::S16,
        2,
        &[0xff, 0x7f, 0x00, 0x80],
        [1.0, -1.0, 0.0, 0.0],
        [32767, -32768i32 as u32, 0, 0],
    );
    // 1.0, the smallest subnormal, infinity, -2.
    check(
        Channel::Half,
        4,
        &[0x00, 0x3c, 0x01, 0x00, 0x00, 0x7c, 0x00, 0xc0],
        [1.0, 2f32.powi(-24), f32::INFINITY, -2.0],
        [1.0, 2f32.powi(-24), f32::INFINITY, -2.0].map(f32::to_bits),
    );
    // A NaN is not changed.
    let data = bench.device.upload(&[0x7f80_0001u32, 0xffff_ffff]);
    bench.texture(line(data, Channel::Float, 2, 1), clamp);
    let words = bench.try_words(0, &[[0; 4]]).unwrap()[0];
    assert_eq!(words[..2], [0x7f80_0001, 0xffff_ffff]);
    // Integers of 32 bits stay integers whatever the sampler says.
    clamp.as_integers = false;
    bench.texture(line(data, Channel::U32, 2, 1), clamp);
    let words = bench.try_words(0, &[[0; 4]]).unwrap()[0];
    assert_eq!(words, [0x7f80_0001, 0xffff_ffff, 0, 0]);
}

#[test]
fn linear_memory_is_read_by_index_and_zero_outside() {
    let bench = Bench::new(&[TEX_1D_INDEX]);
    let data = bench.device.upload(&[1.0f32, 2.0, 3.0]);
    bench.device.memory.bind(
        NUMBER,
        Bound::Texture(Texture {
            texels: line(data, Channel::Float, 1, 3),
            sampler: sampler(AddressMode::Clamp, false, false),
            linear_memory: true,
        }),
    );
    let at: Vec<[u32; 4]> = [0i32, 2, 3, -1, i32::MIN, i32::MAX]
        .map(|i| [i as u32, 0, 0, 0])
        .to_vec();
    let words = bench.try_words(0, &at).unwrap();
    let firsts: Vec<f32> = words.iter().map(|w| f32::from_bits(w[0])).collect();
    assert_eq!(firsts, [1.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
}

const SURFACES: &[&str] = &[
    "suld.b.2d.b32.trap {%d0}, [%rd0, {%c0, %c1}];",
    "suld.b.2d.v2.b32.clamp {%d0, %d1}, [%rd0, {%c0, %c1}];",
    "suld.b.2d.v4.b32.zero {%d0, %d1, %d2, %d3}, [%rd0, {%c0, %c1}];",
    "sust.b.2d.b32.trap [%rd0, {%c0, %c1}], {%c3};",
    "sust.b.2d.b32.clamp [%rd0, {%c0, %c1}], {%c3};",
    "sust.b.2d.b32.zero [%rd0, {%c0, %c1}], {%c3};",
    "cvt.u16.u32 %h0, %c3; sust.b.2d.b8.zero [%rd0, {%c0, %c1}], %h0;",
    "suld.b.2d.b16 %h0, [%rd0, {%c0, %c1}]; cvt.u32.u16 %d0, %h0; suld.b.2d.b8 %h1, [%rd0, {%c0, %c1}]; cvt.u32.u16 %d1, %h1;",
    "suld.b.2d.b64 %w0, [%rd0, {%c0, %c1}]; mov.b64 {%d0, %d1}, %w0; sust.b.2d.b64 [%rd0, {0, 0}], %w0;",
    "suq.width.b32 %d0, [%rd0]; suq.height.b32 %d1, [%rd0]; suq.depth.b32 %d2, [%rd0]; suq.array_size.b32 %d3, [%rd0];",
    "suld.b.a2d.b32.trap {%d0}, [%rd0, {%c2, %c0, %c1, %c1}];",
    "suld.b.3d.b32.trap {%d0}, [%rd0, {%c0, %c1, %c2, %c2}];",
    "sust.b.a1d.b32.trap [%rd0, {%c2, %c0}], {%c3};",
    "suld.b.1d.b32.zero {%d0}, [%rd0, {%c0}];",
    "sured.b.add.2d.u32.trap [%rd0, {%c0, %c1}], %c3;",
    "sured.b.min.2d.s32.clamp [%rd0, {%c0, %c1}], %c3;",
    "sured.b.max.2d.u32.zero [%rd0, {%c0, %c1}], {%c3};",
    "sured.b.and.2d.b32.trap [%rd0, {%c0, %c1}], %c3; sured.b.or.2d.b32.trap [%rd0, {%c0, %c1}], 0x100;",
    "cvt.u64.u32 %w0, %c3; sured.b.add.2d.u64.trap [%rd0, {%c0, %c1}], %w0;",
];

/// Makes a surface of four words per row, three rows, two slices: word `16 * slice + 4 * row +
/// column`.
fn surface(bench: &Bench) -> (u64, Texels) {
    let data: Vec<u32> = (0..24).collect();
    let address = bench.device.upload(&data);
    let texels = Texels {
        address,
        channel: Channel::U32,
        channels: 1,
        size: [4, 3, 1],
        dimensions: 2,
        layers: None,
        cube: Cube::No,
        levels: 1,
        pitch_bytes: 16,
    };
    bench.device.memory.bind(NUMBER, Bound::Surface(texels));
    (address, texels)
}

#[test]
fn surfaces_are_read_and_written_by_bytes() {
    let bench = Bench::new(SURFACES);
    let (address, texels) = surface(&bench);
    let at = |x: i32, y: i32, value: u32| [x as u32, y as u32, 0, value];
    let run = |k, at: [u32; 4]| bench.try_words(k, &[at]).unwrap()[0];
    let word = |i: u64| bench.device.download::<u32>(address + 4 * i, 1)[0];
    assert_eq!(run(0, at(8, 2, 0))[0], 10);
    // Clamped to the last position at which the whole access fits.
    assert_eq!(run(1, at(12, -5, 0))[..2], [2, 3]);
    assert_eq!(run(1, at(-8, 99, 0))[..2], [8, 9]);
    assert_eq!(run(2, at(0, 1, 0)), [4, 5, 6, 7]);
    for outside in [at(4, 1, 0), at(-16, 1, 0), at(0, 3, 0), at(0, -1, 0)] {
        assert_eq!(run(2, outside), [0; 4], "{outside:?}");
    }
    run(3, at(4, 1, 77));
    run(4, at(400, 400, 88));
    run(5, at(400, 0, 99));
    run(5, at(0, 0, 55));
    run(6, at(9, 0, 0xabcd));
    assert_eq!([word(5), word(11), word(0)], [77, 88, 55]);
    assert_eq!(word(2), 0x0000_cd02);
    assert_eq!(run(7, at(8, 0, 0))[..2], [0xcd02, 0x02]);
    assert_eq!(run(8, at(8, 2, 0))[..2], [10, 88]);
    assert_eq!([word(0), word(1)], [10, 88]);
    assert_eq!(run(9, at(0, 0, 0)), [4, 3, 0, 0]);
    let others: Vec<u32> = bench.device.download(address, 24);
    assert_eq!(others[12..], (12..24).collect::<Vec<_>>());
    // Layers and slices.
    let layered = Texels {
        layers: Some(2),
        ..texels
    };
    bench.device.memory.bind(NUMBER, Bound::Surface(layered));
    assert_eq!(run(10, [4, 1, 1, 0])[0], 17);
    assert_eq!(run(9, at(0, 0, 0)), [4, 3, 0, 2]);
    let cube = Texels {
        size: [4, 3, 2],
        dimensions: 3,
        ..texels
    };
    bench.device.memory.bind(NUMBER, Bound::Surface(cube));
    assert_eq!(run(11, [12, 2, 1, 0])[0], 23);
    assert_eq!(run(9, at(0, 0, 0)), [4, 3, 2, 0]);
    let lines = Texels {
        size: [4, 1, 1],
        dimensions: 1,
        layers: Some(6),
        ..texels
    };
    bench.device.memory.bind(NUMBER, Bound::Surface(lines));
    run(12, [4, 0, 5, 321]);
    assert_eq!(word(21), 321);
    let single = Texels {
        layers: None,
        cube: Cube::No,
        levels: 1,
        ..lines
    };
    bench.device.memory.bind(NUMBER, Bound::Surface(single));
    assert_eq!(run(13, at(12, 0, 0))[0], 3);
    assert_eq!(run(13, at(16, 0, 0))[0], 0);
}

#[test]
fn reductions_on_surfaces() {
    let bench = Bench::new(SURFACES);
    let (address, _) = surface(&bench);
    let at = |x: i32, y: i32, value: u32| [x as u32, y as u32, 0, value];
    let word = |i: u64| bench.device.download::<u32>(address + 4 * i, 1)[0];
    // All lanes of a warp access one position.
    bench.try_words(14, &[at(4, 1, 3); 32]).unwrap();
    assert_eq!(word(5), 5 + 96);
    bench
        .try_words(15, &[at(-4, 0, -7i32 as u32), at(400, 2, 4)])
        .unwrap();
    assert_eq!([word(0), word(11)], [-7i32 as u32, 4]);
    bench
        .try_words(16, &[at(0, 0, 9), at(16, 0, 99), at(4, 0, 9)])
        .unwrap();
    assert_eq!([word(0), word(1), word(4)], [-7i32 as u32, 9, 4]);
    bench.try_words(17, &[at(8, 2, 6)]).unwrap();
    assert_eq!(word(10), 10 & 6 | 0x100);
    bench
        .try_words(18, &[at(8, 1, u32::MAX), at(8, 1, 1)])
        .unwrap();
    assert_eq!([word(6), word(7)], [6, 8]);
    assert!(bench.try_words(14, &[at(16, 1, 3)]).is_err());
    assert!(bench.try_words(18, &[at(4, 1, 3)]).is_err());
}

#[test]
fn what_is_outside_or_nothing_is_a_fault() {
    let bench = Bench::new(SURFACES);
    let fault = |k, at| match bench.try_words(k, &[at]) {
        Err(LaunchError::Fault(fault)) => fault.kind,
        other => panic!("{other:?}"),
    };
    let trap = |kind: FaultKind, words: &str| match kind {
        FaultKind::Trap { reason } => assert!(reason.contains(words), "{reason}"),
        other => panic!("{other:?}"),
    };
    trap(fault(0, [0; 4]), "no texture or surface object");
    let (_, texels) = surface(&bench);
    trap(fault(0, [16, 0, 0, 0]), "outside");
    trap(fault(3, [0, 3, 0, 0]), "outside");
    trap(fault(3, [u32::MAX, 0, 0, 0]), "outside");
    trap(fault(10, [0; 4]), "dimensions");
    assert!(matches!(
        fault(0, [2, 0, 0, 0]),
        FaultKind::MisalignedAddress { bytes: 4, .. }
    ));
    let sampler = sampler(AddressMode::Clamp, false, false);
    bench.texture(texels, sampler);
    trap(fault(0, [0; 4]), "used as a surface");
    // An array that was freed.
    let array = Array::new(&bench.device.memory, 48).unwrap();
    let gone = Texels {
        address: array.address(),
        ..texels
    };
    bench.device.memory.bind(NUMBER, Bound::Surface(gone));
    assert_eq!(bench.try_words(0, &[[0; 4]]).unwrap()[0][0], 0);
    drop(array);
    assert!(matches!(
        fault(0, [0; 4]),
        FaultKind::IllegalAddress { write: false, .. }
    ));
    bench.device.memory.unbind(NUMBER);
    trap(fault(3, [0; 4]), "no texture or surface object");
}

//! Mipmaps, cubes, sRGB, and formatted stores, against the CUDA programming guide and the PTX
//! manual.

use crate::common::{Arg, Device};
use outboard_ptx::texture::{AddressMode, Bound, Channel, Cube, Mips, Sampler, Texels, Texture};

const NUMBER: u64 = 0x0d00_0000_0000_0008;

struct Bench {
    device: Device,
}

impl Bench {
    /// Makes a kernel in which thread `i` takes four words and returns four.
    fn new(instruction: &str) -> Bench {
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n
    .visible .entry k(.param .u64 object, .param .u64 in, .param .u64 out) {{
        .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .b32 %c<4>; .reg .b32 %d<4>; .reg .pred %p;
        ld.param.u64 %rd0, [object]; ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
        mov.u32 %r0, %tid.x; mul.wide.u32 %rd3, %r0, 16; add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;
        ld.global.v4.b32 {{%c0, %c1, %c2, %c3}}, [%rd1];
        mov.b32 %d0, 0; mov.b32 %d1, 0; mov.b32 %d2, 0; mov.b32 %d3, 0;
        {instruction}
        st.global.v4.b32 [%rd2], {{%d0, %d1, %d2, %d3}};
        ret;
    }}"
        );
        Bench {
            device: Device::new(&text),
        }
    }

    fn words(&self, at: &[[u32; 4]]) -> Vec<[u32; 4]> {
        let flat: Vec<u32> = at.iter().flatten().copied().collect();
        let (input, output) = (self.device.upload(&flat), self.device.alloc(flat.len() * 4));
        let args = [Arg::Ptr(NUMBER), Arg::Ptr(input), Arg::Ptr(output)];
        self.device
            .try_run("k", [1; 3], [at.len() as u32, 1, 1], 0, &args)
            .unwrap();
        let words: Vec<u32> = self.device.download(output, flat.len());
        words.as_chunks::<4>().0.to_vec()
    }

    /// Returns the first channel at each of some coordinates.
    fn firsts(&self, at: &[[f32; 4]]) -> Vec<f32> {
        let at: Vec<[u32; 4]> = at.iter().map(|c| c.map(f32::to_bits)).collect();
        self.words(&at)
            .iter()
            .map(|w| f32::from_bits(w[0]))
            .collect()
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

fn texels(address: u64, channel: Channel, channels: u32, size: [u64; 2]) -> Texels {
    Texels {
        address,
        channel,
        channels,
        size: [size[0], size[1], 1],
        dimensions: 2,
        layers: None,
        cube: Cube::No,
        levels: 1,
        pitch_bytes: size[0] * u64::from(channel.bytes() * channels),
    }
}

const SAMPLER: Sampler = Sampler {
    address: [AddressMode::Clamp; 3],
    linear: false,
    normalised: true,
    as_integers: false,
    srgb: false,
    seamless: false,
    border: [0.0; 4],
    mips: Mips::NONE,
};

/// Makes levels of 4x2, 2x1 and 1x1 texels that hold 100, 200 and 300, plus the number of the
/// texel.
fn mipmap(bench: &Bench) -> Texels {
    let data: Vec<f32> = (0..8)
        .map(|i| 100.0 + i as f32)
        .chain([200.0, 201.0, 300.0])
        .collect();
    Texels {
        levels: 3,
        ..texels(bench.device.upload(&data), Channel::Float, 1, [4, 2])
    }
}

#[test]
fn a_level_is_chosen_biased_and_clamped() {
    let bench =
        Bench::new("tex.level.2d.v4.f32.f32 {%d0, %d1, %d2, %d3}, [%rd0, {%c0, %c1}], %c2;");
    let texels = mipmap(&bench);
    let mips = |linear, bias, clamp| Sampler {
        mips: Mips {
            linear,
            bias,
            clamp,
            anisotropy: 0,
        },
        ..SAMPLER
    };
    let at =
        |levels: &[f32]| -> Vec<[f32; 4]> { levels.iter().map(|l| [0.1, 0.1, *l, 0.0]).collect() };
    bench.texture(texels, mips(false, 0.0, [0.0, 9.0]));
    assert_eq!(
        bench.firsts(&at(&[-1.0, 0.0, 0.4, 0.6, 1.4, 1.6, 2.0, 9.0])),
        [100.0, 100.0, 100.0, 200.0, 200.0, 300.0, 300.0, 300.0]
    );
    bench.texture(texels, mips(true, 0.0, [0.0, 9.0]));
    assert_eq!(
        bench.firsts(&at(&[0.0, 0.25, 1.0, 1.5, 2.0])),
        [100.0, 125.0, 200.0, 250.0, 300.0]
    );
    bench.texture(texels, mips(true, 0.5, [0.0, 9.0]));
    assert_eq!(bench.firsts(&at(&[0.0, 0.25])), [150.0, 175.0]);
    bench.texture(texels, mips(true, 0.0, [0.5, 1.0]));
    assert_eq!(bench.firsts(&at(&[0.0, 0.75, 2.0])), [150.0, 175.0, 200.0]);
}

#[test]
fn gradients_choose_a_level() {
    let bench = Bench::new(
        "tex.grad.2d.v4.f32.f32 {%d0, %d1, %d2, %d3}, [%rd0, {%c0, %c1}], {%c2, 0f00000000}, {0f00000000, %c3};",
    );
    let texels = mipmap(&bench);
    let sampler = Sampler {
        mips: Mips {
            linear: true,
            clamp: [0.0, 9.0],
            ..Mips::NONE
        },
        ..SAMPLER
    };
    bench.texture(texels, sampler);
    // 4 texels along x, 2 along y: a gradient of 1/4, of 1/2 and of 1 is one of 1, 2, 4 texels.
    assert_eq!(
        bench.firsts(&[
            [0.1, 0.1, 0.25, 0.0],
            [0.1, 0.1, 0.5, 0.0],
            [0.1, 0.1, 0.25, 1.0],
            [0.1, 0.1, 1.0, 0.0],
        ]),
        [100.0, 200.0, 200.0, 300.0]
    );
}

#[test]
fn a_direction_leads_to_a_face() {
    let bench =
        Bench::new("tex.cube.v4.f32.f32 {%d0, %d1, %d2, %d3}, [%rd0, {%c0, %c1, %c2, %c2}];");
    // Texel `t` of face `f` holds 10 f + t, of two rows of two.
    let data: Vec<f32> = (0..24).map(|i| (10 * (i / 4) + i % 4) as f32).collect();
    let cube = Texels {
        layers: Some(6),
        cube: Cube::One,
        ..texels(bench.device.upload(&data), Channel::Float, 1, [2, 2])
    };
    bench.texture(cube, SAMPLER);
    // s and t of each face, from the guide's table: -z -y, z -y, x z, x -z, x -y, -x -y; half of
    // each is 0.3.
    let at = [
        [1.0, 0.3, 0.3, 0.0],
        [-1.0, 0.3, 0.3, 0.0],
        [0.3, 1.0, 0.3, 0.0],
        [0.3, -1.0, 0.3, 0.0],
        [0.3, 0.3, 1.0, 0.0],
        [0.3, 0.3, -1.0, 0.0],
        [2.0, -0.6, -0.6, 0.0],
    ];
    assert_eq!(bench.firsts(&at), [0.0, 11.0, 23.0, 31.0, 41.0, 50.0, 3.0]);
}

/// On an edge, half of either face; at a corner, a third of each of three.
#[test]
fn filtering_goes_on_across_the_edges_of_a_cube() {
    let bench =
        Bench::new("tex.cube.v4.f32.f32 {%d0, %d1, %d2, %d3}, [%rd0, {%c0, %c1, %c2, %c2}];");
    let data: Vec<f32> = (0..24).map(|i| (1 << (i / 4)) as f32).collect();
    let cube = Texels {
        layers: Some(6),
        cube: Cube::One,
        ..texels(bench.device.upload(&data), Channel::Float, 1, [2, 2])
    };
    let sampler = Sampler {
        linear: true,
        seamless: true,
        ..SAMPLER
    };
    bench.texture(cube, sampler);
    // Faces hold 1, 2, 4, 8, 16, 32.
    let at = [
        [1.0, 0.0, 0.0, 0.0],
        [1.0, 0.0, 1.0, 0.0],
        [-1.0, 1.0, 0.0, 0.0],
        [0.0, -1.0, -1.0, 0.0],
        [1.0, 1.0, 1.0, 0.0],
    ];
    assert_eq!(bench.firsts(&at), [1.0, 8.5, 3.0, 20.0, 7.0]);
    bench.texture(
        cube,
        Sampler {
            seamless: false,
            ..sampler
        },
    );
    assert_eq!(bench.firsts(&at[1..2]), [16.0]);
}

#[test]
fn srgb_is_made_linear() {
    let bench = Bench::new("tex.2d.v4.f32.f32 {%d0, %d1, %d2, %d3}, [%rd0, {%c0, %c1}];");
    let data = bench.device.upload(&[0u8, 10, 188, 188]);
    let sampler = Sampler {
        srgb: true,
        ..SAMPLER
    };
    bench.texture(texels(data, Channel::U8, 4, [1, 1]), sampler);
    let got = bench.words(&[[0; 4]])[0].map(f32::from_bits);
    // 10 is on the straight part, 188 near the middle; alpha is unchanged.
    let want = [0.0, 10.0 / 255.0 / 12.92, 0.502_886, 188.0 / 255.0];
    for (got, want) in got.into_iter().zip(want) {
        assert!((got - want).abs() < 1e-3, "{got} {want}");
    }
}

#[test]
fn formatted_stores_know_the_texel() {
    let bench = Bench::new("sust.p.2d.v4.b32.zero [%rd0, {%c0, 0}], {%c1, %c2, %c3, %c3};");
    let store = |channel, at: [u32; 4]| -> Vec<u8> {
        let data = bench.device.upload(&[0xeeu8; 32]);
        let surface = texels(data, channel, 4, [2, 1]);
        bench.device.memory.bind(NUMBER, Bound::Surface(surface));
        bench.words(&[at]);
        bench.device.download(data, 32)
    };
    // x counts texels; integers are clamped.
    assert_eq!(
        store(Channel::U8, [1, 7, 300, 0xffff_ffff])[..9],
        [0xee, 0xee, 0xee, 0xee, 7, 255, 255, 255, 0xee]
    );
    assert_eq!(
        store(Channel::S8, [0, 7, 300, (-300i32) as u32])[..5],
        [7, 127, 0x80, 0x80, 0xee]
    );
    assert_eq!(
        store(Channel::Half, [0, 1f32.to_bits(), (-2f32).to_bits(), 0])[..9],
        [0x00, 0x3c, 0x00, 0xc0, 0, 0, 0, 0, 0xee]
    );
    // Outside nothing is stored.
    assert_eq!(store(Channel::U8, [2, 7, 7, 7]), [0xee; 32]);
}

//! Textures and surfaces that kernels read: their memory, their formats, and how they are sampled.

use std::fmt;

use crate::values::{Random, hash};

/// Geometries, by the instructions' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Geometry {
    D1,
    D2,
    D3,
    A1d,
    A2d,
    Cube,
    Acube,
}

impl Geometry {
    pub fn name(self) -> &'static str {
        match self {
            Geometry::D1 => "1d",
            Geometry::D2 => "2d",
            Geometry::D3 => "3d",
            Geometry::A1d => "a1d",
            Geometry::A2d => "a2d",
            Geometry::Cube => "cube",
            Geometry::Acube => "acube",
        }
    }

    /// Returns the number of coordinates, without the layer's.
    pub fn axes(self) -> usize {
        match self {
            Geometry::D1 | Geometry::A1d => 1,
            Geometry::D2 | Geometry::A2d => 2,
            Geometry::D3 | Geometry::Cube | Geometry::Acube => 3,
        }
    }

    /// Returns the dimensions of the texels: a cube's faces are flat.
    pub fn dimensions(self) -> usize {
        match self {
            Geometry::Cube | Geometry::Acube => 2,
            other => other.axes(),
        }
    }

    pub fn is_layered(self) -> bool {
        matches!(self, Geometry::A1d | Geometry::A2d | Geometry::Acube)
    }

    pub fn is_cube(self) -> bool {
        matches!(self, Geometry::Cube | Geometry::Acube)
    }
}

/// `CUarray_format`, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    U8 = 1,
    U16 = 2,
    U32 = 3,
    S8 = 8,
    S16 = 9,
    S32 = 10,
    Half = 16,
    Float = 32,
}

impl Format {
    pub const ALL: [Format; 8] = [
        Format::U8,
        Format::U16,
        Format::U32,
        Format::S8,
        Format::S16,
        Format::S32,
        Format::Half,
        Format::Float,
    ];

    pub fn bytes(self) -> usize {
        match self {
            Format::U8 | Format::S8 => 1,
            Format::U16 | Format::S16 | Format::Half => 2,
            Format::U32 | Format::S32 | Format::Float => 4,
        }
    }

    pub fn is_float(self) -> bool {
        matches!(self, Format::Half | Format::Float)
    }

    /// Returns the type in which `tex` returns such texels unconverted.
    pub fn result(self) -> &'static str {
        match self {
            Format::U8 | Format::U16 | Format::U32 => "u32",
            Format::S8 | Format::S16 | Format::S32 => "s32",
            Format::Half | Format::Float => "f32",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    Array,
    Linear,
    Pitched,
}

/// The contents of texels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Any integer; floats of 2^-4 to 2^4 with any mantissa and sign.
    Generic,
    /// Random 0 and 1 (of fractions), so that filtering shows sums of weights.
    Bits,
    /// NaNs, infinities, subnormal and huge floats.
    Special,
    /// Integers, counted from 0.
    Counted,
}

/// Alignment of the rows of pitched memory, in bytes.
pub const PITCH_BYTES: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    pub storage: Storage,
    pub geometry: Geometry,
    pub format: Format,
    pub channels: usize,
    /// Texels along x, y, z; 1 for a missing dimension.
    pub size: [usize; 3],
    /// Number of layers, 1 without layers. Faces of cubes are layers, too.
    pub layers: usize,
    pub levels: usize,
    pub pattern: Pattern,
}

impl Resource {
    pub fn level_size(&self, level: usize) -> [usize; 3] {
        self.size.map(|n| (n >> level).max(1))
    }

    pub fn texel_bytes(&self) -> usize {
        self.format.bytes() * self.channels
    }

    /// Returns the distance between two rows, in bytes.
    pub fn pitch_bytes(&self, level: usize) -> usize {
        let row = self.level_size(level)[0] * self.texel_bytes();
        match self.storage {
            Storage::Pitched => row.next_multiple_of(PITCH_BYTES),
            _ => row,
        }
    }

    pub fn level_bytes(&self, level: usize) -> usize {
        let [_, h, d] = self.level_size(level);
        self.pitch_bytes(level) * h * d * self.layers
    }

    /// Returns the rows of a level, one after the other.
    pub fn texels(&self, level: usize) -> Vec<u8> {
        let mut random = Random::new(hash(self.to_string().as_bytes()) ^ level as u64);
        let mut bytes = Vec::with_capacity(self.level_bytes(level));
        for i in 0..self.level_bytes(level) / self.format.bytes() {
            let bits = self.value(i as u32, &mut random);
            bytes.extend_from_slice(&bits.to_le_bytes()[..self.format.bytes()]);
        }
        bytes
    }

    fn value(&self, index: u32, random: &mut Random) -> u32 {
        let any = random.bits();
        match (self.pattern, self.format) {
            (Pattern::Counted, Format::Float) => (index as f32).to_bits(),
            (Pattern::Counted, _) => index,
            (Pattern::Bits, format) => {
                let one = match format {
                    Format::U8 | Format::U16 | Format::U32 => u32::MAX,
                    Format::S8 => 0x7f,
                    Format::S16 => 0x7fff,
                    Format::S32 => 0x7fff_ffff,
                    Format::Half => 0x3c00,
                    Format::Float => 0x3f80_0000,
                };
                one * (any as u32 >> 7 & 1)
            }
            (Pattern::Special, Format::Half) => random.pick(&HALVES),
            (Pattern::Special, Format::Float) => random.pick(&FLOATS),
            (_, Format::Half) => {
                let exponent = 11 + random.below(8) as u32;
                any as u32 & 0x83ff | exponent << 10
            }
            (_, Format::Float) => {
                let exponent = 123 + random.below(8) as u32;
                any as u32 & 0x807f_ffff | exponent << 23
            }
            _ => any as u32,
        }
    }
}

const HALVES: [u32; 8] = [
    0x7c00, 0xfc00, 0x7e01, 0x0001, 0x83ff, 0x7bff, 0x3c00, 0x8000,
];
const FLOATS: [u32; 10] = [
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_1234,
    0x7fa0_1234,
    0x0000_0001,
    0x807f_ffff,
    0x7f7f_ffff,
    0x3f80_0000,
    0x8000_0000,
    0x0080_0000,
];

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [w, h, d] = self.size;
        write!(f, "{:?} {} {w}x{h}x{d}", self.storage, self.geometry.name(),)?;
        if self.layers > 1 {
            write!(f, "x{}", self.layers)?;
        }
        if self.levels > 1 {
            write!(f, " of {} levels", self.levels)?;
        }
        write!(f, " {:?}x{} {:?}", self.format, self.channels, self.pattern)
    }
}

/// `CUaddress_mode`, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Wrap = 0,
    Clamp = 1,
    Mirror = 2,
    Border = 3,
}

impl Mode {
    pub const ALL: [Mode; 4] = [Mode::Wrap, Mode::Clamp, Mode::Mirror, Mode::Border];
}

/// `CUDA_TEXTURE_DESC`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    pub modes: [Mode; 3],
    pub linear: bool,
    pub normalised: bool,
    /// CU_TRSF_READ_AS_INTEGER
    pub integers: bool,
    /// CU_TRSF_SRGB
    pub srgb: bool,
    /// CU_TRSF_SEAMLESS_CUBEMAP
    pub seamless: bool,
    /// CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION
    pub full_trilinear: bool,
    pub anisotropy: u32,
    pub mip_linear: bool,
    pub mip_bias: f32,
    pub mip_clamp: [f32; 2],
    pub border: [f32; 4],
}

impl Sampler {
    /// Clamped, nearest texel, coordinates in texels.
    pub const PLAIN: Sampler = Sampler {
        modes: [Mode::Clamp; 3],
        linear: false,
        normalised: false,
        integers: false,
        srgb: false,
        seamless: false,
        full_trilinear: false,
        anisotropy: 0,
        mip_linear: false,
        mip_bias: 0.0,
        mip_clamp: [0.0, 0.0],
        border: [0.0; 4],
    };

    pub fn flags(&self) -> u32 {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        bit(self.integers, 0x01)
            | bit(self.normalised, 0x02)
            | bit(self.srgb, 0x10)
            | bit(self.full_trilinear, 0x20)
            | bit(self.seamless, 0x40)
    }
}

impl fmt::Display for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.modes;
        if x == y && y == z {
            write!(f, "{x:?}")?;
        } else {
            write!(f, "{x:?}/{y:?}/{z:?}")?;
        }
        for (set, name) in [
            (self.linear, "linear"),
            (self.normalised, "normalised"),
            (self.integers, "integers"),
            (self.srgb, "sRGB"),
            (self.seamless, "seamless"),
            (self.full_trilinear, "full-trilinear"),
            (self.mip_linear, "mip-linear"),
        ] {
            if set {
                write!(f, " {name}")?;
            }
        }
        if self.anisotropy != 0 {
            write!(f, " anisotropy {}", self.anisotropy)?;
        }
        if self.mip_bias != 0.0 {
            write!(f, " bias {}", self.mip_bias)?;
        }
        if self.mip_clamp != [0.0; 2] {
            write!(f, " levels {:?}", self.mip_clamp)?;
        }
        if self.border != [0.0; 4] {
            write!(f, " border {:?}", self.border)?;
        }
        Ok(())
    }
}

/// `CUDA_RESOURCE_VIEW_DESC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// `CUresourceViewFormat`
    pub format: u32,
    pub size: [usize; 3],
    pub levels: [u32; 2],
    pub layers: [u32; 2],
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Object {
    Texture(Sampler, Option<View>),
    /// A surface, whose texels are results too.
    Surface,
}

/// The object whose number a job's kernel receives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    pub resource: Resource,
    pub object: Object,
}

impl Setup {
    /// Returns the bytes after the kernel's results: those of the surface.
    pub fn bytes_back(&self) -> usize {
        match self.object {
            Object::Texture(..) => 0,
            Object::Surface => self.resource.level_bytes(0),
        }
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.object {
            Object::Texture(sampler, None) => write!(f, "texture {}, {sampler}", self.resource),
            Object::Texture(sampler, Some(view)) => {
                write!(f, "texture {}, {sampler}, {view:?}", self.resource)
            }
            Object::Surface => write!(f, "surface {}", self.resource),
        }
    }
}

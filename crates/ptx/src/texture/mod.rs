//! Textures and surfaces: objects named by numbers, and how texels are found, filtered and
//! converted (CUDA C++ Programming Guide, "Texture Fetching"; PTX ISA 9.7.10, 9.7.11).
//!
//! Texels are read from memory whenever an instruction asks; nothing is cached.

mod cube;
mod levels;
mod plane;
mod point;
mod quick;
mod sample;
mod surface;

pub(crate) use self::point::{Coordinates, Detail, Point};
pub(crate) use self::quick::{Bytes, Floats, Format, Quick};
pub(crate) use self::surface::SurfacePosition;

use crate::code::{AtomOp, Rounding};
use crate::number::half::{F16, Half as _};

/// The type of one channel of a texel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    U8,
    U16,
    U32,
    S8,
    S16,
    S32,
    Half,
    Float,
}

impl Channel {
    pub fn bytes(self) -> u32 {
        match self {
            Channel::U8 | Channel::S8 => 1,
            Channel::U16 | Channel::S16 | Channel::Half => 2,
            Channel::U32 | Channel::S32 | Channel::Float => 4,
        }
    }

    pub fn is_float(self) -> bool {
        matches!(self, Channel::Half | Channel::Float)
    }

    /// Whether it can be read as a fraction of its largest value.
    fn is_fraction(self) -> bool {
        !self.is_float() && self.bytes() < 4
    }

    fn float(self, bits: u32) -> f64 {
        match self {
            Channel::U8 => f64::from(bits as u8) / 255.0,
            Channel::U16 => f64::from(bits as u16) / 65535.0,
            Channel::S8 => (f64::from(bits as i8) / 127.0).max(-1.0),
            Channel::S16 => (f64::from(bits as i16) / 32767.0).max(-1.0),
            Channel::Half => F16::to_f64(bits),
            Channel::Float => f32::from_bits(bits).into(),
            Channel::U32 => bits.into(),
            Channel::S32 => (bits as i32).into(),
        }
    }

    /// integer with halves towards zero.
    /// Returns a border colour as a texel of this type stores it: integers' fractions are rounded
    /// down, halves are rounded towards zero.
    /// integer with halves towards zero.
    fn border_float(self, value: f32) -> f64 {
        let value = f64::from(value);
        match self.one() {
            Some(one) if self.is_signed() => (value.clamp(-1.0, 1.0) * one).floor() / one,
            Some(one) => (value.clamp(0.0, 1.0) * one).floor() / one,
            None if self == Channel::Half => F16::to_f64(surface::half_towards_zero(value as f32)),
            None => value,
        }
    }

    /// Returns a border colour as an integer: the low bits of the sampler's, as many as fit.
    fn border_bits(self, value: f32) -> u32 {
        match self {
            Channel::U8 => value.to_bits() & 0xff,
            Channel::U16 => value.to_bits() & 0xffff,
            _ => self.integer(value.to_bits()),
        }
    }

    /// Rounds a filtered sum: to a fraction of 16 bits, or to a half.
    fn filtered(self, sum: f64) -> f64 {
        match self {
            Channel::U8 | Channel::U16 => (sum * 65535.0).round() / 65535.0,
            Channel::S8 | Channel::S16 => (sum * 32767.0).round() / 32767.0,
            Channel::Half => F16::to_f64(F16::from_f64(sum, Rounding::Nearest)),
            _ => sum,
        }
    }

    /// Returns the integer that represents the fraction 1.
    fn one(self) -> Option<f64> {
        match self {
            Channel::U8 => Some(255.0),
            Channel::U16 => Some(65535.0),
            Channel::S8 => Some(127.0),
            Channel::S16 => Some(32767.0),
            _ => None,
        }
    }

    fn is_signed(self) -> bool {
        matches!(self, Channel::S8 | Channel::S16 | Channel::S32)
    }

    /// Returns the answer of `txq.channel_data_type` and `suq.channel_data_type`: OpenCL's numbers.
    pub(crate) fn type_code(self) -> u32 {
        match self {
            Channel::S8 => 0x10d7,
            Channel::S16 => 0x10d8,
            Channel::S32 => 0x10d9,
            Channel::U8 => 0x10da,
            Channel::U16 => 0x10db,
            Channel::U32 => 0x10dc,
            Channel::Half => 0x10dd,
            Channel::Float => 0x10de,
        }
    }

    /// Returns the operation of `sured.p`: the surface's type decides on signedness.
    pub(crate) fn reduction(self, op: AtomOp) -> AtomOp {
        match (self, op) {
            (Channel::S32, AtomOp::MinU) => AtomOp::MinS,
            (Channel::S32, AtomOp::MaxU) => AtomOp::MaxS,
            (_, op) => op,
        }
    }

    fn integer(self, bits: u32) -> u32 {
        match self {
            Channel::S8 => bits as i8 as u32,
            Channel::S16 => bits as i16 as u32,
            Channel::Half => widened(bits),
            _ => bits,
        }
    }
}

/// Widens a half to a float. A NaN keeps all its bits.
fn widened(bits: u32) -> u32 {
    match bits & 0x7fff > 0x7c00 {
        true => (bits & 0x8000) << 16 | 0x7f80_0000 | (bits & 0x3ff) << 13,
        false => (F16::to_f64(bits) as f32).to_bits(),
    }
}

/// Returns the answer of `txq.channel_order` and `suq.channel_order`: OpenCL's numbers.
pub(crate) fn order_code(channels: u32) -> u32 {
    match channels {
        1 => 0x10b0,
        2 => 0x10b2,
        _ => 0x10b5,
    }
}

/// Texels in memory: lines, planes, boxes, or layers of lines or planes. The levels of a mipmap
/// follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Texels {
    pub address: u64,
    pub channel: Channel,
    /// 1, 2 or 4.
    pub channels: u32,
    /// Texels along x, y, z; 1 for a missing dimension.
    pub size: [u64; 3],
    /// 1 to 3, without layers.
    pub dimensions: u32,
    /// Number of layers, if there are any. The six faces of a cube are layers; layered cubes have
    /// six layers each.
    pub layers: Option<u64>,
    pub cube: Cube,
    /// Levels of a mipmap; otherwise 1.
    pub levels: u32,
    /// Pitch of the first level. Other levels have no padding between their rows.
    pub pitch_bytes: u64,
}

/// Whether layers are the faces of cubes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cube {
    No,
    One,
    Layers,
}

impl Texels {
    pub fn texel_bytes(&self) -> u64 {
        u64::from(self.channel.bytes() * self.channels)
    }

    fn slice_bytes(&self) -> u64 {
        self.size[1] * self.pitch_bytes
    }

    /// Returns the bytes of the first level.
    fn level_bytes(&self) -> u64 {
        self.slice_bytes() * self.size[2] * self.layers.unwrap_or(1)
    }

    /// Returns the bytes of all levels; `None` if they exceed any memory. The address does not
    /// matter.
    pub fn bytes(&self) -> Option<u64> {
        let slices = self.size[2].checked_mul(self.layers.unwrap_or(1))?;
        let first = slices
            .checked_mul(self.size[1])?
            .checked_mul(self.pitch_bytes)?;
        // No level is longer than the one before it.
        first.checked_mul(self.levels.into())?;
        let texels = Texels {
            address: 0,
            ..*self
        };
        let last = texels.level(self.levels - 1);
        Some(last.address + last.level_bytes())
    }

    /// Returns the levels from `level` on, which must exist.
    pub fn level(&self, level: u32) -> Texels {
        let mut texels = *self;
        for _ in 0..level {
            texels.address += texels.level_bytes();
            texels.size = texels.size.map(|n| (n / 2).max(1));
            texels.pitch_bytes = texels.size[0] * texels.texel_bytes();
            texels.levels -= 1;
        }
        texels
    }

    /// Returns a range of levels and layers (first and last of each), with texels read as another
    /// type of equal size. `None` if they do not exist, and for some layers of a mipmap, which are
    /// not contiguous.
    pub fn view(
        &self,
        (channel, channels): (Channel, u32),
        levels: [u32; 2],
        layers: [u32; 2],
    ) -> Option<Texels> {
        if levels[1] < levels[0] || levels[1] >= self.levels {
            return None;
        }
        let mut view = self.level(levels[0]);
        view.levels = levels[1] - levels[0] + 1;
        (view.channel, view.channels) = (channel, channels);
        if let Some(all) = self.layers {
            let [first, end] = [u64::from(layers[0]), u64::from(layers[1]) + 1];
            let some = (first, end) != (0, all);
            if first >= end || end > all || some && self.levels > 1 {
                return None;
            }
            view.address += first * view.slice_bytes();
            view.layers = Some(end - first);
        }
        (view.texel_bytes() == self.texel_bytes()).then_some(view)
    }

    /// Returns the address of a texel.
    fn at(&self, [x, y, z]: [u64; 3], layer: u64) -> u64 {
        self.address
            + (z + layer) * self.slice_bytes()
            + y * self.pitch_bytes
            + x * self.texel_bytes()
    }
}

/// The treatment of coordinates outside the texture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressMode {
    Wrap,
    Clamp,
    Mirror,
    Border,
}

/// The settings with which a texture is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    pub address: [AddressMode; 3],
    pub linear: bool,
    /// Whether coordinates run from 0 to 1.
    pub normalised: bool,
    /// Whether integers are returned as integers.
    pub as_integers: bool,
    /// Whether the first three channels of bytes are sRGB.
    pub srgb: bool,
    /// Whether filtering continues across the edges of a cube's faces.
    pub seamless: bool,
    pub border: [f32; 4],
    pub mips: Mips,
}

/// The choice of a mipmap's levels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mips {
    /// Whether two levels are mixed.
    pub linear: bool,
    /// Added to the level of detail.
    pub bias: f32,
    /// The least and the greatest level of detail.
    pub clamp: [f32; 2],
    /// Samples along a longer gradient, at most; 0 and 1 both mean one.
    pub anisotropy: u32,
}

impl Mips {
    /// Settings of a texture with one level.
    pub const NONE: Mips = Mips {
        linear: false,
        bias: 0.0,
        clamp: [0.0; 2],
        anisotropy: 0,
    };
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Texture {
    pub texels: Texels,
    pub sampler: Sampler,
    /// Whether it is linear memory, which is read by index, and is 0 outside.
    pub linear_memory: bool,
}

/// The object that a number in a kernel's register names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    Texture(Texture),
    Surface(Texels),
}

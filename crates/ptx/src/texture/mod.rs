//! Textures and surfaces: what their numbers stand for, and how texels are found, filtered and converted (CUDA C++
//! Programming Guide, "Texture Fetching"; PTX ISA 9.7.10, 9.7.11).
//!
//! Texels are memory, and read when an instruction asks: nothing is cached.

mod cube;
mod levels;
mod plane;
mod quick;
mod sample;
mod surface;

pub(crate) use self::levels::Detail;
pub(crate) use self::quick::{Bytes, Floats, Format, Quick};
pub(crate) use self::sample::{Coordinates, Point};
pub(crate) use self::surface::Place;

use crate::code::{AtomOp, Rounding};
use crate::interp::half::{F16, Half as _};
use crate::memory::{Memory, MemoryError};

/// Memory of an array. Dropping it takes it back: what still reads it faults.
#[derive(Debug)]
pub struct Array {
    memory: Memory,
    address: u64,
}

impl Array {
    /// Zeroed.
    pub fn new(memory: &Memory, bytes: u64) -> Result<Array, MemoryError> {
        Ok(Array {
            address: memory.allocate_internal(bytes, ALIGN)?,
            memory: memory.clone(),
        })
    }

    pub fn address(&self) -> u64 {
        self.address
    }
}

/// What surfaces begin at on a GPU.
const ALIGN: u64 = 512;

impl Drop for Array {
    fn drop(&mut self) {
        self.memory.free_internal(self.address);
    }
}

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

    /// A border's colour as a texel of this type has it: rounded down, halves towards zero.
    fn border_float(self, value: f32) -> f64 {
        let value = f64::from(value);
        match self.one() {
            Some(one) if self.is_signed() => (value.clamp(-1.0, 1.0) * one).floor() / one,
            Some(one) => (value.clamp(0.0, 1.0) * one).floor() / one,
            None if self == Channel::Half => F16::to_f64(surface::half_towards_zero(value as f32)),
            None => value,
        }
    }

    /// As integers: of the bits that the sampler has, those that fit.
    fn border_bits(self, value: f32) -> u32 {
        match self {
            Channel::U8 => value.to_bits() & 0xff,
            Channel::U16 => value.to_bits() & 0xffff,
            _ => self.integer(value.to_bits()),
        }
    }

    /// What is filtered: fractions of 16 bits; halves.
    fn filtered(self, sum: f64) -> f64 {
        match self {
            Channel::U8 | Channel::U16 => (sum * 65535.0).round() / 65535.0,
            Channel::S8 | Channel::S16 => (sum * 32767.0).round() / 32767.0,
            Channel::Half => F16::to_f64(F16::from_f64(sum, Rounding::Nearest)),
            _ => sum,
        }
    }

    /// The integer that is the fraction 1.
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

    /// What `txq.channel_data_type` and `suq.channel_data_type` answer: OpenCL's numbers.
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

    /// `sured.p`: the surface says whether there is a sign.
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

/// A half as a float; of what is not a number all bits are kept.
fn widened(bits: u32) -> u32 {
    match bits & 0x7fff > 0x7c00 {
        true => (bits & 0x8000) << 16 | 0x7f80_0000 | (bits & 0x3ff) << 13,
        false => (F16::to_f64(bits) as f32).to_bits(),
    }
}

/// What `txq.channel_order` and `suq.channel_order` answer: OpenCL's numbers.
pub(crate) fn order_code(channels: u32) -> u32 {
    match channels {
        1 => 0x10b0,
        2 => 0x10b2,
        _ => 0x10b5,
    }
}

/// Texels in memory: lines, planes, boxes, or layers of the first two; the levels of a mipmap one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Texels {
    pub address: u64,
    pub channel: Channel,
    /// 1, 2 or 4.
    pub channels: u32,
    /// Along x, y, z; 1 where there is no such dimension.
    pub size: [u64; 3],
    /// 1 to 3, without layers.
    pub dimensions: u32,
    /// Layers, where it has any. A cube's six faces are layers, each of its layers has six.
    pub layers: Option<u64>,
    pub cube: Cube,
    /// Of a mipmap; 1 of others.
    pub levels: u32,
    /// Of the first level. Others have no gaps between their rows.
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

    /// Of the first level.
    fn level_bytes(&self) -> u64 {
        self.slice_bytes() * self.size[2] * self.layers.unwrap_or(1)
    }

    /// Of all levels; none where that is too much for any memory. The address has no part in it.
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

    /// The levels from one on, which there is.
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

    /// Some levels and layers, the first and the last of each, with texels taken for others of the same size. None where
    /// there are no such, and of some layers of a mipmap, which are not one behind the other.
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

    /// Where a texel's first byte is.
    fn at(&self, [x, y, z]: [u64; 3], layer: u64) -> u64 {
        self.address
            + (z + layer) * self.slice_bytes()
            + y * self.pitch_bytes
            + x * self.texel_bytes()
    }
}

/// What happens to coordinates outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressMode {
    Wrap,
    Clamp,
    Mirror,
    Border,
}

/// How a texture is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    pub address: [AddressMode; 3],
    pub linear: bool,
    /// Coordinates from 0 to 1.
    pub normalised: bool,
    /// Integers stay integers.
    pub as_integers: bool,
    /// The first three channels of bytes are sRGB.
    pub srgb: bool,
    /// Filtering goes on across the edges of a cube's faces.
    pub seamless: bool,
    pub border: [f32; 4],
    pub mips: Mips,
}

/// How levels of a mipmap are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mips {
    /// Between two levels.
    pub linear: bool,
    /// Added to the level of detail.
    pub bias: f32,
    /// The least and the greatest level of detail.
    pub clamp: [f32; 2],
    /// The most samples along a longer gradient; 0 and 1: no more than one.
    pub anisotropy: u32,
}

impl Mips {
    /// Of textures that have one level.
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
    /// Of linear memory: read by index, 0 outside.
    pub linear_memory: bool,
}

/// What a number in a kernel's register stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    Texture(Texture),
    Surface(Texels),
}

//! Textures and surfaces: what their numbers stand for, and how texels are found, filtered and converted (CUDA C++
//! Programming Guide, "Texture Fetching"; PTX ISA 9.7.10, 9.7.11).
//!
//! Filtering: weights have 8 fractional bits, as on a GPU; products are added in double precision and rounded once, where a
//! GPU rounds as it likes. Texels are memory, and read when an instruction asks: nothing is cached.

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

    fn integer(self, bits: u32) -> u32 {
        match self {
            Channel::S8 => bits as i8 as u32,
            Channel::S16 => bits as i16 as u32,
            _ => bits,
        }
    }
}

/// Texels in memory: lines, planes, boxes, or layers of the first two.
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
    /// Layers, where it has any.
    pub layers: Option<u64>,
    pub pitch_bytes: u64,
}

impl Texels {
    pub fn texel_bytes(&self) -> u64 {
        u64::from(self.channel.bytes() * self.channels)
    }

    fn slice_bytes(&self) -> u64 {
        self.size[1] * self.pitch_bytes
    }

    /// Where a texel's first byte is.
    fn at(&self, [x, y, z]: [u64; 3], layer: u64) -> u64 {
        self.address
            + (z + layer) * self.slice_bytes()
            + y * self.pitch_bytes
            + x * self.texel_bytes()
    }

    /// The byte that an instruction names by its offset in a row, row, slice and layer; none outside. `clamp`: the nearest
    /// one that is inside.
    pub(crate) fn place(&self, place: &Place, bytes: u64, clamp: bool) -> Option<u64> {
        let row_bytes = self.size[0] * self.texel_bytes();
        let last = [
            row_bytes.checked_sub(bytes)?,
            self.size[1] - 1,
            self.size[2] - 1,
        ];
        let mut found = [0; 3];
        for axis in 0..3 {
            let wanted = i64::from(place.at[axis]);
            let inside = wanted.clamp(0, last[axis] as i64);
            if inside != wanted && !clamp {
                return None;
            }
            found[axis] = inside as u64;
        }
        let layer_max = self.layers.unwrap_or(1) - 1;
        let layer = u64::from(place.layer).min(layer_max);
        if layer != u64::from(place.layer) && !clamp {
            return None;
        }
        let [x, y, z] = found;
        let row = (z + layer) * self.size[1] + y;
        Some(self.address + row * self.pitch_bytes + x)
    }
}

/// Where a surface instruction wants to go: x in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) at: [i32; 3],
    pub(crate) layer: u32,
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
    pub border: [f32; 4],
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

/// Where a texture instruction looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) at: Coordinates,
    pub(crate) layer: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Coordinates {
    Floats([f32; 3]),
    /// Of texels.
    Integers([i32; 3]),
}

/// Texels next to a coordinate along an axis: their numbers, none for the border, and the weight of the second.
#[derive(Clone, Copy)]
struct Span {
    texels: [Option<u64>; 2],
    weight: f64,
}

const ONE: Span = Span {
    texels: [Some(0), None],
    weight: 0.0,
};

impl Texture {
    /// Four channels, as registers hold them. `read` gives bytes of memory.
    pub(crate) fn sample<E>(
        &self,
        point: &Point,
        read: &mut impl FnMut(u64, u32) -> Result<u32, E>,
    ) -> Result<[u32; 4], E> {
        let spans = self.spans(point, self.sampler.linear);
        let layer = self.layer(point.layer);
        if !self.sampler.linear || matches!(point.at, Coordinates::Integers(_)) {
            let [x, y, z] = spans.map(|span| span.texels[0]);
            return self.texel(x, y, z, layer, read);
        }
        let mut sums = [0.0; 4];
        for corner in 0..8usize {
            let side = |axis: usize| corner >> axis & 1;
            let weight: f64 = (0..3)
                .map(|axis| match side(axis) {
                    0 => 1.0 - spans[axis].weight,
                    _ => spans[axis].weight,
                })
                .product();
            // What does not count is not read: it may be infinite.
            if weight != 0.0 {
                let [x, y, z] = [0, 1, 2].map(|axis| spans[axis].texels[side(axis)]);
                let texel = self.floats(x, y, z, layer, read)?;
                for (sum, value) in sums.iter_mut().zip(texel) {
                    *sum += weight * value;
                }
            }
        }
        Ok(sums.map(|sum| (sum as f32).to_bits()))
    }

    /// One channel of the four texels that filtering would look at: from the lower left, against the clock, y downwards.
    pub(crate) fn gather<E>(
        &self,
        point: &Point,
        channel: usize,
        read: &mut impl FnMut(u64, u32) -> Result<u32, E>,
    ) -> Result<[u32; 4], E> {
        let [x, y, z] = self.spans(point, true);
        let layer = self.layer(point.layer);
        let mut out = [0; 4];
        for (i, (side_x, side_y)) in [(0, 1), (1, 1), (1, 0), (0, 0)].into_iter().enumerate() {
            let (x, y) = (x.texels[side_x], y.texels[side_y]);
            out[i] = self.texel(x, y, z.texels[0], layer, read)?[channel];
        }
        Ok(out)
    }

    fn layer(&self, layer: u32) -> u64 {
        u64::from(layer).min(self.texels.layers.unwrap_or(1).saturating_sub(1))
    }

    fn spans(&self, point: &Point, linear: bool) -> [Span; 3] {
        let mut spans = [ONE; 3];
        for (axis, span) in spans.iter_mut().enumerate() {
            if axis < self.texels.dimensions as usize {
                *span = match point.at {
                    Coordinates::Floats(at) => self.span(axis, at[axis], linear),
                    Coordinates::Integers(at) => Span {
                        texels: [self.texel_at(axis, at[axis].into()), None],
                        weight: 0.0,
                    },
                };
            }
        }
        spans
    }

    fn span(&self, axis: usize, coordinate: f32, linear: bool) -> Span {
        let count = self.texels.size[axis] as f64;
        let at = f64::from(coordinate);
        let at = match (self.sampler.normalised, self.sampler.address[axis]) {
            (false, _) => at,
            (true, AddressMode::Wrap) => (at - at.floor()) * count,
            (true, AddressMode::Mirror) => {
                let fraction = at - at.floor();
                match at.floor() % 2.0 == 0.0 {
                    true => fraction * count,
                    false => (1.0 - fraction) * count,
                }
            }
            (true, _) => at * count,
        };
        if !linear {
            return Span {
                texels: [self.texel_at(axis, at.floor() as i64), None],
                weight: 0.0,
            };
        }
        let before = at - 0.5;
        let first = before.floor();
        let weight = ((before - first) * 256.0).round() / 256.0;
        let first = first as i64;
        Span {
            texels: [
                self.texel_at(axis, first),
                self.texel_at(axis, first.saturating_add(1)),
            ],
            // Nothing is between texels where there is no coordinate: not a number, or infinite.
            weight: if weight.is_nan() { 0.0 } else { weight },
        }
    }

    /// A texel by its number, none for the border.
    fn texel_at(&self, axis: usize, index: i64) -> Option<u64> {
        let count = self.texels.size[axis] as i64;
        let inside = (0..count).contains(&index);
        let mode = match self.linear_memory {
            true => AddressMode::Border,
            false => self.sampler.address[axis],
        };
        match mode {
            _ if inside => Some(index as u64),
            AddressMode::Border => None,
            AddressMode::Wrap if self.sampler.normalised => Some(index.rem_euclid(count) as u64),
            _ => Some(index.clamp(0, count - 1) as u64),
        }
    }

    /// A texel as registers hold it.
    fn texel<E>(
        &self,
        x: Option<u64>,
        y: Option<u64>,
        z: Option<u64>,
        layer: u64,
        read: &mut impl FnMut(u64, u32) -> Result<u32, E>,
    ) -> Result<[u32; 4], E> {
        let channel = self.texels.channel;
        let as_float =
            channel == Channel::Half || channel.is_fraction() && !self.sampler.as_integers;
        if as_float {
            let texel = self.floats(x, y, z, layer, read)?;
            return Ok(texel.map(|value| (value as f32).to_bits()));
        }
        // As they are, not-a-numbers too.
        let (one, border) = match channel {
            Channel::Float if self.linear_memory => (1f32.to_bits(), [0; 4]),
            Channel::Float => (1f32.to_bits(), self.sampler.border.map(f32::to_bits)),
            _ => (1, [0; 4]),
        };
        let Some(at) = corner(x, y, z).map(|at| self.texels.at(at, layer)) else {
            return Ok(border);
        };
        let mut out = [0, 0, 0, one];
        for i in 0..self.texels.channels {
            out[i as usize] =
                channel.integer(read(at + u64::from(i * channel.bytes()), channel.bytes())?);
        }
        Ok(out)
    }

    fn floats<E>(
        &self,
        x: Option<u64>,
        y: Option<u64>,
        z: Option<u64>,
        layer: u64,
        read: &mut impl FnMut(u64, u32) -> Result<u32, E>,
    ) -> Result<[f64; 4], E> {
        let channel = self.texels.channel;
        let Some(at) = corner(x, y, z).map(|at| self.texels.at(at, layer)) else {
            return Ok(match self.linear_memory {
                true => [0.0; 4],
                false => self.sampler.border.map(f64::from),
            });
        };
        let mut out = [0.0, 0.0, 0.0, 1.0];
        for i in 0..self.texels.channels {
            out[i as usize] =
                channel.float(read(at + u64::from(i * channel.bytes()), channel.bytes())?);
        }
        Ok(out)
    }
}

fn corner(x: Option<u64>, y: Option<u64>, z: Option<u64>) -> Option<[u64; 3]> {
    Some([x?, y?, z?])
}

//! Fast path of `tex`: textures of one level that is mapped as a whole, with what all lanes share
//! computed once per instruction. Results equal those of `sample.rs` to the bit; all other cases go
//! there.

use super::sample::{NEAR, ONE_WEIGHT, first_of_two, floor, floor_near, in_steps, plane, weights};
use super::{AddressMode, Channel, Cube, Texture};

/// A texture whose texels need no further checks.
pub(crate) struct Quick<'t> {
    texture: &'t Texture,
    axes: [Axis; 3],
    /// Distance between neighbours along x, y and z, in bytes.
    strides: [u64; 3],
    /// Number of the last layer.
    layer_last: u64,
    channels: usize,
    /// Register value of a texel outside, when points are read.
    outside: [u32; 4],
    /// Value of a texel outside, when filtering.
    border: [f64; 4],
    /// Whether reads of points return fractions for integer types.
    fractions: bool,
    /// Whether every read returns 0: integer coordinates with a line that is not linear memory.
    is_empty: bool,
}

/// Settings for coordinates along an axis.
struct Axis {
    used: bool,
    count: u64,
    n: f64,
    normalised: bool,
    clamps: bool,
    /// Number of steps of a normalised coordinate (its fractional bits), and the length of a step.
    steps: f64,
    step: f64,
}

/// Number that stands for a texel outside.
const BORDER: u64 = u64::MAX;

/// Numbers of the texels next to a coordinate, or [`BORDER`], and the weight of the second.
type Pair = ([u64; 2], i32);

/// A channel's type, known at compile time for the commonest ones.
pub(crate) trait Format: Copy {
    fn channel(self) -> Channel;
}

#[derive(Clone, Copy)]
pub(crate) struct Floats;

#[derive(Clone, Copy)]
pub(crate) struct Bytes;

impl Format for Floats {
    #[inline(always)]
    fn channel(self) -> Channel {
        Channel::Float
    }
}

impl Format for Bytes {
    #[inline(always)]
    fn channel(self) -> Channel {
        Channel::U8
    }
}

impl Format for Channel {
    #[inline(always)]
    fn channel(self) -> Channel {
        self
    }
}

impl Texture {
    /// Returns the fast path, if there is one for coordinates of this kind. `mapped` returns the
    /// range of memory that holds an address.
    pub(crate) fn quick(
        &self,
        by_number: bool,
        mapped: impl FnOnce(u64) -> Option<(u64, u64)>,
    ) -> Option<Quick<'_>> {
        let texels = &self.texels;
        let general = texels.levels != 1
            || texels.cube != Cube::No
            || self.sampler.srgb
            || self.linear_memory && !by_number
            || texels.size.contains(&0);
        if general || !self.is_readable(mapped) {
            return None;
        }
        let is_line = texels.dimensions == 1 && texels.layers.is_none();
        let rows_of_lines = self.sampler.linear && is_line && !by_number;
        let fractions = texels.channel.is_fraction() && !self.sampler.as_integers;
        Some(Quick {
            axes: [0, 1, 2].map(|axis| {
                let used = axis < texels.dimensions as usize || rows_of_lines && axis == 1;
                Axis::new(self, axis, used)
            }),
            strides: [
                texels.texel_bytes(),
                texels.pitch_bytes,
                texels.slice_bytes(),
            ],
            layer_last: texels.layers.map_or(0, |layers| layers.saturating_sub(1)),
            channels: texels.channels as usize,
            outside: match fractions || texels.channel == Channel::Half {
                true => self.border_floats().map(|value| (value as f32).to_bits()),
                false => self.border_words(),
            },
            border: self.border_floats(),
            fractions,
            is_empty: by_number && is_line && !self.linear_memory,
            texture: self,
        })
    }

    /// Whether all texels lie in one mapped range, aligned for their channels.
    fn is_readable(&self, mapped: impl FnOnce(u64) -> Option<(u64, u64)>) -> bool {
        let texels = &self.texels;
        let bytes = u64::from(texels.channel.bytes());
        let is_aligned = (texels.address | texels.pitch_bytes).is_multiple_of(bytes);
        // The pitch may extend beyond the end of the last row.
        let row = texels.size[0].checked_mul(texels.texel_bytes());
        let all = texels
            .bytes()
            .zip(row)
            .and_then(|(all, row)| all.checked_sub(texels.pitch_bytes)?.checked_add(row));
        let (Some(all), Some((_, end))) = (all, mapped(texels.address)) else {
            return false;
        };
        is_aligned && all <= end - texels.address
    }
}

impl Axis {
    fn new(texture: &Texture, axis: usize, used: bool) -> Axis {
        let count = texture.texels.size[axis];
        let bits = if count.is_power_of_two() { 22 } else { 21 };
        let normalised = texture.sampler.normalised;
        Axis {
            used,
            count,
            n: count as f64,
            normalised,
            clamps: match texture.sampler.address[axis] {
                AddressMode::Clamp => true,
                AddressMode::Border => false,
                AddressMode::Wrap | AddressMode::Mirror => !normalised,
            } && !texture.linear_memory,
            steps: f64::from(1 << bits),
            step: 1.0 / f64::from(1 << bits),
        }
    }
}

impl Quick<'_> {
    pub(crate) fn is_linear(&self) -> bool {
        self.texture.sampler.linear
    }

    #[inline(always)]
    pub(crate) fn layer(&self, layer: u32) -> u64 {
        u64::from(layer).min(self.layer_last)
    }

    /// Returns the texel at a number along each axis; 0 outside.
    #[inline(always)]
    pub(crate) fn numbered<F: Format>(
        &self,
        format: F,
        at: [i32; 3],
        offset: [i32; 3],
        layer: u32,
    ) -> [u32; 4] {
        let mut texel = [0; 3];
        let beyond = self.texture.texels.layers.is_some() && u64::from(layer) > self.layer_last;
        if self.is_empty || beyond {
            return [0; 4];
        }
        for axis in 0..3 {
            if self.axes[axis].used {
                let index = i64::from(at[axis]) + i64::from(offset[axis]);
                match u64::try_from(index) {
                    Ok(index) if index < self.axes[axis].count => texel[axis] = index,
                    _ => return [0; 4],
                }
            }
        }
        self.words(format, self.address(texel, self.layer(layer)))
    }

    /// Returns the texel that contains a point.
    #[inline(always)]
    pub(crate) fn nearest<F: Format>(
        &self,
        format: F,
        at: [f32; 3],
        offset: [i32; 3],
        layer: u64,
    ) -> [u32; 4] {
        let mut texel = [0; 3];
        for axis in 0..3 {
            if self.axes[axis].used {
                let position = self.position(axis, at[axis]);
                texel[axis] = self.nearest_texel(axis, position, offset[axis]);
                if texel[axis] == BORDER {
                    return self.outside;
                }
            }
        }
        self.words(format, self.address(texel, layer))
    }

    /// Returns the filtered value of the texels around a point.
    #[inline(always)]
    pub(crate) fn filtered<F: Format>(
        &self,
        format: F,
        at: [f32; 3],
        offset: [i32; 3],
        layer: u64,
    ) -> [u32; 4] {
        let x = self.pair(0, at[0], offset[0]);
        let y = self.pair(1, at[1], offset[1]);
        let mut sums = [0.0; 4];
        if self.axes[2].used {
            let z = self.pair(2, at[2], offset[2]);
            let weights = weights(ONE_WEIGHT, [x.1, y.1, z.1]);
            for (corner, weight) in weights.into_iter().enumerate() {
                let texel = [x.0[corner & 1], y.0[corner >> 1 & 1], z.0[corner >> 2]];
                self.add(format, texel, layer, weight, &mut sums);
            }
        } else {
            let weights = plane(ONE_WEIGHT, x.1, y.1);
            // Numbers of texels are far below `BORDER`.
            if x.0[0] | x.0[1] | y.0[0] | y.0[1] != BORDER {
                return match self.channels {
                    1 => self.corners::<F, 1>(format, x.0, y.0, layer, weights),
                    2 => self.corners::<F, 2>(format, x.0, y.0, layer, weights),
                    _ => self.corners::<F, 4>(format, x.0, y.0, layer, weights),
                };
            }
            for (corner, weight) in weights.into_iter().enumerate() {
                let texel = [x.0[corner & 1], y.0[corner >> 1], 0];
                self.add(format, texel, layer, weight, &mut sums);
            }
        }
        let mut out = [0; 4];
        for (out, sum) in out.iter_mut().zip(sums).take(self.channels) {
            *out = (rounded(format.channel(), sum) as f32).to_bits();
        }
        out
    }

    /// Filters four texels of a plane, none of them outside, with `N` channels.
    #[inline(always)]
    fn corners<F: Format, const N: usize>(
        &self,
        format: F,
        columns: [u64; 2],
        rows: [u64; 2],
        layer: u64,
        weights: [i32; 4],
    ) -> [u32; 4] {
        let [column, row, slice] = self.strides;
        let base = self.texture.texels.address + layer * slice;
        let rows = [base + rows[0] * row, base + rows[1] * row];
        let columns = [columns[0] * column, columns[1] * column];
        let channel = format.channel();
        let mut sums = [0.0; N];
        for (corner, weight) in weights.into_iter().enumerate() {
            // A texel of weight 0 is not read, because it may be infinite.
            if weight == 0 {
                continue;
            }
            let weight = f64::from(weight) * (1.0 / ONE_WEIGHT as f64);
            let at = rows[corner >> 1] + columns[corner & 1];
            for (i, sum) in (0..).zip(&mut sums) {
                let bits = read(at + i * u64::from(channel.bytes()), channel);
                *sum += weight * exact(channel, bits);
            }
        }
        let mut out = [0; 4];
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = (rounded(channel, sum) as f32).to_bits();
        }
        out
    }

    #[inline(always)]
    fn add<F: Format>(
        &self,
        format: F,
        texel: [u64; 3],
        layer: u64,
        weight: i32,
        sums: &mut [f64; 4],
    ) {
        // A texel of weight 0 is not read, because it may be infinite.
        if weight == 0 {
            return;
        }
        let weight = f64::from(weight) * (1.0 / ONE_WEIGHT as f64);
        if texel.contains(&BORDER) {
            for (sum, value) in sums.iter_mut().zip(self.border) {
                *sum += weight * value;
            }
            return;
        }
        let at = self.address(texel, layer);
        let channel = format.channel();
        for (i, sum) in (0..).zip(&mut sums[..self.channels]) {
            let bits = read(at + i * u64::from(channel.bytes()), channel);
            *sum += weight * exact(channel, bits);
        }
    }

    /// Returns a coordinate in units of texels.
    #[inline(always)]
    fn position(&self, axis: usize, coordinate: f32) -> f64 {
        let of = &self.axes[axis];
        if !coordinate.is_normal() && !coordinate.is_infinite() {
            return 0.0;
        }
        if !of.normalised {
            return coordinate.into();
        }
        let fixed = floor(f64::from(coordinate) * of.steps) * of.step;
        self.texture.turned(axis, fixed) * of.n
    }

    #[inline(always)]
    fn nearest_texel(&self, axis: usize, position: f64, offset: i32) -> u64 {
        let of = &self.axes[axis];
        if position.abs() < NEAR {
            let index = floor_near(position) + i64::from(offset);
            if (index as u64) < of.count {
                return index as u64;
            }
            if of.clamps {
                return index.clamp(0, of.count as i64 - 1) as u64;
            }
        }
        self.texel(axis, floor(position) + f64::from(offset))
    }

    /// Returns the texel at a whole number, or [`BORDER`].
    #[cold]
    fn texel(&self, axis: usize, index: f64) -> u64 {
        let of = &self.axes[axis];
        if (0.0..of.n).contains(&index) {
            return index as i64 as u64;
        }
        if of.clamps {
            return index.clamp(0.0, of.n - 1.0) as u64;
        }
        let texel = self.texture.texel_at(of.count, axis, index, of.normalised);
        texel.unwrap_or(BORDER)
    }

    #[inline(always)]
    fn pair(&self, axis: usize, coordinate: f32, offset: i32) -> Pair {
        let of = &self.axes[axis];
        if !of.used {
            return ([0; 2], 0);
        }
        let position = self.position(axis, coordinate);
        let steps = in_steps(position);
        if steps.abs() < NEAR {
            let steps = floor_near(steps);
            let (first, weight) = ((steps >> 8) + i64::from(offset), (steps & 0xff) as i32);
            let last = of.count - 1;
            // A negative number is large here.
            if (first as u64) < last {
                return ([first as u64, first as u64 + 1], weight);
            }
            if of.clamps {
                let clamped = |i: i64| i.clamp(0, last as i64) as u64;
                return ([clamped(first), clamped(first + 1)], weight);
            }
        }
        self.far_pair(axis, position, offset)
    }

    /// Computes [`Quick::pair`] for coordinates outside, infinite or NaN.
    #[cold]
    fn far_pair(&self, axis: usize, position: f64, offset: i32) -> Pair {
        let (first, weight) = first_of_two(position);
        let first = first + f64::from(offset);
        ([first, first + 1.0].map(|i| self.texel(axis, i)), weight)
    }

    #[inline(always)]
    fn address(&self, [x, y, z]: [u64; 3], layer: u64) -> u64 {
        let [column, row, slice] = self.strides;
        self.texture.texels.address + (z + layer) * slice + y * row + x * column
    }

    /// Returns a texel as register values.
    #[inline(always)]
    fn words<F: Format>(&self, format: F, at: u64) -> [u32; 4] {
        let channel = format.channel();
        let mut out = [0; 4];
        for (i, out) in (0..).zip(&mut out[..self.channels]) {
            let bits = read(at + i * u64::from(channel.bytes()), channel);
            *out = match self.fractions {
                true => (exact(channel, bits) as f32).to_bits(),
                false => channel.integer(bits),
            };
        }
        out
    }
}

/// Reads a channel's bits, zero-extended.
#[inline(always)]
fn read(at: u64, channel: Channel) -> u32 {
    use crate::words::{read8, read16, read32};
    match channel.bytes() {
        1 => read8(at).into(),
        2 => read16(at).into(),
        _ => read32(at),
    }
}

/// Computes [`Channel::float`], with the commonest type visible to the compiler.
#[inline(always)]
fn exact(channel: Channel, bits: u32) -> f64 {
    match channel {
        Channel::Float => f32::from_bits(bits).into(),
        channel => channel.float(bits),
    }
}

/// Computes [`Channel::filtered`], without a function call for fractions.
#[inline(always)]
fn rounded(channel: Channel, sum: f64) -> f64 {
    match channel {
        Channel::Float => sum,
        Channel::U8 | Channel::U16 => round(sum * 65535.0) / 65535.0,
        channel => channel.filtered(sum),
    }
}

/// Computes [`f64::round`], which is a function call unless the host has more than plain x86-64.
#[inline(always)]
fn round(value: f64) -> f64 {
    if !(0.0..NEAR).contains(&value) {
        return value.round();
    }
    let cut = value as i64 as f64;
    (cut + f64::from(u8::from(value - cut >= 0.5))).copysign(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_that_of_the_language() {
        let halves = (0..2000u32).map(|i| f64::from(i) / 8.0);
        let next = |x: f64| [x, x.next_up(), x.next_down()];
        for value in halves.flat_map(next).chain([-0.0, -1.5, 1e300, f64::NAN]) {
            assert_eq!(round(value).to_bits(), value.round().to_bits(), "{value:e}");
        }
    }
}

//! Texels next to coordinates, filtered. Weights have 8 fractional bits, as on a GPU.

use super::cube::Face;
use super::levels::Levels;
use super::point::{Coordinates, Point};
use super::{AddressMode, Channel, Cube, Texels, Texture};

/// The two texels next to a coordinate along an axis: their numbers, `None` for the border, and the
/// weight of the second in units of 1/[`ONE_WEIGHT`].
#[derive(Clone, Copy)]
struct Span {
    texels: [Option<u64>; 2],
    weight: i32,
}

pub(super) const ONE_WEIGHT: i32 = 256;

const ONE: Span = Span {
    texels: [Some(0), None],
    weight: 0,
};

/// A position in the texture; for cubes, on a face.
#[derive(Clone, Copy)]
pub(super) struct TexturePosition {
    pub(super) at: Coordinates,
    pub(super) offset: [i32; 3],
    pub(super) layer: u64,
    pub(super) face: Option<Face>,
}

/// Reads bytes of memory.
pub(crate) trait Read<E>: FnMut(u64, u32) -> Result<u32, E> {}

impl<E, F: FnMut(u64, u32) -> Result<u32, E>> Read<E> for F {}

impl Texture {
    /// Returns four channels as register values.
    pub(crate) fn sample<E>(&self, point: &Point, read: &mut impl Read<E>) -> Result<[u32; 4], E> {
        let spot = self.spot(point);
        let by_number = matches!(point.at, Coordinates::Integers(_));
        if self.linear_memory && !by_number {
            return Ok([0; 4]);
        }
        if self.texels.levels == 1 && !by_number {
            // With one level there is nothing to choose.
            return match self.sampler.linear {
                true => {
                    if let Some(sums) = self.on_plane(&spot, read)? {
                        return Ok(self.rounded(sums));
                    }
                    let sums = self.filtered(&self.texels, &spot, ONE_WEIGHT, read)?;
                    Ok(self.rounded(sums))
                }
                false => self.nearest(&self.texels, &spot, read),
            };
        }
        let levels = Levels::of(self, point);
        let blended = levels.weight != 0;
        if by_number {
            // Integer coordinates have no border, and their lines are linear memory (`tex1Dfetch`).
            let at = self
                .spans(&levels.first, &spot, false)
                .map(|span| span.texels[0]);
            let lines = self.is_line();
            let beyond = u64::from(point.layer) >= self.texels.layers.unwrap_or(u64::MAX);
            return match corner(at) {
                Some(_) if (self.linear_memory || !lines) && !beyond => {
                    self.texel(&levels.first, at, spot.layer, read)
                }
                _ => Ok([0; 4]),
            };
        }
        if !self.sampler.linear && !blended {
            return self.nearest(&levels.first, &spot, read);
        }
        let mut sums = self.filtered(&levels.first, &spot, ONE_WEIGHT - levels.weight, read)?;
        if blended {
            let more = self.filtered(&levels.second, &spot, levels.weight, read)?;
            for (sum, more) in sums.iter_mut().zip(more) {
                *sum += more;
            }
        }
        Ok(self.rounded(sums))
    }

    /// Rounds filtered sums to register values.
    #[inline(always)]
    fn rounded(&self, sums: [f64; 4]) -> [u32; 4] {
        let Texels {
            channel, channels, ..
        } = self.texels;
        let mut out = [0; 4];
        for (out, sum) in out.iter_mut().zip(sums).take(channels as usize) {
            *out = (channel.filtered(sum) as f32).to_bits();
        }
        // Other channels are 0; the border's are, too.
        out
    }

    /// Returns one channel of the four texels that filtering would read: counter-clockwise from the
    /// lower left, with y pointing down.
    pub(crate) fn gather<E>(
        &self,
        point: &Point,
        channel: usize,
        read: &mut impl Read<E>,
    ) -> Result<[u32; 4], E> {
        let spot = self.spot(point);
        let texels = self.texels.level(0);
        let [x, y, _] = self.spans(&texels, &spot, true);
        let mut out = [0; 4];
        for (i, (side_x, side_y)) in [(0, 1), (1, 1), (1, 0), (0, 0)].into_iter().enumerate() {
            let at = [x.texels[side_x], y.texels[side_y], Some(0)];
            out[i] = self.texel(&texels, at, spot.layer, read)?[channel];
        }
        Ok(out)
    }

    #[inline(always)]
    fn spot(&self, point: &Point) -> TexturePosition {
        let layers = self.texels.layers.unwrap_or(1);
        let layer_of = |faces: u64| u64::from(point.layer).min((layers / faces).saturating_sub(1));
        let (Coordinates::Floats(at), true) = (point.at, self.texels.cube != Cube::No) else {
            return TexturePosition {
                at: point.at,
                offset: point.offset,
                layer: layer_of(1),
                face: None,
            };
        };
        let (face, [s, t]) = Face::of(at);
        TexturePosition {
            at: Coordinates::Floats([s, t, 0.0]),
            offset: [0; 3],
            layer: layer_of(6) * 6 + face.number(),
            face: Some(face),
        }
    }

    fn nearest<E>(
        &self,
        texels: &Texels,
        spot: &TexturePosition,
        read: &mut impl Read<E>,
    ) -> Result<[u32; 4], E> {
        let at = self.spans(texels, spot, false).map(|span| span.texels[0]);
        self.texel(texels, at, spot.layer, read)
    }

    /// Returns the filtered value of one level, times its weight `part`.
    fn filtered<E>(
        &self,
        texels: &Texels,
        spot: &TexturePosition,
        part: i32,
        read: &mut impl Read<E>,
    ) -> Result<[f64; 4], E> {
        if let (Some(face), true, true) = (spot.face, self.sampler.linear, self.sampler.seamless) {
            return self.across(face, texels, spot, part, read);
        }
        let spans = self.spans(texels, spot, self.sampler.linear);
        let mut sums = [0.0; 4];
        let weights = weights(part, spans.map(|span| span.weight));
        for (corner, weight) in weights.into_iter().enumerate() {
            // A texel of weight 0 is not read, because it may be infinite.
            if weight != 0 {
                let at = [0, 1, 2].map(|axis| spans[axis].texels[corner >> axis & 1]);
                let texel = self.floats(texels, at, spot.layer, read)?;
                let weight = f64::from(weight) / f64::from(ONE_WEIGHT);
                for (sum, value) in sums.iter_mut().zip(texel) {
                    *sum += weight * value;
                }
            }
        }
        Ok(sums)
    }

    /// Filters across the faces of a cube. At a corner only three faces meet; the missing fourth
    /// texel is the mean of the others.
    fn across<E>(
        &self,
        face: Face,
        texels: &Texels,
        spot: &TexturePosition,
        part: i32,
        read: &mut impl Read<E>,
    ) -> Result<[f64; 4], E> {
        let Coordinates::Floats([s, t, _]) = spot.at else {
            return Ok([0.0; 4]);
        };
        let n = texels.size[0];
        let sides = [s, t].map(|c| first_of_two(fixed(c, n) * n as f64));
        let weights = plane(part, sides[0].1, sides[1].1);
        let first_face = spot.layer - face.number();
        let (mut sums, mut around, mut missing) = ([0.0; 4], [0.0; 4], 0.0);
        for (corner, weight) in weights.into_iter().enumerate() {
            let side = [corner & 1, corner >> 1];
            let at = [0, 1].map(|axis| sides[axis].0 + side[axis] as f64);
            let weight = f64::from(weight) / f64::from(ONE_WEIGHT);
            let outside = at.map(|i| !(0.0..n as f64).contains(&i));
            let (layer, [x, y]) = match outside {
                [true, true] => {
                    missing = weight;
                    continue;
                }
                [false, false] => (spot.layer, at.map(|i| i as u64)),
                _ => {
                    let (next, at) = face.neighbour(at, n);
                    (first_face + next.number(), at)
                }
            };
            let texel = self.floats(texels, [Some(x), Some(y), Some(0)], layer, read)?;
            for (i, value) in texel.into_iter().enumerate() {
                sums[i] += if weight == 0.0 { 0.0 } else { weight * value };
                around[i] += value / 3.0;
            }
        }
        if missing != 0.0 {
            for (sum, mean) in sums.iter_mut().zip(around) {
                *sum += missing * mean;
            }
        }
        Ok(sums)
    }

    /// Whether it is a line without layers, which a GPU treats as a plane of one row, read at its
    /// upper edge.
    fn is_line(&self) -> bool {
        self.texels.dimensions == 1 && self.texels.layers.is_none()
    }

    fn spans(&self, texels: &Texels, spot: &TexturePosition, linear: bool) -> [Span; 3] {
        let mut spans = [ONE; 3];
        let row = linear && self.is_line();
        for (axis, span) in spans.iter_mut().enumerate() {
            if axis < texels.dimensions as usize || row && axis == 1 {
                let offset = i64::from(spot.offset[axis]);
                *span = match spot.at {
                    Coordinates::Floats(at) => {
                        let normalised = self.sampler.normalised || spot.face.is_some();
                        self.span(
                            texels.size[axis],
                            axis,
                            at[axis],
                            offset,
                            normalised,
                            linear,
                        )
                    }
                    Coordinates::Integers(at) => {
                        let index = i64::from(at[axis]) + offset;
                        let inside = u64::try_from(index).ok();
                        Span {
                            texels: [inside.filter(|i| *i < texels.size[axis]), None],
                            weight: 0,
                        }
                    }
                };
            }
        }
        spans
    }

    fn span(
        &self,
        count: u64,
        axis: usize,
        coordinate: f32,
        offset: i64,
        normalised: bool,
        linear: bool,
    ) -> Span {
        let at = self.position(axis, coordinate, count, normalised);
        let offset = offset as f64;
        if !linear {
            let index = floor(at) + offset;
            return Span {
                texels: [self.texel_at(count, axis, index, normalised), None],
                weight: 0,
            };
        }
        let (first, weight) = first_of_two(at);
        Span {
            texels: [
                self.texel_at(count, axis, first + offset, normalised),
                self.texel_at(count, axis, first + offset + 1.0, normalised),
            ],
            weight,
        }
    }

    /// Returns a coordinate in units of texels.
    #[inline(always)]
    pub(super) fn position(
        &self,
        axis: usize,
        coordinate: f32,
        count: u64,
        normalised: bool,
    ) -> f64 {
        match normalised {
            // Subnormal coordinates count as 0, and so does NaN.
            _ if !coordinate.is_normal() && !coordinate.is_infinite() => 0.0,
            true => self.turned(axis, fixed(coordinate, count)) * count as f64,
            false => coordinate.into(),
        }
    }

    /// Removes whole periods from a coordinate of a repeating texture; nothing is left of an
    /// infinite one.
    #[inline(always)]
    pub(super) fn turned(&self, axis: usize, at: f64) -> f64 {
        match self.sampler.address[axis] {
            AddressMode::Wrap | AddressMode::Mirror if (0.0..2.0).contains(&at) => at,
            AddressMode::Wrap | AddressMode::Mirror if at.is_finite() => at.rem_euclid(2.0),
            AddressMode::Wrap | AddressMode::Mirror => 0.0,
            _ => at,
        }
    }

    /// Returns the texel at a whole number, or `None` for the border.
    pub(super) fn texel_at(
        &self,
        count: u64,
        axis: usize,
        index: f64,
        normalised: bool,
    ) -> Option<u64> {
        let n = count as f64;
        let mode = match self.linear_memory {
            true => AddressMode::Border,
            false => self.sampler.address[axis],
        };
        match mode {
            _ if (0.0..n).contains(&index) => Some(index as u64),
            AddressMode::Border => None,
            AddressMode::Wrap if normalised && index == -1.0 => Some(count - 1),
            AddressMode::Wrap if normalised && index >= n && index < 2.0 * n => {
                Some((index - n) as u64)
            }
            AddressMode::Wrap if normalised => Some(index.rem_euclid(n) as u64),
            AddressMode::Mirror if normalised => {
                let folded = index.rem_euclid(2.0 * n);
                Some(folded.min(2.0 * n - 1.0 - folded) as u64)
            }
            _ => Some(index.clamp(0.0, n - 1.0) as u64),
        }
    }

    fn gives_floats(&self) -> bool {
        let channel = self.texels.channel;
        channel == Channel::Half || channel.is_fraction() && !self.sampler.as_integers
    }

    /// Returns the border as register values. Channels that the format lacks are 0.
    pub(super) fn border_words(&self) -> [u32; 4] {
        let texels = &self.texels;
        let border = self.sampler.border;
        std::array::from_fn(
            |i| match self.linear_memory || i >= texels.channels as usize {
                true => 0,
                false => texels.channel.border_bits(border[i]),
            },
        )
    }

    pub(super) fn border_floats(&self) -> [f64; 4] {
        let texels = &self.texels;
        let border = self.sampler.border;
        std::array::from_fn(
            |i| match self.linear_memory || i >= texels.channels as usize {
                true => 0.0,
                false => texels.channel.border_float(border[i]),
            },
        )
    }

    /// Returns a texel as register values.
    fn texel<E>(
        &self,
        texels: &Texels,
        at: [Option<u64>; 3],
        layer: u64,
        read: &mut impl Read<E>,
    ) -> Result<[u32; 4], E> {
        let channel = texels.channel;
        let fractions = self.gives_floats();
        if fractions && (channel != Channel::Half || corner(at).is_none()) {
            let texel = self.floats(texels, at, layer, read)?;
            return Ok(texel.map(|value| (value as f32).to_bits()));
        }
        let Some(at) = corner(at).map(|at| texels.at(at, layer)) else {
            return Ok(self.border_words());
        };
        // Values are not converted, NaNs included. Channels that the format lacks are 0, also the
        // fourth.
        let mut out = [0; 4];
        for i in 0..texels.channels {
            out[i as usize] =
                channel.integer(read(at + u64::from(i * channel.bytes()), channel.bytes())?);
        }
        Ok(out)
    }

    fn floats<E>(
        &self,
        texels: &Texels,
        at: [Option<u64>; 3],
        layer: u64,
        read: &mut impl Read<E>,
    ) -> Result<[f64; 4], E> {
        let channel = texels.channel;
        let Some(at) = corner(at).map(|at| texels.at(at, layer)) else {
            return Ok(self.border_floats());
        };
        // The last of two or four channels is no colour.
        let colours = [1, 1, 3][texels.channels as usize / 2];
        let mut out = [0.0; 4];
        for i in 0..texels.channels {
            let bits = read(at + u64::from(i * channel.bytes()), channel.bytes())?;
            out[i as usize] = match self.sampler.srgb && channel == Channel::U8 && i < colours {
                true => linear_of_srgb(bits),
                false => channel.float(bits),
            };
        }
        Ok(out)
    }
}

/// Returns a coordinate in steps of weights, counted from the middle of the first texel.
#[inline(always)]
pub(super) fn in_steps(at: f64) -> f64 {
    (at - 0.5) * 256.0 + 0.5
}

/// Returns the first of the two texels around a coordinate, and the weight of the second: the
/// nearest multiple of 1/256, rounded up if two are equally near.
#[inline(always)]
pub(super) fn first_of_two(at: f64) -> (f64, i32) {
    let steps = in_steps(at);
    if steps.abs() < NEAR {
        let steps = floor_near(steps);
        return ((steps >> 8) as f64, (steps & 0xff) as i32);
    }
    if !steps.is_finite() {
        // A coordinate that is not finite lies at no fraction between texels.
        return (at, 0);
    }
    let steps = steps.floor();
    let first = (steps / 256.0).floor();
    (first, (steps - first * 256.0) as i32)
}

/// Returns the weights of the corners, indexed by one bit per axis from x on, in units of 1/256.
/// They sum to `part`: all of a texture, or one level's share.
///
/// They equal those of an H200 to the bit, except for some in boxes: the planes share `part`, then
/// the columns share a plane's weight, then the rows a column's. A share is rounded, halves up for
/// the far column; its neighbour gets the rest.
#[inline(always)]
pub(super) fn weights(part: i32, [x, y, z]: [i32; 3]) -> [i32; 8] {
    // The shares of the two planes are rounded with halves down.
    let far = (part * z + ONE_WEIGHT / 2 - 1) / ONE_WEIGHT;
    let ([a, b, c, d], [e, f, g, h]) = (plane(part - far, x, y), plane(far, x, y));
    [a, b, c, d, e, f, g, h]
}

#[inline(always)]
pub(super) fn plane(part: i32, x: i32, y: i32) -> [i32; 4] {
    let column = share(part, x);
    let corner = share(column, y);
    // Halves are rounded down here, so that the weights of both columns' rows add up.
    let below = ((part - column) * y + ONE_WEIGHT / 2 - 1) / ONE_WEIGHT;
    [part - column - below, column - corner, below, corner]
}

#[inline(always)]
fn share(part: i32, weight: i32) -> i32 {
    (part * weight + ONE_WEIGHT / 2) / ONE_WEIGHT
}

/// Returns a normalised coordinate with 21 fractional bits, or 22 if the number of texels is a
/// power of two.
fn fixed(coordinate: f32, count: u64) -> f64 {
    let bits = if count.is_power_of_two() { 22 } else { 21 };
    let (one, step) = (f64::from(1 << bits), 1.0 / f64::from(1 << bits));
    floor(f64::from(coordinate) * one) * step
}

/// Coordinates below this fit into 64-bit integers with 8 fractional bits.
pub(super) const NEAR: f64 = (1u64 << 50) as f64;

/// Computes [`f64::floor`], which is a function call unless the host has more than plain x86-64.
#[inline(always)]
pub(super) fn floor(value: f64) -> f64 {
    if value.abs() < NEAR {
        floor_near(value) as f64
    } else {
        value.floor()
    }
}

/// Computes [`f64::floor`] of a number whose absolute value is below [`NEAR`].
#[inline(always)]
pub(super) fn floor_near(value: f64) -> i64 {
    debug_assert!(value.abs() < NEAR);
    // SAFETY: callers have checked that the absolute value is below `NEAR`, which fits into 64
    // bits.
    let cut = unsafe { value.to_int_unchecked::<i64>() };
    cut - i64::from(cut as f64 > value)
}

/// Converts 8 bits of sRGB to linear (IEC 61966-2-1).
fn linear_of_srgb(bits: u32) -> f64 {
    let value = f64::from(bits as u8) / 255.0;
    match value <= 0.04045 {
        true => value / 12.92,
        false => ((value + 0.055) / 1.055).powf(2.4),
    }
}

fn corner([x, y, z]: [Option<u64>; 3]) -> Option<[u64; 3]> {
    Some([x?, y?, z?])
}

//! Filtering of the common case: one plane of texels, inside it or at clamped edges. Results equal
//! those of `sample.rs` to the bit; all other cases go there.

use super::point::Coordinates;
use super::sample::{ONE_WEIGHT, Read, TexturePosition, first_of_two, plane};
use super::{AddressMode, Channel, Texture};

impl Texture {
    /// Filters four channels; `None` if `sample.rs` must do it.
    #[inline(always)]
    pub(super) fn on_plane<E>(
        &self,
        spot: &TexturePosition,
        read: &mut impl Read<E>,
    ) -> Result<Option<[f64; 4]>, E> {
        let texels = &self.texels;
        let (Coordinates::Floats(at), 2, None, false) =
            (spot.at, texels.dimensions, spot.face, self.sampler.srgb)
        else {
            return Ok(None);
        };
        let (Some((columns, x)), Some((rows, y))) = (
            self.neighbours(0, at[0], spot.offset[0]),
            self.neighbours(1, at[1], spot.offset[1]),
        ) else {
            return Ok(None);
        };
        let weights = plane(ONE_WEIGHT, x, y);
        let layer = texels.address + spot.layer * texels.slice_bytes();
        let rows = rows.map(|row| layer + row * texels.pitch_bytes);
        let columns = columns.map(|column| column * texels.texel_bytes());
        let corners = [0, 1, 2, 3].map(|i| rows[i >> 1] + columns[i & 1]);
        let (step, channels) = (texels.channel.bytes(), texels.channels as usize);
        let mut sums = [0.0; 4];
        for (at, weight) in corners.into_iter().zip(weights) {
            // A texel of weight 0 is not read, because it may be infinite.
            if weight == 0 {
                continue;
            }
            let weight = f64::from(weight) * (1.0 / ONE_WEIGHT as f64);
            for (i, sum) in (0..).zip(&mut sums[..channels]) {
                let bits = read(at + u64::from(i * step), step)?;
                *sum += weight
                    * match texels.channel {
                        Channel::Float => f64::from(f32::from_bits(bits)),
                        channel => channel.float(bits),
                    };
            }
        }
        Ok(Some(sums))
    }

    /// Returns the numbers of the two texels next to a coordinate along an axis, and the weight of
    /// the second.
    #[inline(always)]
    fn neighbours(&self, axis: usize, coordinate: f32, offset: i32) -> Option<([u64; 2], i32)> {
        let count = self.texels.size[axis];
        let normalised = self.sampler.normalised;
        let at = self.position(axis, coordinate, count, normalised);
        let (first, weight) = first_of_two(at);
        let (first, last) = (first + f64::from(offset), (count - 1) as f64);
        if first >= 0.0 && first < last {
            let first = first as u64;
            return Some(([first, first + 1], weight));
        }
        let clamps = match self.sampler.address[axis] {
            AddressMode::Clamp => true,
            AddressMode::Border => false,
            AddressMode::Wrap | AddressMode::Mirror => !normalised,
        };
        let clamped = |index: f64| index.clamp(0.0, last) as u64;
        clamps.then(|| ([clamped(first), clamped(first + 1.0)], weight))
    }
}

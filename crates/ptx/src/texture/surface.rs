//! Surfaces: addresses by bytes or texels, and the conversions of formatted stores.

use super::{Channel, Texels};
use crate::code::Rounding;
use crate::number::half::{F16, Half as _};

/// The position of a surface access, with x in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SurfacePosition {
    pub(crate) at: [i32; 3],
    pub(crate) layer: u32,
}

impl Texels {
    /// Returns the address of a position: offset in a row, row, slice and layer. Outside it is
    /// `None`, or with `clamp` the nearest position inside.
    pub(crate) fn place(&self, place: &SurfacePosition, bytes: u64, clamp: bool) -> Option<u64> {
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

    /// Returns the address of a texel named by numbers of texels.
    pub(crate) fn texel_place(&self, place: &SurfacePosition, clamp: bool) -> Option<u64> {
        let bytes = self.texel_bytes();
        let x = i64::from(place.at[0]) * bytes as i64;
        let mut place = *place;
        // A product that does not fit stays outside, on the same side.
        place.at[0] = x.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
        self.place(&place, bytes, clamp)
    }
}

impl Channel {
    /// Converts a register for `sust.p`: integers are clamped, floats become halves.
    pub(crate) fn stored(self, bits: u32) -> u32 {
        let signed = bits as i32;
        match self {
            Channel::U8 => bits.min(0xff),
            Channel::U16 => bits.min(0xffff),
            Channel::S8 => signed.clamp(-0x80, 0x7f) as u32,
            Channel::S16 => signed.clamp(-0x8000, 0x7fff) as u32,
            Channel::Half => half_towards_zero(f32::from_bits(bits)),
            Channel::U32 | Channel::S32 | Channel::Float => bits,
        }
    }
}

/// Rounds to a half towards zero, infinities too; a NaN keeps its sign.
pub(super) fn half_towards_zero(value: f32) -> u32 {
    match value.is_nan() {
        true => 0x7fff | value.to_bits() >> 16 & 0x8000,
        false => F16::from_f64(value.into(), Rounding::Zero),
    }
}

//! Selection of a mipmap's levels, and of the weights that mix them.

use super::cube::Face;
use super::point::{Coordinates, Detail, Point};
use super::{Cube, Mips, Texels, Texture};

/// Steps per level: levels and biases have 8 fractional bits, as weights do.
const ONE: f64 = 256.0;

/// Two levels, and the weight of the second in units of 1/256; 0 if only the first is read.
pub(crate) struct Levels {
    pub(crate) first: Texels,
    pub(crate) second: Texels,
    pub(crate) weight: i32,
}

impl Levels {
    pub(crate) fn of(texture: &Texture, point: &Point) -> Levels {
        let by_number = matches!(point.at, Coordinates::Integers(_));
        let texels = &texture.texels;
        let last = texels.levels - 1;
        let only = |level: u32| {
            let first = texels.level(level);
            Levels {
                first,
                second: first,
                weight: 0,
            }
        };
        if last == 0 {
            return only(0);
        }
        let mips = &texture.sampler.mips;
        let wanted = match point.detail {
            _ if by_number => return only(0),
            // A kernel has no neighbours on a screen, so there is no level to which a bias could be
            // added.
            Detail::Base => mips.clamped(0.0),
            Detail::Level(level) => mips.clamped(mips.biased(level.into())),
            Detail::Gradients(gradients) => {
                mips.clamped(mips.biased(level_of(texture, point, gradients)))
            }
        };
        let detail = wanted.clamp(0.0, last.into());
        if !mips.linear {
            return only((detail + 0.5).floor().min(last.into()) as u32);
        }
        let fixed = (detail * ONE).floor() as u32;
        let level = fixed / ONE as u32;
        Levels {
            first: texels.level(level),
            second: texels.level((level + 1).min(last)),
            weight: (fixed % ONE as u32) as i32,
        }
    }
}

impl Mips {
    /// Adds the bias. Both numbers have 8 fractional bits; NaN counts as 0.
    fn biased(&self, detail: f64) -> f64 {
        let detail = if detail.is_nan() { 0.0 } else { detail };
        fixed(detail) + fixed(self.bias.into())
    }

    fn clamped(&self, detail: f64) -> f64 {
        detail.min(self.clamp[1].into()).max(self.clamp[0].into())
    }
}

fn fixed(number: f64) -> f64 {
    (number * ONE).trunc() / ONE
}

/// Returns the level for the longer gradient, measured in texels.
fn level_of(texture: &Texture, point: &Point, gradients: [[f32; 3]; 2]) -> f64 {
    let texels = &texture.texels;
    let (gradients, normalised) = match point.at {
        Coordinates::Floats(at) if texels.cube != Cube::No => {
            let (face, _) = Face::of(at);
            let flat = gradients.map(|change| {
                let [s, t] = face.slope(at, change);
                [s, t, 0.0]
            });
            (flat, true)
        }
        _ => (gradients, texture.sampler.normalised),
    };
    let lengths = gradients.map(|gradient| {
        let squares = (0..texels.dimensions as usize).map(|axis| {
            let scale = match normalised {
                true => texels.size[axis] as f64,
                false => 1.0,
            };
            (f64::from(gradient[axis]) * scale).powi(2)
        });
        squares.sum::<f64>().sqrt()
    });
    lengths[0].max(lengths[1]).log2()
}

//! Which levels of a mipmap an instruction reads, and how they are mixed.

use super::cube::Face;
use super::sample::{Coordinates, Point};
use super::{Cube, Mips, Texels, Texture};

/// How an instruction says which level.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Detail {
    /// The first; what a bias makes of it.
    Base,
    /// `tex.level`
    Level(f32),
    /// `tex.grad`: along x and y of the screen.
    Gradients([[f32; 3]; 2]),
}

/// Two levels and the weight of the second: 0 where only the first is read.
pub(crate) struct Levels {
    pub(crate) first: Texels,
    pub(crate) second: Texels,
    pub(crate) weight: f64,
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
                weight: 0.0,
            }
        };
        if last == 0 {
            return only(0);
        }
        let mips = &texture.sampler.mips;
        let wanted = match point.detail {
            _ if by_number => return only(0),
            Detail::Base => 0.0,
            Detail::Level(level) => level.into(),
            Detail::Gradients(gradients) => level_of(texture, point, gradients),
        };
        let detail = mips.clamped(wanted).clamp(0.0, last.into());
        if !mips.linear {
            return only((detail + 0.5).floor().min(last.into()) as u32);
        }
        // 8 fractional bits, cut off.
        let fixed = (detail * 256.0).floor();
        let level = (fixed / 256.0).floor();
        let first = texels.level(level as u32);
        Levels {
            first,
            second: texels.level((level as u32 + 1).min(last)),
            weight: fixed / 256.0 - level,
        }
    }
}

impl Mips {
    fn clamped(&self, detail: f64) -> f64 {
        let biased = detail + f64::from(self.bias);
        // A number that is none is the least.
        biased.max(self.clamp[0].into()).min(self.clamp[1].into())
    }
}

/// Of the longer gradient, in texels.
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

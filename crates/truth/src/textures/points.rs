//! Coordinates that reveal how a GPU finds texels and rounds weights: edges, centres and ties
//! between two weights with their neighbours, NaNs and infinities, and random ones.

use super::Geometry;
use super::probe::{POINT_WORDS, Point};
use crate::values::Random;

/// Numbers that are unusual as any coordinate.
const ODD: [u32; 24] = [
    0x0000_0000,
    0x8000_0000,
    0x7fc0_0000,
    0xffc1_2345,
    0x7f80_0000,
    0xff80_0000,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x0000_0001,
    0x8000_0001,
    0x0d80_0000,
    0x8d80_0000,
    0x3300_0000, // 2^-25
    0xb300_0000,
    0x4b00_0001, // 2^23 + 1
    0xcb00_0001,
    0x4f00_0000, // 2^31
    0xcf00_0000,
    0x4f80_0000, // 2^32
    0x5015_02f9, // 1e10
    0xd015_02f9,
    0x4780_0000, // 2^16
    0xc780_0000,
    0x5f00_0000, // 2^63
];

fn neighbours(value: f32) -> [f32; 3] {
    [value.next_down(), value, value.next_up()]
}

/// An axis of `n` texels.
struct Axis {
    n: f32,
    normalised: bool,
}

impl Axis {
    fn scaled(&self, at: f32) -> f32 {
        match self.normalised {
            true => at / self.n,
            false => at,
        }
    }

    /// Returns special positions: edges, centres, integers and their neighbours.
    fn edges(&self) -> Vec<u32> {
        let mut out = ODD.to_vec();
        let n = self.n;
        for at in [
            0.5,
            1.0,
            1.5,
            2.0,
            n - 1.0,
            n - 0.5,
            n,
            n + 0.5,
            n + 1.0,
            -0.5,
            -1.0,
            -n,
            2.0 * n,
        ] {
            out.extend(neighbours(self.scaled(at)).map(f32::to_bits));
        }
        out
    }

    /// Returns a tie between two weights of 8 or 9 bits, or a neighbour of it, in a random cell.
    fn tie(&self, random: &mut Random) -> u32 {
        let cell = random.below(self.n as usize + 1) as f32 - 0.5;
        let step = random.below(512) as f32 / 512.0;
        let at = self.scaled(cell + step);
        random.pick(&neighbours(at)).to_bits()
    }

    /// Returns a random position inside, with all bits of the mantissa.
    fn inside(&self, random: &mut Random) -> u32 {
        let fraction = (random.bits() >> 40) as f32 / 16_777_216.0;
        let at = fraction * (self.n + 1.0) - 0.5;
        self.scaled(at).to_bits()
    }

    /// Returns a random position, also some way outside.
    fn anywhere(&self, random: &mut Random) -> u32 {
        let fraction = (random.bits() >> 40) as f32 / 16_777_216.0;
        self.scaled((fraction * 6.0 - 2.5) * self.n).to_bits()
    }
}

/// Returns a layer number, inside or outside.
fn layer(layers: usize, random: &mut Random) -> u32 {
    let last = layers as u32 - 1;
    let inside = random.below(layers) as u32;
    random.pick(&[
        inside,
        inside,
        inside,
        inside,
        0,
        last,
        last + 1,
        0xffff_ffff,
        0x8000_0000,
        0x7fff_ffff,
        0x1_0000,
        0xffff,
    ])
}

/// Orders coordinates as an instruction of the geometry does: the layer first.
fn point(geometry: Geometry, layer: u32, at: [u32; 3]) -> Point {
    let mut point = [0; POINT_WORDS];
    let first = usize::from(geometry.is_layered());
    if geometry.is_layered() {
        point[0] = layer;
    }
    point[first..first + geometry.axes()].copy_from_slice(&at[..geometry.axes()]);
    point
}

/// Returns `count` points of float coordinates, with all edges along at least one axis.
pub fn floats(
    geometry: Geometry,
    size: [usize; 3],
    layers: usize,
    normalised: bool,
    count: usize,
) -> Vec<Point> {
    let mut random = Random::new(0x7e5 + geometry as u64);
    if geometry.is_cube() {
        return directions(geometry, size[0], layers / 6, count, &mut random);
    }
    let axes = size.map(|n| Axis {
        n: n as f32,
        normalised,
    });
    let edges: Vec<Vec<u32>> = axes.iter().map(Axis::edges).collect();
    let mut points = Vec::with_capacity(count);
    let (ties, any) = (count * 5 / 8, count * 7 / 8);
    for i in 0..count {
        // One axis at an edge, in turn; the others inside.
        let turn = i % geometry.axes();
        let step = i / geometry.axes();
        let at = [0, 1, 2].map(|axis| {
            let odd = i < count * 3 / 8 && step < edges[axis].len();
            if odd && axis == turn {
                edges[axis][step]
            } else if odd || i < ties {
                axes[axis].tie(&mut random)
            } else if i < any {
                axes[axis].inside(&mut random)
            } else {
                axes[axis].anywhere(&mut random)
            }
        });
        let layer = match i % 3 {
            0 => layer(layers, &mut random),
            _ => random.below(layers) as u32,
        };
        points.push(point(geometry, layer, at));
    }
    points
}

/// Returns directions: along axes, edges and corners of the cube, their neighbours, and random
/// ones.
fn directions(
    geometry: Geometry,
    n: usize,
    cubes: usize,
    count: usize,
    random: &mut Random,
) -> Vec<Point> {
    let n = n as f32;
    let mut points = Vec::with_capacity(count);
    for i in 0..count {
        let any = |random: &mut Random| (random.bits() >> 40) as f32 / 8_388_608.0 - 1.0;
        let mut at = match i % 8 {
            0 => [0; 3].map(|_| random.pick(&[-1.0, 0.0, 1.0f32])),
            1 => [0; 3].map(|_| f32::from_bits(random.pick(&ODD))),
            2 => [0; 3].map(|_| {
                let around = neighbours(random.pick_sign());
                random.pick(&around)
            }),
            3 | 4 => {
                // Ties between weights on a face.
                let step = |random: &mut Random| {
                    let cell = random.below(n as usize + 1) as f32 - 0.5;
                    (cell + random.below(512) as f32 / 512.0) * 2.0 / n - 1.0
                };
                [step(random), step(random), random.pick_sign()]
            }
            _ => [any(random), any(random), any(random)],
        };
        if i % 8 > 2 {
            at.rotate_left(random.below(3));
            let scale = random.pick(&[1.0, 1.0, 2.0, 0.3, 1e6]);
            at = at.map(|v| v * scale);
        }
        let layer = match i % 5 {
            0 => layer(cubes.max(1), random),
            _ => random.below(cubes.max(1)) as u32,
        };
        points.push(point(geometry, layer, at.map(f32::to_bits)));
    }
    points
}

impl Random {
    fn pick_sign(&mut self) -> f32 {
        self.pick(&[-1.0, 1.0])
    }
}

/// Returns numbers of texels, inside and outside; x is multiplied by `unit`, as for surfaces.
pub fn integers(
    geometry: Geometry,
    size: [usize; 3],
    layers: usize,
    unit: usize,
    count: usize,
) -> Vec<Point> {
    let mut random = Random::new(0x51f + geometry as u64);
    (0..count)
        .map(|i| {
            let odd = i % 4 == 3;
            let mut at = [0, 1, 2].map(|axis| {
                let n = size[axis] as i32;
                let inside = random.below(size[axis]) as i32;
                let others = [-1, -2, n, n + 1, 2 * n, -n, i32::MIN, i32::MAX, 65_536];
                match odd && random.below(2) == 0 {
                    true => random.pick(&others),
                    false => inside,
                }
            });
            at[0] = at[0].wrapping_mul(unit as i32);
            let layer = match odd {
                true => layer(layers, &mut random),
                false => random.below(layers) as u32,
            };
            point(geometry, layer, at.map(|c| c as u32))
        })
        .collect()
}

/// Adds values to store after the coordinates: random words, limits among them.
pub fn with_data(mut points: Vec<Point>) -> Vec<Point> {
    let mut random = Random::new(0xda7a);
    for point in &mut points {
        for word in &mut point[4..] {
            let any = random.bits() as u32;
            *word = random.pick(&[any, any, any, any & 0xff, any & 0xffff, any | 0xffff_8000]);
        }
    }
    points
}

/// Adds levels of detail in `%e0`.
pub fn with_levels(mut points: Vec<Point>, levels: usize) -> Vec<Point> {
    let mut random = Random::new(0x1e7e1);
    let edges: Vec<u32> = (0..2 * levels)
        .flat_map(|half| neighbours(half as f32 / 2.0))
        .map(f32::to_bits)
        .chain(ODD)
        .collect();
    for (i, point) in points.iter_mut().enumerate() {
        let tie = random.below(levels * 512) as f32 / 512.0;
        let any = (random.bits() >> 40) as f32 / 16_777_216.0 * (levels as f32 + 2.0) - 1.0;
        point[4] = match i % 4 {
            0 => edges[i / 4 % edges.len()],
            1 => random.pick(&neighbours(tie)).to_bits(),
            _ => any.to_bits(),
        };
    }
    points
}

/// Adds gradients in `%e0` to `%e5`: along x first, as many numbers each as there are axes.
pub fn with_gradients(
    mut points: Vec<Point>,
    axes: usize,
    size: [usize; 3],
    normalised: bool,
) -> Vec<Point> {
    let mut random = Random::new(0x62ad);
    for (i, point) in points.iter_mut().enumerate() {
        for along in 0..2 {
            for axis in 0..axes {
                let magnitude = 2f32.powf((random.bits() >> 40) as f32 / 16_777_216.0 * 7.0 - 2.0);
                let mut value = magnitude * random.pick_sign();
                if normalised {
                    value /= size[axis] as f32;
                }
                // Equal along both, along only one, powers of two, and random ones.
                value = match i % 8 {
                    0 if (along + axis) % 2 == 1 => 0.0,
                    1 if along == 1 => 0.0,
                    2 => random.pick(&[0.25, 0.5, 1.0, 2.0]) / size[axis] as f32,
                    3 if axis > 0 => 0.0,
                    _ => value,
                };
                point[4 + along * axes + axis] = match i % 32 {
                    31 => random.pick(&ODD),
                    _ => value.to_bits(),
                };
            }
        }
    }
    points
}

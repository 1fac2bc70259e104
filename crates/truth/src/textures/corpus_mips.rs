//! Mipmapped arrays and cubes.

use super::parts::{BORDER, FLOAT, of, points_of, probe, sampled, tex, texture};
use super::probe::Probe;
use super::{Format, Geometry, Mode, Object, Pattern, Resource, Sampler, Setup, View, points};

fn mipmapped(geometry: Geometry, pattern: Pattern) -> Resource {
    let (size, layers, levels) = match geometry {
        Geometry::D1 => ([19, 1, 1], 1, 5),
        Geometry::D2 => ([16, 12, 1], 1, 5),
        Geometry::D3 => ([12, 9, 7], 1, 3),
        Geometry::A1d => ([16, 1, 1], 3, 4),
        Geometry::A2d => ([9, 12, 1], 3, 3),
        Geometry::Cube => ([8, 8, 1], 6, 4),
        Geometry::Acube => ([6, 6, 1], 12, 3),
    };
    Resource {
        geometry,
        size,
        layers,
        levels,
        pattern,
        ..FLOAT
    }
}

/// Sampler for mipmapped textures: all of their levels.
const MIPS: Sampler = Sampler {
    normalised: true,
    mip_clamp: [0.0, 20.0],
    modes: [Mode::Wrap; 3],
    ..Sampler::PLAIN
};

fn level(all: &mut Vec<Probe>, resource: Resource, sampler: Sampler, count: usize) {
    let points = points_of(&resource, &sampler, count);
    all.push(probe(
        texture(resource, sampler),
        tex(".level", resource.geometry, "f32.f32", ", %e0"),
        "levels",
        points::with_levels(points, resource.levels),
    ));
}

fn gradients(all: &mut Vec<Probe>, resource: Resource, sampler: Sampler, count: usize) {
    let points = points_of(&resource, &sampler, count);
    let behind = match resource.geometry.axes() {
        1 => ", {%e0}, {%e1}",
        2 => ", {%e0, %e1}, {%e2, %e3}",
        _ => ", {%e0, %e1, %e2, %e2}, {%e3, %e4, %e5, %e5}",
    };
    all.push(probe(
        texture(resource, sampler),
        tex(".grad", resource.geometry, "f32.f32", behind),
        "gradients",
        points::with_gradients(points, resource.geometry.axes(), resource.size, true),
    ));
}

pub(super) fn probes(all: &mut Vec<Probe>) {
    for geometry in [
        Geometry::D1,
        Geometry::D2,
        Geometry::D3,
        Geometry::A1d,
        Geometry::A2d,
        Geometry::Cube,
        Geometry::Acube,
    ] {
        let resource = mipmapped(geometry, Pattern::Generic);
        for (linear, mip_linear) in [(false, false), (true, false), (false, true), (true, true)] {
            let sampler = Sampler {
                linear,
                mip_linear,
                ..MIPS
            };
            level(all, resource, sampler, 512);
            gradients(all, resource, sampler, 384);
        }
        let both = Sampler {
            linear: true,
            mip_linear: true,
            ..MIPS
        };
        let full = Sampler {
            full_trilinear: true,
            ..both
        };
        level(all, resource, full, 256);
        // Without a level: the first, changed by a bias.
        sampled(all, resource, both, 128);
        let biased = Sampler {
            mip_bias: 1.3,
            ..both
        };
        sampled(all, resource, biased, 128);
        let clamped = Sampler {
            mip_clamp: [0.7, 1.9],
            ..both
        };
        sampled(all, resource, clamped, 128);
        level(all, resource, clamped, 192);
        let points = points_of(&resource, &biased, 96);
        all.push(probe(
            texture(resource, biased),
            tex(".base", geometry, "f32.f32", ""),
            "points",
            points,
        ));
    }
    biases_and_clamps(all);
    anisotropies(all);
    modes(all);
    formats(all);
    by_number(all);
    views(all);
}

/// The texture for settings that do not depend on the geometry.
fn plane() -> Resource {
    mipmapped(Geometry::D2, Pattern::Generic)
}

/// Adds biases and clamps of the level, and weights between levels.
fn biases_and_clamps(all: &mut Vec<Probe>) {
    let resource = plane();
    for mip_linear in [false, true] {
        for mip_bias in [0.3, -0.7, 0.001_953_125, 15.0, -20.0] {
            let sampler = Sampler {
                linear: true,
                mip_linear,
                mip_bias,
                ..MIPS
            };
            level(all, resource, sampler, 192);
            gradients(all, resource, sampler, 192);
        }
        for mip_clamp in [
            [0.0, 0.0],
            [0.0, 1.0],
            [1.2, 2.6],
            [2.0, 1.0],
            [-3.0, 1.5],
            [3.0, 100.0],
        ] {
            let sampler = Sampler {
                linear: true,
                mip_linear,
                mip_clamp,
                ..MIPS
            };
            level(all, resource, sampler, 192);
        }
        // Texels of 0 and 1 show sums of weights between levels.
        let bits = mipmapped(Geometry::D2, Pattern::Bits);
        for linear in [false, true] {
            let sampler = Sampler {
                linear,
                mip_linear,
                ..MIPS
            };
            level(all, bits, sampler, 768);
        }
    }
}

fn anisotropies(all: &mut Vec<Probe>) {
    let resource = plane();
    for anisotropy in [1, 2, 4, 16] {
        for (linear, mip_linear) in [(true, true), (true, false), (false, false)] {
            let sampler = Sampler {
                anisotropy,
                linear,
                mip_linear,
                ..MIPS
            };
            gradients(all, resource, sampler, 192);
        }
    }
}

fn modes(all: &mut Vec<Probe>) {
    let resource = plane();
    for (mode, normalised) in [
        (Mode::Clamp, true),
        (Mode::Mirror, true),
        (Mode::Border, true),
        (Mode::Clamp, false),
        (Mode::Border, false),
    ] {
        let sampler = Sampler {
            modes: [mode; 3],
            normalised,
            linear: true,
            mip_linear: true,
            border: BORDER,
            ..MIPS
        };
        level(all, resource, sampler, 192);
        gradients(all, resource, sampler, 128);
    }
}

fn formats(all: &mut Vec<Probe>) {
    for (format, channels, srgb) in [
        (Format::U8, 4, false),
        (Format::U8, 4, true),
        (Format::S16, 2, false),
        (Format::Half, 4, false),
        (Format::Float, 2, false),
    ] {
        let resource = Resource {
            format,
            channels,
            ..plane()
        };
        let sampler = Sampler {
            linear: true,
            mip_linear: true,
            srgb,
            ..MIPS
        };
        level(all, resource, sampler, 192);
    }
}

/// Adds coordinates that are numbers of texels of a level.
fn by_number(all: &mut Vec<Probe>) {
    let resource = plane();
    let integers = Resource {
        format: Format::U32,
        ..resource
    };
    let sampler = Sampler {
        normalised: false,
        modes: [Mode::Border; 3],
        ..MIPS
    };
    let mut points = points::integers(Geometry::D2, resource.size, 1, 1, 160);
    for (i, point) in points.iter_mut().enumerate() {
        point[4] = [0, 1, 2, 3, 4, 5, 0xffff_ffff, 100][i % 8];
    }
    all.push(probe(
        texture(integers, sampler),
        tex(".level", Geometry::D2, "u32.s32", ", %e0"),
        "numbers",
        points,
    ));
}

/// Adds views of some of the levels.
fn views(all: &mut Vec<Probe>) {
    let resource = plane();
    let view = View {
        format: 22, // FLOAT_1X32
        size: [16, 12, 0],
        levels: [1, 3],
        layers: [0, 0],
    };
    let sampler = Sampler {
        linear: true,
        mip_linear: true,
        ..MIPS
    };
    for view in [
        view,
        View {
            size: [8, 6, 0],
            ..view
        },
    ] {
        all.push(probe(
            Setup {
                resource,
                object: Object::Texture(sampler, Some(view)),
            },
            tex(".level", Geometry::D2, "f32.f32", ", %e0"),
            "levels",
            points::with_levels(points_of(&resource, &sampler, 128), resource.levels),
        ));
    }
}

pub(super) fn cubes(all: &mut Vec<Probe>) {
    for geometry in [Geometry::Cube, Geometry::Acube] {
        for pattern in [Pattern::Generic, Pattern::Counted] {
            for mode in [Mode::Clamp, Mode::Wrap, Mode::Border] {
                for (linear, seamless) in
                    [(false, false), (true, false), (true, true), (false, true)]
                {
                    if pattern == Pattern::Counted && (mode != Mode::Clamp || linear) {
                        continue;
                    }
                    let resource = Resource {
                        pattern,
                        ..of(geometry)
                    };
                    let sampler = Sampler {
                        linear,
                        seamless,
                        normalised: true,
                        modes: [mode; 3],
                        border: BORDER,
                        ..Sampler::PLAIN
                    };
                    sampled(all, resource, sampler, 384);
                }
            }
        }
        let bits = Resource {
            pattern: Pattern::Bits,
            ..of(geometry)
        };
        for (normalised, seamless) in [(true, false), (true, true), (false, false)] {
            let sampler = Sampler {
                linear: true,
                normalised,
                seamless,
                ..Sampler::PLAIN
            };
            sampled(all, bits, sampler, 384);
        }
        let bytes = Resource {
            format: Format::U8,
            channels: 4,
            ..of(geometry)
        };
        for integers in [true, false] {
            let sampler = Sampler {
                linear: !integers,
                normalised: true,
                integers,
                seamless: true,
                ..Sampler::PLAIN
            };
            sampled(all, bytes, sampler, 192);
        }
    }
    // Faces of a cube, read as layers.
    let flat = Sampler::PLAIN;
    let cube = of(Geometry::Cube);
    all.push(probe(
        texture(cube, flat),
        tex("", Geometry::A2d, "f32.f32", ""),
        "points of layers",
        points::floats(Geometry::A2d, cube.size, 6, false, 64),
    ));
}

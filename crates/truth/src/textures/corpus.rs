//! The probes: each kind of resource with each way of reading it.

use super::parts::{BORDER, FLOAT, of, probe, sampled, tex, texture};
use super::probe::Probe;
use super::{
    Format, Geometry, Mode, Pattern, Resource, Sampler, Storage, corpus_forms, corpus_mips,
    corpus_surfaces, points,
};

/// Returns every probe. Those that end with a fault on a GPU are last, because each costs a
/// process.
pub fn probes() -> Vec<Probe> {
    let mut all = Vec::new();
    filtered(&mut all);
    mixed_modes(&mut all);
    widths(&mut all);
    special_values(&mut all);
    layered(&mut all);
    formats(&mut all);
    integer_borders(&mut all);
    fractions(&mut all);
    by_number(&mut all);
    memory(&mut all);
    linear_memory_filtered(&mut all);
    corpus_forms::gathers(&mut all);
    corpus_forms::gathers_with_offsets(&mut all);
    corpus_forms::forms(&mut all);
    corpus_forms::result_types(&mut all);
    corpus_forms::srgb(&mut all);
    corpus_forms::views(&mut all);
    corpus_mips::probes(&mut all);
    corpus_mips::cubes(&mut all);
    corpus_forms::questions(&mut all);
    corpus_forms::questions_of_formats(&mut all);
    corpus_forms::questions_of_memory(&mut all);
    corpus_surfaces::probes(&mut all);
    corpus_forms::mismatches(&mut all);
    corpus_surfaces::faults(&mut all);
    all
}

/// Adds address modes and filters with float coordinates, and sizes that are powers of two or not.
fn filtered(all: &mut Vec<Probe>) {
    let sizes = [
        (Geometry::D1, [[8, 1, 1], [7, 1, 1]], 768),
        (Geometry::D2, [[8, 4, 1], [7, 5, 1]], 640),
        (Geometry::D3, [[4, 8, 2], [6, 5, 3]], 640),
    ];
    for (geometry, sizes, count) in sizes {
        for (size, pattern) in [
            (sizes[0], Pattern::Bits),
            (sizes[1], Pattern::Bits),
            (sizes[1], Pattern::Generic),
        ] {
            let resource = Resource {
                geometry,
                size,
                pattern,
                ..FLOAT
            };
            for mode in Mode::ALL {
                for (normalised, linear) in
                    [(false, false), (false, true), (true, false), (true, true)]
                {
                    // Reading points chooses the same texels whatever they hold.
                    if !linear && pattern == Pattern::Bits {
                        continue;
                    }
                    let sampler = Sampler {
                        modes: [mode; 3],
                        linear,
                        normalised,
                        border: BORDER,
                        ..Sampler::PLAIN
                    };
                    sampled(all, resource, sampler, count);
                }
            }
        }
    }
}

/// Adds address modes that differ by axis.
fn mixed_modes(all: &mut Vec<Probe>) {
    let mixed = [
        [Mode::Wrap, Mode::Clamp, Mode::Mirror],
        [Mode::Mirror, Mode::Border, Mode::Wrap],
        [Mode::Border, Mode::Wrap, Mode::Clamp],
        [Mode::Clamp, Mode::Mirror, Mode::Border],
    ];
    for modes in mixed {
        for (geometry, normalised) in [
            (Geometry::D2, true),
            (Geometry::D2, false),
            (Geometry::D3, true),
        ] {
            let sampler = Sampler {
                modes,
                linear: true,
                normalised,
                border: BORDER,
                ..Sampler::PLAIN
            };
            sampled(all, of(geometry), sampler, 256);
        }
    }
}

/// Adds sizes for which normalised coordinates may be rounded differently.
fn widths(all: &mut Vec<Probe>) {
    for width in [1, 2, 3, 100, 1000, 32_768] {
        for linear in [false, true] {
            for mode in [Mode::Clamp, Mode::Wrap] {
                let resource = Resource {
                    size: [width, 1, 1],
                    pattern: Pattern::Counted,
                    ..of(Geometry::D1)
                };
                let sampler = Sampler {
                    modes: [mode; 3],
                    linear,
                    normalised: true,
                    ..Sampler::PLAIN
                };
                sampled(all, resource, sampler, 384);
            }
        }
    }
}

/// Adds infinities, NaNs and denormals as texels.
fn special_values(all: &mut Vec<Probe>) {
    for format in [Format::Float, Format::Half] {
        for linear in [false, true] {
            let resource = Resource {
                format,
                channels: 2,
                pattern: Pattern::Special,
                ..FLOAT
            };
            let sampler = Sampler {
                linear,
                ..Sampler::PLAIN
            };
            sampled(all, resource, sampler, 256);
        }
    }
}

fn layered(all: &mut Vec<Probe>) {
    for geometry in [Geometry::A1d, Geometry::A2d] {
        for (mode, normalised, linear) in [
            (Mode::Clamp, false, false),
            (Mode::Clamp, false, true),
            (Mode::Border, false, true),
            (Mode::Wrap, true, true),
            (Mode::Mirror, true, true),
            (Mode::Border, true, false),
        ] {
            let sampler = Sampler {
                modes: [mode; 3],
                linear,
                normalised,
                border: BORDER,
                ..Sampler::PLAIN
            };
            sampled(all, of(geometry), sampler, 256);
        }
    }
}

/// Adds every format with every number of channels, read in every way it supports.
fn formats(all: &mut Vec<Probe>) {
    for format in Format::ALL {
        for channels in [1, 2, 4] {
            let resource = Resource {
                format,
                channels,
                ..FLOAT
            };
            let ways: &[(bool, bool)] = match (format.is_float(), format.bytes()) {
                (true, _) => &[(false, false), (false, true)],
                (_, 4) => &[(false, false), (true, false)],
                _ => &[(true, false), (false, false), (false, true)],
            };
            for &(integers, linear) in ways {
                for border in [[0.0; 4], BORDER, [-3.0, 300.0, 1e10, 70_000.0]] {
                    let sampler = Sampler {
                        modes: [Mode::Border; 3],
                        linear,
                        integers,
                        border,
                        ..Sampler::PLAIN
                    };
                    let count = if border == BORDER { 256 } else { 64 };
                    sampled(all, resource, sampler, count);
                }
            }
        }
    }
}

/// Adds borders that are the bits of integers.
fn integer_borders(all: &mut Vec<Probe>) {
    let border = [5u32, 0xffff_fff0, 70_000, 0x8000_0001].map(f32::from_bits);
    for format in [
        Format::U8,
        Format::S16,
        Format::U32,
        Format::S32,
        Format::Float,
    ] {
        let resource = Resource {
            format,
            channels: 4,
            ..FLOAT
        };
        let sampler = Sampler {
            modes: [Mode::Border; 3],
            integers: !format.is_float(),
            border,
            ..Sampler::PLAIN
        };
        sampled(all, resource, sampler, 64);
    }
}

/// Adds all values of 8 bits and many of 16, read as fractions.
fn fractions(all: &mut Vec<Probe>) {
    for format in [
        Format::U8,
        Format::S8,
        Format::U16,
        Format::S16,
        Format::Half,
    ] {
        let resource = Resource {
            format,
            size: [256, if format.bytes() == 1 { 1 } else { 16 }, 1],
            pattern: match format.bytes() {
                1 => Pattern::Counted,
                _ => Pattern::Generic,
            },
            ..FLOAT
        };
        let mut points = Vec::new();
        for i in 0..resource.size[0] * resource.size[1] {
            let mut point = [0; super::probe::POINT_WORDS];
            point[0] = (i as u32) % 256;
            point[1] = (i as u32) / 256;
            points.push(point);
        }
        all.push(probe(
            texture(resource, Sampler::PLAIN),
            tex("", Geometry::D2, "f32.s32", ""),
            "texels",
            points,
        ));
        // Between neighbours: shows how sums of fractions are rounded.
        let between = Sampler {
            linear: true,
            ..Sampler::PLAIN
        };
        sampled(all, resource, between, 512);
    }
}

/// Adds integer coordinates.
fn by_number(all: &mut Vec<Probe>) {
    for geometry in [
        Geometry::D1,
        Geometry::D2,
        Geometry::D3,
        Geometry::A1d,
        Geometry::A2d,
    ] {
        for (mode, normalised, linear) in [
            (Mode::Clamp, false, false),
            (Mode::Border, false, false),
            (Mode::Wrap, false, false),
            (Mode::Mirror, false, false),
            (Mode::Clamp, false, true),
            (Mode::Wrap, true, false),
            (Mode::Border, true, true),
        ] {
            let resource = of(geometry);
            let sampler = Sampler {
                modes: [mode; 3],
                linear,
                normalised,
                border: BORDER,
                ..Sampler::PLAIN
            };
            all.push(probe(
                texture(resource, sampler),
                tex("", geometry, "f32.s32", ""),
                "numbers",
                points::integers(geometry, resource.size, resource.layers, 1, 128),
            ));
        }
    }
}

/// Adds linear and pitched memory in every format.
fn memory(all: &mut Vec<Probe>) {
    for format in Format::ALL {
        for channels in [1, 4] {
            let resource = Resource {
                storage: Storage::Linear,
                geometry: Geometry::D1,
                size: [37, 1, 1],
                format,
                channels,
                ..FLOAT
            };
            for integers in [true, false] {
                let sampler = Sampler {
                    integers,
                    border: BORDER,
                    ..Sampler::PLAIN
                };
                let result = match (integers, format.bytes()) {
                    (false, 1 | 2) => "f32",
                    _ => format.result(),
                };
                all.push(probe(
                    texture(resource, sampler),
                    tex("", Geometry::D1, &format!("{result}.s32"), ""),
                    "numbers",
                    points::integers(Geometry::D1, resource.size, 1, 1, 96),
                ));
            }
            let pitched = Resource {
                storage: Storage::Pitched,
                geometry: Geometry::D2,
                size: [7, 5, 1],
                ..resource
            };
            for (linear, mode, normalised) in [
                (false, Mode::Border, false),
                (true, Mode::Clamp, false),
                (true, Mode::Wrap, true),
                (true, Mode::Border, true),
            ] {
                if linear && format.bytes() == 4 && !format.is_float() {
                    continue;
                }
                let sampler = Sampler {
                    linear,
                    modes: [mode; 3],
                    normalised,
                    border: BORDER,
                    ..Sampler::PLAIN
                };
                sampled(all, pitched, sampler, 128);
            }
        }
    }
}

/// Adds linear memory under samplers that ask for more than it can.
fn linear_memory_filtered(all: &mut Vec<Probe>) {
    let resource = Resource {
        storage: Storage::Linear,
        geometry: Geometry::D1,
        size: [37, 1, 1],
        ..FLOAT
    };
    for (normalised, linear, mode) in [
        (false, false, Mode::Clamp),
        (false, false, Mode::Border),
        (false, true, Mode::Clamp),
        (true, false, Mode::Wrap),
    ] {
        let sampler = Sampler {
            normalised,
            linear,
            modes: [mode; 3],
            ..Sampler::PLAIN
        };
        sampled(all, resource, sampler, 128);
    }
}

//! Gathers, rarer forms of `tex`, sRGB, views, queries, and mismatches.

use super::parts::{BORDER, FLOAT, coordinates, of, points_of, probe, sampled, tex, texture};
use super::probe::{POINT_WORDS, Point, Probe, Wide};
use super::{
    Format, Geometry, Mode, Object, Pattern, Resource, Sampler, Setup, Storage, View, points,
};

/// Returns the text of a `tld4`, with what follows its coordinates.
fn gather(channel: &str, geometry: Geometry, result: &str, behind: &str) -> String {
    format!(
        "tld4.{channel}.{}.v4.{result}.f32 {{%d0, %d1, %d2, %d3}}, [%o, {{{}}}]{behind}",
        geometry.name(),
        coordinates(geometry)
    )
}

/// Adds gathers of each channel.
pub(super) fn gathers(all: &mut Vec<Probe>) {
    for geometry in [Geometry::D2, Geometry::A2d, Geometry::Cube, Geometry::Acube] {
        for (channel, format, channels, integers) in [
            ("r", Format::Float, 1, false),
            ("g", Format::Half, 4, false),
            ("b", Format::U8, 4, false),
            ("a", Format::S16, 4, true),
            ("g", Format::U32, 1, true),
            ("a", Format::Float, 2, false),
        ] {
            for (mode, normalised) in [
                (Mode::Clamp, false),
                (Mode::Border, false),
                (Mode::Wrap, true),
                (Mode::Mirror, true),
            ] {
                if geometry.is_cube() && (!normalised || mode == Mode::Mirror) {
                    continue;
                }
                let resource = Resource {
                    format,
                    channels,
                    ..of(geometry)
                };
                let sampler = Sampler {
                    modes: [mode; 3],
                    normalised,
                    integers,
                    border: BORDER,
                    ..Sampler::PLAIN
                };
                let result = match integers {
                    true => format.result(),
                    false => "f32",
                };
                all.push(probe(
                    texture(resource, sampler),
                    gather(channel, geometry, result, ""),
                    "points",
                    points_of(&resource, &sampler, 160),
                ));
            }
        }
    }
}

/// Adds gathers with offsets, and one with a predicate.
pub(super) fn gathers_with_offsets(all: &mut Vec<Probe>) {
    for (geometry, behind) in [
        (Geometry::D2, ", {3, -2}"),
        (Geometry::D2, ", {-8, 7}"),
        (Geometry::A2d, ", {-1, 1}"),
    ] {
        let sampler = Sampler {
            normalised: true,
            modes: [Mode::Wrap; 3],
            ..Sampler::PLAIN
        };
        let resource = of(geometry);
        all.push(probe(
            texture(resource, sampler),
            gather("r", geometry, "f32", behind),
            "points",
            points_of(&resource, &sampler, 128),
        ));
    }
    let resource = of(Geometry::D2);
    let predicate =
        "tld4.r.2d.v4.f32.f32 {%d0, %d1, %d2, %d3}|%p, [%o, {%c0, %c1}]; selp.b32 %d3, 1, 2, %p";
    all.push(probe(
        texture(resource, Sampler::PLAIN),
        predicate.into(),
        "points",
        points_of(&resource, &Sampler::PLAIN, 64),
    ));
}

/// Text of a geometry's operands: offsets in registers, offsets that are constants, gradients.
struct Operands {
    geometry: Geometry,
    moving: &'static str,
    fixed: &'static str,
    gradients: &'static str,
}

const OPERANDS: [Operands; 5] = [
    Operands {
        geometry: Geometry::D1,
        moving: "{%e0}",
        fixed: "{3}",
        gradients: "{%e0}, {%e1}",
    },
    Operands {
        geometry: Geometry::D2,
        moving: "{%e0, %e1}",
        fixed: "{-2, 1}",
        gradients: "{%e0, %e1}, {%e2, %e3}",
    },
    Operands {
        geometry: Geometry::D3,
        moving: "{%e0, %e1, %e2, %e2}",
        fixed: "{1, -8, 7, 0}",
        gradients: "{%e0, %e1, %e2, %e2}, {%e3, %e4, %e5, %e5}",
    },
    Operands {
        geometry: Geometry::A1d,
        moving: "{%e0}",
        fixed: "{-5}",
        gradients: "{%e0}, {%e1}",
    },
    Operands {
        geometry: Geometry::A2d,
        moving: "{%e0, %e1}",
        fixed: "{7, -8}",
        gradients: "{%e0, %e1}, {%e2, %e3}",
    },
];

/// Adds forms of `tex` other than the plain one, on textures of one level.
pub(super) fn forms(all: &mut Vec<Probe>) {
    for operands in &OPERANDS {
        for (mode, normalised) in [(Mode::Border, false), (Mode::Wrap, true)] {
            let sampler = Sampler {
                linear: true,
                normalised,
                modes: [mode; 3],
                border: BORDER,
                ..Sampler::PLAIN
            };
            forms_by_float(all, operands, &sampler);
            if mode == Mode::Border {
                forms_by_number(all, operands, &sampler);
            }
        }
    }
}

fn forms_by_float(all: &mut Vec<Probe>, operands: &Operands, sampler: &Sampler) {
    let (geometry, resource) = (operands.geometry, of(operands.geometry));
    let setup = texture(resource, *sampler);
    let points = points_of(&resource, sampler, 128);
    let mut push = |form: &str, behind: &str, tried: &str, points: &[Point]| {
        let instruction = tex(form, geometry, "f32.f32", behind);
        all.push(probe(setup, instruction, tried, points.to_vec()));
    };
    let (moving, fixed) = (operands.moving, operands.fixed);
    let moved = with_offsets(&points);
    push("", &format!(", {moving}"), "offsets", &moved);
    push("", &format!(", {fixed}"), "points", &points);
    let levels = points::with_levels(points.clone(), 3);
    push(".level", ", %e0", "levels", &levels);
    push(".level", &format!(", %e3, {fixed}"), "points", &points);
    let (axes, size) = (geometry.axes(), resource.size);
    let gradients = points::with_gradients(points.clone(), axes, size, sampler.normalised);
    let behind = format!(", {}", operands.gradients);
    push(".grad", &behind, "gradients", &gradients);
    push(".base", "", "points", &points);
}

fn forms_by_number(all: &mut Vec<Probe>, operands: &Operands, sampler: &Sampler) {
    let (geometry, resource) = (operands.geometry, of(operands.geometry));
    let setup = texture(resource, *sampler);
    let numbers = points::integers(geometry, resource.size, resource.layers, 1, 128);
    let instruction = tex("", geometry, "f32.s32", &format!(", {}", operands.moving));
    let moved = with_offsets(&numbers);
    all.push(probe(setup, instruction, "offset numbers", moved));
    let level = tex(".level", geometry, "f32.s32", ", %e7");
    all.push(probe(setup, level, "numbers", numbers));
}

/// Returns points with an offset for each axis, in and out of the range that a `tex` may have.
fn with_offsets(points: &[Point]) -> Vec<Point> {
    let tried = [-8i32, 7, 0, 3, -1, 8, -9, 100, 16];
    let mut points = points.to_vec();
    for (i, point) in points.iter_mut().enumerate() {
        for (k, word) in point[4..7].iter_mut().enumerate() {
            *word = tried[(i * (k + 1) + k) % tried.len()] as u32;
        }
    }
    points
}

/// Adds results as packed halves, as halves in 16-bit registers, and with a predicate.
pub(super) fn result_types(all: &mut Vec<Probe>) {
    let resource = Resource {
        channels: 4,
        ..of(Geometry::D2)
    };
    let halves = Resource {
        format: Format::Half,
        ..resource
    };
    let bytes = Resource {
        format: Format::U8,
        ..resource
    };
    for resource in [resource, halves, bytes] {
        for linear in [false, true] {
            let sampler = Sampler {
                linear,
                ..Sampler::PLAIN
            };
            let points = points_of(&resource, &sampler, 192);
            let setup = texture(resource, sampler);
            let packed = "tex.2d.v2.f16x2.f32 {%d0, %d1}, [%o, {%c0, %c1}]";
            all.push(probe(setup, packed.into(), "points", points.clone()));
            let apart = "tex.2d.v4.f16.f32 {%h0, %h1, %h2, %h3}, [%o, {%c0, %c1}]";
            all.push(Probe {
                wide: Wide::Halves,
                ..probe(setup, apart.into(), "points", points.clone())
            });
            let with = "tex.2d.v4.f32.f32 {%d0, %d1, %d2, %d3}|%p, [%o, {%c0, %c1}]; selp.b32 %d3, 1, 2, %p";
            all.push(probe(setup, with.into(), "points", points));
        }
    }
}

pub(super) fn srgb(all: &mut Vec<Probe>) {
    for channels in [1, 2, 4] {
        for (format, linear) in [
            (Format::U8, false),
            (Format::U8, true),
            (Format::S8, false),
            (Format::U16, false),
            (Format::Float, false),
        ] {
            let resource = Resource {
                format,
                channels,
                size: [256, 4, 1],
                pattern: match linear {
                    true => Pattern::Generic,
                    false => Pattern::Counted,
                },
                ..FLOAT
            };
            let sampler = Sampler {
                srgb: true,
                linear,
                modes: [Mode::Border; 3],
                border: BORDER,
                ..Sampler::PLAIN
            };
            if linear || format != Format::U8 {
                sampled(all, resource, sampler, 192);
                continue;
            }
            let mut points = Vec::new();
            for i in 0..256u32 {
                let mut point = [0; POINT_WORDS];
                point[0] = i;
                points.push(point);
            }
            all.push(probe(
                texture(resource, sampler),
                tex("", Geometry::D2, "f32.s32", ""),
                "texels",
                points,
            ));
        }
    }
    let integers = Sampler {
        srgb: true,
        integers: true,
        ..Sampler::PLAIN
    };
    let resource = Resource {
        format: Format::U8,
        channels: 4,
        ..FLOAT
    };
    sampled(all, resource, integers, 64);
}

/// Adds views, which read texels as another format (`CU_RES_VIEW_FORMAT_*`).
pub(super) fn views(all: &mut Vec<Probe>) {
    let cases = [
        // Formats with equal numbers of channels and bits.
        (Format::U8, 4, 3, "f32"),     // UINT_4X8
        (Format::U8, 4, 6, "f32"),     // SINT_4X8
        (Format::S16, 2, 8, "f32"),    // UINT_2X16
        (Format::U32, 1, 13, "u32"),   // UINT_1X32
        (Format::U32, 1, 22, "f32"),   // FLOAT_1X32
        (Format::U32, 2, 23, "f32"),   // FLOAT_2X32
        (Format::U16, 4, 21, "f32"),   // FLOAT_4X16
        (Format::Float, 1, 22, "f32"), // FLOAT_1X32
        (Format::Float, 1, 13, "u32"),
    ];
    for (format, channels, view, result) in cases {
        let resource = Resource {
            format,
            channels,
            ..FLOAT
        };
        let view = View {
            format: view,
            size: [resource.size[0], resource.size[1], 0],
            levels: [0, 0],
            layers: [0, 0],
        };
        let setup = Setup {
            resource,
            object: Object::Texture(Sampler::PLAIN, Some(view)),
        };
        all.push(probe(
            setup,
            tex("", Geometry::D2, &format!("{result}.f32"), ""),
            "points",
            points_of(&resource, &Sampler::PLAIN, 64),
        ));
    }
    // Some of the layers.
    let resource = Resource {
        layers: 5,
        ..of(Geometry::A2d)
    };
    let view = View {
        format: 22,
        size: [7, 5, 3],
        levels: [0, 0],
        layers: [1, 3],
    };
    let setup = Setup {
        resource,
        object: Object::Texture(Sampler::PLAIN, Some(view)),
    };
    all.push(probe(
        setup,
        tex("", Geometry::A2d, "f32.f32", ""),
        "points",
        points_of(&resource, &Sampler::PLAIN, 96),
    ));
}

const QUESTIONS: [&str; 14] = [
    "width",
    "height",
    "depth",
    "channel_data_type",
    "channel_order",
    "normalized_coords",
    "array_size",
    "num_mipmap_levels",
    "num_samples",
    "filter_mode",
    "addr_mode_0",
    "addr_mode_1",
    "addr_mode_2",
    "force_unnormalized_coords",
];

fn ask(all: &mut Vec<Probe>, setup: Setup, which: &[&str]) {
    for question in which {
        let text = format!("txq.{question}.b32 %d0, [%o]");
        all.push(probe(setup, text, "once", vec![[0; 12]]));
    }
}

/// Returns a resource of four levels.
fn mipmapped(geometry: Geometry) -> Resource {
    Resource {
        levels: 4,
        size: match geometry {
            Geometry::D3 => [16, 8, 4],
            Geometry::Cube | Geometry::Acube => [16, 16, 1],
            Geometry::D1 | Geometry::A1d => [16, 1, 1],
            _ => [16, 8, 1],
        },
        ..of(geometry)
    }
}

/// Adds every query of `txq`, for each geometry.
pub(super) fn questions(all: &mut Vec<Probe>) {
    let normalised = Sampler {
        normalised: true,
        modes: [Mode::Wrap, Mode::Mirror, Mode::Border],
        ..Sampler::PLAIN
    };
    for geometry in [
        Geometry::D1,
        Geometry::D2,
        Geometry::D3,
        Geometry::A1d,
        Geometry::A2d,
        Geometry::Cube,
        Geometry::Acube,
    ] {
        ask(all, texture(of(geometry), normalised), &QUESTIONS);
        let mipmapped = texture(mipmapped(geometry), normalised);
        ask(
            all,
            mipmapped,
            &["width", "height", "depth", "num_mipmap_levels"],
        );
        for question in ["width", "height", "depth"] {
            let text = format!("txq.level.{question}.b32 %d0, [%o], %c0");
            let points = [0, 1, 2, 3, 4, 5, 0xffff_ffff].map(|level| {
                let mut point = [0; 12];
                point[0] = level;
                point
            });
            all.push(probe(mipmapped, text, "levels", points.to_vec()));
        }
    }
}

/// Adds queries of the texels' format.
pub(super) fn questions_of_formats(all: &mut Vec<Probe>) {
    for format in Format::ALL {
        for channels in [1, 2, 4] {
            for integers in [false, true] {
                let resource = Resource {
                    format,
                    channels,
                    ..FLOAT
                };
                let sampler = Sampler {
                    integers,
                    ..Sampler::PLAIN
                };
                let both = ["channel_data_type", "channel_order"];
                ask(all, texture(resource, sampler), &both);
            }
        }
    }
}

/// Adds every query of `txq`, for linear and pitched memory.
pub(super) fn questions_of_memory(all: &mut Vec<Probe>) {
    for storage in [Storage::Linear, Storage::Pitched] {
        let geometry = match storage {
            Storage::Linear => Geometry::D1,
            _ => Geometry::D2,
        };
        let resource = Resource {
            storage,
            ..of(geometry)
        };
        ask(all, texture(resource, Sampler::PLAIN), &QUESTIONS);
    }
}

/// Adds instructions whose types and geometries do not fit the object.
pub(super) fn mismatches(all: &mut Vec<Probe>) {
    for (format, integers, result) in [
        (Format::U8, true, "f32"),
        (Format::U8, false, "u32"),
        (Format::S16, true, "u32"),
        (Format::U16, true, "s32"),
        (Format::U32, true, "f32"),
        (Format::S32, true, "f32"),
        (Format::Float, false, "u32"),
        (Format::Float, false, "s32"),
        (Format::Half, false, "u32"),
    ] {
        let resource = Resource {
            format,
            channels: 4,
            ..FLOAT
        };
        let sampler = Sampler {
            integers,
            ..Sampler::PLAIN
        };
        all.push(probe(
            texture(resource, sampler),
            tex("", Geometry::D2, &format!("{result}.f32"), ""),
            "points",
            points_of(&resource, &sampler, 48),
        ));
    }
}

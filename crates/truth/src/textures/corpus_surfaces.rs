//! Surfaces: loads, stores and reductions by bytes, formatted ones, and queries.

use super::parts::{FLOAT, coordinates, of, probe};
use super::probe::{Probe, Wide};
use super::{Format, Geometry, Object, Pattern, Resource, Setup, points};

const GEOMETRIES: [Geometry; 5] = [
    Geometry::D1,
    Geometry::D2,
    Geometry::D3,
    Geometry::A1d,
    Geometry::A2d,
];

fn surface(resource: Resource) -> Setup {
    Setup {
        resource,
        object: Object::Surface,
    }
}

/// Returns the format and channels of texels of `bytes` bytes.
fn texels(bytes: usize) -> (Format, usize) {
    match bytes {
        1 => (Format::U8, 1),
        2 => (Format::U8, 2),
        4 => (Format::U32, 1),
        8 => (Format::U32, 2),
        _ => (Format::U32, 4),
    }
}

/// Returns the registers of a vector of `count` values of `bits` bits.
fn registers(bits: usize, count: usize) -> (Wide, String) {
    let (wide, class) = match bits {
        8 | 16 => (Wide::Halves, "h"),
        32 => (Wide::Words, "e"),
        _ => (Wide::Longs, "w"),
    };
    let names: Vec<String> = (0..count).map(|i| format!("%{class}{i}")).collect();
    (wide, format!("{{{}}}", names.join(", ")))
}

fn vector(count: usize) -> &'static str {
    match count {
        1 => "",
        2 => ".v2",
        _ => ".v4",
    }
}

pub(super) fn probes(all: &mut Vec<Probe>) {
    for geometry in GEOMETRIES {
        for bits in [8, 16, 32, 64] {
            for count in [1, 2, 4] {
                if bits * count > 128 {
                    continue;
                }
                for outside in ["clamp", "zero"] {
                    by_bytes(all, geometry, bits, count, outside);
                }
            }
        }
    }
    sizes(all);
    formatted(all);
    reductions(all);
    questions(all);
}

fn by_bytes(all: &mut Vec<Probe>, geometry: Geometry, bits: usize, count: usize, outside: &str) {
    let bytes = bits * count / 8;
    let (format, channels) = texels(bytes);
    let resource = Resource {
        format,
        channels,
        ..of(geometry)
    };
    let points = points::integers(geometry, resource.size, resource.layers, bytes, 64);
    let points = points::with_data(points);
    let (wide, registers) = registers(bits, count);
    let (name, vector, at) = (geometry.name(), vector(count), coordinates(geometry));
    let store = format!("sust.b.{name}{vector}.b{bits}.{outside} [%o, {{{at}}}], {registers}");
    all.push(Probe {
        serial: true,
        wide,
        ..probe(surface(resource), store, "stores", points.clone())
    });
    let load = format!("suld.b.{name}{vector}.b{bits}.{outside} {registers}, [%o, {{{at}}}]");
    let load = match wide {
        Wide::Words => load.replace("%e", "%d"),
        _ => load,
    };
    all.push(Probe {
        wide,
        ..probe(surface(resource), load, "loads", points)
    });
}

/// Adds accesses whose size differs from that of the texels.
fn sizes(all: &mut Vec<Probe>) {
    for (format, channels, bits, count) in [
        (Format::U8, 1, 16, 1),
        (Format::U8, 1, 32, 1),
        (Format::U8, 4, 8, 1),
        (Format::U8, 4, 16, 2),
        (Format::U32, 4, 32, 1),
        (Format::U32, 1, 64, 1),
        (Format::U32, 1, 32, 4),
        (Format::Half, 4, 32, 2),
        (Format::Float, 4, 64, 2),
    ] {
        for outside in ["clamp", "zero"] {
            let resource = Resource {
                format,
                channels,
                size: [8, 4, 1],
                ..FLOAT
            };
            let bytes = bits * count / 8;
            let row = [8 * resource.texel_bytes() / bytes, 4, 1];
            let points = points::integers(Geometry::D2, row, 1, bytes, 64);
            let (wide, registers) = registers(bits, count);
            let load = format!(
                "suld.b.2d{}.b{bits}.{outside} {}, [%o, {{%c0, %c1}}]",
                vector(count),
                registers.replace("%e", "%d")
            );
            all.push(Probe {
                wide,
                ..probe(surface(resource), load, "loads of another size", points)
            });
        }
    }
}

/// Adds `sust.p`: each format, each number of values.
fn formatted(all: &mut Vec<Probe>) {
    for format in Format::ALL {
        for channels in [1, 2, 4] {
            for count in [1, 2, 4] {
                let resource = Resource {
                    format,
                    channels,
                    ..FLOAT
                };
                let points = points::integers(Geometry::D2, resource.size, 1, 1, 64);
                let (_, registers) = registers(32, count);
                let store = format!(
                    "sust.p.2d{}.b32.{} [%o, {{%c0, %c1}}], {registers}",
                    vector(count),
                    if count == 2 { "zero" } else { "clamp" }
                );
                all.push(Probe {
                    serial: true,
                    ..probe(
                        surface(resource),
                        store,
                        "stores",
                        points::with_data(points),
                    )
                });
            }
        }
    }
    for geometry in GEOMETRIES {
        for outside in ["clamp", "zero"] {
            let resource = Resource {
                format: Format::U16,
                channels: 4,
                pattern: Pattern::Counted,
                ..of(geometry)
            };
            let points = points::integers(geometry, resource.size, resource.layers, 1, 64);
            let store = format!(
                "sust.p.{}.v4.b32.{outside} [%o, {{{}}}], {{%e0, %e1, %e2, %e3}}",
                geometry.name(),
                coordinates(geometry)
            );
            all.push(Probe {
                serial: true,
                ..probe(
                    surface(resource),
                    store,
                    "stores",
                    points::with_data(points),
                )
            });
        }
    }
}

fn reductions(all: &mut Vec<Probe>) {
    let forms = [
        ("b.add", "u32"),
        ("b.add", "s32"),
        ("b.add", "u64"),
        ("b.min", "u32"),
        ("b.min", "s32"),
        ("b.min", "u64"),
        ("b.min", "s64"),
        ("b.max", "u32"),
        ("b.max", "s32"),
        ("b.max", "u64"),
        ("b.max", "s64"),
        ("b.and", "b32"),
        ("b.or", "b32"),
        ("p.add", "b32"),
        ("p.min", "b32"),
        ("p.max", "b32"),
        ("p.and", "b32"),
        ("p.or", "b32"),
        ("p.min", "b64"),
        ("p.max", "b64"),
    ];
    for geometry in [Geometry::D1, Geometry::D2, Geometry::D3] {
        for (op, ty) in forms {
            for outside in ["clamp", "zero"] {
                let wide = ty.ends_with("64");
                // The format decides whether `.p` is signed.
                let formats: &[Format] = match (op.starts_with('p'), wide) {
                    (true, false) => &[Format::U32, Format::S32],
                    _ => &[Format::U32],
                };
                for &format in formats {
                    let resource = Resource {
                        format,
                        channels: if wide { 2 } else { 1 },
                        ..of(geometry)
                    };
                    let unit = match op.starts_with('p') {
                        true => 1,
                        false => resource.texel_bytes(),
                    };
                    let points = points::integers(geometry, resource.size, 1, unit, 96);
                    let text = format!(
                        "sured.{op}.{}.{ty}.{outside} [%o, {{{}}}], {}",
                        geometry.name(),
                        coordinates(geometry),
                        if wide { "%w0" } else { "%e0" }
                    );
                    all.push(Probe {
                        serial: true,
                        wide: if wide { Wide::Longs } else { Wide::Words },
                        ..probe(
                            surface(resource),
                            text,
                            "reductions",
                            points::with_data(points),
                        )
                    });
                }
            }
        }
    }
}

fn questions(all: &mut Vec<Probe>) {
    let mut ask = |resource: Resource, question: &str| {
        let text = format!("suq.{question}.b32 %d0, [%o]");
        all.push(probe(surface(resource), text, "once", vec![[0; 12]]));
    };
    for geometry in GEOMETRIES {
        for question in [
            "width",
            "height",
            "depth",
            "channel_data_type",
            "channel_order",
            "array_size",
            "memory_layout",
        ] {
            ask(of(geometry), question);
        }
    }
    for format in Format::ALL {
        for channels in [1, 2, 4] {
            let resource = Resource {
                format,
                channels,
                ..FLOAT
            };
            // Those queries are added above.
            if resource != FLOAT {
                for question in ["width", "channel_data_type", "channel_order"] {
                    ask(resource, question);
                }
            }
        }
    }
}

/// Adds accesses that end the kernel, each by itself.
pub(super) fn faults(all: &mut Vec<Probe>) {
    let resource = Resource {
        format: Format::U32,
        ..of(Geometry::D2)
    };
    let one = |c: [u32; 2]| {
        let mut point = [0; 12];
        point[..2].copy_from_slice(&c);
        vec![point]
    };
    let outside = one([28, 0]);
    for (text, tried, points) in [
        (
            "suld.b.2d.b32.trap {%d0}, [%o, {%c0, %c1}]",
            "inside",
            one([24, 4]),
        ),
        (
            "suld.b.2d.b32.trap {%d0}, [%o, {%c0, %c1}]",
            "outside",
            outside.clone(),
        ),
        (
            "suld.b.2d.b32.trap {%d0}, [%o, {%c0, %c1}]",
            "below",
            one([0, 5]),
        ),
        (
            "sust.b.2d.b32.trap [%o, {%c0, %c1}], {%e0}",
            "outside",
            outside.clone(),
        ),
        (
            "sust.p.2d.b32.trap [%o, {%c0, %c1}], {%e0}",
            "outside",
            one([7, 0]),
        ),
        (
            "sured.b.add.2d.u32.trap [%o, {%c0, %c1}], %e0",
            "outside",
            outside,
        ),
        (
            "suld.b.2d.b32.clamp {%d0}, [%o, {%c0, %c1}]",
            "unaligned",
            one([5, 1]),
        ),
        (
            "suld.b.2d.b32.zero {%d0}, [%o, {%c0, %c1}]",
            "unaligned",
            one([6, 1]),
        ),
        (
            "sust.b.2d.b32.zero [%o, {%c0, %c1}], {%e0}",
            "unaligned",
            one([6, 1]),
        ),
    ] {
        all.push(probe(surface(resource), text.into(), tried, points));
    }
}

//! Parts of probes: resources, operands and instructions that several of them share.

use super::probe::{Point, Probe, Wide};
use super::{Format, Geometry, Object, Pattern, Resource, Sampler, Setup, Storage, points};

pub(super) const FLOAT: Resource = Resource {
    storage: Storage::Array,
    geometry: Geometry::D2,
    format: Format::Float,
    channels: 1,
    size: [7, 5, 1],
    layers: 1,
    levels: 1,
    pattern: Pattern::Generic,
};

pub(super) const BORDER: [f32; 4] = [0.3, -0.7, 1.25, 0.6];

/// Makes a resource of a geometry.
pub(super) fn of(geometry: Geometry) -> Resource {
    let (size, layers) = match geometry {
        Geometry::D1 => ([7, 1, 1], 1),
        Geometry::D2 => ([7, 5, 1], 1),
        Geometry::D3 => ([6, 5, 3], 1),
        Geometry::A1d => ([7, 1, 1], 3),
        Geometry::A2d => ([7, 5, 1], 3),
        Geometry::Cube => ([5, 5, 1], 6),
        Geometry::Acube => ([4, 4, 1], 12),
    };
    Resource {
        geometry,
        size,
        layers,
        ..FLOAT
    }
}

/// Returns the coordinate registers; vectors have 1, 2 or 4.
pub(super) fn coordinates(geometry: Geometry) -> &'static str {
    match geometry.axes() + usize::from(geometry.is_layered()) {
        1 => "%c0",
        2 => "%c0, %c1",
        _ => "%c0, %c1, %c2, %c3",
    }
}

pub(super) fn tex(form: &str, geometry: Geometry, types: &str, behind: &str) -> String {
    format!(
        "tex{form}.{}.v4.{types} {{%d0, %d1, %d2, %d3}}, [%o, {{{}}}]{behind}",
        geometry.name(),
        coordinates(geometry)
    )
}

pub(super) fn texture(resource: Resource, sampler: Sampler) -> Setup {
    Setup {
        resource,
        object: Object::Texture(sampler, None),
    }
}

pub(super) fn probe(setup: Setup, instruction: String, tried: &str, points: Vec<Point>) -> Probe {
    Probe {
        setup,
        instruction,
        wide: Wide::Words,
        serial: false,
        tried: format!("{} {tried}", points.len()),
        points,
    }
}

/// Returns float coordinates for a texture.
pub(super) fn points_of(resource: &Resource, sampler: &Sampler, count: usize) -> Vec<Point> {
    points::floats(
        resource.geometry,
        resource.size,
        resource.layers,
        sampler.normalised,
        count,
    )
}

/// Adds `tex` with float coordinates.
pub(super) fn sampled(all: &mut Vec<Probe>, resource: Resource, sampler: Sampler, count: usize) {
    let result = match (sampler.integers, resource.format.bytes()) {
        (true, _) | (_, 4) => resource.format.result(),
        _ => "f32",
    };
    let types = format!("{result}.f32");
    all.push(probe(
        texture(resource, sampler),
        tex("", resource.geometry, &types, ""),
        "points",
        points_of(&resource, &sampler, count),
    ));
}

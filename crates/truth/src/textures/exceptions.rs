//! Known differences from a GPU, with their reasons and bounds.

use super::probe::Probe;
use super::{Format, Mode, Object, Pattern, Storage};

/// A group of probes whose results differ from the recorded ones.
pub struct Exception {
    pub why: &'static str,
    covers: fn(&Probe, &str) -> bool,
    pub tolerance: Tolerance,
}

/// The bound of a difference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// Results, read as floats, differ by at most this.
    AtMost(f64),
    AnyResult,
    /// One of the two may even give no results.
    NoResult,
}

/// For a probe, the first exception that covers it applies.
pub const EXCEPTIONS: &[Exception] = &[
    Exception {
        why: "recorded of arrays that should allow gathers from layers or cubes, which a GPU refuses: to be recorded again",
        covers: |p, _| {
            let r = &p.setup.resource;
            let g = r.geometry;
            r.storage == Storage::Array
                && p.setup.object != Object::Surface
                && g.dimensions() == 2
                && (g.is_layered() || g.is_cube())
        },
        tolerance: Tolerance::NoResult,
    },
    Exception {
        why: "the same of surfaces",
        covers: |p, _| {
            let g = p.setup.resource.geometry;
            p.setup.object == Object::Surface && g.dimensions() == 2 && g.is_layered()
        },
        tolerance: Tolerance::NoResult,
    },
    Exception {
        why: "stores of registers without a value: to be recorded again",
        covers: |_, text| text.starts_with("sust.b") && !text.contains(".b32"),
        tolerance: Tolerance::AnyResult,
    },
    Exception {
        why: "the driver's compiler has no such questions for objects in registers",
        covers: |_, text| {
            (text.starts_with("txq") || text.starts_with("suq"))
                && !["width", "height", "depth"]
                    .iter()
                    .any(|known| text.contains(known))
        },
        tolerance: Tolerance::NoResult,
    },
    Exception {
        why: "refused: a level with coordinates of texels, of which a GPU's answers are not those of the number",
        covers: |_, text| text.starts_with("tex.level") && text.contains(".s32"),
        tolerance: Tolerance::NoResult,
    },
    Exception {
        why: "refused: 64-bit texels of sured.p",
        covers: |_, text| text.starts_with("sured.p") && text.contains("b64"),
        tolerance: Tolerance::NoResult,
    },
    Exception {
        why: "a view of other sizes than the level has is refused by a driver",
        covers: |p, _| matches!(p.setup.object, Object::Texture(_, Some(view)) if view.levels[0] > 0),
        tolerance: Tolerance::NoResult,
    },
    Exception {
        why: "gradients: how a GPU takes their length and logarithm, and samples along them, is not known",
        covers: |p, text| text.starts_with("tex.grad") && p.setup.resource.levels > 1,
        tolerance: Tolerance::AnyResult,
    },
    Exception {
        why: "where levels lie without normalised coordinates is not known",
        covers: |p, _| {
            p.setup.resource.levels > 1
                && matches!(p.setup.object, Object::Texture(s, _) if !s.normalised)
        },
        tolerance: Tolerance::AnyResult,
    },
    Exception {
        why: "the height of a level of lines that is not there",
        covers: |p, text| {
            text.starts_with("txq.level.height") && p.setup.resource.geometry.is_layered()
        },
        tolerance: Tolerance::AnyResult,
    },
    Exception {
        why: "levels of texels at a clamped edge are shared out otherwise, now and then",
        covers: |p, _| {
            p.setup.resource.levels > 1
                && matches!(p.setup.object, Object::Texture(s, _) if s.mip_linear && s.modes[0] == Mode::Clamp)
        },
        tolerance: Tolerance::AtMost(0.03),
    },
    Exception {
        why: "sRGB by its formula; a GPU has a table",
        covers: |p, _| matches!(p.setup.object, Object::Texture(s, _) if s.srgb),
        tolerance: Tolerance::AtMost(0.01),
    },
    Exception {
        why: "halves that are not numbers, as a filter makes them and as they are stored",
        covers: |p, text| {
            text.starts_with("sust.p") && p.setup.resource.format == Format::Half
                || p.setup.resource.pattern == Pattern::Special
        },
        tolerance: Tolerance::AnyResult,
    },
    Exception {
        why: "a filtered half rounded once more",
        covers: |_, text| text.contains("f16"),
        tolerance: Tolerance::AnyResult,
    },
    Exception {
        why: "offsets outside of -8 to 7, which PTX leaves undefined, along a line",
        covers: |p, text| text.starts_with("tex.1d") && p.tried.contains("offsets"),
        tolerance: Tolerance::AnyResult,
    },
    Exception {
        why: "one weight in twenty of boxes is 1/256 apart",
        covers: |p, _| filters(p) && p.setup.resource.geometry.dimensions() == 3,
        tolerance: Tolerance::AtMost(0.13),
    },
    Exception {
        why: "sums with a border of 10^10 are rounded otherwise",
        covers: |p, _| {
            filters(p) && matches!(p.setup.object, Object::Texture(s, _) if s.border[2] > 1e6)
        },
        tolerance: Tolerance::AtMost(2048.0),
    },
    Exception {
        why: "filtered halves are one step of the largest apart, now and then",
        covers: |p, _| filters(p) && p.setup.resource.format == Format::Half,
        tolerance: Tolerance::AtMost(0.25),
    },
    Exception {
        why: "the most negative byte, filtered with others",
        covers: |p, _| {
            let r = &p.setup.resource;
            filters(p) && r.format == Format::S8 && r.pattern == Pattern::Counted
        },
        tolerance: Tolerance::AtMost(0.008),
    },
    Exception {
        why: "filtered fractions are a few steps of 16 bits apart, now and then",
        covers: |p, _| filters(p) && p.setup.resource.format.bytes() < 4,
        tolerance: Tolerance::AtMost(4.0 / 32_000.0),
    },
    Exception {
        why: "sums of floats are rounded otherwise",
        covers: |p, _| filters(p),
        tolerance: Tolerance::AtMost(1e-6),
    },
];

fn filters(probe: &Probe) -> bool {
    let levels = probe.setup.resource.levels > 1;
    matches!(probe.setup.object, Object::Texture(s, _) if s.linear || levels && s.mip_linear)
}

/// Returns the exception that covers a probe.
pub fn of(probe: &Probe) -> Option<&'static Exception> {
    EXCEPTIONS
        .iter()
        .find(|e| (e.covers)(probe, &probe.instruction))
}

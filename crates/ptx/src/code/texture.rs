//! Instructions on textures and surfaces (PTX ISA 9.7.10, 9.7.11), by their numbers in registers.

use super::{AtomOp, Row};

#[derive(Debug, Clone)]
pub struct TextureInstruction {
    /// Of 64 bits: the texture's or surface's number.
    pub object: Row,
    pub op: TextureOp,
    pub geometry: Geometry,
    /// x, y, z, as many as the geometry has; of surfaces x counts bytes.
    pub at: [Row; 3],
    pub layer: Row,
    /// What is read or written, in order.
    pub values: Vec<Row>,
}

/// `.1d .2d .3d .a1d .a2d`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    pub dimensions: u8,
    pub layered: bool,
}

impl Geometry {
    pub fn from_name(name: &str) -> Option<Geometry> {
        let (dimensions, layered) = match name {
            "1d" => (1, false),
            "2d" => (2, false),
            "3d" => (3, false),
            "a1d" => (1, true),
            "a2d" => (2, true),
            _ => return None,
        };
        Some(Geometry {
            dimensions,
            layered,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextureOp {
    /// `tex`
    Sample { integers: bool },
    /// `tld4` of a channel
    Gather { channel: u8 },
    /// `txq`, `suq`
    Query { what: Query, surface: bool },
    /// `suld.b`, `sust.b`, `sured.b`: values of so many bytes.
    Surface {
        access: Access,
        bytes: u8,
        outside: Outside,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Load,
    Store,
    Reduce(AtomOp),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Query {
    Width,
    Height,
    Depth,
    ArraySize,
    NormalisedCoordinates,
    /// Levels of a mipmap, samples: there is one.
    One,
}

/// What an access outside of a surface does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outside {
    Trap,
    /// Takes the nearest place.
    Clamp,
    /// Loads 0, stores nothing.
    Zero,
}

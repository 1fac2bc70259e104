//! Instructions on textures and surfaces (PTX ISA 9.7.10, 9.7.11), which are named by numbers in
//! registers.

use super::{AtomOp, Row};

#[derive(Debug, Clone)]
pub struct TextureInstruction {
    /// Row of 64 bits with the texture's or surface's number.
    pub object: Row,
    pub op: TextureOp,
    pub geometry: Geometry,
    /// Rows of x, y, z, as many as the geometry has. For surfaces accessed by bytes, x counts
    /// bytes.
    pub at: [Row; 3],
    pub layer: Row,
    /// Rows of offsets in texels, added to the coordinates.
    pub offset: [Row; 3],
    pub detail: DetailRows,
    /// Rows read or written, in order.
    pub values: Vec<Row>,
}

/// Rows that choose the level of a mipmap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DetailRows {
    Base,
    /// `.level`
    Level(Row),
    /// `.grad`: gradients along two directions of the screen.
    Gradients([[Row; 3]; 2]),
}

/// `.1d .2d .3d .a1d .a2d .cube .acube`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Number of coordinates.
    pub dimensions: u8,
    pub layered: bool,
    pub cube: bool,
}

impl Geometry {
    pub fn from_name(name: &str) -> Option<Geometry> {
        let (dimensions, layered, cube) = match name {
            "1d" => (1, false, false),
            "2d" => (2, false, false),
            "3d" => (3, false, false),
            "a1d" => (1, true, false),
            "a2d" => (2, true, false),
            "cube" => (3, false, true),
            "acube" => (3, true, true),
            _ => return None,
        };
        Some(Geometry {
            dimensions,
            layered,
            cube,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextureOp {
    /// `tex`
    Sample { integers: bool, results: Results },
    /// `tld4` of a channel
    Gather { channel: u8 },
    /// `txq`, `suq`
    Query { what: Query, surface: bool },
    /// `sured.b`, `suld.b` and `sust.b`: values of `bytes` bytes.
    Surface {
        access: Access,
        bytes: u8,
        outside: Outside,
    },
    /// `sust.p` and `sured.p`: by texels, in the surface's format.
    Formatted { access: Access, outside: Outside },
}

/// The form in which `tex` returns its four channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Results {
    /// `.v4.f32`, `.v4.s32`, `.v4.u32`
    Words,
    /// `.v4.f16`
    Halves,
    /// `.v2.f16x2`
    Packed,
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
    /// Levels of a mipmap.
    Levels,
    /// Samples of a multisampled image: always one.
    Samples,
    ChannelType,
    ChannelOrder,
}

/// The result of an access outside of a surface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outside {
    Trap,
    /// Uses the nearest position inside.
    Clamp,
    /// Loads 0; stores nothing.
    Zero,
}

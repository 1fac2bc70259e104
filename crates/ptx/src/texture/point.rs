//! The position that a texture instruction reads.

/// The position that a texture instruction reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) at: Coordinates,
    pub(crate) layer: u32,
    /// Texels added to the position of the coordinates.
    pub(crate) offset: [i32; 3],
    pub(crate) detail: Detail,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Coordinates {
    Floats([f32; 3]),
    /// Numbers of texels.
    Integers([i32; 3]),
}

/// How an instruction chooses the level.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Detail {
    /// Uses the first level, changed by the sampler only.
    Base,
    /// `tex.level`
    Level(f32),
    /// `tex.grad`: gradients along x and y of the screen.
    Gradients([[f32; 3]; 2]),
}

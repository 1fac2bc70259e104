//! Mapping of directions to the faces of a cube (CUDA C++ Programming Guide, "Cubemap Textures").

/// A face. Faces are ordered as layers: +x, -x, +y, -y, +z, -z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Face {
    axis: u8,
    negative: bool,
}

impl Face {
    pub(crate) fn number(self) -> u64 {
        u64::from(self.axis) * 2 + u64::from(self.negative)
    }

    /// Returns the face that a direction points to, and the position on it, from 0 to 1.
    pub(crate) fn of(direction: [f32; 3]) -> (Face, [f32; 2]) {
        let [ax, ay, az] = direction.map(f32::abs);
        let axis = if az >= ax && az >= ay {
            2
        } else if ay >= ax {
            1
        } else {
            0
        };
        let face = Face {
            axis,
            negative: direction[usize::from(axis)].is_sign_negative(),
        };
        let major = direction[usize::from(axis)].abs();
        let on = |c: f32| (c / major + 1.0) / 2.0;
        (face, face.flat(direction).map(on))
    }

    /// Returns the components along s and t of the face.
    fn flat(self, [x, y, z]: [f32; 3]) -> [f32; 2] {
        match (self.axis, self.negative) {
            (0, false) => [-z, -y],
            (0, true) => [z, -y],
            (1, false) => [x, z],
            (1, true) => [x, -z],
            (_, false) => [x, -y],
            (_, true) => [-x, -y],
        }
    }

    /// Returns the direction to a point of the face's plane; the face extends from -1 to 1.
    fn direction(self, [s, t]: [f32; 2]) -> [f32; 3] {
        match (self.axis, self.negative) {
            (0, false) => [1.0, -t, -s],
            (0, true) => [-1.0, -t, s],
            (1, false) => [s, 1.0, t],
            (1, true) => [s, -1.0, -t],
            (_, false) => [s, -t, 1.0],
            (_, true) => [-s, -t, -1.0],
        }
    }

    /// Returns the change of the position on the face when the direction changes.
    pub(crate) fn slope(self, direction: [f32; 3], change: [f32; 3]) -> [f32; 2] {
        let axis = usize::from(self.axis);
        let major = direction[axis].abs();
        let growth = change[axis] * direction[axis].signum();
        let (at, along) = (self.flat(direction), self.flat(change));
        [0, 1].map(|i| (along[i] * major - at[i] * growth) / (2.0 * major * major))
    }

    /// Returns the texel across an edge of the face, as a face and a position. Faces have `n`
    /// texels in a row; one of the two coordinates in `at` is outside.
    pub(crate) fn neighbour(self, at: [f64; 2], n: u64) -> (Face, [u64; 2]) {
        let middle = at.map(|i| ((2.0 * i + 1.0) / n as f64 - 1.0) as f32);
        let (face, on) = Face::of(self.direction(middle));
        (face, on.map(|c| ((c * n as f32) as u64).min(n - 1)))
    }
}

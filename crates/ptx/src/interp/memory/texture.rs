//! `tex`, `tld4`, `txq`, `suld`, `sust`, `sured`, `suq`: executed lane by lane on the objects that
//! numbers in registers name.

use crate::code::{
    Access, DetailRows, Geometry, Outside, Query, Results, Rounding, SINK, TextureInstruction,
    TextureOp,
};
use crate::error::FaultKind;
use crate::interp::core::{Core, Stop, Trouble};
use crate::interp::memory::access::access_fault;
use crate::interp::memory::atomic::{atomic32, atomic64};
use crate::lanes::lanes;
use crate::memory::Ranges;
use crate::number::half::{F16, Half as _};
use crate::texture::{
    Bound, Bytes, Channel, Coordinates, Cube, Detail, Floats, Format, Point, Quick,
    SurfacePosition, Texels, Texture, order_code,
};
use crate::words::{read8, read16, read32, read64, write8, write16, write32, write64};

/// Cached results of earlier lanes: most use one object, and texels of one range.
#[derive(Default)]
struct LookupCache<'e> {
    /// A texture that fits the instruction, and its number.
    texture: Option<(u64, &'e Texture)>,
    texels: TexelRange,
}

/// A range of mapped memory, from its first address to its end.
#[derive(Default)]
struct TexelRange {
    start: u64,
    end: u64,
}

impl TexelRange {
    /// Reads a channel of a texel, zero-extended.
    #[inline(always)]
    fn read(&mut self, ranges: &Ranges, at: u64, bytes: u32, lane: usize) -> Result<u32, Stop> {
        let size = u64::from(bytes);
        if at < self.start || at >= self.end {
            match ranges.find(at) {
                Some((start, end)) => *self = TexelRange { start, end },
                None => return Err(access_fault(at, size, false, lane)),
            }
        }
        if self.end - at < size || at & (size - 1) != 0 {
            return Err(access_fault(at, size, false, lane));
        }
        Ok(match bytes {
            1 => read8(at).into(),
            2 => read16(at).into(),
            _ => read32(at),
        })
    }
}

impl<'e> Core<'e> {
    #[inline(never)]
    pub(crate) fn texture(&mut self, index: u32, mask: u32) -> Result<(), Stop> {
        let program = self.program;
        let instruction = &program.textures[index as usize];
        let mut seen = LookupCache::default();
        if let TextureOp::Sample { integers, results } = instruction.op
            && self.sample_quickly(instruction, mask, integers, results)?
        {
            return Ok(());
        }
        for lane in lanes(mask) {
            match instruction.op {
                TextureOp::Sample { integers, results } => {
                    let texture = self.texture_of(instruction, lane, &mut seen.texture)?;
                    let point = self.point(instruction, integers, lane);
                    let texel = texture.sample(&point, &mut |at, bytes| {
                        seen.texels.read(self.ranges, at, bytes, lane)
                    })?;
                    self.give_texel(instruction, results, lane, texel);
                }
                TextureOp::Gather { channel } => {
                    let texture = self.texture_of(instruction, lane, &mut seen.texture)?;
                    let point = self.point(instruction, false, lane);
                    let texels = texture.gather(&point, channel.into(), &mut |at, bytes| {
                        seen.texels.read(self.ranges, at, bytes, lane)
                    })?;
                    self.give(instruction, lane, &texels);
                }
                TextureOp::Query { what, surface } => {
                    let answer = self.answer(instruction, what, surface, lane)?;
                    self.give(instruction, lane, &[answer]);
                }
                TextureOp::Surface {
                    access,
                    bytes,
                    outside,
                } => self.surface(instruction, access, bytes.into(), outside, lane)?,
                TextureOp::Formatted { access, outside } => {
                    self.formatted(instruction, access, outside, lane)?;
                }
            }
        }
        Ok(())
    }

    /// Executes `tex` on the fast path, if all lanes name one texture that has one; otherwise does
    /// nothing and returns false.
    fn sample_quickly(
        &mut self,
        instruction: &TextureInstruction,
        mask: u32,
        integers: bool,
        results: Results,
    ) -> Result<bool, Stop> {
        let objects = self.files.row64(instruction.object);
        let first = mask.trailing_zeros() as usize & 31;
        if lanes(mask).any(|lane| objects[lane] != objects[first]) {
            return Ok(false);
        }
        let texture = self.texture_of(instruction, first, &mut None)?;
        let Some(quick) = texture.quick(integers, |at| self.ranges.find(at)) else {
            return Ok(false);
        };
        match texture.texels.channel {
            Channel::Float => self.each_lane(instruction, mask, &quick, Floats, integers, results),
            Channel::U8 => self.each_lane(instruction, mask, &quick, Bytes, integers, results),
            other => self.each_lane(instruction, mask, &quick, other, integers, results),
        }
        Ok(true)
    }

    #[inline(always)]
    fn each_lane<F: Format>(
        &self,
        instruction: &TextureInstruction,
        mask: u32,
        quick: &Quick<'_>,
        format: F,
        integers: bool,
        results: Results,
    ) {
        // Copied, because a result may overwrite a coordinate.
        let [x, y, z] = [0, 1, 2].map(|axis| self.files.get32(instruction.at[axis]));
        let offsets = [0, 1, 2].map(|axis| self.files.get32(instruction.offset[axis]));
        let layers = self.files.get32(instruction.layer);
        let linear = quick.is_linear();
        let mut texels = [[0; 32]; 4];
        for lane in lanes(mask) {
            let lane = lane & 31;
            let offset = [
                short(offsets[0][lane]),
                short(offsets[1][lane]),
                short(offsets[2][lane]),
            ];
            let at = [x[lane], y[lane], z[lane]];
            let layer = layers[lane];
            let texel = if integers {
                let at = [at[0] as i32, at[1] as i32, at[2] as i32];
                quick.numbered(format, at, offset, layer)
            } else {
                let float = f32::from_bits;
                let at = [float(at[0]), float(at[1]), float(at[2])];
                match linear {
                    true => quick.filtered(format, at, offset, quick.layer(layer)),
                    false => quick.nearest(format, at, offset, quick.layer(layer)),
                }
            };
            texels[0][lane] = texel[0];
            texels[1][lane] = texel[1];
            texels[2][lane] = texel[2];
            texels[3][lane] = texel[3];
        }
        if results == Results::Words {
            for (&row, values) in instruction.values.iter().zip(&texels) {
                if row != SINK {
                    self.files.set32(row, mask, values);
                }
            }
            return;
        }
        for lane in lanes(mask) {
            let texel = [0, 1, 2, 3].map(|i: usize| texels[i][lane & 31]);
            self.give_texel(instruction, results, lane, texel);
        }
    }

    #[inline(always)]
    fn give_texel(
        &self,
        instruction: &TextureInstruction,
        results: Results,
        lane: usize,
        texel: [u32; 4],
    ) {
        match results {
            Results::Words => self.give(instruction, lane, &texel),
            Results::Halves => self.give(instruction, lane, &texel.map(half)),
            Results::Packed => {
                let [r, g, b, a] = texel.map(half);
                self.give(instruction, lane, &[r | g << 16, b | a << 16]);
            }
        }
    }

    fn coordinates(&self, instruction: &TextureInstruction, lane: usize) -> [u32; 3] {
        instruction.at.map(|row| self.files.lane32(row, lane))
    }

    #[inline(always)]
    fn point(&self, instruction: &TextureInstruction, integers: bool, lane: usize) -> Point {
        let at = self.coordinates(instruction, lane);
        let float = |row| f32::from_bits(self.files.lane32(row, lane));
        Point {
            at: match integers {
                true => Coordinates::Integers(at.map(|c| c as i32)),
                false => Coordinates::Floats(at.map(f32::from_bits)),
            },
            layer: self.files.lane32(instruction.layer, lane),
            offset: instruction
                .offset
                .map(|row| short(self.files.lane32(row, lane))),
            detail: match instruction.detail {
                DetailRows::Base => Detail::Base,
                DetailRows::Level(row) => Detail::Level(float(row)),
                DetailRows::Gradients(rows) => Detail::Gradients(rows.map(|r| r.map(float))),
            },
        }
    }

    fn give(&self, instruction: &TextureInstruction, lane: usize, values: &[u32]) {
        for (&row, &value) in instruction.values.iter().zip(values) {
            if row != SINK {
                self.files.set_lane32(row, lane, value);
            }
        }
    }

    fn bound(
        &self,
        instruction: &TextureInstruction,
        lane: usize,
    ) -> Result<(u64, &'e Bound), Stop> {
        let number = self.files.lane64(instruction.object, lane);
        match self.ranges.bound(number) {
            Some(bound) => Ok((number, bound)),
            None => Err(trap(
                format!("{number:#x} is no texture or surface object"),
                lane,
            )),
        }
    }

    #[inline(always)]
    fn texture_of(
        &self,
        instruction: &TextureInstruction,
        lane: usize,
        seen: &mut Option<(u64, &'e Texture)>,
    ) -> Result<&'e Texture, Stop> {
        if let Some((number, texture)) = *seen
            && self.files.lane64(instruction.object, lane) == number
        {
            return Ok(texture);
        }
        match self.bound(instruction, lane)? {
            (number, Bound::Texture(texture)) => {
                fits(&texture.texels, instruction.geometry, number, lane)?;
                *seen = Some((number, texture));
                Ok(texture)
            }
            (number, Bound::Surface(_)) => Err(trap(
                format!("{number:#x} is a surface, read as a texture"),
                lane,
            )),
        }
    }

    /// Returns a surface's texels. Faces of cubes are layers.
    fn surface_of(
        &self,
        instruction: &TextureInstruction,
        lane: usize,
    ) -> Result<(u64, Texels), Stop> {
        let (number, &Bound::Surface(mut texels)) = self.bound(instruction, lane)? else {
            return Err(trap("a texture, used as a surface".into(), lane));
        };
        texels.cube = Cube::No;
        fits(&texels, instruction.geometry, number, lane)?;
        Ok((number, texels))
    }

    fn answer(
        &self,
        instruction: &TextureInstruction,
        what: Query,
        surface: bool,
        lane: usize,
    ) -> Result<u32, Stop> {
        let (texels, normalised, linear_memory) = match self.bound(instruction, lane)? {
            (_, Bound::Texture(texture)) if !surface => (
                texture.texels,
                texture.sampler.normalised,
                texture.linear_memory,
            ),
            (_, &Bound::Surface(texels)) if surface => (texels, false, false),
            (number, _) => {
                return Err(trap(
                    format!("{number:#x} is an object of the other kind"),
                    lane,
                ));
            }
        };
        let size = match instruction.detail {
            DetailRows::Level(row) => {
                let level = self.files.lane32(row, lane);
                match level < texels.levels {
                    true => texels.level(level).size,
                    false => [0; 3],
                }
            }
            _ => texels.size,
        };
        let has = |axis: usize| match axis < texels.dimensions as usize {
            true => size[axis] as u32,
            false => 0,
        };
        // A GPU treats lines as one row of a plane, and their layers as rows.
        let rows = match (surface, texels.dimensions, texels.layers) {
            (_, 1, Some(layers)) => layers as u32,
            (false, 1, _) if size[0] > 0 && !linear_memory => 1,
            _ => has(1),
        };
        Ok(match what {
            Query::Width => has(0),
            Query::Height => rows,
            Query::Depth => has(2),
            Query::ArraySize => texels.layers.unwrap_or(0) as u32,
            Query::NormalisedCoordinates => normalised.into(),
            Query::Levels => texels.levels,
            Query::Samples => 1,
            Query::ChannelType => texels.channel.type_code(),
            Query::ChannelOrder => order_code(texels.channels),
        })
    }

    fn surface(
        &mut self,
        instruction: &TextureInstruction,
        access: Access,
        bytes: u64,
        outside: Outside,
        lane: usize,
    ) -> Result<(), Stop> {
        let (number, texels) = self.surface_of(instruction, lane)?;
        let place = SurfacePosition {
            at: self.coordinates(instruction, lane).map(|c| c as i32),
            // A GPU uses only these bits.
            layer: self.files.lane32(instruction.layer, lane) & 0xffff,
        };
        let all = bytes * instruction.values.len() as u64;
        let found = texels.place(&place, all, outside == Outside::Clamp);
        let Some(at) = found else {
            if outside == Outside::Trap || outside == Outside::Clamp {
                return Err(beyond(number, all, &place, lane));
            }
            if access == Access::Load {
                for &row in &instruction.values {
                    self.put(row, bytes, lane, 0);
                }
            }
            return Ok(());
        };
        let mapped = self.ranges.find(at);
        if !at.is_multiple_of(all) || mapped.is_none_or(|(_, end)| end - at < all) {
            return Err(access_fault(at, all, access != Access::Load, lane));
        }
        for (i, &row) in instruction.values.iter().enumerate() {
            let at = at + i as u64 * bytes;
            match (access, bytes) {
                (Access::Load, 1) => self.put(row, bytes, lane, read8(at).into()),
                (Access::Load, 2) => self.put(row, bytes, lane, read16(at).into()),
                (Access::Load, 4) => self.put(row, bytes, lane, read32(at).into()),
                (Access::Load, _) => self.put(row, bytes, lane, read64(at)),
                (Access::Store, 1) => write8(at, self.files.lane32(row, lane) as u8),
                (Access::Store, 2) => write16(at, self.files.lane32(row, lane) as u16),
                (Access::Store, 4) => write32(at, self.files.lane32(row, lane)),
                (Access::Store, _) => write64(at, self.files.lane64(row, lane)),
                (Access::Reduce(op), 8) => {
                    atomic64(op, at, self.files.lane64(row, lane), 0);
                }
                (Access::Reduce(op), _) => {
                    atomic32(op, at, self.files.lane32(row, lane), 0);
                }
            }
        }
        Ok(())
    }

    /// Accesses a texel channel by channel, in its format.
    fn formatted(
        &mut self,
        instruction: &TextureInstruction,
        access: Access,
        outside: Outside,
        lane: usize,
    ) -> Result<(), Stop> {
        let (number, texels) = self.surface_of(instruction, lane)?;
        let place = SurfacePosition {
            at: self.coordinates(instruction, lane).map(|c| c as i32),
            // A GPU uses only these bits.
            layer: self.files.lane32(instruction.layer, lane) & 0xffff,
        };
        let all = texels.texel_bytes();
        let Some(at) = texels.texel_place(&place, outside == Outside::Clamp) else {
            return match outside {
                Outside::Zero => Ok(()),
                _ => Err(beyond(number, all, &place, lane)),
            };
        };
        let mapped = self.ranges.find(at);
        if mapped.is_none_or(|(_, end)| end - at < all) {
            return Err(access_fault(at, all, true, lane));
        }
        let channel = texels.channel;
        // Channels without a value become 0.
        let stores = access == Access::Store;
        let count = if stores { texels.channels as usize } else { 1 };
        for i in 0..count {
            let value = match instruction.values.get(i) {
                Some(&row) => self.files.lane32(row, lane),
                None => 0,
            };
            let at = at + i as u64 * u64::from(channel.bytes());
            match (access, channel.bytes()) {
                (Access::Reduce(op), 4) => {
                    atomic32(channel.reduction(op), at, value, 0);
                }
                (Access::Reduce(_), _) => {
                    return Err(trap(
                        format!("surface {number:#x}: a reduction of {channel:?}"),
                        lane,
                    ));
                }
                (_, 1) => write8(at, channel.stored(value) as u8),
                (_, 2) => write16(at, channel.stored(value) as u16),
                (_, _) => write32(at, channel.stored(value)),
            }
        }
        Ok(())
    }

    fn put(&self, row: u32, bytes: u64, lane: usize, value: u64) {
        match (row, bytes) {
            (SINK, _) => {}
            (_, 8) => self.files.set_lane64(row, lane, value),
            _ => self.files.set_lane32(row, lane, value as u32),
        }
    }
}

/// Sign-extends an offset of 4 bits.
#[inline(always)]
fn short(offset: u32) -> i32 {
    (offset as i32) << 28 >> 28
}

fn beyond(number: u64, bytes: u64, place: &SurfacePosition, lane: usize) -> Stop {
    let [x, y, z] = place.at;
    trap(
        format!(
            "surface {number:#x}: {bytes} bytes at {x}, row {y}, slice {z}, layer {} are outside",
            place.layer
        ),
        lane,
    )
}

/// Converts a float to a half.
fn half(bits: u32) -> u32 {
    F16::from_f64(f32::from_bits(bits).into(), Rounding::Nearest)
}

fn fits(texels: &Texels, geometry: Geometry, number: u64, lane: usize) -> Result<(), Stop> {
    let cube = match (geometry.cube, geometry.layered) {
        (false, _) => Cube::No,
        (true, false) => Cube::One,
        (true, true) => Cube::Layers,
    };
    let dimensions = if geometry.cube {
        2
    } else {
        geometry.dimensions
    };
    // A plane of one row is read as a line, as on a GPU, whose lines are such planes.
    let is_row = dimensions == 1 && texels.dimensions == 2 && texels.size[1] == 1;
    if (texels.dimensions == u32::from(dimensions) || is_row)
        && texels.cube == cube
        && texels.layers.is_some() == (geometry.layered || geometry.cube)
    {
        return Ok(());
    }
    let shape = |dimensions: u32, layered: bool, cube: bool| match (cube, layered) {
        (true, _) => "faces of a cube".into(),
        (_, true) => format!("{dimensions} dimensions with layers"),
        _ => format!("{dimensions} dimensions"),
    };
    Err(trap(
        format!(
            "object {number:#x} has {}, the instruction {}",
            shape(
                texels.dimensions,
                texels.layers.is_some(),
                texels.cube != Cube::No
            ),
            shape(dimensions.into(), geometry.layered, geometry.cube)
        ),
        lane,
    ))
}

fn trap(reason: String, lane: usize) -> Stop {
    Trouble::at_lane(FaultKind::Trap { reason }, lane)
}

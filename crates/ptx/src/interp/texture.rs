//! `tex`, `tld4`, `txq`, `suld`, `sust`, `sured`, `suq`: lane by lane, by what the numbers in registers stand for.

use super::atomic::{atomic32, atomic64};
use super::core::{Core, Stop, Trouble};
use super::lanes::lanes;
use super::memory::{
    access_fault, read8, read16, read32, read64, write8, write16, write32, write64,
};
use crate::code::{Access, Geometry, Outside, Query, SINK, TextureInstruction, TextureOp};
use crate::error::FaultKind;
use crate::memory::Ranges;
use crate::texture::{Bound, Coordinates, Place, Point, Texels, Texture};

impl Core<'_> {
    #[inline(never)]
    pub(crate) fn texture(&mut self, index: u32, mask: u32) -> Result<(), Stop> {
        let program = self.program;
        let instruction = &program.textures[index as usize];
        for lane in lanes(mask) {
            match instruction.op {
                TextureOp::Sample { integers } => {
                    let texture = self.texture_of(instruction, lane)?;
                    let at = if integers {
                        Coordinates::Integers(self.coordinates(instruction, lane).map(|c| c as i32))
                    } else {
                        Coordinates::Floats(self.coordinates(instruction, lane).map(f32::from_bits))
                    };
                    let layer = self.files.lane32(instruction.layer, lane);
                    let texel = texture.sample(&Point { at, layer }, &mut |at, bytes| {
                        read_texel(self.ranges, at, bytes, lane)
                    })?;
                    self.give(instruction, lane, &texel);
                }
                TextureOp::Gather { channel } => {
                    let texture = self.texture_of(instruction, lane)?;
                    let at = Coordinates::Floats(
                        self.coordinates(instruction, lane).map(f32::from_bits),
                    );
                    let layer = self.files.lane32(instruction.layer, lane);
                    let texels = texture.gather(
                        &Point { at, layer },
                        channel.into(),
                        &mut |at, bytes| read_texel(self.ranges, at, bytes, lane),
                    )?;
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
            }
        }
        Ok(())
    }

    fn coordinates(&self, instruction: &TextureInstruction, lane: usize) -> [u32; 3] {
        instruction.at.map(|row| self.files.lane32(row, lane))
    }

    fn give(&self, instruction: &TextureInstruction, lane: usize, values: &[u32]) {
        for (&row, &value) in instruction.values.iter().zip(values) {
            if row != SINK {
                self.files.set_lane32(row, lane, value);
            }
        }
    }

    fn bound(&self, instruction: &TextureInstruction, lane: usize) -> Result<(u64, Bound), Stop> {
        let number = self.files.lane64(instruction.object, lane);
        match self.ranges.bound(number) {
            Some(bound) => Ok((number, *bound)),
            None => Err(trap(
                format!("{number:#x} is no texture or surface object"),
                lane,
            )),
        }
    }

    fn texture_of(&self, instruction: &TextureInstruction, lane: usize) -> Result<Texture, Stop> {
        match self.bound(instruction, lane)? {
            (number, Bound::Texture(texture)) => {
                fits(&texture.texels, instruction.geometry, number, lane)?;
                Ok(texture)
            }
            (number, Bound::Surface(_)) => Err(trap(
                format!("{number:#x} is a surface, read as a texture"),
                lane,
            )),
        }
    }

    fn answer(
        &self,
        instruction: &TextureInstruction,
        what: Query,
        surface: bool,
        lane: usize,
    ) -> Result<u32, Stop> {
        let (texels, normalised) = match self.bound(instruction, lane)? {
            (_, Bound::Texture(texture)) if !surface => {
                (texture.texels, texture.sampler.normalised)
            }
            (_, Bound::Surface(texels)) if surface => (texels, false),
            (number, _) => {
                return Err(trap(
                    format!("{number:#x} is an object of the other kind"),
                    lane,
                ));
            }
        };
        let has = |axis: usize| match axis < texels.dimensions as usize {
            true => texels.size[axis] as u32,
            false => 0,
        };
        Ok(match what {
            Query::Width => has(0),
            Query::Height => has(1),
            Query::Depth => has(2),
            Query::ArraySize => texels.layers.unwrap_or(0) as u32,
            Query::NormalisedCoordinates => normalised.into(),
            Query::One => 1,
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
        let (number, Bound::Surface(texels)) = self.bound(instruction, lane)? else {
            return Err(trap("a texture, used as a surface".into(), lane));
        };
        fits(&texels, instruction.geometry, number, lane)?;
        let place = Place {
            at: self.coordinates(instruction, lane).map(|c| c as i32),
            layer: self.files.lane32(instruction.layer, lane),
        };
        let all = bytes * instruction.values.len() as u64;
        let found = texels.place(&place, all, outside == Outside::Clamp);
        let Some(at) = found else {
            if outside == Outside::Trap || outside == Outside::Clamp {
                let [x, y, z] = place.at;
                return Err(trap(
                    format!(
                        "surface {number:#x}: {all} bytes at byte {x}, row {y}, slice {z}, layer {} are outside",
                        place.layer
                    ),
                    lane,
                ));
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

    fn put(&self, row: u32, bytes: u64, lane: usize, value: u64) {
        match (row, bytes) {
            (SINK, _) => {}
            (_, 8) => self.files.set_lane64(row, lane, value),
            _ => self.files.set_lane32(row, lane, value as u32),
        }
    }
}

/// Bytes of a texel's channel, zero-extended.
fn read_texel(ranges: &Ranges, at: u64, bytes: u32, lane: usize) -> Result<u32, Stop> {
    let size = u64::from(bytes);
    match ranges.find(at) {
        Some((_, end)) if end - at >= size && at.is_multiple_of(size) => Ok(match bytes {
            1 => read8(at).into(),
            2 => read16(at).into(),
            _ => read32(at),
        }),
        _ => Err(access_fault(at, size, false, lane)),
    }
}

fn fits(texels: &Texels, geometry: Geometry, number: u64, lane: usize) -> Result<(), Stop> {
    if texels.dimensions == u32::from(geometry.dimensions)
        && texels.layers.is_some() == geometry.layered
    {
        return Ok(());
    }
    let layers = |any: bool| if any { " with layers" } else { "" };
    Err(trap(
        format!(
            "object {number:#x} has {} dimensions{}, the instruction {}{}",
            texels.dimensions,
            layers(texels.layers.is_some()),
            geometry.dimensions,
            layers(geometry.layered)
        ),
        lane,
    ))
}

fn trap(reason: String, lane: usize) -> Stop {
    Trouble::at_lane(FaultKind::Trap { reason }, lane)
}

//! Textures and surfaces. A texture's handle is the client's number, which kernels look up. A
//! destroyed one stays until no kernel runs that may use it.

use std::borrow::Cow;

use outboard_api::enums::*;
use outboard_device::{Cx, Failure};
use outboard_ptx::texture::{AddressMode, Bound, Channel, Cube, Mips, Sampler, Texels, Texture};
use outboard_wire::{
    doc::{
        RESOURCE_DESC_BYTES, RESOURCE_DESC_HANDLE_OFFSET, RESOURCE_VIEW_DESC_BYTES,
        TEXTURE_DESC_BYTES,
    },
    messages,
};

use super::{
    Soft,
    card::{TEXTURE_1D_LINEAR_MAX, TEXTURE_ALIGNMENT, TEXTURE_PITCH_ALIGNMENT},
    records::{channel, channel_count, long, sized, word},
    retired::Retired,
    wait::invalid,
};

/// `CUaddress_mode`, `CUfilter_mode`.
const CU_TR_ADDRESS_MODE_WRAP: u32 = 0;
const CU_TR_ADDRESS_MODE_CLAMP: u32 = 1;
const CU_TR_ADDRESS_MODE_MIRROR: u32 = 2;
const CU_TR_ADDRESS_MODE_BORDER: u32 = 3;
const CU_TR_FILTER_MODE_POINT: u32 = 0;
const CU_TR_FILTER_MODE_LINEAR: u32 = 1;
/// Flags of `CUDA_TEXTURE_DESC`.
const READ_AS_INTEGER: u32 = 0x01;
const NORMALISED_COORDINATES: u32 = 0x02;
const SRGB: u32 = 0x10;
/// Allows filtering between levels to read only one of them. Ignored: both are always read.
const DISABLE_TRILINEAR_OPTIMISATION: u32 = 0x20;
const SEAMLESS_CUBEMAP: u32 = 0x40;

pub(super) struct TextureObject {
    sampler: [u8; TEXTURE_DESC_BYTES],
}

impl Soft {
    pub(super) fn texture_create(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::TextureCreate<'_>,
    ) -> Result<messages::TextureCreateReply, Failure> {
        self.reap();
        let mut sampler = [0; TEXTURE_DESC_BYTES];
        sampler.copy_from_slice(sized(m.sampler, TEXTURE_DESC_BYTES)?);
        let (mut texels, linear_memory) = self.resource(m.resource)?;
        if !m.view.is_empty() {
            texels = viewed(texels, sized(m.view, RESOURCE_VIEW_DESC_BYTES)?)?;
        }
        let texture = Texture {
            texels,
            sampler: read_sampler(&sampler, texels.channel)?,
            linear_memory,
        };
        self.textures.insert(m.texture, TextureObject { sampler })?;
        self.gpu.memory().bind(m.texture, Bound::Texture(texture));
        Ok(messages::TextureCreateReply { object: m.texture })
    }

    pub(super) fn cu_tex_object_destroy(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuTexObjectDestroy,
    ) -> Result<(), Failure> {
        self.textures.remove(m.tex_object)?;
        self.retired.push(Retired::Number(m.tex_object));
        self.reap();
        Ok(())
    }

    pub(super) fn cu_tex_object_get_texture_desc(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuTexObjectGetTextureDesc,
    ) -> Result<messages::CuTexObjectGetTextureDescReply<'static>, Failure> {
        let texture = self.textures.get(m.tex_object)?;
        Ok(messages::CuTexObjectGetTextureDescReply {
            p_tex_desc: Cow::Owned(texture.sampler.to_vec()),
        })
    }

    pub(super) fn surface_create(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::SurfaceCreate<'_>,
    ) -> Result<messages::SurfaceCreateReply, Failure> {
        self.reap();
        let record = sized(m.resource, RESOURCE_DESC_BYTES)?;
        if word(record, 0) != CU_RESOURCE_TYPE_ARRAY {
            return Err(invalid("a surface of what is no array"));
        }
        let array = self.arrays.get(long(record, RESOURCE_DESC_HANDLE_OFFSET))?;
        if !array.allows_surfaces() {
            return Err(invalid(
                "a surface of an array without CUDA_ARRAY3D_SURFACE_LDST",
            ));
        }
        let texels = array.texels;
        self.surfaces.insert(m.surface, ())?;
        self.gpu.memory().bind(m.surface, Bound::Surface(texels));
        Ok(messages::SurfaceCreateReply { object: m.surface })
    }

    pub(super) fn cu_surf_object_destroy(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuSurfObjectDestroy,
    ) -> Result<(), Failure> {
        self.surfaces.remove(m.surf_object)?;
        self.retired.push(Retired::Number(m.surf_object));
        self.reap();
        Ok(())
    }

    pub(super) fn texture_1d_width_max(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::Texture1dWidthMax,
    ) -> Result<messages::Texture1dWidthMaxReply, Failure> {
        self.device(m.device)?;
        channel(m.format)?;
        Ok(messages::Texture1dWidthMaxReply {
            elements: TEXTURE_1D_LINEAR_MAX as u64,
        })
    }

    /// Returns the texels that a texture reads, and whether they are linear memory.
    fn resource(&self, record: &[u8]) -> Result<(Texels, bool), Failure> {
        let record = sized(record, RESOURCE_DESC_BYTES)?;
        let handle = long(record, RESOURCE_DESC_HANDLE_OFFSET);
        let memory = |size: [u64; 3], dimensions, pitch_bytes| -> Result<Texels, Failure> {
            let channels = channel_count(word(record, 20))?;
            if !handle.is_multiple_of(TEXTURE_ALIGNMENT as u64) || size.contains(&0) {
                return Err(invalid(format!("a texture of memory at {handle:#x}")));
            }
            Ok(Texels {
                address: handle,
                channel: channel(word(record, 16))?,
                channels,
                size,
                dimensions,
                layers: None,
                cube: Cube::No,
                levels: 1,
                pitch_bytes,
            })
        };
        match word(record, 0) {
            CU_RESOURCE_TYPE_ARRAY => Ok((self.arrays.get(handle)?.texels, false)),
            CU_RESOURCE_TYPE_LINEAR => {
                let bytes = long(record, 24);
                let texel = u64::from(channel(word(record, 16))?.bytes())
                    * u64::from(channel_count(word(record, 20))?);
                let texels = bytes / texel;
                if texels > TEXTURE_1D_LINEAR_MAX as u64 {
                    return Err(invalid(format!("a texture of {texels} texels in memory")));
                }
                Ok((memory([texels, 1, 1], 1, bytes)?, true))
            }
            CU_RESOURCE_TYPE_PITCH2D => {
                let (width, height, pitch) = (long(record, 24), long(record, 32), long(record, 40));
                let texels = memory([width, height, 1], 2, pitch)?;
                let row = width.checked_mul(texels.texel_bytes());
                if row.is_none_or(|row| row > pitch)
                    || !pitch.is_multiple_of(TEXTURE_PITCH_ALIGNMENT as u64)
                    || height
                        .checked_mul(pitch)
                        .is_none_or(|n| n > self.memory_bytes)
                {
                    return Err(invalid(format!(
                        "a texture of {height} rows of {width} texels, {pitch} bytes apart"
                    )));
                }
                Ok((texels, false))
            }
            CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => Ok((self.mipmaps.get(handle)?.texels, false)),
            kind => Err(invalid(format!("a resource of kind {kind}"))),
        }
    }
}

fn read_sampler(record: &[u8; TEXTURE_DESC_BYTES], channel: Channel) -> Result<Sampler, Failure> {
    let flags = word(record, 16);
    let known = READ_AS_INTEGER
        | NORMALISED_COORDINATES
        | SRGB
        | DISABLE_TRILINEAR_OPTIMISATION
        | SEAMLESS_CUBEMAP;
    if flags & !known != 0 {
        return Err(Failure::unsupported(&format!(
            "textures with the flags {:#x}",
            flags & !known
        )));
    }
    let mode = |axis: usize| match word(record, 4 * axis) {
        CU_TR_ADDRESS_MODE_WRAP => Ok(AddressMode::Wrap),
        CU_TR_ADDRESS_MODE_CLAMP => Ok(AddressMode::Clamp),
        CU_TR_ADDRESS_MODE_MIRROR => Ok(AddressMode::Mirror),
        CU_TR_ADDRESS_MODE_BORDER => Ok(AddressMode::Border),
        mode => Err(invalid(format!("address mode {mode}"))),
    };
    let filter = |at: usize| match word(record, at) {
        CU_TR_FILTER_MODE_POINT => Ok(false),
        CU_TR_FILTER_MODE_LINEAR => Ok(true),
        mode => Err(invalid(format!("filter mode {mode}"))),
    };
    let linear = filter(12)?;
    let as_integers = flags & READ_AS_INTEGER != 0;
    let integers = !channel.is_float() && (as_integers || channel.bytes() == 4);
    if linear && integers {
        return Err(invalid("linear filtering of integers"));
    }
    let float = |at: usize| f32::from_bits(word(record, at));
    Ok(Sampler {
        address: [mode(0)?, mode(1)?, mode(2)?],
        linear,
        normalised: flags & NORMALISED_COORDINATES != 0,
        as_integers,
        srgb: flags & SRGB != 0,
        seamless: flags & SEAMLESS_CUBEMAP != 0,
        border: [40, 44, 48, 52].map(float),
        mips: Mips {
            linear: filter(24)?,
            bias: float(28),
            clamp: [32, 36].map(float),
            anisotropy: word(record, 20),
        },
    })
}

/// Applies a resource view to texels (`CUDA_RESOURCE_VIEW_DESC`).
fn viewed(texels: Texels, record: &[u8]) -> Result<Texels, Failure> {
    let [first_level, last_level, first_layer, last_layer] =
        [32, 36, 40, 44].map(|at| word(record, at));
    let format = view_format(word(record, 0))?;
    let (levels, layers) = ([first_level, last_level], [first_layer, last_layer]);
    texels.view(format, levels, layers).ok_or_else(|| {
        invalid(format!(
            "a view of levels {levels:?} and layers {layers:?} as {format:?}"
        ))
    })
}

/// Decodes a `CUresourceViewFormat`.
fn view_format(format: u32) -> Result<(Channel, u32), Failure> {
    let channel = match format {
        1..=3 => Channel::U8,
        4..=6 => Channel::S8,
        7..=9 => Channel::U16,
        10..=12 => Channel::S16,
        13..=15 => Channel::U32,
        16..=18 => Channel::S32,
        19..=21 => Channel::Half,
        22..=24 => Channel::Float,
        _ => {
            return Err(Failure::unsupported(&format!(
                "resource views of format {format:#x}"
            )));
        }
    };
    Ok((channel, [1, 2, 4][(format as usize - 1) % 3]))
}

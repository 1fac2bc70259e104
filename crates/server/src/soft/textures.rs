//! Arrays, textures and surfaces. An array is rows of device memory without gaps; a texture's number is the client's, and
//! kernels look it up. What is destroyed stays until nothing runs that may use it.

use std::borrow::Cow;

use outboard_api::{CUresult, enums::*};
use outboard_ptx::{
    device::Rows,
    texture::{AddressMode, Array, Bound, Channel, Sampler, Texels, Texture},
};
use outboard_wire::{
    doc::{CopyBox, RESOURCE_DESC_BYTES, RESOURCE_DESC_HANDLE_OFFSET, TEXTURE_DESC_BYTES},
    messages,
};

use super::{
    Soft,
    card::{LAYERS_MAX, TEXTURE_1D_LINEAR_MAX, TEXTURE_ALIGNMENT, TEXTURE_PITCH_ALIGNMENT},
    memory::Charge,
    wait::invalid,
};
use crate::device::{Cx, Failure};

/// `CUDA_ARRAY_DESCRIPTOR` and `CUDA_ARRAY3D_DESCRIPTOR`.
const ARRAY_DESC_BYTES: usize = 24;
const ARRAY3D_DESC_BYTES: usize = 40;
/// Flags of the latter.
const LAYERED: u32 = 0x01;
const SURFACE_LDST: u32 = 0x02;
const TEXTURE_GATHER: u32 = 0x08;
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
/// One that means something where there are mipmaps.
const DISABLE_TRILINEAR_OPTIMISATION: u32 = 0x20;

pub(super) struct ArrayObject {
    _memory: Array,
    charge: Charge,
    texels: Texels,
    descriptor: Descriptor,
}

#[derive(Clone, Copy)]
struct Descriptor {
    size: [u64; 3],
    format: u32,
    channels: u32,
    flags: u32,
}

pub(super) struct TextureObject {
    sampler: [u8; TEXTURE_DESC_BYTES],
}

/// What was destroyed while something ran.
pub(super) enum Retired {
    Array(ArrayObject),
    /// A texture or surface.
    Number(u64),
}

fn word(record: &[u8], at: usize) -> u32 {
    let bytes = record.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn long(record: &[u8], at: usize) -> u64 {
    u64::from(word(record, at)) | u64::from(word(record, at + 4)) << 32
}

impl Soft {
    pub(super) fn cu_array_create_v2(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuArrayCreateV2<'_>,
    ) -> Result<(), Failure> {
        let record = sized(m.p_allocate_array, ARRAY_DESC_BYTES)?;
        let descriptor = Descriptor {
            size: [long(record, 0), long(record, 8), 0],
            format: word(record, 16),
            channels: word(record, 20),
            flags: 0,
        };
        self.array_create(cx, m.p_handle, descriptor)
    }

    pub(super) fn cu_array3_dcreate_v2(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuArray3DCreateV2<'_>,
    ) -> Result<(), Failure> {
        let record = sized(m.p_allocate_array, ARRAY3D_DESC_BYTES)?;
        let descriptor = Descriptor {
            size: [long(record, 0), long(record, 8), long(record, 16)],
            format: word(record, 24),
            channels: word(record, 28),
            flags: word(record, 32),
        };
        self.array_create(cx, m.p_handle, descriptor)
    }

    fn array_create(
        &mut self,
        cx: &Cx<'_>,
        id: u64,
        descriptor: Descriptor,
    ) -> Result<(), Failure> {
        self.reap();
        let device = self.context(cx.context)?.device;
        let mut texels = descriptor.texels()?;
        let rows = texels.size[1] * texels.size[2] * texels.layers.unwrap_or(1);
        let bytes = rows
            .checked_mul(texels.pitch_bytes)
            .ok_or_else(|| invalid("an array longer than all memory"))?;
        let charge = self.charge(device, bytes)?;
        let memory = Array::new(self.gpu.memory(), bytes).map_err(|error| {
            self.refund(charge);
            Failure::new(CUresult::CUDA_ERROR_OUT_OF_MEMORY, error.to_string())
        })?;
        texels.address = memory.address();
        let array = ArrayObject {
            _memory: memory,
            charge,
            texels,
            descriptor,
        };
        self.arrays
            .insert(id, array)
            .inspect_err(|_| self.refund(charge))
    }

    pub(super) fn cu_array_destroy(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuArrayDestroy,
    ) -> Result<(), Failure> {
        let array = self.arrays.remove(m.h_array)?;
        self.retired.push(Retired::Array(array));
        self.reap();
        Ok(())
    }

    pub(super) fn cu_array_get_descriptor_v2(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuArrayGetDescriptorV2,
    ) -> Result<messages::CuArrayGetDescriptorV2Reply<'static>, Failure> {
        let d = self.arrays.get(m.h_array)?.descriptor;
        // A flat view has nothing to say of depth, layers and flags.
        if d.size[2] != 0 || d.flags != 0 {
            return Err(invalid("the descriptor of an array that is not flat"));
        }
        let mut record = Vec::with_capacity(ARRAY_DESC_BYTES);
        record.extend(d.size[..2].iter().flat_map(|n| n.to_le_bytes()));
        record.extend(d.format.to_le_bytes());
        record.extend(d.channels.to_le_bytes());
        Ok(messages::CuArrayGetDescriptorV2Reply {
            p_array_descriptor: Cow::Owned(record),
        })
    }

    pub(super) fn cu_array3_dget_descriptor_v2(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuArray3DGetDescriptorV2,
    ) -> Result<messages::CuArray3DGetDescriptorV2Reply<'static>, Failure> {
        let d = self.arrays.get(m.h_array)?.descriptor;
        let mut record = Vec::with_capacity(ARRAY3D_DESC_BYTES);
        record.extend(d.size.iter().flat_map(|n| n.to_le_bytes()));
        for word in [d.format, d.channels, d.flags, 0] {
            record.extend(word.to_le_bytes());
        }
        Ok(messages::CuArray3DGetDescriptorV2Reply {
            p_array_descriptor: Cow::Owned(record),
        })
    }

    pub(super) fn texture_create(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::TextureCreate<'_>,
    ) -> Result<messages::TextureCreateReply, Failure> {
        self.reap();
        if !m.view.is_empty() {
            return Err(Failure::unsupported("resource views of textures"));
        }
        let mut sampler = [0; TEXTURE_DESC_BYTES];
        sampler.copy_from_slice(sized(m.sampler, TEXTURE_DESC_BYTES)?);
        let (texels, linear_memory) = self.resource(m.resource)?;
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
        if array.descriptor.flags & SURFACE_LDST == 0 {
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

    /// One end of a box copy that is an array.
    pub(super) fn array_rows(
        &self,
        array: u64,
        desc: &CopyBox,
        [x, y, z]: [u64; 3],
    ) -> Result<Rows, Failure> {
        let texels = self.arrays.get(array)?.texels;
        let slices = texels.size[2] * texels.layers.unwrap_or(1);
        let within =
            |at: u64, len: u64, max: u64| at.checked_add(len).is_some_and(|end| end <= max);
        if !within(x, desc.width, texels.pitch_bytes)
            || !within(y, desc.height, texels.size[1])
            || !within(z, desc.depth, slices)
        {
            return Err(invalid(format!(
                "a copy of {} bytes, {} rows and {} slices from {x}, {y}, {z} on: the array has {}, {} and {slices}",
                desc.width, desc.height, desc.depth, texels.pitch_bytes, texels.size[1],
            )));
        }
        Ok(Rows {
            address: texels.address + (z * texels.size[1] + y) * texels.pitch_bytes + x,
            pitch_bytes: texels.pitch_bytes,
            slice_rows: texels.size[1],
        })
    }

    /// What a texture is of, and whether that is linear memory.
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
            CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => Err(Failure::unsupported("mipmapped arrays")),
            kind => Err(invalid(format!("a resource of kind {kind}"))),
        }
    }

    /// Takes back what was destroyed, once nothing runs.
    fn reap(&mut self) {
        if self.retired.is_empty() || !self.gpu.is_idle() {
            return;
        }
        for retired in std::mem::take(&mut self.retired) {
            match retired {
                Retired::Array(array) => self.refund(array.charge),
                Retired::Number(number) => self.gpu.memory().unbind(number),
            }
        }
    }
}

impl Descriptor {
    /// The array's shape; its address is yet to come.
    fn texels(&self) -> Result<Texels, Failure> {
        let unknown = self.flags & !(LAYERED | SURFACE_LDST | TEXTURE_GATHER);
        if unknown != 0 {
            return Err(Failure::unsupported(&format!(
                "arrays with the flags {unknown:#x} (cubemaps, depth, sparse)"
            )));
        }
        let [width, height, depth] = self.size;
        let layered = self.flags & LAYERED != 0;
        let (dimensions, layers) = match (height, depth, layered) {
            (0, 0, false) => (1, None),
            (_, 0, false) => (2, None),
            (0, _, true) if depth != 0 => (1, Some(depth)),
            (_, _, true) if depth != 0 => (2, Some(depth)),
            (1.., 1.., false) => (3, None),
            _ => return Err(invalid(format!("an array of {:?} texels", self.size))),
        };
        let most = match (dimensions, layered) {
            (1, false) => [131_072, 1, 1],
            (1, true) => [32_768, 1, 1],
            (2, false) => [131_072, 65_536, 1],
            (2, true) => [32_768, 32_768, 1],
            _ => [16_384; 3],
        };
        let slices = if layered { 1 } else { depth.max(1) };
        let size = [width, height.max(1), slices];
        if width == 0
            || size.iter().zip(most).any(|(n, most)| *n > most)
            || layers.is_some_and(|n| n > LAYERS_MAX as u64)
        {
            return Err(invalid(format!("an array of {:?} texels", self.size)));
        }
        let mut texels = Texels {
            address: 0,
            channel: channel(self.format)?,
            channels: channel_count(self.channels)?,
            size,
            dimensions,
            layers,
            pitch_bytes: 0,
        };
        texels.pitch_bytes = width * texels.texel_bytes();
        Ok(texels)
    }
}

fn read_sampler(record: &[u8; TEXTURE_DESC_BYTES], channel: Channel) -> Result<Sampler, Failure> {
    let flags = word(record, 16);
    let known = READ_AS_INTEGER | NORMALISED_COORDINATES | DISABLE_TRILINEAR_OPTIMISATION;
    if flags & !known != 0 {
        return Err(Failure::unsupported(&format!(
            "textures with the flags {:#x} (sRGB, seamless cubemaps)",
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
    let linear = match word(record, 12) {
        CU_TR_FILTER_MODE_POINT => false,
        CU_TR_FILTER_MODE_LINEAR => true,
        mode => return Err(invalid(format!("filter mode {mode}"))),
    };
    let as_integers = flags & READ_AS_INTEGER != 0;
    let integers = !channel.is_float() && (as_integers || channel.bytes() == 4);
    if linear && integers {
        return Err(invalid("linear filtering of integers"));
    }
    let border = [40, 44, 48, 52].map(|at| f32::from_bits(word(record, at)));
    if integers && border.iter().any(|value| *value != 0.0) {
        return Err(Failure::unsupported("border colours of integers"));
    }
    Ok(Sampler {
        address: [mode(0)?, mode(1)?, mode(2)?],
        linear,
        normalised: flags & NORMALISED_COORDINATES != 0,
        as_integers,
        border,
    })
}

fn sized(record: &[u8], bytes: usize) -> Result<&[u8], Failure> {
    match record.len() == bytes {
        true => Ok(record),
        false => Err(invalid(format!(
            "a record of {} bytes; it has {bytes}",
            record.len()
        ))),
    }
}

fn channel(format: u32) -> Result<Channel, Failure> {
    Ok(match format {
        CU_AD_FORMAT_UNSIGNED_INT8 => Channel::U8,
        CU_AD_FORMAT_UNSIGNED_INT16 => Channel::U16,
        CU_AD_FORMAT_UNSIGNED_INT32 => Channel::U32,
        CU_AD_FORMAT_SIGNED_INT8 => Channel::S8,
        CU_AD_FORMAT_SIGNED_INT16 => Channel::S16,
        CU_AD_FORMAT_SIGNED_INT32 => Channel::S32,
        CU_AD_FORMAT_HALF => Channel::Half,
        CU_AD_FORMAT_FLOAT => Channel::Float,
        _ => {
            return Err(Failure::unsupported(&format!(
                "arrays and textures of format {format}"
            )));
        }
    })
}

fn channel_count(channels: u32) -> Result<u32, Failure> {
    match channels {
        1 | 2 | 4 => Ok(channels),
        _ => Err(invalid(format!("texels of {channels} channels"))),
    }
}

//! Arrays and mipmapped arrays: rows of device memory without padding, one level after the other.

use std::borrow::Cow;

use outboard_api::CUresult;
use outboard_device::{Cx, Failure};
use outboard_ptx::{
    array::Array,
    device::Rows,
    texture::{Cube, Texels},
};
use outboard_wire::{doc::CopyBox, messages};

use super::{
    Soft,
    card::LAYERS_MAX,
    records::{channel, channel_count, long, sized, word},
    retired::{Retired, TexelMemory},
    wait::invalid,
};

/// `CUDA_ARRAY_DESCRIPTOR` and `CUDA_ARRAY3D_DESCRIPTOR`.
const ARRAY_DESC_BYTES: usize = 24;
const ARRAY3D_DESC_BYTES: usize = 40;
/// Flags of `CUDA_ARRAY3D_DESCRIPTOR`.
const LAYERED: u32 = 0x01;
const SURFACE_LDST: u32 = 0x02;
const CUBEMAP: u32 = 0x04;
const TEXTURE_GATHER: u32 = 0x08;

/// The owner of an array's memory.
enum Memory {
    Owned(TexelMemory),
    /// The mipmapped array with this number owns it, and frees it.
    LevelOf(u64),
}

pub(super) struct ArrayObject {
    memory: Memory,
    pub(super) texels: Texels,
    descriptor: Descriptor,
}

impl ArrayObject {
    pub(super) fn allows_surfaces(&self) -> bool {
        self.descriptor.flags & SURFACE_LDST != 0
    }
}

pub(super) struct MipmapObject {
    owned: TexelMemory,
    pub(super) texels: Texels,
    descriptor: Descriptor,
}

#[derive(Clone, Copy)]
struct Descriptor {
    size: [u64; 3],
    format: u32,
    channels: u32,
    flags: u32,
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
        let descriptor = Descriptor::read(m.p_allocate_array)?;
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
        let owned = self.texels_memory(device, &mut texels)?;
        let charge = owned.charge;
        let array = ArrayObject {
            memory: Memory::Owned(owned),
            texels,
            descriptor,
        };
        self.arrays
            .insert(id, array)
            .inspect_err(|_| self.refund(charge))
    }

    /// Allocates memory for all levels, and sets the texels' address to it.
    fn texels_memory(
        &mut self,
        device: usize,
        texels: &mut Texels,
    ) -> Result<TexelMemory, Failure> {
        let bytes = texels
            .bytes()
            .ok_or_else(|| invalid("an array longer than all memory"))?;
        let charge = self.charge(device, bytes)?;
        let memory = Array::new(self.gpu.memory(), bytes).map_err(|error| {
            self.refund(charge);
            Failure::new(CUresult::CUDA_ERROR_OUT_OF_MEMORY, error.to_string())
        })?;
        texels.address = memory.address();
        Ok(TexelMemory::new(memory, charge))
    }

    pub(super) fn cu_mipmapped_array_create(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuMipmappedArrayCreate<'_>,
    ) -> Result<(), Failure> {
        self.reap();
        let device = self.context(cx.context)?.device;
        let descriptor = Descriptor::read(m.p_mipmapped_array_desc)?;
        let mut texels = descriptor.texels()?;
        // As many levels as the size allows, even if the program asks for more.
        let longest = texels.size.iter().max().copied().unwrap_or(1);
        texels.levels = m.num_mipmap_levels.clamp(1, 1 + longest.ilog2());
        let owned = self.texels_memory(device, &mut texels)?;
        let charge = owned.charge;
        let mipmap = MipmapObject {
            owned,
            texels,
            descriptor,
        };
        self.mipmaps
            .insert(m.p_handle, mipmap)
            .inspect_err(|_| self.refund(charge))
    }

    pub(super) fn cu_mipmapped_array_get_level(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuMipmappedArrayGetLevel,
    ) -> Result<(), Failure> {
        let mipmap = self.mipmaps.get(m.h_mipmapped_array)?;
        if m.level >= mipmap.texels.levels {
            return Err(invalid(format!(
                "level {} of {}",
                m.level, mipmap.texels.levels
            )));
        }
        let mut texels = mipmap.texels.level(m.level);
        texels.levels = 1;
        let mut descriptor = mipmap.descriptor;
        // A dimension that counts layers, or is 0, stays as it is.
        let along = if texels.layers.is_some() { 2 } else { 3 };
        for (kept, n) in descriptor.size.iter_mut().zip(texels.size).take(along) {
            if *kept != 0 {
                *kept = n;
            }
        }
        let level = ArrayObject {
            memory: Memory::LevelOf(m.h_mipmapped_array),
            texels,
            descriptor,
        };
        self.arrays.insert(m.p_level_array, level)
    }

    pub(super) fn cu_mipmapped_array_destroy(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuMipmappedArrayDestroy,
    ) -> Result<(), Failure> {
        let mipmap = self.mipmaps.remove(m.h_mipmapped_array)?;
        self.arrays.retain(
            |array| !matches!(array.memory, Memory::LevelOf(of) if of == m.h_mipmapped_array),
        );
        self.retired.push(Retired::Texels(mipmap.owned));
        self.reap();
        Ok(())
    }

    pub(super) fn cu_array_destroy(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuArrayDestroy,
    ) -> Result<(), Failure> {
        if let Memory::LevelOf(_) = self.arrays.get(m.h_array)?.memory {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_HANDLE,
                "a level goes with its mipmapped array",
            ));
        }
        if let Memory::Owned(owned) = self.arrays.remove(m.h_array)?.memory {
            self.retired.push(Retired::Texels(owned));
        }
        self.reap();
        Ok(())
    }

    pub(super) fn cu_array_get_descriptor_v2(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuArrayGetDescriptorV2,
    ) -> Result<messages::CuArrayGetDescriptorV2Reply<'static>, Failure> {
        let d = self.arrays.get(m.h_array)?.descriptor;
        // A flat descriptor has no fields for depth, layers and flags.
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

    /// Returns the rows of one end of a box copy, which is an array.
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
}

impl Descriptor {
    /// Reads a `CUDA_ARRAY3D_DESCRIPTOR`.
    fn read(record: &[u8]) -> Result<Descriptor, Failure> {
        let record = sized(record, ARRAY3D_DESC_BYTES)?;
        Ok(Descriptor {
            size: [long(record, 0), long(record, 8), long(record, 16)],
            format: word(record, 24),
            channels: word(record, 28),
            flags: word(record, 32),
        })
    }

    /// Returns the array's dimensions and format as texels, without an address yet.
    fn texels(&self) -> Result<Texels, Failure> {
        let unknown = self.flags & !(LAYERED | SURFACE_LDST | CUBEMAP | TEXTURE_GATHER);
        if unknown != 0 {
            return Err(Failure::unsupported(&format!(
                "arrays with the flags {unknown:#x} (depth, sparse)"
            )));
        }
        let [width, height, depth] = self.size;
        let layered = self.flags & LAYERED != 0;
        let cube = match (self.flags & CUBEMAP != 0, layered) {
            (false, _) => Cube::No,
            (true, false) => Cube::One,
            (true, true) => Cube::Layers,
        };
        let six = match cube {
            Cube::No => true,
            Cube::One => depth == 6,
            Cube::Layers => depth % 6 == 0,
        };
        if !six || cube != Cube::No && (width != height || height == 0) {
            return Err(invalid(format!("a cubemap of {:?} texels", self.size)));
        }
        if self.flags & TEXTURE_GATHER != 0 && (layered || cube != Cube::No) {
            return Err(invalid("gathers from layers or cubes"));
        }
        // The faces of a cube are layers.
        let layered = layered || cube != Cube::No;
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
            cube,
            levels: 1,
            pitch_bytes: 0,
        };
        texels.pitch_bytes = width * texels.texel_bytes();
        Ok(texels)
    }
}

//! Arrays, textures, surfaces and tensor maps.

use outboard_api::{
    CUresult,
    cuda::CUtensorMap,
    enums::{
        CU_RESOURCE_TYPE_ARRAY, CU_RESOURCE_TYPE_LINEAR, CU_RESOURCE_TYPE_MIPMAPPED_ARRAY,
        CU_RESOURCE_TYPE_PITCH2D,
    },
};
use outboard_device::{Cx, Failure};
use outboard_wire::{
    doc::{
        self, RESOURCE_DESC_BYTES, RESOURCE_DESC_HANDLE_OFFSET, RESOURCE_VIEW_DESC_BYTES,
        TENSOR_MAP_RANK_MAX, TensorMapArguments,
    },
    messages,
};

use super::{
    Array, Nvidia,
    addresses::rows,
    deferred_free::Retired,
    owned::Owned,
    table::{Record, real},
};

/// Offsets in `CUDA_RESOURCE_DESC`: the length of linear memory, and the sizes and pitch of 2D
/// memory.
const LINEAR_BYTES_OFFSET: usize = 24;
const PITCH2D_WIDTH_OFFSET: usize = 24;
const PITCH2D_HEIGHT_OFFSET: usize = 32;
const PITCH2D_PITCH_OFFSET: usize = 40;

/// The three encoders of tensor maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TensorMapKind {
    Tiled,
    Im2col,
    Im2colWide,
}

impl Nvidia {
    pub(super) fn texture_create(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::TextureCreate<'_>,
    ) -> Result<messages::TextureCreateReply, Failure> {
        self.enter(cx)?;
        let resource = self.resource(m.resource)?;
        let sampler = Record::new("a texture descriptor", m.sampler)?;
        let view = match m.view.is_empty() {
            true => None,
            false => Some(Record::<RESOURCE_VIEW_DESC_BYTES>::new(
                "a resource view descriptor",
                m.view,
            )?),
        };
        let handle = self.driver.texture(&resource, &sampler, view.as_ref())?;
        let owned = Owned::new(self.current_hold(), handle, |driver, handle| {
            driver.cuTexObjectDestroy(handle)
        });
        self.textures.insert(m.texture, owned)?;
        Ok(messages::TextureCreateReply {
            object: handle.raw() as u64,
        })
    }

    pub(super) fn surface_create(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::SurfaceCreate<'_>,
    ) -> Result<messages::SurfaceCreateReply, Failure> {
        self.enter(cx)?;
        let resource = self.resource(m.resource)?;
        let handle = self.driver.surface(&resource)?;
        let owned = Owned::new(self.current_hold(), handle, |driver, handle| {
            driver.cuSurfObjectDestroy(handle)
        });
        self.surfaces.insert(m.surface, owned)?;
        Ok(messages::SurfaceCreateReply {
            object: handle.raw() as u64,
        })
    }

    pub(super) fn tensor_map_encode(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::TensorMapEncode<'_>,
    ) -> Result<messages::TensorMapEncodeReply<'static>, Failure> {
        self.enter(cx)?;
        let arguments: TensorMapArguments = doc::from_bytes(m.arguments)
            .map_err(|error| wrong(format!("a tensor map's arguments: {error}")))?;
        let kind = match m.kind {
            doc::TENSOR_MAP_TILED => TensorMapKind::Tiled,
            doc::TENSOR_MAP_IM2COL => TensorMapKind::Im2col,
            doc::TENSOR_MAP_IM2COL_WIDE => TensorMapKind::Im2colWide,
            kind => return Err(Failure::unsupported(&format!("tensor map kind {kind}"))),
        };
        let map = self.driver.tensor_map(kind, &arguments)?;
        Ok(messages::TensorMapEncodeReply {
            map: map_bytes(&map).into(),
        })
    }

    pub(super) fn tensor_map_replace_address(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::TensorMapReplaceAddress<'_>,
    ) -> Result<messages::TensorMapReplaceAddressReply<'static>, Failure> {
        self.enter(cx)?;
        let (words, rest) = m.map.as_chunks::<8>();
        let mut map = CUtensorMap { opaque: [0; 16] };
        if words.len() != map.opaque.len() || !rest.is_empty() {
            return Err(wrong(format!("a tensor map of {} bytes", m.map.len())));
        }
        for (opaque, word) in map.opaque.iter_mut().zip(words) {
            *opaque = u64::from_le_bytes(*word);
        }
        let replaced = self.driver.tensor_map_at(map, m.address)?;
        Ok(messages::TensorMapReplaceAddressReply {
            replaced: map_bytes(&replaced).into(),
        })
    }

    pub(super) fn texture_1d_width_max(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::Texture1dWidthMax,
    ) -> Result<messages::Texture1dWidthMaxReply, Failure> {
        self.enter(cx)?;
        let device = self.real_device(m.device)?;
        let elements = self
            .driver
            .cuDeviceGetTexture1DLinearMaxWidth(m.format, m.channels, device)?;
        Ok(messages::Texture1dWidthMaxReply { elements })
    }

    pub(super) fn cu_array_destroy(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuArrayDestroy,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        match self.arrays.remove(m.h_array)? {
            Array::Whole(array) => self.retire(array),
            Array::Level(..) => {
                return Err(Failure::new(
                    CUresult::CUDA_ERROR_INVALID_HANDLE,
                    "a level goes with its mipmapped array",
                ));
            }
        }
        Ok(())
    }

    pub(super) fn cu_mipmapped_array_destroy(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuMipmappedArrayDestroy,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let mipmap = self.mipmaps.remove(m.h_mipmapped_array)?;
        self.arrays
            .retain(|array| !matches!(array, Array::Level(_, of) if *of == m.h_mipmapped_array));
        self.retire(mipmap);
        Ok(())
    }

    pub(super) fn cu_mipmapped_array_get_level(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuMipmappedArrayGetLevel,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let mipmap = self.real_mipmap(m.h_mipmapped_array)?;
        let level = self.driver.cuMipmappedArrayGetLevel(mipmap, m.level)?;
        self.arrays
            .insert(m.p_level_array, Array::Level(level, m.h_mipmapped_array))
    }

    pub(super) fn cu_tex_object_destroy(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuTexObjectDestroy,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let texture = self.textures.remove(m.tex_object)?;
        self.retire(texture);
        Ok(())
    }

    pub(super) fn cu_surf_object_destroy(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuSurfObjectDestroy,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let surface = self.surfaces.remove(m.surf_object)?;
        self.retire(surface);
        Ok(())
    }

    pub(super) fn real_array(&self, id: u64) -> Result<real::Array, Failure> {
        Ok(match self.arrays.get(id)? {
            Array::Whole(owned) => owned.handle(),
            Array::Level(handle, _) => *handle,
        })
    }

    pub(super) fn real_mipmap(&self, id: u64) -> Result<real::Mipmap, Failure> {
        Ok(self.mipmaps.get(id)?.handle())
    }

    pub(super) fn real_texture(&self, id: u64) -> Result<real::Texture, Failure> {
        Ok(self.textures.get(id)?.handle())
    }

    pub(super) fn bind_array(&mut self, id: u64, handle: real::Array) -> Result<(), Failure> {
        let owned = Owned::new(self.current_hold(), handle, |driver, handle| {
            driver.cuArrayDestroy(handle)
        });
        self.arrays.insert(id, Array::Whole(owned))
    }

    pub(super) fn bind_mipmap(&mut self, id: u64, handle: real::Mipmap) -> Result<(), Failure> {
        let owned = Owned::new(self.current_hold(), handle, |driver, handle| {
            driver.cuMipmappedArrayDestroy(handle)
        });
        self.mipmaps.insert(id, owned)
    }

    /// Defers the release of an object that kernels may still use.
    fn retire(&mut self, object: impl Send + 'static) {
        let marks = self.busy_marks();
        self.deferred_frees
            .push(Retired::Other(Box::new(object)), None, marks);
    }

    /// Copies a resource descriptor, replacing the client's handle by the driver's.
    fn resource(&self, bytes: &[u8]) -> Result<Record<RESOURCE_DESC_BYTES>, Failure> {
        let mut resource = Record::<RESOURCE_DESC_BYTES>::new("a resource descriptor", bytes)?;
        let handle = resource.u64_at(RESOURCE_DESC_HANDLE_OFFSET);
        match resource.u32_at(0) {
            CU_RESOURCE_TYPE_ARRAY => {
                let array = self.real_array(handle)?.raw() as u64;
                resource.set_u64(RESOURCE_DESC_HANDLE_OFFSET, array);
            }
            CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => {
                let mipmap = self.real_mipmap(handle)?.raw() as u64;
                resource.set_u64(RESOURCE_DESC_HANDLE_OFFSET, mipmap);
            }
            CU_RESOURCE_TYPE_LINEAR => {
                self.known(handle, resource.u64_at(LINEAR_BYTES_OFFSET))?;
            }
            CU_RESOURCE_TYPE_PITCH2D => {
                let pitch = resource.u64_at(PITCH2D_PITCH_OFFSET);
                // The width is in elements, whose size only the driver knows; it is at least a
                // byte.
                let width = resource.u64_at(PITCH2D_WIDTH_OFFSET).min(pitch);
                let height = resource.u64_at(PITCH2D_HEIGHT_OFFSET);
                self.known(handle, rows(pitch, width, height))?;
            }
            kind => return Err(wrong(format!("a resource of kind {kind}"))),
        }
        Ok(resource)
    }
}

fn map_bytes(map: &CUtensorMap) -> Vec<u8> {
    map.opaque.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Checks the length of every array against the rank, so that the driver reads none past its end.
pub(super) fn check_lengths(kind: TensorMapKind, a: &TensorMapArguments) -> Result<(), Failure> {
    let rank = a.global_dim.len();
    let corners = match kind {
        TensorMapKind::Tiled => 0,
        TensorMapKind::Im2col => rank.saturating_sub(2),
        TensorMapKind::Im2colWide => 1,
    };
    let boxes = match kind {
        TensorMapKind::Tiled => rank,
        _ => 0,
    };
    let fits = (1..=TENSOR_MAP_RANK_MAX).contains(&rank)
        && a.global_strides_bytes.len() >= rank - 1
        && a.element_strides.len() >= rank
        && a.box_dim.len() >= boxes
        && a.pixel_box_lower.len() >= corners
        && a.pixel_box_upper.len() >= corners;
    if fits {
        return Ok(());
    }
    Err(wrong(format!(
        "a tensor map of rank {rank} with lists too short for it, or above rank {TENSOR_MAP_RANK_MAX}"
    )))
}

fn wrong(what: String) -> Failure {
    Failure::new(CUresult::CUDA_ERROR_INVALID_VALUE, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_lists_are_refused() {
        let tiled = TensorMapArguments {
            global_dim: vec![64, 64],
            global_strides_bytes: vec![128],
            box_dim: vec![16, 16],
            element_strides: vec![1, 1],
            ..TensorMapArguments::default()
        };
        assert!(check_lengths(TensorMapKind::Tiled, &tiled).is_ok());
        assert!(check_lengths(TensorMapKind::Im2col, &tiled).is_ok());
        assert!(check_lengths(TensorMapKind::Im2colWide, &tiled).is_err());
        let mut short = tiled.clone();
        short.box_dim.pop();
        assert!(check_lengths(TensorMapKind::Tiled, &short).is_err());
        let mut long = tiled;
        long.global_dim = vec![1; 6];
        assert!(check_lengths(TensorMapKind::Tiled, &long).is_err());
        assert!(check_lengths(TensorMapKind::Tiled, &TensorMapArguments::default()).is_err());
    }
}

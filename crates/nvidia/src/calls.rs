//! Safe forms of the driver calls that take arrays, strings or untyped pointers.

use std::{
    ffi::{CStr, CString, c_void},
    ptr,
};

use outboard_api::{
    cuda::{
        CUDA_MEMCPY3D, CUlaunchAttribute, CUlaunchConfig, CUmemAccessDesc, CUmemLocation, CUstream,
        CUstreamBatchMemOpParams, CUtensorMap,
    },
    enums::{
        CU_MEM_LOCATION_TYPE_DEVICE, CU_MEMORYTYPE_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
    },
};
use outboard_device::Failure;
use outboard_wire::doc::TensorMapArguments;

use super::{
    addresses::Span,
    table::{Driver, Record, Refused, real},
};

/// `CU_LAUNCH_PARAM_END`, `_BUFFER_POINTER`, `_BUFFER_SIZE`: the keys of a launch's `extra`.
const PARAM_END: usize = 0;
const PARAM_BUFFER_POINTER: usize = 1;
const PARAM_BUFFER_SIZE: usize = 2;
const NAME_BYTES: usize = 256;

/// Grid, block and shared memory of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaunchShape {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared_bytes: u32,
}

/// Device memory, as the driver describes it.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryAt {
    pub(super) base: u64,
    pub(super) bytes: u64,
    /// The driver's number of the device.
    pub(super) ordinal: i32,
}

/// A box copy whose addresses were checked to be the session's.
pub(super) struct CheckedBox(pub(super) CUDA_MEMCPY3D);

// SAFETY: its pointers are addresses for the driver, which nothing here follows.
unsafe impl Sync for CheckedBox {}

impl CheckedBox {
    /// # Safety
    /// Each end must be an array of the session, or memory of the session that holds the whole box.
    pub(super) unsafe fn new(copy: CUDA_MEMCPY3D) -> CheckedBox {
        CheckedBox(copy)
    }
}

impl Driver {
    pub(super) fn device_name(&self, device: i32) -> Result<String, Refused> {
        let mut name = [0; NAME_BYTES];
        // SAFETY: `name` has NAME_BYTES bytes; the driver ends the name with a NUL.
        unsafe { self.cuDeviceGetName(name.as_mut_ptr(), NAME_BYTES as i32, device) }?;
        // SAFETY: the array is readable and ends with a NUL, at the latest in its last byte, which
        // starts as 0.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }
            .to_string_lossy()
            .into_owned())
    }

    pub(super) fn device_luid(&self, device: i32) -> Result<[u8; 8], Refused> {
        let mut luid = [0_u8; 8];
        let mut mask = 0;
        // SAFETY: `luid` has the eight bytes that the call writes.
        unsafe { self.cuDeviceGetLuid(luid.as_mut_ptr().cast(), &mut mask, device) }?;
        Ok(luid)
    }

    /// Returns what an atomic operation of one device can do in another's memory:
    /// `CUatomicOperationCapability` bits.
    pub(super) fn peer_atomics(&self, op: u32, user: i32, owner: i32) -> Result<u32, Refused> {
        let mut capabilities = 0;
        // SAFETY: one operation goes in, and there is room for one answer, as the count says.
        unsafe { self.cuDeviceGetP2PAtomicCapabilities(&mut capabilities, &op, 1, user, owner) }?;
        Ok(capabilities)
    }

    /// Sets a device's access to mapped memory.
    pub(super) fn set_access(&self, span: Span, device: i32, flags: u32) -> Result<(), Refused> {
        let access = CUmemAccessDesc {
            location: CUmemLocation {
                kind: CU_MEM_LOCATION_TYPE_DEVICE,
                id: device,
            },
            flags,
        };
        // SAFETY: `access` is one record, as the count says.
        unsafe { self.cuMemSetAccess(span.address(), span.len(), &access, 1) }
    }

    pub(super) fn memcpy(&self, dst: Span, src: Span, stream: real::Stream) -> Result<(), Refused> {
        let len = dst.len().min(src.len());
        // SAFETY: both spans were checked to be the session's memory.
        unsafe { self.cuMemcpyAsync(dst.address(), src.address(), len, stream) }
    }

    pub(super) fn memcpy_peer(
        &self,
        dst: Span,
        to: real::Context,
        src: Span,
        from: real::Context,
        stream: real::Stream,
    ) -> Result<(), Refused> {
        let len = dst.len().min(src.len());
        // SAFETY: both spans were checked to be the session's memory, in the contexts given.
        unsafe { self.cuMemcpyPeerAsync(dst.address(), to, src.address(), from, len, stream) }
    }

    pub(super) fn memcpy_box(
        &self,
        copy: &CheckedBox,
        stream: real::Stream,
    ) -> Result<(), Refused> {
        // SAFETY: both ends were checked when the box was made.
        unsafe { self.cuMemcpy3DAsync_v2(&copy.0, stream) }
    }

    pub(super) fn stream_set_attribute(
        &self,
        stream: real::Stream,
        attribute: u32,
        value: &Record<64>,
    ) -> Result<(), Refused> {
        // SAFETY: `value` has the size of an attribute value.
        unsafe { self.cuStreamSetAttribute(stream, attribute, value) }
    }

    pub(super) fn stream_attribute(
        &self,
        stream: real::Stream,
        attribute: u32,
    ) -> Result<Record<64>, Refused> {
        let mut value = Record([0; 64]);
        // SAFETY: `value` has room for an attribute value.
        unsafe { self.cuStreamGetAttribute(stream, attribute, &mut value) }?;
        Ok(value)
    }

    /// # Safety
    /// The addresses in the operations must be the session's memory.
    pub(super) unsafe fn mem_ops(
        &self,
        stream: real::Stream,
        ops: &mut [CUstreamBatchMemOpParams],
        flags: u32,
    ) -> Result<(), Refused> {
        // SAFETY: `ops` has as many records as said; the caller checked the addresses in them.
        unsafe { self.cuStreamBatchMemOp_v2(stream, ops.len() as u32, ops.as_mut_ptr(), flags) }
    }

    pub(super) fn launch(
        &self,
        kernel: real::Kernel,
        stream: real::Stream,
        shape: LaunchShape,
        attributes: &mut [CUlaunchAttribute],
        params: &[u8],
    ) -> Result<(), Refused> {
        let mut len = params.len();
        let mut extra = extra(params, &mut len);
        let extra = extra_pointer(&mut extra, params);
        let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
        if attributes.is_empty() {
            // SAFETY: `extra` names the parameter buffer and its length, which both live until the
            // call returns.
            return unsafe {
                self.cuLaunchKernel(
                    kernel,
                    gx,
                    gy,
                    gz,
                    bx,
                    by,
                    bz,
                    shape.shared_bytes,
                    stream,
                    ptr::null_mut(),
                    extra,
                )
            };
        }
        let config = launch_config(shape, stream, attributes);
        // SAFETY: the options and the configuration's attributes live until the call returns.
        unsafe { self.cuLaunchKernelEx(&config, kernel, ptr::null_mut(), extra) }
    }

    pub(super) fn active_clusters(
        &self,
        kernel: real::Kernel,
        stream: real::Stream,
        shape: LaunchShape,
        attributes: &mut [CUlaunchAttribute],
    ) -> Result<i32, Refused> {
        let config = launch_config(shape, stream, attributes);
        let mut clusters = 0;
        // SAFETY: the configuration and its attributes live until the call returns.
        unsafe { self.cuOccupancyMaxActiveClusters(&mut clusters, kernel, &config) }?;
        Ok(clusters)
    }

    pub(super) fn cluster_size_max(
        &self,
        kernel: real::Kernel,
        stream: real::Stream,
        shape: LaunchShape,
        attributes: &mut [CUlaunchAttribute],
    ) -> Result<i32, Refused> {
        let config = launch_config(shape, stream, attributes);
        let mut size = 0;
        // SAFETY: the configuration and its attributes live until the call returns.
        unsafe { self.cuOccupancyMaxPotentialClusterSize(&mut size, kernel, &config) }?;
        Ok(size)
    }

    /// # Safety
    /// `function` must be safe to call once with `data`, at any later time, from any thread.
    pub(super) unsafe fn host_func(
        &self,
        stream: real::Stream,
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> Result<(), Refused> {
        // SAFETY: the caller guarantees that the function may be called with this data.
        unsafe { self.cuLaunchHostFunc(stream, Some(function), data) }
    }

    pub(super) fn library_kernel(
        &self,
        library: real::Library,
        name: &CStr,
    ) -> Result<real::DeviceKernel, Refused> {
        let mut kernel = real::DeviceKernel::NULL;
        // SAFETY: `kernel` has room for the answer; the name ends with a NUL.
        unsafe { self.cuLibraryGetKernel(&mut kernel, library, name.as_ptr()) }?;
        Ok(kernel)
    }

    pub(super) fn library_kernels(
        &self,
        library: real::Library,
    ) -> Result<Vec<real::DeviceKernel>, Refused> {
        let count = self.cuLibraryGetKernelCount(library)?;
        let mut kernels = vec![real::DeviceKernel::NULL; count as usize];
        if count > 0 {
            // SAFETY: `kernels` has room for `count` handles.
            unsafe { self.cuLibraryEnumerateKernels(kernels.as_mut_ptr(), count, library) }?;
        }
        Ok(kernels)
    }

    pub(super) fn kernel_name(&self, kernel: real::DeviceKernel) -> Result<CString, Refused> {
        let mut name = ptr::null();
        // SAFETY: `name` has room for the answer.
        unsafe { self.cuKernelGetName(&mut name, kernel) }?;
        if name.is_null() {
            return Ok(CString::default());
        }
        // SAFETY: the driver's own string, which stays valid as long as the library.
        Ok(unsafe { CStr::from_ptr(name) }.to_owned())
    }

    pub(super) fn library_global(
        &self,
        library: real::Library,
        name: &CStr,
    ) -> Result<(u64, u64), Refused> {
        let (mut address, mut len) = (0, 0);
        // SAFETY: the outputs have room for the answers; the name ends with a NUL.
        unsafe { self.cuLibraryGetGlobal(&mut address, &mut len, library, name.as_ptr()) }?;
        Ok((address, len))
    }

    pub(super) fn library_managed(
        &self,
        library: real::Library,
        name: &CStr,
    ) -> Result<(u64, u64), Refused> {
        let (mut address, mut len) = (0, 0);
        // SAFETY: the outputs have room for the answers; the name ends with a NUL.
        unsafe { self.cuLibraryGetManaged(&mut address, &mut len, library, name.as_ptr()) }?;
        Ok((address, len))
    }

    /// Returns the device memory that contains an address, by what the driver knows of it; `None`
    /// if that is no device memory, or managed.
    pub(super) fn device_memory_at(&self, address: u64) -> Result<Option<MemoryAt>, Refused> {
        let mut asked = [
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            CU_POINTER_ATTRIBUTE_IS_MANAGED,
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        ];
        // Each answer is a number of at most 8 bytes; the least significant come first.
        let mut answers = [0_u64; 5];
        let mut places = answers
            .each_mut()
            .map(|answer| ptr::from_mut(answer).cast());
        let count = asked.len() as u32;
        // SAFETY: as many attributes as places, and each place has room for the answer.
        unsafe {
            self.cuPointerGetAttributes(count, asked.as_mut_ptr(), places.as_mut_ptr(), address)
        }?;
        let [memory_type, managed, ordinal, base, bytes] = answers;
        let is_device = memory_type as u32 == CU_MEMORYTYPE_DEVICE && managed as u32 == 0;
        Ok(is_device.then_some(MemoryAt {
            base,
            bytes,
            ordinal: ordinal as u32 as i32,
        }))
    }

    pub(super) fn texture(
        &self,
        resource: &Record<144>,
        sampler: &Record<104>,
        view: Option<&Record<112>>,
    ) -> Result<real::Texture, Refused> {
        let mut texture = real::Texture::NULL;
        let view = view.map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the records have the sizes that the driver reads; a null view means none.
        unsafe { self.cuTexObjectCreate(&mut texture, resource, sampler, view) }?;
        Ok(texture)
    }

    pub(super) fn surface(&self, resource: &Record<144>) -> Result<real::Surface, Refused> {
        let mut surface = real::Surface::NULL;
        // SAFETY: the record has the size that the driver reads.
        unsafe { self.cuSurfObjectCreate(&mut surface, resource) }?;
        Ok(surface)
    }

    /// Returns the map with another address in it.
    pub(super) fn tensor_map_at(
        &self,
        mut map: CUtensorMap,
        address: u64,
    ) -> Result<CUtensorMap, Refused> {
        let address = ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: `map` is a whole map; the driver writes the address into it without using it.
        unsafe { self.cuTensorMapReplaceAddress(&mut map, address) }?;
        Ok(map)
    }

    /// Encodes a tensor map, after checking the lengths of its arrays against the rank.
    pub(super) fn tensor_map(
        &self,
        kind: super::textures::TensorMapKind,
        a: &TensorMapArguments,
    ) -> Result<CUtensorMap, Failure> {
        use super::textures::TensorMapKind;
        super::textures::check_lengths(kind, a)?;
        // SAFETY: `check_lengths` has checked every array for this kind against the rank.
        let encoded = unsafe {
            match kind {
                TensorMapKind::Tiled => self.tensor_map_tiled(a),
                TensorMapKind::Im2col => self.tensor_map_im2col(a),
                TensorMapKind::Im2colWide => self.tensor_map_im2col_wide(a),
            }
        };
        Ok(encoded?)
    }

    /// # Safety
    /// The arrays must be as long as a tiled map's rank asks.
    unsafe fn tensor_map_tiled(&self, a: &TensorMapArguments) -> Result<CUtensorMap, Refused> {
        let mut map = CUtensorMap { opaque: [0; 16] };
        // SAFETY: the arrays' lengths are this function's contract; the driver writes the global
        // address into the map without using it.
        unsafe {
            self.cuTensorMapEncodeTiled(
                &mut map,
                a.data_type,
                a.global_dim.len() as u32,
                ptr::with_exposed_provenance_mut(a.global_address as usize),
                a.global_dim.as_ptr(),
                a.global_strides_bytes.as_ptr(),
                a.box_dim.as_ptr(),
                a.element_strides.as_ptr(),
                a.interleave,
                a.swizzle,
                a.l2_promotion,
                a.oob_fill,
            )
        }?;
        Ok(map)
    }

    /// # Safety
    /// The arrays must be as long as an im2col map's rank asks.
    unsafe fn tensor_map_im2col(&self, a: &TensorMapArguments) -> Result<CUtensorMap, Refused> {
        let mut map = CUtensorMap { opaque: [0; 16] };
        // SAFETY: the arrays' lengths are this function's contract; the driver writes the global
        // address into the map without using it.
        unsafe {
            self.cuTensorMapEncodeIm2col(
                &mut map,
                a.data_type,
                a.global_dim.len() as u32,
                ptr::with_exposed_provenance_mut(a.global_address as usize),
                a.global_dim.as_ptr(),
                a.global_strides_bytes.as_ptr(),
                a.pixel_box_lower.as_ptr(),
                a.pixel_box_upper.as_ptr(),
                a.channels_per_pixel,
                a.pixels_per_column,
                a.element_strides.as_ptr(),
                a.interleave,
                a.swizzle,
                a.l2_promotion,
                a.oob_fill,
            )
        }?;
        Ok(map)
    }

    /// # Safety
    /// The arrays must be as long as a wide im2col map's rank asks: its box has one width.
    unsafe fn tensor_map_im2col_wide(
        &self,
        a: &TensorMapArguments,
    ) -> Result<CUtensorMap, Refused> {
        let mut map = CUtensorMap { opaque: [0; 16] };
        // SAFETY: the arrays' lengths are this function's contract; the driver writes the global
        // address into the map without using it.
        unsafe {
            self.cuTensorMapEncodeIm2colWide(
                &mut map,
                a.data_type,
                a.global_dim.len() as u32,
                ptr::with_exposed_provenance_mut(a.global_address as usize),
                a.global_dim.as_ptr(),
                a.global_strides_bytes.as_ptr(),
                a.pixel_box_lower[0],
                a.pixel_box_upper[0],
                a.channels_per_pixel,
                a.pixels_per_column,
                a.element_strides.as_ptr(),
                a.interleave,
                a.wide_mode,
                a.swizzle,
                a.l2_promotion,
                a.oob_fill,
            )
        }?;
        Ok(map)
    }
}

/// Makes the `extra` of a launch: the parameters as one buffer, whose length the driver reads
/// through a pointer.
pub(super) fn extra(params: &[u8], len: &mut usize) -> [*mut c_void; 5] {
    [
        ptr::without_provenance_mut(PARAM_BUFFER_POINTER),
        params.as_ptr().cast_mut().cast(),
        ptr::without_provenance_mut(PARAM_BUFFER_SIZE),
        ptr::from_mut(len).cast(),
        ptr::without_provenance_mut(PARAM_END),
    ]
}

/// Returns null if there are no parameters, because the driver refuses an empty buffer.
pub(super) fn extra_pointer(extra: &mut [*mut c_void; 5], params: &[u8]) -> *mut *mut c_void {
    match params {
        [] => ptr::null_mut(),
        _ => extra.as_mut_ptr(),
    }
}

fn launch_config(
    shape: LaunchShape,
    stream: real::Stream,
    attributes: &mut [CUlaunchAttribute],
) -> CUlaunchConfig {
    CUlaunchConfig {
        grid_dim_x: shape.grid[0],
        grid_dim_y: shape.grid[1],
        grid_dim_z: shape.grid[2],
        block_dim_x: shape.block[0],
        block_dim_y: shape.block[1],
        block_dim_z: shape.block[2],
        shared_mem_bytes: shape.shared_bytes,
        stream: CUstream(stream.raw()),
        attrs: attributes.as_mut_ptr(),
        num_attrs: attributes.len() as u32,
    }
}

//! Computes the cost of remoting a call from its declaration, and from its arguments if these
//! decide.
//!
//! Estimates if the client's state decides: the client answers some calls from its own state, of
//! which only repeated questions are modelled here. `docs/trace-format.md` lists them.

use std::{ffi::c_void, sync::OnceLock};

use outboard_api::{
    CUresult,
    cuda::{
        CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUdeviceptr, CUfunction, CUkernel, CUlaunchAttribute,
        CUlaunchConfig, CUstream,
    },
    decl::Class,
};
use outboard_image::raw;
use outboard_wire::{
    frame::{HEADER_BYTES, copy_in_len, copy_out_len, request_len},
    limits::{CHUNK_BYTES_MAX, IMAGE_KEPT_BYTES_MIN},
    messages,
};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    call_table::{CALLS, Cost},
    driver,
};

const ATTRIBUTE_BYTES: usize = size_of::<CUlaunchAttribute>();
/// Bytes of the description of a box: an estimate.
const BOX_BYTES: u64 = 64;
/// Bytes for each kernel in the reply to loading a module: an estimate.
const CARD_BYTES: u64 = 64;
/// Bytes of a kernel's parameters, if the driver does not say.
const PARAM_BYTES_UNKNOWN: usize = 64;
/// Parameters of a kernel, and remembered questions, at most.
const PARAMS_MAX: usize = 4096;
const REMEMBERED_MAX: usize = 1 << 20;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, and `CU_MEMORYTYPE_*`.
const MEMORY_TYPE: u32 = 2;
const TYPE_HOST: u32 = 1;
const TYPE_DEVICE: u32 = 2;
const TYPE_ARRAY: u32 = 3;

outboard_driver::functions! {
    struct Questions {
        ;
        optional cuFuncGetParamInfo, cuKernelGetParamInfo, cuPointerGetAttribute, cuStreamIsCapturing
    }
}

fn questions() -> &'static Questions {
    static QUESTIONS: OnceLock<Questions> = OnceLock::new();
    QUESTIONS.get_or_init(|| {
        // SAFETY: the driver's functions, by their names.
        let found = unsafe { Questions::find(driver::function) };
        found.unwrap_or(Questions {
            cuFuncGetParamInfo: None,
            cuKernelGetParamInfo: None,
            cuPointerGetAttribute: None,
            cuStreamIsCapturing: None,
        })
    })
}

/// A question that the client answers itself when it is asked again.
pub(crate) fn asked_once(number: usize, values: &[u64]) -> Cost {
    static ASKED: Mutex<Option<FxHashSet<Vec<u64>>>> = Mutex::new(None);
    let mut key = vec![number as u64];
    key.extend_from_slice(values);
    let mut asked = ASKED.lock();
    let asked = asked.get_or_insert_default();
    match asked.len() < REMEMBERED_MAX && asked.insert(key) {
        true => CALLS[number].1,
        false => Cost::NONE,
    }
}

pub(crate) fn launch(function: usize) -> Cost {
    launch_with(function, 0)
}

/// A cooperative launch, which has an attribute for that.
pub(crate) fn launch_cooperative(function: usize) -> Cost {
    launch_with(function, ATTRIBUTE_BYTES)
}

fn launch_with(function: usize, attribute_bytes: usize) -> Cost {
    let (attributes, params) = (vec![0; attribute_bytes], param_bytes(function));
    let message = messages::Launch {
        kernel: 0,
        stream: 0,
        grid_x: 0,
        grid_y: 0,
        grid_z: 0,
        block_x: 0,
        block_y: 0,
        block_z: 0,
        shared_bytes: 0,
        attributes: &attributes,
        params: &[][..],
    };
    let bytes = request_len(&message) + params;
    Cost::new(Class::Outstanding, bytes as u64, 0)
}

/// # Safety
/// `config` must be NULL or a configuration.
pub(crate) unsafe fn launch_of(config: *const CUlaunchConfig, function: usize) -> Cost {
    // SAFETY: NULL or a configuration, by this function's contract.
    let attributes = unsafe { config.as_ref() }.map_or(0, |config| config.num_attrs as usize);
    launch_with(function, attributes.min(64) * ATTRIBUTE_BYTES)
}

/// Returns the bytes of a kernel's parameters; asks the driver once for each kernel.
fn param_bytes(function: usize) -> usize {
    static KNOWN: Mutex<Option<FxHashMap<usize, usize>>> = Mutex::new(None);
    if let Some(bytes) = KNOWN.lock().as_ref().and_then(|known| known.get(&function)) {
        return *bytes;
    }
    let driver = questions();
    let of_function = driver.cuFuncGetParamInfo.and_then(|ask| {
        // SAFETY: a function that was just launched, and two outputs.
        sum_params(|index, at, bytes| unsafe { ask(CUfunction(function), index, at, bytes) })
    });
    let of_kernel = || {
        let ask = driver.cuKernelGetParamInfo?;
        // SAFETY: a kernel that was just launched, and two outputs.
        sum_params(|index, at, bytes| unsafe { ask(CUkernel(function), index, at, bytes) })
    };
    let bytes = of_function
        .or_else(of_kernel)
        .unwrap_or(PARAM_BYTES_UNKNOWN);
    let mut known = KNOWN.lock();
    let known = known.get_or_insert_default();
    if known.len() < REMEMBERED_MAX {
        known.insert(function, bytes);
    }
    bytes
}

fn sum_params(ask: impl Fn(usize, &mut usize, &mut usize) -> CUresult) -> Option<usize> {
    let mut end = None;
    for index in 0..PARAMS_MAX {
        let (mut offset, mut size) = (0, 0);
        if ask(index, &mut offset, &mut size) != CUresult::CUDA_SUCCESS {
            // This question cannot tell a kernel without parameters from a handle that is no
            // kernel; the other can.
            return end;
        }
        end = Some(offset + size);
    }
    end
}

pub(crate) fn to_device(bytes: usize) -> Cost {
    Cost::new(Class::Outstanding, copy_in_len(bytes as u64), 0)
}

pub(crate) fn to_host(bytes: usize) -> Cost {
    let (request, response) = copy_out_len(bytes as u64);
    Cost::new(Class::Synchronous, request, response)
}

pub(crate) fn to_device_async(bytes: usize, stream: CUstream) -> Cost {
    match is_capturing(stream) {
        true => copy_there(),
        false => to_device(bytes),
    }
}

/// Into pinned memory, the program does not wait for the bytes.
pub(crate) fn to_host_async(dst: u64, bytes: usize, stream: CUstream) -> Cost {
    if is_capturing(stream) {
        return copy_there();
    }
    let cost = to_host(bytes);
    match memory_type(dst) {
        Some(TYPE_HOST) => Cost {
            class: Class::Outstanding,
            ..cost
        },
        _ => cost,
    }
}

/// A copy of which only the description is sent.
fn copy_there() -> Cost {
    let message = messages::Copy {
        dst: 0,
        src: 0,
        len: 0,
        stream: 0,
        sync: 0,
    };
    Cost::new(Class::Outstanding, request_len(&message) as u64, 0)
}

pub(crate) fn is_device(address: u64) -> bool {
    memory_type(address) == Some(TYPE_DEVICE)
}

/// A copy that is waited for, whose direction follows from the addresses.
pub(crate) fn copy(dst: u64, src: u64, bytes: usize) -> Cost {
    copy_on(dst, src, bytes, None)
}

/// A copy whose direction follows from the addresses.
pub(crate) fn copy_async(dst: u64, src: u64, bytes: usize, stream: CUstream) -> Cost {
    copy_on(dst, src, bytes, Some(stream))
}

fn copy_on(dst: u64, src: u64, bytes: usize, stream: Option<CUstream>) -> Cost {
    match (is_device(dst), is_device(src), stream) {
        (true, false, Some(stream)) => to_device_async(bytes, stream),
        (true, false, None) => to_device(bytes),
        (false, true, Some(stream)) => to_host_async(dst, bytes, stream),
        (false, true, None) => to_host(bytes),
        (true, true, _) => copy_there(),
        // The client waits for the stream, and the bytes stay there.
        (false, false, _) => Cost::new(
            Class::Synchronous,
            HEADER_BYTES as u64 + 20,
            HEADER_BYTES as u64,
        ),
    }
}

/// A copy of a box: its size, and which of its ends are in the program's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoxCopy {
    pub(crate) to_host: bool,
    pub(crate) from_host: bool,
    pub(crate) bytes: u64,
}

/// # Safety
/// `copy` must be NULL or a description of a copy.
pub(crate) unsafe fn copy_2d(copy: *const CUDA_MEMCPY2D) -> Cost {
    // SAFETY: NULL or a description, by this function's contract.
    copy_box(unsafe { box_2d(copy) })
}

/// # Safety
/// `copy` must be NULL or a description of a copy.
pub(crate) unsafe fn copy_3d(copy: *const CUDA_MEMCPY3D) -> Cost {
    // SAFETY: NULL or a description, by this function's contract.
    copy_box(unsafe { box_3d(copy) })
}

/// # Safety
/// `copy` must be NULL or a description of a copy.
pub(crate) unsafe fn box_2d(copy: *const CUDA_MEMCPY2D) -> Option<BoxCopy> {
    // SAFETY: NULL or a description, by this function's contract.
    let copy = unsafe { copy.as_ref() }?;
    Some(BoxCopy {
        to_host: is_host(copy.dst_memory_type, copy.dst_device),
        from_host: is_host(copy.src_memory_type, copy.src_device),
        bytes: copy.width_in_bytes.saturating_mul(copy.height) as u64,
    })
}

/// # Safety
/// `copy` must be NULL or a description of a copy.
pub(crate) unsafe fn box_3d(copy: *const CUDA_MEMCPY3D) -> Option<BoxCopy> {
    // SAFETY: NULL or a description, by this function's contract.
    let copy = unsafe { copy.as_ref() }?;
    let area = copy.width_in_bytes.saturating_mul(copy.height);
    Some(BoxCopy {
        to_host: is_host(copy.dst_memory_type, copy.dst_device),
        from_host: is_host(copy.src_memory_type, copy.src_device),
        bytes: area.saturating_mul(copy.depth) as u64,
    })
}

fn copy_box(of: Option<BoxCopy>) -> Cost {
    let Some(of) = of else { return Cost::NONE };
    let head = HEADER_BYTES as u64 + 8 + 4 + BOX_BYTES;
    match (of.to_host, of.from_host) {
        (false, true) => Cost::new(Class::Outstanding, head + 4 + of.bytes, 0),
        (true, false) => Cost::new(Class::Synchronous, head, HEADER_BYTES as u64 + 4 + of.bytes),
        _ => Cost::new(Class::Outstanding, head, 0),
    }
}

fn is_host(kind: u32, address: CUdeviceptr) -> bool {
    match kind {
        TYPE_HOST => true,
        TYPE_DEVICE | TYPE_ARRAY => false,
        _ => memory_type(address) != Some(TYPE_DEVICE),
    }
}

/// Returns true if work on the stream becomes part of a graph.
pub(crate) fn is_capturing(stream: CUstream) -> bool {
    let Some(ask) = questions().cuStreamIsCapturing else {
        return false;
    };
    let mut status = 0;
    // SAFETY: a stream that was just used, and room for an answer.
    let result = unsafe { ask(stream, &mut status) };
    result == CUresult::CUDA_SUCCESS && status != 0
}

/// Returns the driver's type of an address; `None` for memory that it does not know.
fn memory_type(address: u64) -> Option<u32> {
    let ask = questions().cuPointerGetAttribute?;
    let mut kind = 0u32;
    // SAFETY: room for what this question answers.
    let result = unsafe { ask((&raw mut kind).cast(), MEMORY_TYPE, address) };
    (result == CUresult::CUDA_SUCCESS).then_some(kind)
}

/// A module's image is sent with the call that loads it. A server may have kept a large image,
/// which is not known here.
///
/// # Safety
/// `image` must be as `cuModuleLoadData` asks.
pub(crate) unsafe fn load(image: *const c_void) -> Cost {
    // SAFETY: an image by this function's contract.
    let len = unsafe { raw::locate(image) }.map_or(0, |image| image.bytes.len());
    let ask = messages::LibraryLoad {
        library: 0,
        hash: &[0; 32],
        len: 0,
        options: &[],
    };
    let put = messages::ImagePut {
        hash: &[0; 32],
        offset: 0,
        len: 0,
        data: &[],
    };
    let pieces = len.div_ceil(CHUNK_BYTES_MAX);
    let asks = if len < IMAGE_KEPT_BYTES_MIN { 1 } else { 2 };
    let request = asks * request_len(&ask) + pieces * request_len(&put) + len;
    Cost::new(
        Class::Synchronous,
        request as u64,
        HEADER_BYTES as u64 + CARD_BYTES,
    )
}

//! The GPU that has the kernel: calls of the driver that the program has loaded.

use std::{
    ffi::{CString, c_int, c_uint, c_void},
    ptr,
};

use libloading::os::unix::{Library, RTLD_NOW};

use super::tables::TABLES_BYTES;

/// `RTLD_NOLOAD`: a library that is not there already stays so.
const NOT_ANEW: c_int = 4;
const LIBRARY: &str = "libcuda.so.1";
const SUCCESS: c_int = 0;
const NOT_READY: c_int = 600;
const STREAM_NON_BLOCKING: c_uint = 1;
/// Above all: the driver takes the highest that there is.
const PRIORITY: c_int = -100;
const DEVICE_POINTER: c_uint = 3;
const RANGE_START: c_uint = 11;
const RANGE_SIZE: c_uint = 12;
const WARP: c_uint = 32;

/// The kernel's PTX, which `make net-ptx` compiles and the build script packs.
const KERNEL: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/adapter.ptx.lz4"));
const NAME: &[u8] = b"outboard_net_adapter\0";

type Handle = *mut c_void;

/// Declares the functions of the driver that are called here.
macro_rules! driver {
    ($($name:ident($($argument:ty),*);)*) => {
        #[allow(non_snake_case)]
        struct Calls {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
            _library: Library,
        }

        impl Calls {
            fn load() -> Result<Calls, String> {
                // SAFETY: a library that is loaded already runs no code now.
                let library = unsafe { Library::open(Some(LIBRARY), RTLD_NOW | NOT_ANEW) }
                    .map_err(|_| format!("the program has not loaded {LIBRARY}"))?;
                // SAFETY: functions of the driver's interface have these types.
                unsafe {
                    Ok(Calls {
                        $($name: *library.get(concat!(stringify!($name), "\0").as_bytes())
                            .map_err(|_| concat!("the driver has no ", stringify!($name)))?,)*
                        _library: library,
                    })
                }
            }
        }
    };
}

driver! {
    cuCtxGetCurrent(*mut Handle);
    cuCtxPushCurrent_v2(Handle);
    cuCtxPopCurrent_v2(*mut Handle);
    cuModuleLoadData(*mut Handle, *const c_void);
    cuModuleUnload(Handle);
    cuModuleGetFunction(*mut Handle, Handle, *const c_void);
    cuStreamCreateWithPriority(*mut Handle, c_uint, c_int);
    cuStreamDestroy_v2(Handle);
    cuStreamQuery(Handle);
    cuStreamSynchronize(Handle);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemsetD8Async(u64, u8, usize, Handle);
    cuPointerGetAttribute(*mut c_void, c_uint, u64);
    cuLaunchKernel(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
}

/// A context of the program's, and in it the kernel, its stream and its memory.
pub(super) struct Gpu {
    calls: Calls,
    context: Handle,
    module: Handle,
    function: Handle,
    stream: Handle,
    /// A copy of the tables for each block.
    regions: u64,
    blocks: u32,
    warps: u32,
}

// SAFETY: handles of the driver, whose calls threads may make in any order.
unsafe impl Send for Gpu {}
// SAFETY: handles of the driver, whose calls threads may make in any order.
unsafe impl Sync for Gpu {}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Gpu").finish_non_exhaustive()
    }
}

/// Values that a slice of the kernel is given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    pub(super) tables: u64,
    pub(super) control: u64,
    pub(super) number: u64,
    pub(super) idle_ns: u64,
    pub(super) slice_ns: u64,
}

fn done(call: &str, status: c_int) -> Result<(), String> {
    match status {
        SUCCESS => Ok(()),
        error => Err(format!("{call}: error {error}")),
    }
}

impl Gpu {
    /// Loads the kernel in the context of this thread.
    pub(super) fn open(blocks: u32, warps: u32) -> Result<Gpu, String> {
        let calls = Calls::load()?;
        let mut context = ptr::null_mut();
        // SAFETY: the place is there.
        let status = unsafe { (calls.cuCtxGetCurrent)(&raw mut context) };
        if status != SUCCESS || context.is_null() {
            return Err("this thread has no current context of CUDA".into());
        }
        let mut gpu = Gpu {
            calls,
            context,
            module: ptr::null_mut(),
            function: ptr::null_mut(),
            stream: ptr::null_mut(),
            regions: 0,
            blocks,
            warps,
        };
        // What was made before a failure is given back when it is dropped.
        gpu.load().map(|()| gpu)
    }

    fn load(&mut self) -> Result<(), String> {
        let unpacked = lz4_flex::decompress_size_prepended(KERNEL);
        let text = unpacked.map_err(|error| error.to_string())?;
        let text = CString::new(text).map_err(|error| error.to_string())?;
        let calls = &self.calls;
        let bytes = TABLES_BYTES as usize * self.blocks as usize;
        // SAFETY: all places are there, and the kernel's text ends in a NUL.
        unsafe {
            let text = text.as_ptr().cast();
            done(
                "cuModuleLoadData",
                (calls.cuModuleLoadData)(&raw mut self.module, text),
            )?;
            let name = NAME.as_ptr().cast();
            let found = (calls.cuModuleGetFunction)(&raw mut self.function, self.module, name);
            done("cuModuleGetFunction", found)?;
            let stream = &raw mut self.stream;
            let created = (calls.cuStreamCreateWithPriority)(stream, STREAM_NON_BLOCKING, PRIORITY);
            done("cuStreamCreateWithPriority", created)?;
            done(
                "cuMemAlloc",
                (calls.cuMemAlloc_v2)(&raw mut self.regions, bytes),
            )?;
            let cleared = (calls.cuMemsetD8Async)(self.regions, 0, bytes, self.stream);
            done("cuMemsetD8Async", cleared)
        }
    }

    /// Calls the driver in the kernel's context, and leaves the thread as it was.
    pub(super) fn within<R>(
        &self,
        call: impl FnOnce(&Gpu) -> Result<R, String>,
    ) -> Result<R, String> {
        // SAFETY: the driver refuses a context that is gone.
        done("cuCtxPushCurrent", unsafe {
            (self.calls.cuCtxPushCurrent_v2)(self.context)
        })?;
        let result = call(self);
        let mut popped = ptr::null_mut();
        // SAFETY: the place is there.
        unsafe { (self.calls.cuCtxPopCurrent_v2)(&raw mut popped) };
        result
    }

    /// Starts a slice after those before it.
    pub(super) fn launch(&self, slice: &Slice) -> Result<(), String> {
        let mut values = [
            slice.tables,
            self.regions,
            slice.control,
            slice.number,
            slice.idle_ns,
            slice.slice_ns,
            TABLES_BYTES.into(),
        ];
        let mut arguments = values
            .each_mut()
            .map(|value| ptr::from_mut(value).cast::<c_void>());
        let threads = self.warps * WARP;
        // SAFETY: as many parameters of 8 bytes as the kernel has, which the driver reads now.
        let status = unsafe {
            (self.calls.cuLaunchKernel)(
                self.function,
                self.blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                self.stream,
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        done("cuLaunchKernel", status)
    }

    /// Returns true if all slices are over.
    pub(super) fn is_over(&self) -> Result<bool, String> {
        // SAFETY: the stream is this one's.
        match unsafe { (self.calls.cuStreamQuery)(self.stream) } {
            NOT_READY => Ok(false),
            status => done("a slice of the adapter's kernel", status).map(|()| true),
        }
    }

    /// Returns an attribute of a pointer, if the driver knows it.
    fn attribute(&self, which: c_uint, address: u64) -> Option<u64> {
        let mut value = 0_u64;
        let to = (&raw mut value).cast();
        // SAFETY: room for each of the attributes that are asked for.
        let status = unsafe { (self.calls.cuPointerGetAttribute)(to, which, address) };
        (status == SUCCESS).then_some(value)
    }

    /// Returns true if the kernel reaches all bytes by the addresses that the program has.
    pub(super) fn reaches(&self, address: u64, bytes: u64) -> bool {
        let last = address + bytes.saturating_sub(1);
        let is_within = || {
            let start = self.attribute(RANGE_START, address)?;
            let end = start.checked_add(self.attribute(RANGE_SIZE, address)?)?;
            Some((start..end).contains(&last))
        };
        let is_same = |at| self.attribute(DEVICE_POINTER, at) == Some(at);
        is_same(address) && is_same(last) && is_within().unwrap_or(true)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: each was made once, or is null; a context that is gone has taken them along.
        let _ = self.within(|gpu| unsafe {
            if !gpu.stream.is_null() {
                (gpu.calls.cuStreamSynchronize)(gpu.stream);
                (gpu.calls.cuStreamDestroy_v2)(gpu.stream);
            }
            if gpu.regions != 0 {
                (gpu.calls.cuMemFree_v2)(gpu.regions);
            }
            if !gpu.module.is_null() {
                (gpu.calls.cuModuleUnload)(gpu.module);
            }
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{fs, path::Path, process::Command};

    /// Sums of the kernel, and of all sources that it is compiled from.
    const SUMS: &str = "crates/net/device/adapter.sums";

    #[test]
    fn the_kernel_is_compiled_from_the_sources_that_are_here() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let sums = fs::read_to_string(root.join(SUMS)).unwrap();
        for name in ["adapter.ptx", "adapter.cu", "adapter.cuh", "tables.h"] {
            assert!(sums.contains(&format!("device/{name}\n")), "{name}");
        }
        let mut check = Command::new("sha256sum");
        check.args(["--check", "--strict", "--quiet", SUMS]);
        let checked = check.current_dir(root).output().unwrap();
        let differ = String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success(), "run make net-ptx: {differ}");
    }
}

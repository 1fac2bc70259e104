//! The few driver calls that a worker measures, of the `libcuda.so.1` that the loader finds.

use std::{
    ffi::{CString, c_int, c_uint, c_void},
    fs, mem,
    path::PathBuf,
    ptr,
};

use anyhow::{Context, anyhow};
use outboard_api::{
    CUresult,
    cuda::{
        CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUmodule,
        CUstream,
    },
};
use outboard_driver::LIBRARY;

/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const CAPTURE_THREAD_LOCAL: c_uint = 1;
/// `CU_FUNC_ATTRIBUTE_NUM_REGS`.
const FUNCTION_REGISTERS: c_uint = 4;
const DEVICE_NAME_BYTES_MAX: usize = 256;

outboard_driver::functions! {
    /// The measured calls, by the symbols that CUDA 12 and 13 link to.
    struct Calls {
        cuInit,
        cuDriverGetVersion,
        cuDeviceGet,
        cuDeviceGetName,
        cuDevicePrimaryCtxRetain,
        cuCtxSetCurrent,
        cuCtxGetDevice,
        cuCtxSynchronize,
        cuModuleLoadData,
        cuModuleGetFunction,
        cuFuncGetAttribute,
        cuLaunchKernel,
        cuMemGetInfo_v2,
        cuMemAlloc_v2,
        cuMemFree_v2,
        cuMemAllocAsync,
        cuMemFreeAsync,
        cuMemAllocHost_v2,
        cuMemFreeHost,
        cuMemsetD8Async,
        cuMemcpyDtoH_v2,
        cuMemcpyDtoHAsync_v2,
        cuMemcpyHtoD_v2,
        cuMemcpyHtoDAsync_v2,
        cuStreamCreate,
        cuStreamQuery,
        cuStreamSynchronize,
        cuStreamBeginCapture_v2,
        cuStreamEndCapture,
        cuGraphInstantiateWithFlags,
        cuGraphLaunch,
        cuEventCreate,
        cuEventDestroy_v2,
        cuEventRecord,
        cuEventQuery,
    }
}

/// A driver with a current context on device 0 and a stream of its own. Handles come only from its
/// methods, and live as long as the process.
pub(super) struct Driver {
    calls: Calls,
    pub(super) stream: CUstream,
    pub(super) name: String,
    pub(super) version: u32,
    /// The library's file.
    pub(super) library: PathBuf,
}

/// The values of a kernel's parameters, 8 bytes each, and the pointers to them that a launch takes.
pub(super) struct Arguments {
    _values: Box<[u64]>,
    pointers: Box<[*mut c_void]>,
}

impl Arguments {
    pub(super) fn new(values: &[u64]) -> Arguments {
        let mut values: Box<[u64]> = values.into();
        let pointers = values.iter_mut().map(|v| ptr::from_mut(v).cast()).collect();
        Arguments {
            _values: values,
            pointers,
        }
    }
}

/// Pinned host memory.
pub(super) struct Pinned {
    address: *mut u8,
    bytes: usize,
}

impl Pinned {
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the driver allocated that many bytes, they are never freed, and copies into them
        // have been waited for.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) }
    }
}

impl Driver {
    pub(super) fn open() -> anyhow::Result<Driver> {
        // SAFETY: this process was started to run the driver's initialisers.
        let library = unsafe { libloading::Library::new(LIBRARY) }
            .map_err(crate::libraries::once)
            .context("loading the driver")?;
        // SAFETY: the loader returns the address of the driver's function of that name.
        let calls = unsafe {
            Calls::find(|name| {
                library
                    .get::<*mut c_void>(name.to_bytes_with_nul())
                    .map_or(ptr::null_mut(), |found| *found)
            })
        }?;
        // Its threads and exit handlers need it loaded.
        mem::forget(library);
        let mut driver = Driver {
            calls,
            stream: CUstream::NULL,
            name: String::new(),
            version: 0,
            library: mapped_file().unwrap_or_else(|| LIBRARY.into()),
        };
        driver.start()?;
        Ok(driver)
    }

    fn start(&mut self) -> anyhow::Result<()> {
        let calls = &self.calls;
        let mut name = [0u8; DEVICE_NAME_BYTES_MAX];
        let (mut version, mut device) = (0, 0);
        let mut context = CUcontext::NULL;
        // SAFETY: every pointer is to a variable of the type and size that the call fills.
        unsafe {
            self.check("cuInit", (calls.cuInit)(0))?;
            self.check(
                "cuDriverGetVersion",
                (calls.cuDriverGetVersion)(&mut version),
            )?;
            self.check("cuDeviceGet", (calls.cuDeviceGet)(&mut device, 0))?;
            let room = c_int::try_from(name.len())?;
            self.check(
                "cuDeviceGetName",
                (calls.cuDeviceGetName)(name.as_mut_ptr().cast(), room, device),
            )?;
            self.check(
                "cuDevicePrimaryCtxRetain",
                (calls.cuDevicePrimaryCtxRetain)(&mut context, device),
            )?;
            self.check("cuCtxSetCurrent", (calls.cuCtxSetCurrent)(context))?;
        }
        let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
        self.name = String::from_utf8_lossy(&name[..end]).into_owned();
        self.version = version.unsigned_abs();
        let mut stream = CUstream::NULL;
        // SAFETY: a local output; `CU_STREAM_NON_BLOCKING` is 1.
        self.check("cuStreamCreate", unsafe {
            (self.calls.cuStreamCreate)(&mut stream, 1)
        })?;
        self.stream = stream;
        Ok(())
    }

    /// Turns a failure into an error that names the call.
    #[inline]
    pub(super) fn check(&self, call: &str, result: CUresult) -> anyhow::Result<()> {
        if result == CUresult::CUDA_SUCCESS {
            return Ok(());
        }
        Err(self.explain(call, result))
    }

    #[cold]
    fn explain(&self, call: &str, result: CUresult) -> anyhow::Error {
        match result.name().and_then(|name| name.to_str().ok()) {
            Some(name) => anyhow!("{call}: {name}"),
            None => anyhow!("{call}: CUDA error {}", result.0),
        }
    }

    pub(super) fn load(&self, ptx: &str) -> anyhow::Result<CUmodule> {
        let text = CString::new(ptx)?;
        let mut module = CUmodule::NULL;
        // SAFETY: a PTX image ends at its NUL.
        let result = unsafe { (self.calls.cuModuleLoadData)(&mut module, text.as_ptr().cast()) };
        self.check("cuModuleLoadData", result)?;
        Ok(module)
    }

    pub(super) fn function(&self, module: CUmodule, name: &str) -> anyhow::Result<CUfunction> {
        let name = CString::new(name)?;
        let mut function = CUfunction::NULL;
        // SAFETY: `function` is written, and the name ends in a NUL.
        let result =
            unsafe { (self.calls.cuModuleGetFunction)(&mut function, module, name.as_ptr()) };
        self.check("cuModuleGetFunction", result)?;
        Ok(function)
    }

    /// Returns the registers of each of a kernel's threads.
    pub(super) fn registers(&self, function: CUfunction) -> anyhow::Result<u32> {
        let mut registers = 0;
        // SAFETY: `registers` is written.
        let result = unsafe {
            (self.calls.cuFuncGetAttribute)(&mut registers, FUNCTION_REGISTERS, function)
        };
        self.check("cuFuncGetAttribute", result)?;
        Ok(u32::try_from(registers)?)
    }

    /// Launches one block of `threads` on the stream. There must be as many arguments as the kernel
    /// has parameters.
    #[inline]
    pub(super) fn launch(
        &self,
        function: CUfunction,
        threads: c_uint,
        arguments: &Arguments,
    ) -> anyhow::Result<()> {
        let pointers = arguments.pointers.as_ptr().cast_mut();
        // SAFETY: the kernels of this program have 8-byte parameters only; the driver reads that
        // many and keeps no pointer.
        let result = unsafe {
            (self.calls.cuLaunchKernel)(
                function,
                1,
                1,
                1,
                threads,
                1,
                1,
                0,
                self.stream,
                pointers,
                ptr::null_mut(),
            )
        };
        self.check("cuLaunchKernel", result)
    }

    #[inline]
    pub(super) fn context_device(&self) -> anyhow::Result<CUdevice> {
        let mut device = 0;
        // SAFETY: `device` is written.
        self.check("cuCtxGetDevice", unsafe {
            (self.calls.cuCtxGetDevice)(&mut device)
        })?;
        Ok(device)
    }

    #[inline]
    pub(super) fn synchronize_context(&self) -> anyhow::Result<()> {
        // SAFETY: it takes nothing.
        self.check("cuCtxSynchronize", unsafe {
            (self.calls.cuCtxSynchronize)()
        })
    }

    #[inline]
    pub(super) fn synchronize(&self) -> anyhow::Result<()> {
        // SAFETY: the stream is alive.
        self.check("cuStreamSynchronize", unsafe {
            (self.calls.cuStreamSynchronize)(self.stream)
        })
    }

    /// Returns whether all work of the stream is done.
    #[inline]
    pub(super) fn is_stream_done(&self) -> anyhow::Result<bool> {
        // SAFETY: the stream is alive.
        self.is_done("cuStreamQuery", unsafe {
            (self.calls.cuStreamQuery)(self.stream)
        })
    }

    #[inline]
    pub(super) fn is_event_done(&self, event: CUevent) -> anyhow::Result<bool> {
        // SAFETY: a dead event is an error, by the driver's own rules.
        self.is_done("cuEventQuery", unsafe { (self.calls.cuEventQuery)(event) })
    }

    #[inline]
    fn is_done(&self, call: &str, result: CUresult) -> anyhow::Result<bool> {
        if result == CUresult::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        self.check(call, result).map(|()| true)
    }

    #[inline]
    pub(super) fn event(&self) -> anyhow::Result<CUevent> {
        /// `CU_EVENT_DISABLE_TIMING`, as frameworks create them.
        const DISABLE_TIMING: c_uint = 2;
        let mut event = CUevent::NULL;
        // SAFETY: `event` is written.
        self.check("cuEventCreate", unsafe {
            (self.calls.cuEventCreate)(&mut event, DISABLE_TIMING)
        })?;
        Ok(event)
    }

    #[inline]
    pub(super) fn destroy_event(&self, event: CUevent) -> anyhow::Result<()> {
        // SAFETY: a dead event is an error, by the driver's own rules.
        self.check("cuEventDestroy", unsafe {
            (self.calls.cuEventDestroy_v2)(event)
        })
    }

    #[inline]
    pub(super) fn record(&self, event: CUevent) -> anyhow::Result<()> {
        // SAFETY: a dead event is an error, by the driver's own rules.
        self.check("cuEventRecord", unsafe {
            (self.calls.cuEventRecord)(event, self.stream)
        })
    }

    /// Returns the free and all bytes of the device.
    #[inline]
    pub(super) fn memory(&self) -> anyhow::Result<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are written.
        self.check("cuMemGetInfo", unsafe {
            (self.calls.cuMemGetInfo_v2)(&mut free, &mut total)
        })?;
        Ok((free, total))
    }

    #[inline]
    pub(super) fn allocate(&self, bytes: usize) -> anyhow::Result<CUdeviceptr> {
        let mut address = 0;
        // SAFETY: `address` is written.
        self.check("cuMemAlloc", unsafe {
            (self.calls.cuMemAlloc_v2)(&mut address, bytes)
        })?;
        Ok(address)
    }

    #[inline]
    pub(super) fn free(&self, address: CUdeviceptr) -> anyhow::Result<()> {
        // SAFETY: an address that is no allocation is an error, by the driver's own rules.
        self.check("cuMemFree", unsafe { (self.calls.cuMemFree_v2)(address) })
    }

    #[inline]
    pub(super) fn allocate_async(&self, bytes: usize) -> anyhow::Result<CUdeviceptr> {
        let mut address = 0;
        // SAFETY: `address` is written.
        self.check("cuMemAllocAsync", unsafe {
            (self.calls.cuMemAllocAsync)(&mut address, bytes, self.stream)
        })?;
        Ok(address)
    }

    #[inline]
    pub(super) fn free_async(&self, address: CUdeviceptr) -> anyhow::Result<()> {
        // SAFETY: an address that is no allocation is an error, by the driver's own rules.
        self.check("cuMemFreeAsync", unsafe {
            (self.calls.cuMemFreeAsync)(address, self.stream)
        })
    }

    pub(super) fn pinned(&self, bytes: usize) -> anyhow::Result<Pinned> {
        let mut address = ptr::null_mut();
        // SAFETY: `address` is written.
        self.check("cuMemAllocHost", unsafe {
            (self.calls.cuMemAllocHost_v2)(&mut address, bytes)
        })?;
        Ok(Pinned {
            address: address.cast(),
            bytes,
        })
    }

    pub(super) fn free_pinned(&self, pinned: Pinned) -> anyhow::Result<()> {
        // SAFETY: it came from `pinned`, and its owner has given it up.
        self.check("cuMemFreeHost", unsafe {
            (self.calls.cuMemFreeHost)(pinned.address.cast())
        })
    }

    #[inline]
    pub(super) fn memset(
        &self,
        address: CUdeviceptr,
        value: u8,
        bytes: usize,
    ) -> anyhow::Result<()> {
        // SAFETY: it touches device memory only.
        self.check("cuMemsetD8Async", unsafe {
            (self.calls.cuMemsetD8Async)(address, value, bytes, self.stream)
        })
    }

    /// Copies into pageable memory.
    #[inline]
    pub(super) fn copy_to_host(&self, to: &mut [u8], from: CUdeviceptr) -> anyhow::Result<()> {
        // SAFETY: the call writes as many bytes as there are, and is over when it returns.
        self.check("cuMemcpyDtoH", unsafe {
            (self.calls.cuMemcpyDtoH_v2)(to.as_mut_ptr().cast(), from, to.len())
        })
    }

    /// Copies from pageable memory.
    #[inline]
    pub(super) fn copy_to_device(&self, to: CUdeviceptr, from: &[u8]) -> anyhow::Result<()> {
        // SAFETY: the call reads as many bytes as there are, and has read them when it returns.
        self.check("cuMemcpyHtoD", unsafe {
            (self.calls.cuMemcpyHtoD_v2)(to, from.as_ptr().cast(), from.len())
        })
    }

    /// Copies `bytes` into pinned memory, in stream order, and waits.
    #[inline]
    pub(super) fn copy_to_pinned(
        &self,
        to: &mut Pinned,
        from: CUdeviceptr,
        bytes: usize,
    ) -> anyhow::Result<()> {
        let bytes = bytes.min(to.bytes);
        // SAFETY: that many bytes of pinned memory exist, and they are not read before the wait is
        // over.
        let result = unsafe {
            (self.calls.cuMemcpyDtoHAsync_v2)(to.address.cast(), from, bytes, self.stream)
        };
        self.check("cuMemcpyDtoHAsync", result)?;
        self.synchronize()
    }

    /// Copies `bytes` from pinned memory, in stream order, and waits.
    #[inline]
    pub(super) fn copy_from_pinned(
        &self,
        to: CUdeviceptr,
        from: &Pinned,
        bytes: usize,
    ) -> anyhow::Result<()> {
        let bytes = bytes.min(from.bytes);
        // SAFETY: that many bytes of pinned memory exist, and they are not changed before the wait
        // is over.
        let result = unsafe {
            (self.calls.cuMemcpyHtoDAsync_v2)(to, from.address.cast(), bytes, self.stream)
        };
        self.check("cuMemcpyHtoDAsync", result)?;
        self.synchronize()
    }

    /// Captures the work that `record` puts on the stream, as a graph that can be launched.
    pub(super) fn capture(
        &self,
        record: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<CUgraphExec> {
        let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
        // SAFETY: every pointer is to a variable of the type that the call fills.
        unsafe {
            let result = (self.calls.cuStreamBeginCapture_v2)(self.stream, CAPTURE_THREAD_LOCAL);
            self.check("cuStreamBeginCapture", result)?;
            record()?;
            let result = (self.calls.cuStreamEndCapture)(self.stream, &mut graph);
            self.check("cuStreamEndCapture", result)?;
            let result = (self.calls.cuGraphInstantiateWithFlags)(&mut exec, graph, 0);
            self.check("cuGraphInstantiateWithFlags", result)?;
        }
        Ok(exec)
    }

    #[inline]
    pub(super) fn launch_graph(&self, graph: CUgraphExec) -> anyhow::Result<()> {
        // SAFETY: graphs live as long as the process.
        self.check("cuGraphLaunch", unsafe {
            (self.calls.cuGraphLaunch)(graph, self.stream)
        })
    }
}

/// Returns the library's file, as the kernel mapped it.
fn mapped_file() -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let is_driver = |path: &&str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        name.starts_with("libcuda.so") || name.starts_with("liboutboard_client")
    };
    paths
        .filter(|path| path.starts_with('/'))
        .find(is_driver)
        .map(PathBuf::from)
}

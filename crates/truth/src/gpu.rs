//! Runs jobs on the `libcuda.so.1` that the loader finds. Unsafe throughout, for one reason: these
//! are calls of the driver with the types of cuda.h, with handles that come only from it and
//! buffers that outlive each call. Other reasons are given at the blocks.

mod objects;

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

use thiserror::Error;

use crate::form::TARGET;
use crate::job::{Job, Outcome};
use crate::kernel::header;

use objects::{ArrayDescriptor, Copy3d, ResourceDesc, TextureDesc, ViewDesc};

const LIBRARY: &str = "libcuda.so.1";
const CU_JIT_ERROR_LOG_BUFFER: c_int = 5;
const CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: c_int = 6;
const CU_JIT_OPTIMIZATION_LEVEL: c_int = 7;
/// The driver's default.
const LEVEL_MAX: usize = 4;
const LOG_BYTES: usize = 2048;
/// Longer than any job's input or output, in bytes.
const BUFFER_BYTES: usize = 1 << 22;

type Status = c_int;
type Handle = *mut c_void;

/// The driver is missing, or a call of it failed.
#[derive(Debug, Error)]
pub enum GpuError {
    #[error("{LIBRARY}: {0}")]
    Library(#[from] libloading::Error),
    #[error("a job of more than {BUFFER_BYTES} bytes")]
    TooLong,
    #[error("{call} answered {status}")]
    Call { call: &'static str, status: i32 },
}

macro_rules! driver_calls {
    ($($field:ident = $symbol:literal ($($arg:ty),*);)*) => {
        struct Calls {
            $($field: unsafe extern "C" fn($($arg),*) -> Status,)*
        }

        impl Calls {
            fn load(library: &libloading::Library) -> Result<Calls, libloading::Error> {
                Ok(Calls {
                    // SAFETY: the symbols have these types in cuda.h.
                    $($field: unsafe { *library.get(concat!($symbol, "\0").as_bytes())? },)*
                })
            }
        }
    };
}

driver_calls! {
    init = "cuInit" (c_uint);
    version = "cuDriverGetVersion" (*mut c_int);
    device_get = "cuDeviceGet" (*mut c_int, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    context_retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    context_set = "cuCtxSetCurrent" (Handle);
    synchronize = "cuCtxSynchronize" ();
    module_load = "cuModuleLoadDataEx" (*mut Handle, *const c_void, c_uint, *const c_int, *const Handle);
    module_function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    allocate = "cuMemAlloc_v2" (*mut u64, usize);
    fill = "cuMemsetD8_v2" (u64, u8, usize);
    to_device = "cuMemcpyHtoD_v2" (u64, *const c_void, usize);
    to_host = "cuMemcpyDtoH_v2" (*mut c_void, u64, usize);
    array_create = "cuArray3DCreate_v2" (*mut Handle, *const ArrayDescriptor);
    array_destroy = "cuArrayDestroy" (Handle);
    mipmapped_create = "cuMipmappedArrayCreate" (*mut Handle, *const ArrayDescriptor, c_uint);
    mipmapped_level = "cuMipmappedArrayGetLevel" (*mut Handle, Handle, c_uint);
    mipmapped_destroy = "cuMipmappedArrayDestroy" (Handle);
    texture_create = "cuTexObjectCreate" (*mut u64, *const ResourceDesc, *const TextureDesc, *const ViewDesc);
    texture_destroy = "cuTexObjectDestroy" (u64);
    surface_create = "cuSurfObjectCreate" (*mut u64, *const ResourceDesc);
    surface_destroy = "cuSurfObjectDestroy" (u64);
    copy_3d = "cuMemcpy3D_v2" (*const Copy3d);
    launch = "cuLaunchKernel" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *const *mut c_void, *const Handle);
}

fn checked(call: &'static str, status: Status) -> Result<(), GpuError> {
    match status {
        0 => Ok(()),
        status => Err(GpuError::Call { call, status }),
    }
}

/// The first GPU, with its primary context.
pub struct Gpu {
    calls: Calls,
    context: Handle,
    output: u64,
    input: u64,
    /// Linear memory for textures.
    texels: u64,
    /// Name of the device and version of the driver.
    pub name: String,
}

/// A compiled kernel, or the compiler's error.
pub type Compiled = Result<Kernel, String>;

/// Valid for the life of the process.
#[derive(Clone, Copy)]
pub struct Kernel(Handle);

// SAFETY: the driver's handles may be used from any thread in which their context is current.
unsafe impl Send for Kernel {}
// SAFETY: as for `Kernel`; the buffers are used through `&mut self` only.
unsafe impl Sync for Gpu {}
// SAFETY: as for `Sync`.
unsafe impl Send for Gpu {}

impl Gpu {
    pub fn open() -> Result<Gpu, GpuError> {
        // SAFETY: the driver's library may be loaded at any time, and is never unloaded.
        let library = Box::leak(Box::new(unsafe { libloading::Library::new(LIBRARY)? }));
        let calls = Calls::load(library)?;
        let (mut device, mut version, mut context) = (0, 0, null_mut());
        let mut name = [0u8; 256];
        let (mut output, mut input, mut texels) = (0, 0, 0);
        // SAFETY: the module's comment gives the reason.
        unsafe {
            checked("cuInit", (calls.init)(0))?;
            checked("cuDriverGetVersion", (calls.version)(&mut version))?;
            checked("cuDeviceGet", (calls.device_get)(&mut device, 0))?;
            checked(
                "cuDeviceGetName",
                (calls.device_name)(name.as_mut_ptr().cast(), 255, device),
            )?;
            checked(
                "cuDevicePrimaryCtxRetain",
                (calls.context_retain)(&mut context, device),
            )?;
            checked("cuCtxSetCurrent", (calls.context_set)(context))?;
            checked("cuMemAlloc", (calls.allocate)(&mut output, BUFFER_BYTES))?;
            checked("cuMemAlloc", (calls.allocate)(&mut input, BUFFER_BYTES))?;
            checked("cuMemAlloc", (calls.allocate)(&mut texels, BUFFER_BYTES))?;
        }
        let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        Ok(Gpu {
            calls,
            context,
            output,
            input,
            texels,
            name: format!(
                "{}, driver for CUDA {}.{}",
                String::from_utf8_lossy(&name[..end]),
                version / 1000,
                version % 1000 / 10
            ),
        })
    }

    /// Makes the context current; to be called in each further thread.
    pub fn make_current(&self) -> Result<(), GpuError> {
        // SAFETY: the module's comment gives the reason.
        checked("cuCtxSetCurrent", unsafe {
            (self.calls.context_set)(self.context)
        })
    }

    /// Compiles jobs. Consecutive jobs with one level of optimisation form a module; if that is
    /// refused, each is compiled alone.
    pub fn compile(&self, jobs: &[Job]) -> Vec<Compiled> {
        let alike = jobs.chunk_by(|a, b| a.optimised == b.optimised);
        alike.flat_map(|jobs| self.compile_alike(jobs)).collect()
    }

    fn compile_alike(&self, jobs: &[Job]) -> Vec<Compiled> {
        match self.load(jobs) {
            Ok(module) => jobs.iter().map(|job| self.kernel(module, job)).collect(),
            Err(refusal) if jobs.len() == 1 => vec![Err(refusal)],
            Err(_) => {
                let (one, other) = jobs.split_at(jobs.len() / 2);
                let mut out = self.compile_alike(one);
                out.extend(self.compile_alike(other));
                out
            }
        }
    }

    /// Loads jobs with one level of optimisation as a module.
    fn load(&self, jobs: &[Job]) -> Result<Handle, String> {
        let optimised = jobs.iter().all(|job| job.optimised);
        // Text for an earlier architecture means the same on a later one.
        let target = jobs.iter().map(|job| job.target).max();
        let mut text = header(target.unwrap_or(TARGET));
        for job in jobs {
            text.push_str(&job.text);
        }
        let text = CString::new(text).map_err(|e| e.to_string())?;
        let mut log = vec![0u8; LOG_BYTES];
        let options = [
            CU_JIT_ERROR_LOG_BUFFER,
            CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
            CU_JIT_OPTIMIZATION_LEVEL,
        ];
        // Values that are no addresses are passed as pointers, as cuda.h defines.
        let level = if optimised { LEVEL_MAX } else { 0 };
        let values: [Handle; 3] = [
            log.as_mut_ptr().cast(),
            LOG_BYTES as Handle,
            level as Handle,
        ];
        let mut module = null_mut();
        // SAFETY: the module's comment gives the reason; there are three options, as the count
        // says.
        let status = unsafe {
            (self.calls.module_load)(
                &mut module,
                text.as_ptr().cast(),
                options.len() as c_uint,
                options.as_ptr(),
                values.as_ptr(),
            )
        };
        checked("cuModuleLoadDataEx", status).map_err(|e| {
            let end = log.iter().position(|&b| b == 0).unwrap_or(LOG_BYTES);
            format!("{e}: {}", String::from_utf8_lossy(&log[..end]))
        })?;
        Ok(module)
    }

    fn kernel(&self, module: Handle, job: &Job) -> Compiled {
        let name = CString::new(job.kernel()).map_err(|e| e.to_string())?;
        let mut function = null_mut();
        // SAFETY: the module's comment gives the reason.
        let status = unsafe { (self.calls.module_function)(&mut function, module, name.as_ptr()) };
        checked("cuModuleGetFunction", status).map_err(|e| e.to_string())?;
        Ok(Kernel(function))
    }

    /// Runs a job. After a fault the context is lost, and this process cannot use the GPU any more.
    pub fn run(&mut self, kernel: Kernel, job: &Job) -> Outcome {
        let Some(setup) = &job.setup else {
            return match self.launch(kernel, job, 0) {
                Ok(results) => Outcome::Results(results),
                Err(fault) => Outcome::Fault(fault.to_string()),
            };
        };
        let bound = match self.bind(setup) {
            Ok(bound) => bound,
            Err(refusal) => return Outcome::Refused(refusal.to_string()),
        };
        let results = self
            .launch(kernel, job, bound.number)
            .and_then(|mut results| {
                if setup.bytes_back() > 0 {
                    results.extend(self.texels_back(&bound, &setup.resource)?);
                }
                self.unbind(bound)?;
                Ok(results)
            });
        results.map_or_else(|fault| Outcome::Fault(fault.to_string()), Outcome::Results)
    }

    fn launch(
        &mut self,
        Kernel(function): Kernel,
        job: &Job,
        mut object: u64,
    ) -> Result<Vec<u8>, GpuError> {
        let mut results = vec![0u8; job.output_bytes];
        let (mut output, mut input) = (self.output, self.input);
        // Kernels without an object do not read the last parameter.
        let params: [*mut c_void; 3] = [
            (&raw mut output).cast(),
            (&raw mut input).cast(),
            (&raw mut object).cast(),
        ];
        if job.output_bytes > BUFFER_BYTES || job.input.len() > BUFFER_BYTES {
            return Err(GpuError::TooLong);
        }
        // SAFETY: the module's comment gives the reason; no copy is longer than the buffers, and
        // the kernel takes at most two pointers and a number.
        unsafe {
            let calls = &self.calls;
            if !results.is_empty() {
                checked("cuMemsetD8", (calls.fill)(output, 0, results.len()))?;
            }
            if !job.input.is_empty() {
                let from = job.input.as_ptr().cast();
                checked(
                    "cuMemcpyHtoD",
                    (calls.to_device)(input, from, job.input.len()),
                )?;
            }
            checked(
                "cuLaunchKernel",
                (calls.launch)(
                    function,
                    job.blocks,
                    1,
                    1,
                    job.threads,
                    1,
                    1,
                    0,
                    null_mut(),
                    params.as_ptr(),
                    null(),
                ),
            )?;
            checked("cuCtxSynchronize", (calls.synchronize)())?;
            if !results.is_empty() {
                let to = results.as_mut_ptr().cast();
                checked("cuMemcpyDtoH", (calls.to_host)(to, output, results.len()))?;
            }
        }
        Ok(results)
    }
}

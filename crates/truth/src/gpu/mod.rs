//! Runs jobs on the `libcuda.so.1` that the loader finds: calls of the driver with the types of
//! cuda.h, with handles that come only from it and buffers that outlive each call.

mod objects;

use std::ffi::{CString, c_uint, c_void};
use std::ptr::null_mut;

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUfunction, CUmodule, CUstream},
};
use outboard_driver::LIBRARY;
use thiserror::Error;

use crate::form::TARGET;
use crate::job::{Job, Outcome};
use crate::kernel::header;

const CU_JIT_ERROR_LOG_BUFFER: c_uint = 5;
const CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: c_uint = 6;
const CU_JIT_OPTIMIZATION_LEVEL: c_uint = 7;
/// The driver's default.
const LEVEL_MAX: usize = 4;
const LOG_BYTES: usize = 2048;
/// Longer than any job's input or output, in bytes.
const BUFFER_BYTES: usize = 1 << 22;

/// The driver is missing, or a call of it failed.
#[derive(Debug, Error)]
pub enum GpuError {
    #[error("{LIBRARY}: {0}")]
    Library(#[from] libloading::Error),
    #[error("a job of more than {BUFFER_BYTES} bytes")]
    TooLong,
    #[error(transparent)]
    Missing(#[from] outboard_driver::Missing),
    #[error("{call} answered {status}")]
    Call { call: &'static str, status: u32 },
}

outboard_driver::functions! {
    struct Calls {
        cuInit,
        cuDriverGetVersion,
        cuDeviceGet,
        cuDeviceGetName,
        cuDevicePrimaryCtxRetain,
        cuCtxSetCurrent,
        cuCtxSynchronize,
        cuModuleLoadDataEx,
        cuModuleGetFunction,
        cuMemAlloc_v2,
        cuMemsetD8_v2,
        cuMemcpyHtoD_v2,
        cuMemcpyDtoH_v2,
        cuArray3DCreate_v2,
        cuArrayDestroy,
        cuMipmappedArrayCreate,
        cuMipmappedArrayGetLevel,
        cuMipmappedArrayDestroy,
        cuTexObjectCreate,
        cuTexObjectDestroy,
        cuSurfObjectCreate,
        cuSurfObjectDestroy,
        cuMemcpy3D_v2,
        cuLaunchKernel,
    }
}

fn checked(call: &'static str, result: CUresult) -> Result<(), GpuError> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        CUresult(status) => Err(GpuError::Call { call, status }),
    }
}

/// The first GPU, with its primary context.
pub struct Gpu {
    calls: Calls,
    context: CUcontext,
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
pub struct Kernel(CUfunction);

// SAFETY: the driver's handles may be used from any thread in which their context is current.
unsafe impl Send for Kernel {}
// SAFETY: the driver's handles may be used from any thread in which their context is current, and
// the buffers are used through `&mut self` only.
unsafe impl Sync for Gpu {}
// SAFETY: no handle belongs to the thread that made it.
unsafe impl Send for Gpu {}

impl Gpu {
    pub fn open() -> Result<Gpu, GpuError> {
        // SAFETY: the driver's library may be loaded at any time, and is never unloaded.
        let library = Box::leak(Box::new(unsafe { libloading::Library::new(LIBRARY)? }));
        // SAFETY: the loader answers with the address of the driver's function of that name.
        let calls = unsafe {
            Calls::find(|name| {
                library
                    .get::<*mut c_void>(name.to_bytes_with_nul())
                    .map_or(null_mut(), |found| *found)
            })
        }?;
        let (mut device, mut version, mut context) = (0, 0, CUcontext::NULL);
        let mut name = [0u8; 256];
        let (mut output, mut input, mut texels) = (0, 0, 0);
        // SAFETY: functions of the declared types, and outputs of ours with room for the answers.
        unsafe {
            checked("cuInit", (calls.cuInit)(0))?;
            checked(
                "cuDriverGetVersion",
                (calls.cuDriverGetVersion)(&mut version),
            )?;
            checked("cuDeviceGet", (calls.cuDeviceGet)(&mut device, 0))?;
            checked(
                "cuDeviceGetName",
                (calls.cuDeviceGetName)(name.as_mut_ptr().cast(), 255, device),
            )?;
            checked(
                "cuDevicePrimaryCtxRetain",
                (calls.cuDevicePrimaryCtxRetain)(&mut context, device),
            )?;
            checked("cuCtxSetCurrent", (calls.cuCtxSetCurrent)(context))?;
            checked(
                "cuMemAlloc",
                (calls.cuMemAlloc_v2)(&mut output, BUFFER_BYTES),
            )?;
            checked(
                "cuMemAlloc",
                (calls.cuMemAlloc_v2)(&mut input, BUFFER_BYTES),
            )?;
            checked(
                "cuMemAlloc",
                (calls.cuMemAlloc_v2)(&mut texels, BUFFER_BYTES),
            )?;
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
        // SAFETY: the driver's own handle, which is never destroyed.
        checked("cuCtxSetCurrent", unsafe {
            (self.calls.cuCtxSetCurrent)(self.context)
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
    fn load(&self, jobs: &[Job]) -> Result<CUmodule, String> {
        let optimised = jobs.iter().all(|job| job.optimised);
        // Text for an earlier architecture means the same on a later one.
        let target = jobs.iter().map(|job| job.target).max();
        let mut text = header(target.unwrap_or(TARGET));
        for job in jobs {
            text.push_str(&job.text);
        }
        let text = CString::new(text).map_err(|e| e.to_string())?;
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [
            CU_JIT_ERROR_LOG_BUFFER,
            CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
            CU_JIT_OPTIMIZATION_LEVEL,
        ];
        // Values that are no addresses are passed as pointers, as cuda.h defines.
        let level = if optimised { LEVEL_MAX } else { 0 };
        let mut values: [*mut c_void; 3] = [
            log.as_mut_ptr().cast(),
            LOG_BYTES as *mut c_void,
            level as *mut c_void,
        ];
        let mut module = CUmodule::NULL;
        // SAFETY: a text with its NUL, and three options, as the count says.
        let status = unsafe {
            (self.calls.cuModuleLoadDataEx)(
                &mut module,
                text.as_ptr().cast(),
                options.len() as c_uint,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        checked("cuModuleLoadDataEx", status).map_err(|e| {
            let end = log.iter().position(|&b| b == 0).unwrap_or(LOG_BYTES);
            format!("{e}: {}", String::from_utf8_lossy(&log[..end]))
        })?;
        Ok(module)
    }

    fn kernel(&self, module: CUmodule, job: &Job) -> Compiled {
        let name = CString::new(job.kernel()).map_err(|e| e.to_string())?;
        let mut function = CUfunction::NULL;
        // SAFETY: a module of the driver's, a text with its NUL, and an output of ours.
        let status =
            unsafe { (self.calls.cuModuleGetFunction)(&mut function, module, name.as_ptr()) };
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
        let mut params: [*mut c_void; 3] = [
            (&raw mut output).cast(),
            (&raw mut input).cast(),
            (&raw mut object).cast(),
        ];
        if job.output_bytes > BUFFER_BYTES || job.input.len() > BUFFER_BYTES {
            return Err(GpuError::TooLong);
        }
        // SAFETY: the driver's own handles; no copy is longer than the buffers, and the kernel
        // takes at most two pointers and a number.
        unsafe {
            let calls = &self.calls;
            if !results.is_empty() {
                checked(
                    "cuMemsetD8",
                    (calls.cuMemsetD8_v2)(output, 0, results.len()),
                )?;
            }
            if !job.input.is_empty() {
                let from = job.input.as_ptr().cast();
                checked(
                    "cuMemcpyHtoD",
                    (calls.cuMemcpyHtoD_v2)(input, from, job.input.len()),
                )?;
            }
            checked(
                "cuLaunchKernel",
                (calls.cuLaunchKernel)(
                    function,
                    job.blocks,
                    1,
                    1,
                    job.threads,
                    1,
                    1,
                    0,
                    CUstream::NULL,
                    params.as_mut_ptr(),
                    null_mut(),
                ),
            )?;
            checked("cuCtxSynchronize", (calls.cuCtxSynchronize)())?;
            if !results.is_empty() {
                let to = results.as_mut_ptr().cast();
                checked(
                    "cuMemcpyDtoH",
                    (calls.cuMemcpyDtoH_v2)(to, output, results.len()),
                )?;
            }
        }
        Ok(results)
    }
}

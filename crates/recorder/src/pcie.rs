//! Emulates a longer PCIe between driver and GPU, by the injection at the driver's calls in "DxPU:
//! Large Scale Disaggregated GPU Pools in the Datacenter" (section 3.4.2).
//!
//! A kernel that does nothing for a while is launched before each kernel, memset, graph and copy,
//! in the same stream. The caller computes the three numbers that determine its time
//! (`outboard_model::pcie`). In a graph there is only the one before the whole graph, since the GPU
//! starts the graph's nodes.

use std::{
    collections::HashMap,
    ffi::{CStr, c_void},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use outboard_api::{
    CUresult,
    cuda::{CU_STREAM_LEGACY, CUcontext, CUfunction, CUmodule, CUstream},
};
use parking_lot::Mutex;

use crate::{cost, driver};

/// `DELTA_NS,IN_FLIGHT_BYTES,NS_PER_BYTE`: the variable that `outboard run --emulate-pcie` sets.
const VARIABLE: &str = "OUTBOARD_EMULATE_PCIE";
/// A kernel of one thread that waits on the GPU's own clock.
const DELAY: &CStr = c"\
.version 7.0
.target sm_75
.address_size 64
.visible .entry outboard_delay(.param .u64 ns)
{
    .reg .u64 %rd<4>;
    .reg .pred %p;
    ld.param.u64 %rd1, [ns];
    mov.u64 %rd2, %globaltimer;
again:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd3, %rd3, %rd2;
    setp.lt.u64 %p, %rd3, %rd1;
    @%p bra again;
    ret;
}
";

/// Times that a longer PCIe adds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Longer {
    /// `RTT_delta`.
    delta_ns: f64,
    /// Bytes for which the tags suffice.
    in_flight_bytes: f64,
    /// Nanoseconds that each byte of a longer copy to the device takes longer.
    ns_per_byte: f64,
}

impl Longer {
    fn parse(text: &str) -> Option<Longer> {
        let numbers: Vec<f64> = text
            .split(',')
            .map(|part| {
                part.parse()
                    .ok()
                    .filter(|n: &f64| n.is_finite() && *n >= 0.0)
            })
            .collect::<Option<_>>()?;
        match numbers[..] {
            [delta_ns, in_flight_bytes, ns_per_byte] => Some(Longer {
                delta_ns,
                in_flight_bytes,
                ns_per_byte,
            }),
            _ => None,
        }
    }

    fn copy_in_ns(&self, bytes: usize) -> f64 {
        let bytes = bytes as f64;
        match bytes > self.in_flight_bytes {
            true => self.delta_ns.max(bytes * self.ns_per_byte),
            false => self.delta_ns,
        }
    }
}

fn longer() -> Option<&'static Longer> {
    static LONGER: OnceLock<Option<Longer>> = OnceLock::new();
    LONGER
        .get_or_init(|| {
            let text = std::env::var(VARIABLE)
                .ok()
                .filter(|text| !text.is_empty())?;
            let longer = Longer::parse(&text);
            if longer.is_none() {
                driver::say(format_args!(
                    "{VARIABLE}: {text:?} is not what outboard run sets"
                ));
            }
            longer
        })
        .as_ref()
}

/// Delays a kernel, a memset or a graph.
#[inline]
pub(crate) fn work(stream: Option<CUstream>) {
    if let Some(longer) = longer() {
        wait(longer.delta_ns, stream);
    }
}

/// Delays a copy to the device.
#[inline]
pub(crate) fn to_device(bytes: usize, stream: Option<CUstream>) {
    if let Some(longer) = longer() {
        wait(longer.copy_in_ns(bytes), stream);
    }
}

/// Delays a copy to the host: writes are posted, and need no answer.
#[inline]
pub(crate) fn to_host(stream: Option<CUstream>) {
    if let Some(longer) = longer() {
        wait(longer.delta_ns / 2.0, stream);
    }
}

/// Delays a copy whose direction follows from its addresses.
#[inline]
pub(crate) fn copy(dst: u64, src: u64, bytes: usize, stream: Option<CUstream>) {
    if longer().is_none() {
        return;
    }
    match (cost::is_device(dst), cost::is_device(src)) {
        (true, false) => to_device(bytes, stream),
        (false, true) => to_host(stream),
        _ => {}
    }
}

outboard_driver::functions! {
    struct Driver { cuCtxGetCurrent, cuModuleLoadData, cuModuleGetFunction, cuLaunchKernel }
}

impl Driver {
    fn get() -> Option<&'static Driver> {
        static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
        DRIVER
            // SAFETY: the driver's functions, by their names.
            .get_or_init(|| unsafe { Driver::find(driver::function) }.ok())
            .as_ref()
    }

    /// Returns the kernel in the current context, and loads it there when it is first needed.
    fn kernel(&self) -> Result<CUfunction, CUresult> {
        static KERNELS: Mutex<Option<HashMap<usize, CUfunction>>> = Mutex::new(None);
        let mut context = CUcontext::NULL;
        // SAFETY: the driver's function writes one handle, to a local variable.
        ok(unsafe { (self.cuCtxGetCurrent)(&mut context) })?;
        let mut kernels = KERNELS.lock();
        let kernels = kernels.get_or_insert_default();
        if let Some(kernel) = kernels.get(&context.0) {
            return Ok(*kernel);
        }
        let (mut module, mut kernel) = (CUmodule::NULL, CUfunction::NULL);
        // SAFETY: PTX that ends with a 0, the name of a kernel in it, and room for the answers.
        unsafe {
            ok((self.cuModuleLoadData)(&mut module, DELAY.as_ptr().cast()))?;
            ok((self.cuModuleGetFunction)(
                &mut kernel,
                module,
                c"outboard_delay".as_ptr(),
            ))?;
        }
        kernels.insert(context.0, kernel);
        Ok(kernel)
    }
}

fn ok(result: CUresult) -> Result<(), CUresult> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        result => Err(result),
    }
}

/// Lets the stream do nothing for `ns`. A delay that fails is reported once, since measurements
/// without it mean nothing.
fn wait(ns: f64, stream: Option<CUstream>) {
    // A call without a stream uses the default stream.
    let stream = stream.unwrap_or(CU_STREAM_LEGACY);
    if ns < 1.0 || cost::is_capturing(stream) {
        return;
    }
    let mut ns = ns as u64;
    let mut launched = || {
        let driver = Driver::get().ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        let kernel = driver.kernel()?;
        let mut params = [(&raw mut ns).cast::<c_void>()];
        // SAFETY: one parameter, of the kernel's type.
        ok(unsafe {
            (driver.cuLaunchKernel)(
                kernel,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                stream,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })
    };
    static SAID: AtomicBool = AtomicBool::new(false);
    if let Err(CUresult(status)) = launched()
        && !SAID.swap(true, Ordering::Relaxed)
    {
        driver::say(format_args!(
            "--emulate-pcie: a delay could not be launched (CUresult {status}): what is measured holds less than asked for"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_numbers_say_how_long() {
        let longer = Longer::parse("5600,17920,0.3").unwrap();
        assert_eq!(longer.copy_in_ns(17_920), 5_600.0);
        assert_eq!(longer.copy_in_ns(1_000_000), 300_000.0);
        // Slightly more than the tags suffice for.
        assert_eq!(longer.copy_in_ns(18_000), 5_600.0);
        for junk in ["", "1,2", "1,2,3,4", "1,2,x", "-1,2,3", "1,2,inf"] {
            assert_eq!(Longer::parse(junk), None, "{junk}");
        }
    }
}

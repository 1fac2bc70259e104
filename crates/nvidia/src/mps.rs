//! A session's part of a GPU's multiprocessors, by NVIDIA's Multi-Process Service (MPS).
//!
//! Without MPS a GPU runs the kernels of one process at a time. With it processes run side by side,
//! each on at most its active thread percentage (NVIDIA, Multi-Process Service, "Volta MPS
//! Execution Resource Provisioning").

use std::{
    env,
    io::{self, Read, Write},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_device::Failure;

use super::{Gpu, table::Driver};

/// The driver reads it when a process opens its first context.
const PERCENTAGE_VARIABLE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
/// Talks with the daemon that CUDA_MPS_PIPE_DIRECTORY names.
const CONTROL: &str = "nvidia-cuda-mps-control";
const QUESTION: &[u8] = b"get_default_active_thread_percentage\n";
const ANSWER_MS_MAX: u64 = 5_000;
const ANSWER_BYTES_MAX: u64 = 4_096;
const POLL_MS: u64 = 10;
/// Of cuda.h's CUexecAffinityType.
const CU_EXEC_AFFINITY_TYPE_SM_COUNT: u32 = 0;

/// Asks for a part of each GPU for this process, which must not have loaded the driver yet.
pub(super) fn ask_for(percent: u8) {
    // SAFETY: a worker has one thread until its device is open; nothing reads the environment
    // meanwhile.
    unsafe { env::set_var(PERCENTAGE_VARIABLE, percent.to_string()) };
}

/// Checks that this process is a client of MPS, on each GPU: elsewhere the percentage is ignored.
pub(super) fn confirm(driver: &Driver, gpus: &[Gpu]) -> Result<(), Failure> {
    let kind = CU_EXEC_AFFINITY_TYPE_SM_COUNT;
    for gpu in gpus {
        if driver.cuDeviceGetExecAffinitySupport(kind, gpu.ordinal)? == 0 {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_MPS_CONNECTION_FAILED,
                "the program's part of the GPU (--share gpu-percent=) cannot be kept: MPS does not serve this process",
            ));
        }
    }
    Ok(())
}

/// Returns an error if no control daemon of MPS answers on this machine.
pub fn check() -> Result<(), String> {
    let child = Command::new(CONTROL)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let answer = child.and_then(ask).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("{CONTROL} is not on this machine"),
        _ => format!("{CONTROL}: {error}"),
    })?;
    match answer.trim().parse::<f64>() {
        Ok(_) => Ok(()),
        Err(_) if answer.trim().is_empty() => Err(format!("{CONTROL} says nothing")),
        Err(_) => Err(format!(
            "no control daemon of MPS answers ({CONTROL} -d starts one): {}",
            answer.trim()
        )),
    }
}

/// Asks the daemon its default percentage, within a bound.
fn ask(mut child: Child) -> io::Result<String> {
    if let Some(mut to) = child.stdin.take() {
        // Without a daemon it ends at once and reads nothing; its answer says why.
        let _ = to.write_all(QUESTION);
    }
    let until = Instant::now() + Duration::from_millis(ANSWER_MS_MAX);
    while child.try_wait()?.is_none() {
        if Instant::now() > until {
            child.kill()?;
            child.wait()?;
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(Duration::from_millis(POLL_MS));
    }
    let mut answer = String::new();
    if let Some(from) = child.stdout.take() {
        from.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    }
    Ok(answer)
}

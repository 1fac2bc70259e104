//! The driver's functions, found at run time. Building needs no part of CUDA.

use std::{
    env,
    ffi::{OsString, c_char, c_void},
    mem::MaybeUninit,
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use outboard_api::{
    CUresult,
    cuda::{
        CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
        CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUgraphEdgeData, CUgraphExecUpdateResultInfo,
        CUhostFn, CUipcEventHandle, CUlaunchConfig, CUmemAccessDesc, CUmemAllocationProp,
        CUmemPoolProps, CUstreamBatchMemOpParams, CUtensorMap, CUuuid,
    },
};
use outboard_device::Failure;

include!(concat!(env!("OUT_DIR"), "/nvidia_table.rs"));

/// Names the driver library, if the loader would find the wrong one or none.
pub(super) const DRIVER_VARIABLE: &str = "OUTBOARD_DRIVER";
const DRIVER_LIBRARY: &str = "libcuda.so.1";
/// A symbol exported by Outboard's own client library, and by no driver.
const CLIENT_MARK: &str = "outboard_client";

/// A loaded driver.
pub(super) struct Driver {
    table: Table,
}

impl Driver {
    /// Loads the driver and initialises it.
    pub(super) fn load() -> Result<Driver, Failure> {
        let name = env::var_os(DRIVER_VARIABLE).unwrap_or_else(|| DRIVER_LIBRARY.into());
        Driver::load_from(&name)
    }

    pub(super) fn load_from(name: &OsString) -> Result<Driver, Failure> {
        let library = open_library(name)?;
        // SAFETY: dlsym returns null or the library's function of that name.
        let table = unsafe { Table::load(|symbol| symbol_address(&library, symbol)) };
        // Never unloaded, because the driver's threads run in it until the process ends.
        std::mem::forget(library);
        let driver = Driver { table };
        driver.cuInit(0)?;
        Ok(driver)
    }
}

/// Opens one of NVIDIA's libraries; refuses Outboard's replacement of it.
pub(super) fn open_library(name: &OsString) -> Result<Library, Failure> {
    // SAFETY: the loader runs the initialisers of NVIDIA's library, or of the library that the
    // operator named.
    let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        Failure::new(
            CUresult::CUDA_ERROR_NO_DEVICE,
            format!(
                "{} cannot be loaded: {error}. Is NVIDIA's driver installed? {DRIVER_VARIABLE} may name its libcuda.so.1",
                name.display()
            ),
        )
    })?;
    if !symbol_address(&library, CLIENT_MARK).is_null() {
        return Err(Failure::new(
            CUresult::CUDA_ERROR_STUB_LIBRARY,
            format!(
                "{} is Outboard's own client library, not a driver: a server must not run under `outboard run`; take it out of LD_LIBRARY_PATH, or let {DRIVER_VARIABLE} name the driver's",
                name.display()
            ),
        ));
    }
    Ok(library)
}

pub(super) fn symbol_address(library: &Library, symbol: &str) -> *mut c_void {
    // SAFETY: only the address is taken; it is not called as this type.
    unsafe { library.get::<*mut c_void>(symbol.as_bytes()) }
        .map_or(std::ptr::null_mut(), |found| found.as_raw_ptr())
}

/// A driver call's status other than success. `CUDA_ERROR_NOT_READY` is one of them and is cheap to
/// make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) symbol: &'static str,
    pub(super) status: CUresult,
    by: By,
}

/// Origin of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Driver,
    /// This driver lacks the function.
    Missing,
    /// The machine, which had no thread for a call that may wait.
    Machine,
}

impl Refused {
    fn missing(symbol: &'static str) -> Refused {
        Refused {
            symbol,
            status: CUresult::CUDA_ERROR_NOT_SUPPORTED,
            by: By::Missing,
        }
    }

    /// A call that was not made, for want of a thread that may wait in it.
    pub(super) fn without_thread() -> Refused {
        Refused {
            symbol: "pthread_create",
            status: CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            by: By::Machine,
        }
    }

    #[inline]
    fn check(symbol: &'static str, status: CUresult) -> Result<(), Refused> {
        match status {
            CUresult::CUDA_SUCCESS => Ok(()),
            status => Err(Refused {
                symbol,
                status,
                by: By::Driver,
            }),
        }
    }

    /// Whether this driver lacks the function.
    pub(super) fn is_missing(&self) -> bool {
        self.by == By::Missing
    }

    /// Tells if the driver itself answered.
    pub(super) fn is_answer(&self) -> bool {
        self.by == By::Driver
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Failure {
        let message = match refused.by {
            By::Missing => format!("this driver has no {}", refused.symbol),
            By::Driver => format!("{} answered {}", refused.symbol, refused.status),
            By::Machine => format!(
                "the server has no thread for a driver call that may wait ({} failed)",
                refused.symbol
            ),
        };
        Failure::new(refused.status, message)
    }
}

/// A record of the driver, passed through unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub(super) struct Record<const BYTES: usize>(pub(super) [u8; BYTES]);

impl<const BYTES: usize> Record<BYTES> {
    pub(super) fn new(what: &'static str, bytes: &[u8]) -> Result<Self, Failure> {
        bytes.try_into().map(Record).map_err(|_| {
            Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                format!("{what}: a record of {} bytes, not {BYTES}", bytes.len()),
            )
        })
    }

    pub(super) fn u32_at(&self, offset: usize) -> u32 {
        self.0[offset..]
            .first_chunk()
            .map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    pub(super) fn u64_at(&self, offset: usize) -> u64 {
        self.0[offset..]
            .first_chunk()
            .map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }

    pub(super) fn set_u64(&mut self, offset: usize, value: u64) {
        self.0[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
    }
}

/// The driver's own handles. Only the driver makes them, and they never leave this process.
pub(super) mod real {
    macro_rules! handles {
        ($($name:ident)*) => {$(
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
            #[repr(transparent)]
            pub(crate) struct $name(usize);

            #[allow(dead_code)]
            impl $name {
                pub(crate) const NULL: $name = $name(0);
                /// Returns the number for records of the driver that hold handles.
                pub(crate) fn raw(self) -> usize {
                    self.0
                }
                pub(crate) fn is_null(self) -> bool {
                    self.0 == 0
                }
            }
        )*};
    }

    impl Node {
        /// Wraps a node that the driver named in one of its records.
        pub(crate) fn of_driver(handle: usize) -> Node {
            Node(handle)
        }
    }

    handles! {
        Context Stream Event Library DeviceKernel Kernel Module Graph GraphExec Node Pool Array Mipmap Texture Surface
        Link Allocation
    }

    impl Stream {
        /// `CU_STREAM_LEGACY`, a stream that no call creates.
        pub(crate) const LEGACY: Stream = Stream(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_one_length() {
        assert!(Record::<24>::new("descriptor", &[0; 24]).is_ok());
        let refused = Record::<24>::new("descriptor", &[0; 23]).expect_err("too short");
        assert_eq!(refused.status, CUresult::CUDA_ERROR_INVALID_VALUE);
    }

    #[test]
    fn a_missing_function_is_named() {
        let failure = Failure::from(Refused::missing("cuNext"));
        assert_eq!(failure.status, CUresult::CUDA_ERROR_NOT_SUPPORTED);
        assert!(failure.message.contains("cuNext"), "{failure}");
    }
}

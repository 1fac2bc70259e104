//! Options and logs of the driver's compiler and linker, and the linker itself.

use std::{ffi::CString, ffi::c_void, ptr, sync::Arc};

use outboard_api::{
    CUresult,
    enums::{
        CU_JIT_CACHE_MODE, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        CU_JIT_FALLBACK_STRATEGY, CU_JIT_FAST_COMPILE, CU_JIT_FMA, CU_JIT_FTZ,
        CU_JIT_GENERATE_DEBUG_INFO, CU_JIT_GENERATE_LINE_INFO, CU_JIT_INFO_LOG_BUFFER,
        CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_LOG_VERBOSE, CU_JIT_LTO, CU_JIT_MAX_REGISTERS,
        CU_JIT_MAX_THREADS_PER_BLOCK, CU_JIT_MIN_CTA_PER_SM, CU_JIT_OPTIMIZATION_LEVEL,
        CU_JIT_OPTIMIZE_UNUSED_DEVICE_VARIABLES, CU_JIT_OVERRIDE_DIRECTIVE_VALUES,
        CU_JIT_POSITION_INDEPENDENT_CODE, CU_JIT_PREC_DIV, CU_JIT_PREC_SQRT, CU_JIT_SPLIT_COMPILE,
        CU_JIT_TARGET, CU_JIT_TARGET_FROM_CUCONTEXT, CU_JIT_THREADS_PER_BLOCK,
    },
};
use outboard_device::{Cx, Failure, images::ImageStore};
use outboard_wire::{
    doc::{self, JitOptions},
    messages,
};

use super::{
    Nvidia,
    owned::{ContextHold, Owned},
    table::{Driver, Refused, real},
};

/// Length at which a log for the client is cut.
const LOG_BYTES_MAX: usize = 1 << 20;
/// Options of one call, at most; more than CUDA defines.
const OPTIONS_MAX: usize = 64;
const INPUT_PTX: u32 = 1;

/// Options whose value is an input number. The values of others are pointers of the client's
/// process.
const NUMBERS: &[u32] = &[
    CU_JIT_MAX_REGISTERS,
    CU_JIT_THREADS_PER_BLOCK,
    CU_JIT_OPTIMIZATION_LEVEL,
    CU_JIT_TARGET_FROM_CUCONTEXT,
    CU_JIT_TARGET,
    CU_JIT_FALLBACK_STRATEGY,
    CU_JIT_GENERATE_DEBUG_INFO,
    CU_JIT_LOG_VERBOSE,
    CU_JIT_GENERATE_LINE_INFO,
    CU_JIT_CACHE_MODE,
    CU_JIT_FAST_COMPILE,
    CU_JIT_LTO,
    CU_JIT_FTZ,
    CU_JIT_PREC_DIV,
    CU_JIT_PREC_SQRT,
    CU_JIT_FMA,
    CU_JIT_OPTIMIZE_UNUSED_DEVICE_VARIABLES,
    CU_JIT_POSITION_INDEPENDENT_CODE,
    CU_JIT_MIN_CTA_PER_SM,
    CU_JIT_MAX_THREADS_PER_BLOCK,
    CU_JIT_OVERRIDE_DIRECTIVE_VALUES,
    CU_JIT_SPLIT_COMPILE,
];

/// Options as the driver takes them, with buffers for its logs. The driver may write to the logs as
/// long as the library or linker lives.
pub(super) struct Options {
    keys: Vec<u32>,
    /// Numbers, and the addresses of the log buffers.
    values: Vec<usize>,
    info_log: Vec<u8>,
    error_log: Vec<u8>,
}

impl Options {
    pub(super) fn parse(bytes: &[u8]) -> Result<Options, Failure> {
        let wrong = |what: String| Failure::new(CUresult::CUDA_ERROR_INVALID_VALUE, what);
        let wanted: JitOptions = if bytes.is_empty() {
            JitOptions::default()
        } else {
            doc::from_bytes(bytes).map_err(|error| wrong(format!("JIT options: {error}")))?
        };
        if wanted.numbers.len() > OPTIONS_MAX {
            return Err(wrong(format!("{} JIT options", wanted.numbers.len())));
        }
        let log = |bytes: u32| vec![0; (bytes as usize).min(LOG_BYTES_MAX)];
        let mut options = Options {
            keys: Vec::new(),
            values: Vec::new(),
            info_log: log(wanted.info_log_bytes),
            error_log: log(wanted.error_log_bytes),
        };
        for (key, value) in wanted.numbers {
            if !NUMBERS.contains(&key) {
                return Err(Failure::unsupported(&format!("JIT option {key}")));
            }
            options.keys.push(key);
            options.values.push(value as usize);
        }
        for (log, buffer, size) in [
            (
                &mut options.info_log,
                CU_JIT_INFO_LOG_BUFFER,
                CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
            ),
            (
                &mut options.error_log,
                CU_JIT_ERROR_LOG_BUFFER,
                CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
            ),
        ] {
            if !log.is_empty() {
                options.keys.extend([buffer, size]);
                options
                    .values
                    .extend([log.as_mut_ptr().expose_provenance(), log.len()]);
            }
        }
        Ok(options)
    }

    fn count(&self) -> u32 {
        self.keys.len() as u32
    }

    fn keys(&mut self) -> *mut u32 {
        self.keys.as_mut_ptr()
    }

    fn values(&mut self) -> *mut *mut c_void {
        self.values.as_mut_ptr().cast()
    }

    pub(super) fn logs(&self) -> (Vec<u8>, Vec<u8>) {
        (text(&self.info_log), text(&self.error_log))
    }
}

/// Returns a log up to its NUL.
fn text(log: &[u8]) -> Vec<u8> {
    let len = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    log[..len].to_vec()
}

impl Driver {
    /// Loads an image, which must contain its own length or end with a NUL.
    pub(super) fn load_library(
        &self,
        image: &[u8],
        options: &mut Options,
    ) -> Result<real::Library, Refused> {
        let mut library = real::Library::NULL;
        let (keys, values) = (options.keys(), options.values());
        // SAFETY: the caller checked the image; the options and logs live as long as the library.
        unsafe {
            self.cuLibraryLoadData(
                &mut library,
                image.as_ptr().cast(),
                keys,
                values,
                options.count(),
                ptr::null_mut(),
                ptr::null_mut(),
                0,
            )
        }?;
        Ok(library)
    }
}

pub(super) struct Link {
    owned: Owned<real::Link>,
    options: Box<Options>,
}

impl Link {
    pub(super) fn hold(&self) -> &Arc<ContextHold> {
        &self.owned.hold
    }
}

impl Nvidia {
    pub(super) fn link_create(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::LinkCreate<'_>,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let mut options = Box::new(Options::parse(m.options)?);
        let (keys, values) = (options.keys(), options.values());
        let mut state = real::Link::NULL;
        // SAFETY: the options and logs are in a box that lives as long as the linker.
        unsafe {
            self.driver
                .cuLinkCreate_v2(options.count(), keys, values, &mut state)
        }?;
        let owned = Owned::new(self.current_hold(), state, |driver, state| {
            driver.cuLinkDestroy(state)
        });
        self.links.insert(m.link, Link { owned, options })
    }

    pub(super) fn link_add(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::LinkAdd<'_>,
    ) -> Result<messages::LinkAddReply<'static>, Failure> {
        self.enter(cx)?;
        let image = cx.images.get(&ImageStore::hash(m.hash)?)?;
        let mut data = image.to_vec();
        if m.input_type == INPUT_PTX && data.last() != Some(&0) {
            data.push(0);
        }
        let name = c_string("an input's name", m.name)?;
        let link = self.links.get_mut(m.link)?;
        let mut options = Options::parse(m.options)?;
        let (keys, values) = (options.keys(), options.values());
        // SAFETY: data and options have the lengths said; the driver copies the data before it
        // returns.
        let added = unsafe {
            self.driver.cuLinkAddData_v2(
                link.owned.handle(),
                m.input_type,
                data.as_mut_ptr().cast(),
                data.len() as u64,
                name.as_ptr(),
                options.count(),
                keys,
                values,
            )
        };
        let (info_log, error_log) = link.options.logs();
        Ok(messages::LinkAddReply {
            status: status(added)?.0,
            info_log: info_log.into(),
            error_log: error_log.into(),
        })
    }

    pub(super) fn link_complete(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::LinkComplete,
    ) -> Result<messages::LinkCompleteReply<'static>, Failure> {
        self.enter(cx)?;
        let link = self.links.get_mut(m.link)?;
        let (mut image, mut len) = (ptr::null_mut(), 0);
        // SAFETY: `image` and `len` have room for the answers.
        let completed = unsafe {
            self.driver
                .cuLinkComplete(link.owned.handle(), &mut image, &mut len)
        };
        let status = status(completed)?;
        let (info_log, error_log) = link.options.logs();
        let mut hash = Vec::new();
        if status == CUresult::CUDA_SUCCESS && !image.is_null() {
            // SAFETY: the linker's own memory, valid until the linker is destroyed.
            let cubin = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), len as usize) };
            hash = cx.images.hold(cubin.to_vec()).to_vec();
        }
        Ok(messages::LinkCompleteReply {
            status: status.0,
            len,
            hash: hash.into(),
            info_log: info_log.into(),
            error_log: error_log.into(),
        })
    }

    pub(super) fn cu_link_destroy(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuLinkDestroy,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        self.links.remove(m.state).map(drop)
    }
}

/// Returns the compiler's status. Only a driver without the function fails the message itself.
pub(super) fn status<T>(answered: Result<T, Refused>) -> Result<CUresult, Failure> {
    match answered {
        Ok(_) => Ok(CUresult::CUDA_SUCCESS),
        Err(refused) if refused.is_answer() => Ok(refused.status),
        Err(refused) => Err(refused.into()),
    }
}

pub(super) fn c_string(what: &str, bytes: &[u8]) -> Result<CString, Failure> {
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    CString::new(bytes).map_err(|_| {
        Failure::new(
            CUresult::CUDA_ERROR_INVALID_VALUE,
            format!("{what} with a NUL inside"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &JitOptions) -> Result<Options, Failure> {
        Options::parse(&doc::to_bytes(options).expect("encodes"))
    }

    #[test]
    fn pointers_of_the_client_are_refused() {
        let options = JitOptions {
            numbers: vec![(CU_JIT_INFO_LOG_BUFFER, 0x1000)],
            ..JitOptions::default()
        };
        let refused = parse(&options).err().expect("a pointer");
        assert_eq!(refused.status, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }

    #[test]
    fn logs_are_bounded_and_cut_at_their_end() {
        let mut options = parse(&JitOptions {
            numbers: vec![(CU_JIT_MAX_REGISTERS, 32)],
            info_log_bytes: u32::MAX,
            error_log_bytes: 8,
        })
        .expect("known options");
        assert_eq!(options.count(), 5);
        assert_eq!(options.info_log.len(), LOG_BYTES_MAX);
        assert_eq!(options.values[4], 8);
        options.error_log.copy_from_slice(b"bad\0\0\0\0\0");
        assert_eq!(options.logs().1, b"bad");
        options.error_log.copy_from_slice(b"12345678");
        assert_eq!(options.logs().1, b"12345678");
        assert_eq!(Options::parse(&[]).expect("none").count(), 0);
    }
}

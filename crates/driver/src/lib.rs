//! Types of the driver's functions, for everything that opens a `libcuda.so.1` and calls it.
//!
//! [`functions!`] declares a struct of the functions that a caller needs, by their symbols; their
//! types come from `driver.calls`. Callers open the library and check results themselves.
//! [`cupti_buffers`] is for those that read the records of the machine's own CUPTI.

pub mod cupti_buffers;

use std::{
    error::Error,
    ffi::{CStr, c_void},
    fmt,
};

/// The name under which programs load the driver.
pub const LIBRARY: &str = "libcuda.so.1";

/// A type for each function of the driver, named by its symbol.
#[allow(non_camel_case_types)]
pub mod types {
    use std::ffi::{c_char, c_void};

    use outboard_api::{CUresult, cuda::*};

    include!(concat!(env!("OUT_DIR"), "/types.rs"));
}

/// The opened driver has no function of this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing(pub &'static CStr);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the driver has no {}", self.0.to_string_lossy())
    }
}

impl Error for Missing {}

/// Declares a struct of functions of the driver; those after `optional` are `Option`s.
///
/// ```
/// outboard_driver::functions! {
///     struct Calls { cuInit, cuDeviceGetCount; optional cuFuncGetName }
/// }
/// // SAFETY: null is a permitted answer.
/// let refused = unsafe { Calls::find(|_| std::ptr::null_mut()) };
/// assert_eq!(refused.err(), Some(outboard_driver::Missing(c"cuInit")));
/// ```
#[macro_export]
macro_rules! functions {
    (
        $(#[$attribute:meta])*
        $vis:vis struct $name:ident {
            $($symbol:ident),* $(,)? $(; optional $($optional:ident),* $(,)?)?
        }
    ) => {
        $(#[$attribute])*
        #[allow(non_snake_case)]
        $vis struct $name {
            $($vis $symbol: $crate::types::$symbol,)*
            $($($vis $optional: Option<$crate::types::$optional>,)*)?
        }

        impl $name {
            /// Finds the functions in a driver.
            ///
            /// # Safety
            /// `find` returns null or the address of the driver's function of that name.
            $vis unsafe fn find(
                find: impl Fn(&'static std::ffi::CStr) -> *mut std::ffi::c_void,
            ) -> Result<$name, $crate::Missing> {
                Ok($name {
                    $($symbol: {
                        const NAME: &std::ffi::CStr =
                            $crate::name(concat!(stringify!($symbol), "\0"));
                        let found = $crate::found(NAME, find(NAME))?;
                        // SAFETY: the address of the function of this name, whose type is declared.
                        unsafe {
                            std::mem::transmute::<*mut std::ffi::c_void, $crate::types::$symbol>(
                                found,
                            )
                        }
                    },)*
                    $($($optional: {
                        const NAME: &std::ffi::CStr =
                            $crate::name(concat!(stringify!($optional), "\0"));
                        // SAFETY: null, which is `None`, or the function of this name.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                Option<$crate::types::$optional>,
                            >(find(NAME))
                        }
                    },)*)?
                })
            }
        }
    };
}

/// Makes a C string of a literal, for [`functions!`].
#[doc(hidden)]
#[allow(clippy::panic)]
pub const fn name(with_nul: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(with_nul.as_bytes()) {
        Ok(name) => name,
        // Reached while compiling, never while running.
        Err(_) => panic!("no symbol"),
    }
}

/// Refuses a null address, for [`functions!`].
#[doc(hidden)]
pub fn found(name: &'static CStr, address: *mut c_void) -> Result<*mut c_void, Missing> {
    match address.is_null() {
        true => Err(Missing(name)),
        false => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;

    use outboard_api::CUresult;

    use super::*;

    functions! {
        struct Calls { cuDriverGetVersion; optional cuFuncGetName }
    }

    unsafe extern "C" fn version(out: *mut c_int) -> CUresult {
        // SAFETY: the test passes a variable.
        unsafe { out.write(13_000) };
        CUresult::CUDA_SUCCESS
    }

    #[test]
    fn functions_are_found_by_their_symbols() {
        // SAFETY: the function has the type of the one for which it stands.
        let calls = unsafe {
            Calls::find(|name| match name.to_bytes() {
                b"cuDriverGetVersion" => version as *mut c_void,
                _ => std::ptr::null_mut(),
            })
        }
        .expect("found");
        let mut answer = 0;
        // SAFETY: the driver's function writes one number, to a local variable.
        let result = unsafe { (calls.cuDriverGetVersion)(&mut answer) };
        assert_eq!((result, answer), (CUresult::CUDA_SUCCESS, 13_000));
        assert!(calls.cuFuncGetName.is_none());
    }

    #[test]
    fn a_missing_function_is_named() {
        // SAFETY: null is a permitted answer.
        let missing = unsafe { Calls::find(|_| std::ptr::null_mut()) }.err();
        assert_eq!(
            missing.expect("refused").to_string(),
            "the driver has no cuDriverGetVersion"
        );
    }
}

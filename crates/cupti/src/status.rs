//! `CUptiResult`.

use std::ffi::CStr;

use outboard_api::argument::RefusesNull;

impl RefusesNull for Status {
    const NULL_ARGUMENT: Status = Status::INVALID_PARAMETER;
}

macro_rules! statuses {
    ($($name:ident = $value:literal;)*) => {
        /// Result of a CUPTI function.
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[must_use]
        pub struct Status(pub u32);

        impl Status {
            $(pub(crate) const $name: Status = Status($value);)*

            /// The text that `cuptiGetResultString` returns.
            pub(crate) fn name(self) -> Option<&'static CStr> {
                // The names are literals without a zero byte in them.
                match self.0 {
                    0 => Some(c"CUPTI_SUCCESS"),
                    $($value => CStr::from_bytes_with_nul(
                        concat!("CUPTI_ERROR_", stringify!($name), "\0").as_bytes(),
                    ).ok(),)*
                    _ => None,
                }
            }
        }
    };
}

impl Status {
    pub(crate) const SUCCESS: Status = Status(0);
}

statuses! {
    INVALID_PARAMETER = 1;
    INVALID_CONTEXT = 3;
    INVALID_OPERATION = 7;
    OUT_OF_MEMORY = 8;
    MAX_LIMIT_REACHED = 12;
    NOT_INITIALIZED = 15;
    QUEUE_EMPTY = 18;
    INVALID_KIND = 21;
    NOT_SUPPORTED = 27;
    MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39;
    UNKNOWN = 999;
}

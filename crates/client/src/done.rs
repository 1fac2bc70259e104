//! Result of a call that returns nothing else.

use outboard_api::CUresult;

pub(crate) type Done = Result<(), CUresult>;

//! The trait's operations that this device supports: each is an inherent method of [`Soft`], or a
//! memset. The others answer that they are not supported.

use outboard_device::{Cx, Device, Failure, Pending};
use outboard_ptx::device::Set;
use outboard_wire::messages;

use super::Soft;

// Inherent methods come first in method resolution, so no method calls itself.
include!(concat!(env!("OUT_DIR"), "/soft_device.rs"));

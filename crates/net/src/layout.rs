//! The sizes by which a program and the library know that they are of one header.

/// `struct outboard_net_layout`: what a program was built with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Layout {
    pub version: u32,
    pub queue_bytes: u32,
    pub queue_options_bytes: u32,
    pub options_bytes: u32,
    pub status_bytes: u32,
    pub window_bytes: u32,
}

//! What a CUDA module image contains: which architectures, which kernels, how their parameters lie.
//!
//! A program hands the driver an image in one of three forms, and this crate reads all of them from untrusted bytes,
//! without panics and with bounded memory:
//!
//! ```text
//!  pointer ── raw ──► bytes ──► Image::parse ──► entries ──► Image::select(device) ──► Entry::module
//!                               fatbin │ cubin │ PTX         (decompressed lazily)      kernels, parameters,
//!                                                                                       attributes, variables
//! ```
//!
//! It does not load, link, compile or disassemble anything, and it does not check PTX instructions.
//! The formats are not documented by NVIDIA; the modules name what was observed, and the tests hold it against the
//! output of `nvcc`.

mod arch;
mod cubin;
mod error;
mod fatbin;
mod image;
pub mod limits;
mod module;
pub mod ptx;
pub mod raw;
mod read;

pub use arch::{Arch, Variant};
pub use error::Error;
pub use fatbin::{Encoding, Entry, Kind};
pub use image::{Choice, Format, Image};
pub use module::{Attributes, Kernel, Module, Param, Space, Variable};

/// One entry point for each decoder. They must return for any bytes.
pub mod fuzz {
    pub fn image(data: &[u8]) {
        let Ok(image) = crate::Image::parse(data) else {
            return;
        };
        let _ = image.select(9, 0);
        for entry in image.entries() {
            let _ = entry.module();
        }
    }

    pub fn fatbin(data: &[u8]) {
        let _ = crate::fatbin::parse(data);
    }

    pub fn cubin(data: &[u8]) {
        let _ = crate::cubin::parse(data);
    }

    pub fn ptx(data: &[u8]) {
        let _ = crate::ptx::decode(data).and_then(crate::ptx::scan);
    }
}

//! Reads CUDA module images: their architectures, their kernels, and the layout of the kernels'
//! parameters.
//!
//! A program passes the driver an image in one of three forms. This crate reads all of them from
//! untrusted bytes, without panics and with bounded memory:
//!
//! ```text
//!  pointer ─ raw ─► bytes ─► Image::parse ─► entries ─► select(device) ─► Entry::module
//!                            fatbin, cubin, PTX         (decompressed     kernels, parameters,
//!                                                       lazily)           attributes, variables
//! ```
//!
//! It does not load, link, compile or disassemble anything, and it does not check PTX instructions.
//! NVIDIA does not document the formats; the modules describe what was observed, and the tests
//! compare it with the output of `nvcc`.

mod arch;
mod cubin;
mod error;
mod fatbin;
mod image;
pub mod limits;
mod module;
mod objects;
pub mod ptx;
pub mod raw;
mod read;

pub use arch::{Arch, Variant};
pub use error::Error;
pub use fatbin::{Encoding, Entry, EntryKind};
pub use image::{Choice, Format, Image};
pub use module::{Attributes, Kernel, Module, Param, Space, Variable};
pub use objects::device_code;

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

    pub fn objects(data: &[u8]) {
        let _ = crate::device_code(data);
    }

    pub fn cubin(data: &[u8]) {
        let _ = crate::cubin::parse(data);
    }

    pub fn ptx(data: &[u8]) {
        let _ = crate::ptx::decode(data).and_then(crate::ptx::scan);
    }
}

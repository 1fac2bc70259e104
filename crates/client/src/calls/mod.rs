//! The served calls, one file per family. Each function has the driver's name and parameters. Its
//! class determines whether it answers from `state`, sends, or sends and waits.
//!
//! A parameter that is a pointer to one value has a type of [`argument`], which refuses NULL, and
//! needs no `unsafe`. A call is `unsafe` if the program promises more of its pointers than such a
//! type says: as many entries as another parameter counts, an image, memory of a copy.

#![allow(non_snake_case, clippy::too_many_arguments)]

mod across;
mod arguments;
mod array;
mod behind;
mod context;
mod copy;
mod copy_box;
mod device;
mod entry_points;
mod event;
mod export_tables;
mod foreign_block;
mod foreseen;
mod graph;
mod graph_nodes;
mod graph_params;
mod host;
mod ipc;
mod kernel;
mod launch;
mod launch_attributes;
mod legacy_launch;
mod link;
mod managed;
mod memory;
mod module;
mod pageable;
mod pool;
mod shareable;
mod straight;
mod stream;
mod stream_capture;
mod tensor_map;
mod texture;
mod virtual_memory;

use outboard_api::{
    CUresult,
    argument::{self, Untyped},
};

use crate::done::Done;

pub(crate) use self::{
    array::*, context::*, copy::*, device::*, entry_points::*, event::*, graph::*, graph_nodes::*,
    host::*, ipc::*, kernel::*, launch::*, managed::*, memory::*, module::*, stream::*,
    stream_capture::*,
};

pub(crate) use self::{
    copy_box::*, legacy_launch::*, link::*, pool::*, shareable::*, tensor_map::*, texture::*,
    virtual_memory::*,
};

// Pointers of the program's, as the entry points give them to the served calls.
pub(crate) type Out<'c, T> = argument::Out<'c, T, CUresult>;
pub(crate) type InOut<'c, T> = argument::InOut<'c, T, CUresult>;
pub(crate) type In<'c, T> = argument::In<'c, T, CUresult>;
pub(crate) type Text<'c> = argument::Text<'c, CUresult>;

/// Copies a name and a NUL into a buffer of `len` bytes, cut off if necessary.
///
/// # Safety
/// `out` must be NULL or have room for `len` bytes.
unsafe fn put_name(out: *mut std::ffi::c_char, len: i32, name: &str) -> Done {
    let room = usize::try_from(len).unwrap_or(0);
    if out.is_null() || room == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let kept = name.len().min(room - 1);
    // SAFETY: `kept + 1 <= len` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(name.as_ptr().cast(), out, kept);
        out.add(kept).write(0);
    }
    Ok(())
}

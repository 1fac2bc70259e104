//! Loads libibverbs at the first RDMA link, so that programs without RDMA do not need it.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    sync::OnceLock,
};

use libloading::Library;

use crate::{Error, abi::*};

const NAME: &str = "libibverbs.so.1";

/// Arguments: domain, offset in the dma-buf, length, address for the device's use, the dma-buf,
/// access.
type RegDmabufMr = unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;

/// Declares the functions once: their types and how they are found.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the library that are used. A forked child must call none of them on
        /// objects of its parent.
        #[allow(non_snake_case)]
        pub(crate) struct Verbs {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Since rdma-core 34.
            pub(crate) ibv_reg_dmabuf_mr: Option<RegDmabufMr>,
            /// Never unloaded: providers keep state in it.
            _library: Library,
        }

        fn resolve(library: Library) -> Result<Verbs, Error> {
            $(
                // SAFETY: the symbol is a function of this type by the library's public header,
                // whose version the file's name states.
                let $name = unsafe {
                    library.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                        concat!(stringify!($name), "\0").as_bytes(),
                    )
                };
                let $name = *$name.map_err(|_| Error::OldLibrary {
                    symbol: stringify!($name),
                })?;
            )*
            // SAFETY: the function has this type by the library's public header.
            let dmabuf = unsafe { library.get::<RegDmabufMr>(b"ibv_reg_dmabuf_mr\0") };
            let ibv_reg_dmabuf_mr = dmabuf.ok().map(|symbol| *symbol);
            Ok(Verbs { $($name,)* ibv_reg_dmabuf_mr, _library: library })
        }
    };
}

functions! {
    ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list(*mut *mut ibv_device);
    ibv_get_device_name(*mut ibv_device) -> *const c_char;
    ibv_open_device(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device(*mut ibv_context) -> c_int;
    ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    ibv_query_gid(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    ibv_query_pkey(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
    ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_destroy_cq(*mut ibv_cq) -> c_int;
    ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events(*mut ibv_cq, c_uint);
    ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_destroy_qp(*mut ibv_qp) -> c_int;
    ibv_wc_status_str(c_uint) -> *const c_char;
    ibv_create_ah(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    ibv_destroy_ah(*mut ibv_ah) -> c_int;
}

/// Returns the library, loaded at the first call.
pub(crate) fn verbs() -> Result<&'static Verbs, Error> {
    static VERBS: OnceLock<Result<Verbs, Error>> = OnceLock::new();
    VERBS.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Verbs, Error> {
    // SAFETY: libibverbs has constructors of no consequence; it is a system library that the
    // administrator installed.
    let library = unsafe { Library::new(NAME) }.map_err(|error| Error::NoLibrary {
        reason: error.to_string(),
    })?;
    resolve(library)
}

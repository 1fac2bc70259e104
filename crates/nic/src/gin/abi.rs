//! Structures of NCCL's plugins for GIN, versions 11 to 13, as its `nccl/gin*.h` lay them out.

use std::ffi::{c_char, c_int, c_void};

/// Numbers of results (`ncclResult_t`).
pub const SUCCESS: c_int = 0;
pub const SYSTEM_ERROR: c_int = 2;
pub const INVALID_ARGUMENT: c_int = 4;
pub const REMOTE_ERROR: c_int = 6;

/// Bytes of a handle by which ranks find each other.
pub const HANDLE_BYTES: usize = 128;
pub const PTR_HOST: c_int = 1;
pub const PTR_CUDA: c_int = 2;
pub const DEVICE_GIN_PROXY: c_int = 2;
pub const SIGNAL_INC: u32 = 1;
pub const SIGNAL_ADD: u32 = 2;
/// Number of a rail or plane that is not known.
pub const UNDEFINED: i16 = -1;

pub type Handle = *mut c_void;

/// Properties of an adapter (`ncclNetProperties_v11_t` and later).
#[repr(C)]
pub struct Properties<const DEVICES: usize, const MORE: usize> {
    pub name: *const c_char,
    pub pci_path: *const c_char,
    pub guid: u64,
    pub ptr_support: c_int,
    pub reg_is_global: c_int,
    pub force_flush: c_int,
    pub speed: c_int,
    pub port: c_int,
    pub latency: f32,
    pub comms_max: c_int,
    pub receives_max: c_int,
    pub device_type: c_int,
    pub device_version: c_int,
    pub devices_count: c_int,
    pub devices: [c_int; DEVICES],
    pub p2p_bytes_max: usize,
    pub collective_bytes_max: usize,
    pub requests_max: c_int,
    pub rail_and_plane: [i16; MORE],
}

pub type Properties11 = Properties<4, 0>;
pub type Properties12 = Properties<8, 2>;

const _: () = assert!(size_of::<Properties11>() == 112 && size_of::<Properties12>() == 128);

/// `ncclGinConfig_v13_t`.
#[repr(C)]
pub struct Config {
    pub signals: c_int,
    pub counters: c_int,
    pub contexts: c_int,
    pub queue_depth: c_int,
    pub traffic_class: c_int,
}

/// `ncclNetDeviceHandle_v11_t`.
#[repr(C)]
pub struct DeviceHandle {
    pub device_type: c_int,
    pub device_version: c_int,
    pub handle: Handle,
    pub bytes: usize,
    pub needs_progress: c_int,
}

/// A name that stays.
#[repr(transparent)]
pub struct Name(pub *const c_char);

// SAFETY: it is only read.
unsafe impl Sync for Name {}

macro_rules! tables {
    ($(#[$doc:meta] $table:ident { $($field:ident($($argument:ty),*);)* })*) => {
        $(
            #[$doc]
            #[repr(C)]
            pub struct $table {
                pub name: Name,
                $(pub $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
            }
        )*
    };
}

tables! {
    /// `ncclGin_v11_t`.
    Table11 {
        init(*mut Handle, u64, *const c_void);
        devices(*mut c_int);
        properties(c_int, *mut Properties11);
        listen(Handle, c_int, *mut u8, *mut Handle);
        connect(Handle, *const *const u8, c_int, c_int, Handle, *mut Handle);
        create_context(Handle, c_int, c_int, *mut Handle, *mut *const DeviceHandle);
        register(Handle, Handle, usize, c_int, u64, *mut Handle, *mut Handle);
        register_buffer(Handle, Handle, usize, c_int, u64, c_int, u64, *mut Handle, *mut Handle);
        deregister(Handle, Handle);
        destroy_context(Handle);
        close_group(Handle);
        close_listener(Handle);
        put(Handle, u64, Handle, usize, u64, Handle, u32, *mut Handle);
        put_signal(Handle, u64, Handle, usize, u64, Handle, u32, u64, Handle, u64, u32, *mut Handle);
        test(Handle, Handle, *mut c_int);
        progress(Handle);
        last_error(Handle, *mut bool);
        finalize(Handle);
    }
    /// `ncclGin_v12_t`.
    Table12 {
        init(*mut Handle, u64, *const c_void);
        devices(*mut c_int);
        properties(c_int, *mut Properties11);
        listen(Handle, c_int, *mut u8, *mut Handle);
        connect(Handle, *const *const u8, c_int, c_int, c_int, c_int, Handle, *mut Handle);
        create_context(Handle, c_int, c_int, c_int, *mut Handle, *mut *const DeviceHandle);
        register(Handle, Handle, usize, c_int, u64, *mut Handle, *mut Handle);
        register_buffer(Handle, Handle, usize, c_int, u64, c_int, u64, *mut Handle, *mut Handle);
        deregister(Handle, Handle);
        destroy_context(Handle);
        close_group(Handle);
        close_listener(Handle);
        put(Handle, u64, Handle, usize, u64, Handle, u32, c_int, *mut Handle);
        put_signal(Handle, u64, Handle, usize, u64, Handle, u32, u64, Handle, u64, u32, c_int, *mut Handle);
        test(Handle, Handle, *mut c_int);
        progress(Handle);
        last_error(Handle, *mut bool);
        finalize(Handle);
    }
    /// `ncclGin_v13_t`.
    Table13 {
        init(*mut Handle, u64, *const c_void);
        devices(*mut c_int);
        properties(c_int, *mut Properties12);
        listen(Handle, c_int, *mut u8, *mut Handle);
        connect(Handle, *const *const u8, c_int, c_int, Handle, *mut Handle);
        create_context(Handle, *const Config, *mut Handle, *mut *const DeviceHandle);
        register(Handle, Handle, usize, c_int, u64, *mut Handle, *mut Handle);
        register_buffer(Handle, Handle, usize, c_int, u64, c_int, u64, *mut Handle, *mut Handle);
        deregister(Handle, Handle);
        destroy_context(Handle);
        close_group(Handle);
        close_listener(Handle);
        put(Handle, c_int, u64, Handle, usize, u64, Handle, u32, *mut Handle);
        put_signal(Handle, c_int, u64, Handle, usize, u64, Handle, u32, u64, Handle, u64, u32, *mut Handle);
        get(Handle, c_int, u64, Handle, usize, u64, Handle, u32, *mut Handle);
        flush(Handle, c_int, Handle, u32, *mut Handle);
        test(Handle, Handle, *mut c_int);
        progress(Handle);
        last_error(Handle, *mut bool);
        finalize(Handle);
    }
}

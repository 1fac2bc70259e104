//! Objects of mlx5 adapters whose memory is a program's, so that others than this process's
//! processor may use them: queues that are made by commands to the adapter (DEVX), and the pages
//! with its doorbells. Of libmlx5, which is loaded at the first use.

use std::{
    ffi::{c_int, c_void},
    io,
    ptr::{self, NonNull},
    sync::{Arc, OnceLock},
};

use libloading::Library;

use crate::{Chosen, Error, Remote, abi::*, domain::Domain, pair::route};

const NAME: &str = "libmlx5.so.1";
/// Kinds of doorbell pages, in the order in which they are asked for: not cached and of this
/// program alone, not cached, and with BlueFlame.
const PAGES: [u32; 3] = [1 << 31, 1, 0];
const OBJECT_AH: u64 = 1 << 5;
const OBJECT_PD: u64 = 1 << 6;
/// Bytes of an answer before its contents: a state, and the reason that the firmware gives.
const ANSWER_HEAD_BYTES: usize = 8;

#[repr(C)]
struct Umem {
    umem_id: u32,
}

#[repr(C)]
struct Uar {
    reg_addr: *mut c_void,
    base_addr: *mut c_void,
    page_id: u32,
    mmap_off: libc::off_t,
    comp_mask: u64,
}

/// Pairs of what is described and where: of queue pairs, completion queues, and more kinds.
#[repr(C)]
pub(crate) struct Described {
    pub(crate) qp: [*mut c_void; 2],
    pub(crate) cq: [*mut c_void; 2],
    others: [[*mut c_void; 2]; 3],
    ah: [*mut c_void; 2],
    pd: [*mut c_void; 2],
}

#[repr(C)]
struct DescribedPd {
    pdn: u32,
    comp_mask: u64,
}

/// The part of an address that entries of datagrams have.
#[repr(C)]
struct Vector {
    before: [u8; 20],
    rmac: [u8; 6],
    behind: [u8; 22],
}

#[repr(C)]
struct DescribedAh {
    av: *mut Vector,
    comp_mask: u64,
}

enum DevxObject {}

/// Declares the functions once: their types and how they are found.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        #[allow(non_snake_case)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Never unloaded: it keeps state in libibverbs.
            _library: Library,
        }

        fn resolve(library: Library) -> Result<Functions, Error> {
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
            Ok(Functions { $($name,)* _library: library })
        }
    };
}

functions! {
    mlx5dv_is_supported(*const ibv_device) -> bool;
    mlx5dv_init_obj(*mut Described, u64) -> c_int;
    mlx5dv_devx_query_eqn(*mut ibv_context, u32, *mut u32) -> c_int;
    mlx5dv_devx_alloc_uar(*mut ibv_context, u32) -> *mut Uar;
    mlx5dv_devx_free_uar(*mut Uar);
    mlx5dv_devx_umem_reg(*mut ibv_context, *mut c_void, usize, u32) -> *mut Umem;
    mlx5dv_devx_umem_dereg(*mut Umem) -> c_int;
    mlx5dv_devx_obj_create(*mut ibv_context, *const c_void, usize, *mut c_void, usize) -> *mut DevxObject;
    mlx5dv_devx_obj_modify(*mut DevxObject, *const c_void, usize, *mut c_void, usize) -> c_int;
    mlx5dv_devx_obj_destroy(*mut DevxObject) -> c_int;
}

fn functions() -> Result<&'static Functions, Error> {
    static FUNCTIONS: OnceLock<Result<Functions, Error>> = OnceLock::new();
    let load = || {
        // SAFETY: the library's constructor registers it with libibverbs; it is a system library
        // that the administrator installed.
        let library = unsafe { Library::new(NAME) }.map_err(|error| Error::Call {
            call: NAME,
            reason: error.to_string(),
        })?;
        resolve(library)
    };
    FUNCTIONS.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// Makes an error of a call that just failed with `errno`.
pub(crate) fn failed(call: &'static str) -> Error {
    let reason = io::Error::last_os_error().to_string();
    Error::Call { call, reason }
}

/// Makes an error of a command's call, with what the firmware has answered.
fn refused(call: &'static str, answer: &[u8]) -> Error {
    let error = io::Error::last_os_error();
    let head = answer.first_chunk::<ANSWER_HEAD_BYTES>();
    let said = head.filter(|head| head[0] != 0).map(|head| {
        let [state, _, _, _, reason @ ..] = *head;
        let reason = u32::from_be_bytes(reason);
        format!(" (state {state:#x}, syndrome {reason:#x} of the firmware)")
    });
    let reason = format!("{error}{}", said.unwrap_or_default());
    Error::Call { call, reason }
}

/// An opened mlx5 adapter, and a domain of it.
pub struct Mlx5 {
    functions: &'static Functions,
    pub(crate) domain: Arc<Domain>,
    number: u32,
}

// SAFETY: the libraries' objects may be used from any thread, by their documentation.
unsafe impl Send for Mlx5 {}
// SAFETY: several threads may use the libraries' objects at once, by their documentation.
unsafe impl Sync for Mlx5 {}

impl Mlx5 {
    /// Takes a device if it is an mlx5 adapter.
    pub fn of(domain: &Arc<Domain>) -> Result<Arc<Self>, Error> {
        let functions = functions()?;
        // SAFETY: the device of an open context.
        if !unsafe { (functions.mlx5dv_is_supported)(domain.context.device()) } {
            return Err(Error::Call {
                call: "mlx5dv_is_supported",
                reason: "the device is no mlx5 adapter".into(),
            });
        }
        let mut described = DescribedPd {
            pdn: 0,
            comp_mask: 0,
        };
        let mut objects = nothing();
        objects.pd = [domain.raw.cast(), (&raw mut described).cast()];
        // SAFETY: the domain is open, and its description has room.
        let rc = unsafe { (functions.mlx5dv_init_obj)(&raw mut objects, OBJECT_PD) };
        if rc != 0 {
            return Err(failed("mlx5dv_init_obj of a protection domain"));
        }
        Ok(Arc::new(Self {
            functions,
            domain: Arc::clone(domain),
            number: described.pdn,
        }))
    }

    /// Describes objects of the libraries.
    ///
    /// # Safety
    ///
    /// There is one of each of these kinds, and room for what is told.
    pub(crate) unsafe fn describe(&self, objects: &mut Described, kinds: u64) -> Result<(), Error> {
        // SAFETY: the caller's duties are the same.
        match unsafe { (self.functions.mlx5dv_init_obj)(objects, kinds) } {
            0 => Ok(()),
            _ => Err(failed("mlx5dv_init_obj")),
        }
    }

    /// Returns the number of the domain, for commands.
    pub fn domain(&self) -> u32 {
        self.number
    }

    /// Returns the number of a queue of events, for commands.
    pub fn events(&self) -> Result<u32, Error> {
        let mut number = 0;
        let context = self.domain.context.raw;
        // SAFETY: the context is open and `number` outlives the call.
        match unsafe { (self.functions.mlx5dv_devx_query_eqn)(context, 0, &mut number) } {
            0 => Ok(number),
            _ => Err(failed("mlx5dv_devx_query_eqn")),
        }
    }

    /// Returns the address of the first station on the way to a peer (RoCE).
    pub fn station(&self, chosen: &Chosen, remote: &Remote) -> Result<[u8; 6], Error> {
        let verbs = self.domain.context.verbs;
        let mut attr = route(chosen, remote);
        // SAFETY: the domain is open and `attr` outlives the call.
        let address = unsafe { (verbs.ibv_create_ah)(self.domain.raw, &mut attr) };
        if address.is_null() {
            return Err(failed(
                "ibv_create_ah (is the peer's address reachable from this device?)",
            ));
        }
        let mut described = DescribedAh {
            av: ptr::null_mut(),
            comp_mask: 0,
        };
        let mut objects = nothing();
        objects.ah = [address.cast(), (&raw mut described).cast()];
        // SAFETY: the address was just made, and its description has room.
        let rc = unsafe { (self.functions.mlx5dv_init_obj)(&raw mut objects, OBJECT_AH) };
        let error = failed("mlx5dv_init_obj of an address");
        // SAFETY: null, or a part of the address.
        let station = unsafe { described.av.as_ref() }.map(|vector| vector.rmac);
        // SAFETY: made above, and not used any more.
        let _ = unsafe { (verbs.ibv_destroy_ah)(address) };
        station.filter(|_| rc == 0).ok_or(error)
    }

    /// Gives the adapter pages of a program's memory.
    ///
    /// # Safety
    ///
    /// Until what is returned is dropped, the range stays mapped to the same memory, and nothing
    /// relies on its contents.
    pub unsafe fn pages(self: &Arc<Self>, address: u64, len: usize) -> Result<Pages, Error> {
        const CALL: &str = "mlx5dv_devx_umem_reg";
        let start = ptr::with_exposed_provenance_mut(address as usize);
        let access = IBV_ACCESS_LOCAL_WRITE as u32;
        // SAFETY: the context is open. The library pins the pages, or refuses what is not mapped;
        // the caller promises that they stay.
        let raw = unsafe {
            (self.functions.mlx5dv_devx_umem_reg)(self.domain.context.raw, start, len, access)
        };
        Ok(Pages {
            raw: NonNull::new(raw).ok_or_else(|| failed(CALL))?,
            mlx5: Arc::clone(self),
        })
    }

    /// Takes a page with a doorbell.
    pub fn page(self: &Arc<Self>) -> Result<Page, Error> {
        let context = self.domain.context.raw;
        let call = self.functions.mlx5dv_devx_alloc_uar;
        let mut kinds = PAGES.into_iter();
        // SAFETY: the context is open.
        let page = kinds.find_map(|kind| NonNull::new(unsafe { call(context, kind) }));
        Ok(Page {
            raw: page.ok_or_else(|| failed("mlx5dv_devx_alloc_uar"))?,
            mlx5: Arc::clone(self),
        })
    }

    /// Makes an object by a command. Returns it and the answer.
    pub fn create<const N: usize>(
        self: &Arc<Self>,
        command: &[u8],
    ) -> Result<(Object, [u8; N]), Error> {
        let mut answer = [0; N];
        // SAFETY: the context is open, and both texts are as long as is said.
        let raw = unsafe {
            (self.functions.mlx5dv_devx_obj_create)(
                self.domain.context.raw,
                command.as_ptr().cast(),
                command.len(),
                answer.as_mut_ptr().cast(),
                N,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| refused("mlx5dv_devx_obj_create", &answer))?;
        let object = Object {
            raw,
            mlx5: Arc::clone(self),
        };
        Ok((object, answer))
    }
}

pub(crate) fn nothing() -> Described {
    let none = [ptr::null_mut(); 2];
    Described {
        qp: none,
        cq: none,
        others: [none; 3],
        ah: none,
        pd: none,
    }
}

/// Pages of a program's memory that the adapter uses.
pub struct Pages {
    raw: NonNull<Umem>,
    mlx5: Arc<Mlx5>,
}

// SAFETY: as of `Mlx5`.
unsafe impl Send for Pages {}
// SAFETY: as of `Mlx5`.
unsafe impl Sync for Pages {}

impl Pages {
    /// Returns their number, for commands.
    pub fn number(&self) -> u32 {
        // SAFETY: registered, and the library does not change it.
        unsafe { self.raw.as_ref() }.umem_id
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.mlx5.domain.context.is_ours() {
            // SAFETY: registered by `pages`; objects that use them are dropped before.
            let _ = unsafe { (self.mlx5.functions.mlx5dv_devx_umem_dereg)(self.raw.as_ptr()) };
        }
    }
}

/// A page of the adapter's with a doorbell.
pub struct Page {
    raw: NonNull<Uar>,
    mlx5: Arc<Mlx5>,
}

// SAFETY: as of `Mlx5`.
unsafe impl Send for Page {}
// SAFETY: as of `Mlx5`.
unsafe impl Sync for Page {}

impl Page {
    /// Returns its number, for commands.
    pub fn number(&self) -> u32 {
        // SAFETY: allocated, and the library does not change it.
        unsafe { self.raw.as_ref() }.page_id
    }

    /// Returns the address of the doorbell.
    pub fn doorbell(&self) -> u64 {
        // SAFETY: allocated, and the library does not change it.
        unsafe { self.raw.as_ref() }.reg_addr as u64
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.mlx5.domain.context.is_ours() {
            // SAFETY: allocated by `page`; queue pairs that use it are dropped before.
            unsafe { (self.mlx5.functions.mlx5dv_devx_free_uar)(self.raw.as_ptr()) };
        }
    }
}

/// An object that was made by a command.
pub struct Object {
    raw: NonNull<DevxObject>,
    mlx5: Arc<Mlx5>,
}

// SAFETY: as of `Mlx5`.
unsafe impl Send for Object {}
// SAFETY: as of `Mlx5`.
unsafe impl Sync for Object {}

impl Object {
    /// Changes the object by a command.
    pub fn modify(&self, command: &[u8]) -> Result<(), Error> {
        let mut answer = [0; 16];
        // SAFETY: created, and both texts are as long as is said.
        let rc = unsafe {
            (self.mlx5.functions.mlx5dv_devx_obj_modify)(
                self.raw.as_ptr(),
                command.as_ptr().cast(),
                command.len(),
                answer.as_mut_ptr().cast(),
                answer.len(),
            )
        };
        match rc {
            0 => Ok(()),
            _ => Err(refused("mlx5dv_devx_obj_modify", &answer)),
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        if self.mlx5.domain.context.is_ours() {
            // SAFETY: created by `create`, and not used any more.
            let _ = unsafe { (self.mlx5.functions.mlx5dv_devx_obj_destroy)(self.raw.as_ptr()) };
        }
    }
}

//! The functions of libibverbs that are served: one device, its port, protection domains.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    mem::{MaybeUninit, offset_of},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use outboard_net::{REGIONS_MAX, REMOTE_BYTES_MAX};
use outboard_verbs::abi::{
    IBV_LINK_LAYER_ETHERNET, IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS as ALLOCATORS,
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT as PD_CONTEXT, IBV_PORT_ACTIVE, ibv_context,
    ibv_context_ops, ibv_device, ibv_device_attr, ibv_gid, ibv_gid_entry,
    ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr, verbs_context,
};

use crate::{
    abi::{MEMBERS_END, MLX5DV_CONTEXT_FLAGS_CQE_V1, mlx5dv_context},
    cq::{self, poll_cq, req_notify_cq},
    domain::{Allocators, Domain, PORT},
    events::Events,
    extended::{create_qp_ex, newer, older},
    host::{gid, host},
    pair::READS_MAX,
    post::{post_recv, post_send},
    refused::{fail, set_errno},
    rings::{ENTRIES_MAX, RECEIVE_SEGMENTS_MAX},
    srq::post_srq_recv,
};

const NAME: &str = "mlx5_0";
/// The vendor and part that programs look for before they use mlx5's formats: a ConnectX-7.
const VENDOR: u32 = 0x02c9;
const PART: u32 = 4129;
const GUID: u64 = 0x024f_7574_626f_6172;

const NODE_CA: c_int = 1;
const TRANSPORT_IB: c_int = 0;
const ATOMIC_HCA: c_int = 1;
const MTU_4096: c_uint = 5;
const WIDTH_4X: u8 = 2;
const SPEED_EDR: u8 = 32;
const LINK_UP: u8 = 5;
const ROCE_V2: c_int = 1;

const QUEUES_MAX: c_int = 1 << 16;
/// The whole table of partition keys: the default one.
const PKEY: u16 = 0xffff;
/// Bytes of port attributes that a caller of the symbol has room for.
const PORT_BYTES_COMPATIBLE: usize = 48;

/// A context that was opened; programs have the address of the end of its first field.
#[repr(C)]
struct Context {
    extended: verbs_context,
    domains: AtomicU32,
    _events: Events,
}

fn whole(context: *mut ibv_context) -> *mut Context {
    match context.is_null() {
        true => ptr::null_mut(),
        false => context
            .wrapping_byte_sub(offset_of!(verbs_context, context))
            .cast(),
    }
}

struct Device(ibv_device);

// SAFETY: nobody changes it, and its pointers are null.
unsafe impl Send for Device {}
// SAFETY: nobody changes it, and its pointers are null.
unsafe impl Sync for Device {}

fn device() -> *const ibv_device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let make = || {
        Device(ibv_device {
            _ops: [ptr::null_mut(); 2],
            node_type: NODE_CA,
            transport_type: TRANSPORT_IB,
            name: text(NAME),
            dev_name: text("uverbs0"),
            dev_path: text("/sys/class/infiniband_verbs/uverbs0"),
            ibdev_path: text("/sys/class/infiniband/mlx5_0"),
        })
    };
    &raw const DEVICE.get_or_init(make).0
}

/// Text as C has it: the array is longer.
fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    for (to, from) in chars.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = from as c_char;
    }
    chars
}

/// # Safety
///
/// `count` is null or has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_get_device_list(
    count: *mut c_int,
) -> *mut *const ibv_device {
    // SAFETY: null, or room for a number.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = 1;
    }
    Box::into_raw(Box::new([device(), ptr::null()])).cast()
}

/// # Safety
///
/// `list` is null or from `ibv_get_device_list`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_free_device_list(list: *mut *const ibv_device) {
    if !list.is_null() {
        // SAFETY: made by `Box::into_raw` of such an array, and given back once.
        drop(unsafe { Box::from_raw(list.cast::<[*const ibv_device; 2]>()) });
    }
}

/// # Safety
///
/// `device` is null or of the list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_get_device_name(
    device: *const ibv_device,
) -> *const c_char {
    // SAFETY: null, or a device.
    unsafe { device.as_ref() }.map_or(ptr::null(), |device| device.name.as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_ibv_get_device_guid(_device: *const ibv_device) -> u64 {
    GUID.to_be()
}

/// There are no such files.
#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_ibv_read_sysfs_file(
    _folder: *const c_char,
    _file: *const c_char,
    _into: *mut c_char,
    _bytes: usize,
) -> c_int {
    set_errno(libc::ENOENT);
    -1
}

#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_mlx5dv_is_supported(of: *const ibv_device) -> bool {
    ptr::eq(of, device())
}

/// Says what an adapter has beyond verbs: nothing, but completions of version 1.
///
/// # Safety
///
/// `context` is null or open, and `about` null or what a program asks for, with the members of its
/// mask.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_mlx5dv_query_device(
    context: *mut ibv_context,
    about: *mut mlx5dv_context,
) -> c_int {
    // SAFETY: null, or the program's; members that are not asked for are not referred to.
    if context.is_null() || about.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: the mask is a member of each version.
    let asked = unsafe { (*about).comp_mask };
    let bits = (u64::BITS - asked.leading_zeros()) as usize;
    let end = match bits {
        0 => size_of::<mlx5dv_context>(),
        bits => MEMBERS_END[(bits - 1).min(MEMBERS_END.len() - 1)],
    };
    let none = mlx5dv_context {
        version: 0,
        flags: MLX5DV_CONTEXT_FLAGS_CQE_V1,
        comp_mask: 0,
    };
    // SAFETY: the members up to the last that is asked for.
    unsafe {
        about.cast::<u8>().write_bytes(0, end);
        about.write(none);
    }
    0
}

/// Memory is not given to children here, so that there is nothing to prepare for.
#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_ibv_fork_init() -> c_int {
    0
}

/// `IBV_FORK_UNNEEDED`.
#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_ibv_is_fork_initialized() -> c_int {
    2
}

#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_ibv_dontfork_range(_base: *mut c_void, _bytes: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_ibv_dofork_range(_base: *mut c_void, _bytes: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_ibv_open_device(of: *const ibv_device) -> *mut ibv_context {
    if !ptr::eq(of, device()) {
        return fail(libc::ENODEV);
    }
    if let Err(number) = host() {
        return fail(number);
    }
    let events = match Events::new() {
        Ok(events) => events,
        Err(error) => return fail(error.raw_os_error().unwrap_or(libc::EMFILE)),
    };
    let context = Box::into_raw(Box::new(Context {
        extended: extended(of, events.descriptor()),
        domains: AtomicU32::new(0),
        _events: events,
    }));
    context
        .wrapping_byte_add(offset_of!(verbs_context, context))
        .cast()
}

/// A context with the calls that programs make without symbols.
fn extended(device: *const ibv_device, events: c_int) -> verbs_context {
    let none = ptr::null_mut();
    verbs_context {
        query_port: Some(query_port),
        _newer: newer(
            alloc_parent_domain as *mut c_void,
            query_device_ex as *mut c_void,
        ),
        create_qp_ex: Some(create_qp_ex),
        _older: older(),
        sz: size_of::<verbs_context>(),
        context: ibv_context {
            device,
            ops: ibv_context_ops {
                _control_0: [none; 11],
                poll_cq: Some(poll_cq),
                req_notify_cq: Some(req_notify_cq),
                _control_1: [none; 7],
                post_srq_recv: Some(post_srq_recv),
                _control_3: [none; 4],
                post_send: Some(post_send),
                post_recv: Some(post_recv),
                _control_2: [none; 5],
            },
            cmd_fd: -1,
            async_fd: events,
            num_comp_vectors: 1,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: usize::MAX as *mut c_void,
        },
    }
}

/// # Safety
///
/// `context` is null or open, and is not used again if this succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_close_device(context: *mut ibv_context) -> c_int {
    let context = whole(context);
    // SAFETY: null, or open, and then the beginning of a context of ours.
    match unsafe { context.as_ref() } {
        None => set_errno(libc::EINVAL),
        Some(open) if open.domains.load(Ordering::Acquire) > 0 => set_errno(libc::EBUSY),
        Some(_) => {
            // SAFETY: made by `Box::into_raw`, and given back once.
            drop(unsafe { Box::from_raw(context) });
            0
        }
    }
}

/// # Safety
///
/// `out` is null or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_query_device(
    _context: *mut ibv_context,
    out: *mut ibv_device_attr,
) -> c_int {
    if out.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: numbers and arrays of numbers, for which zero is a value.
    let mut about: ibv_device_attr = unsafe { MaybeUninit::zeroed().assume_init() };
    let version = concat!("outboard ", env!("CARGO_PKG_VERSION"));
    about.fw_ver[..version.len()].copy_from_slice(version.as_bytes());
    (about.node_guid, about.sys_image_guid) = (GUID.to_be(), GUID.to_be());
    (about.max_mr_size, about.page_size_cap) = (u64::MAX, !0xfff);
    (about.vendor_id, about.vendor_part_id) = (VENDOR, PART);
    (about.max_qp, about.max_cq) = (QUEUES_MAX, QUEUES_MAX);
    (about.max_qp_wr, about.max_cqe) = (ENTRIES_MAX as c_int, cq::ENTRIES_MAX);
    // Of requests and receives alike: a request may have more.
    about.max_sge = RECEIVE_SEGMENTS_MAX as c_int;
    about.max_sge_rd = about.max_sge;
    (about.max_srq, about.max_srq_wr) = (QUEUES_MAX, ENTRIES_MAX as c_int);
    about.max_srq_sge = about.max_sge;
    (about.max_mr, about.max_pd) = (REGIONS_MAX as c_int, QUEUES_MAX);
    about.max_qp_rd_atom = READS_MAX.into();
    about.max_qp_init_rd_atom = about.max_qp_rd_atom;
    about.max_res_rd_atom = about.max_qp_rd_atom * QUEUES_MAX;
    about.atomic_cap = ATOMIC_HCA;
    (about.max_pkeys, about.phys_port_cnt) = (1, PORT);
    // SAFETY: room for one, which may be uninitialised.
    unsafe { out.write(about) };
    0
}

/// Offset of `phys_port_cnt_ex` in `ibv_device_attr_ex`.
const PORTS_OFFSET: usize = 396;

/// # Safety
///
/// `input` is null or a mask of 32 bits; `out` is null or has room for `bytes`.
unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const u32,
    out: *mut u8,
    bytes: usize,
) -> c_int {
    // SAFETY: null or a mask, as this function's contract says.
    let asked = unsafe { input.as_ref() }.copied().unwrap_or(0);
    if asked != 0 || out.is_null() || bytes < size_of::<ibv_device_attr>() {
        return libc::EINVAL;
    }
    // SAFETY: room for `bytes`, at least for the older attributes, with which they begin.
    let status = unsafe {
        out.write_bytes(0, bytes);
        outboard_nic_ibv_query_device(context, out.cast())
    };
    if status == 0 && bytes >= PORTS_OFFSET + size_of::<u32>() {
        // SAFETY: inside the room, and aligned as the record is.
        unsafe { out.add(PORTS_OFFSET).cast::<u32>().write(PORT.into()) };
    }
    status
}

/// # Safety
///
/// `out` is null or has room for the older attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    out: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: as long as the room.
    unsafe { query_port(context, port, out, PORT_BYTES_COMPATIBLE) }
}

/// # Safety
///
/// `out` is null or has room for `bytes`.
unsafe extern "C" fn query_port(
    _context: *mut ibv_context,
    port: u8,
    out: *mut ibv_port_attr,
    bytes: usize,
) -> c_int {
    if out.is_null() || port != PORT {
        return libc::EINVAL;
    }
    let about = ibv_port_attr {
        state: IBV_PORT_ACTIVE,
        max_mtu: MTU_4096,
        active_mtu: MTU_4096,
        gid_tbl_len: 1,
        max_msg_sz: REMOTE_BYTES_MAX as u32,
        pkey_tbl_len: 1,
        active_width: WIDTH_4X,
        active_speed: SPEED_EDR,
        phys_state: LINK_UP,
        link_layer: IBV_LINK_LAYER_ETHERNET,
        ..ibv_port_attr::default()
    };
    let known = bytes.min(size_of::<ibv_port_attr>());
    // SAFETY: room for as many bytes, which may be uninitialised. Newer programs have fields more.
    unsafe {
        ptr::write_bytes(out.cast::<u8>(), 0, bytes);
        ptr::copy_nonoverlapping((&raw const about).cast::<u8>(), out.cast(), known);
    }
    0
}

/// # Safety
///
/// `out` is null or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_query_pkey(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut u16,
) -> c_int {
    if out.is_null() || port != PORT || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: room for a number.
    unsafe { out.write(PKEY.to_be()) };
    0
}

/// # Safety
///
/// `out` is null or has room for `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic__ibv_query_gid_ex(
    _context: *mut ibv_context,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    bytes: usize,
) -> c_int {
    if out.is_null() || flags != 0 || bytes < size_of::<ibv_gid_entry>() {
        return libc::EINVAL;
    }
    if port != PORT.into() || index != 0 {
        return libc::ENODATA;
    }
    let gid = match gid() {
        Ok(gid) => gid,
        Err(number) => return number,
    };
    let entry = ibv_gid_entry {
        gid: ibv_gid(gid),
        gid_index: index,
        port_num: port,
        gid_type: ROCE_V2 as u32,
        ndev_ifindex: 0,
    };
    // SAFETY: room for an entry.
    unsafe { out.write(entry) };
    0
}

/// # Safety
///
/// `out` is null or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_query_gid(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut [u8; 16],
) -> c_int {
    if out.is_null() || port != PORT || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    match gid() {
        // SAFETY: room for one, which may be uninitialised.
        Ok(gid) => unsafe { out.write(gid) },
        Err(number) => {
            set_errno(number);
            return -1;
        }
    }
    0
}

/// # Safety
///
/// `out` is null or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_query_gid_type(
    _context: *mut ibv_context,
    port: u8,
    index: u32,
    out: *mut c_int,
) -> c_int {
    if out.is_null() || port != PORT || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: room for a number.
    unsafe { out.write(ROCE_V2) };
    0
}

/// # Safety
///
/// `context` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    static LAST: AtomicU32 = AtomicU32::new(0);
    // SAFETY: null, or open, and then the beginning of a context of ours.
    let Some(open) = (unsafe { whole(context).as_ref() }) else {
        return fail(libc::EINVAL);
    };
    open.domains.fetch_add(1, Ordering::AcqRel);
    let handle = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    Box::into_raw(Box::new(Domain {
        pd: ibv_pd { context, handle },
        uses: AtomicU32::new(0),
        parent: ptr::null_mut(),
        is_of_threads: false,
        allocators: None,
    }))
    .cast()
}

/// Makes a domain that is another's: memory of each is the other's, too.
///
/// # Safety
///
/// `context` is null or open, and `asked` null or what the program asks for.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    asked: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: null, or open, and then the beginning of a context of ours; null, or the program's.
    let (open, asked) = unsafe { (whole(context).as_ref(), asked.as_ref()) };
    let (Some(open), Some(asked)) = (open, asked) else {
        return fail(libc::EINVAL);
    };
    let allocators = match (asked.comp_mask & ALLOCATORS, asked.alloc, asked.free) {
        (0, _, _) => None,
        (_, Some(alloc), Some(free)) => Some(Allocators {
            alloc,
            free,
            context: match asked.comp_mask & PD_CONTEXT {
                0 => 0,
                _ => asked.pd_context as usize,
            },
        }),
        _ => return fail(libc::EINVAL),
    };
    if asked.comp_mask & !(ALLOCATORS | PD_CONTEXT) != 0 {
        return fail(libc::EINVAL);
    }
    let parent = asked.pd.cast::<Domain>();
    // SAFETY: null, or the beginning of a domain of ours.
    let Some(of) = (unsafe { parent.as_ref() }) else {
        return fail(libc::EINVAL);
    };
    of.uses.fetch_add(1, Ordering::AcqRel);
    open.domains.fetch_add(1, Ordering::AcqRel);
    let handle = of.pd.handle;
    Box::into_raw(Box::new(Domain {
        pd: ibv_pd { context, handle },
        uses: AtomicU32::new(0),
        parent,
        is_of_threads: !asked.td.is_null(),
        allocators,
    }))
    .cast()
}

/// # Safety
///
/// `pd` is null or from `ibv_alloc_pd`, its context is open, and it is not used again if this
/// succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let domain = pd.cast::<Domain>();
    // SAFETY: null, or the beginning of a domain of ours.
    match unsafe { domain.as_ref() } {
        None => libc::EINVAL,
        Some(of) if of.uses.load(Ordering::Acquire) > 0 => libc::EBUSY,
        Some(of) => {
            // SAFETY: open for as long as its domains.
            let context = unsafe { &*whole(of.pd.context) };
            context.domains.fetch_sub(1, Ordering::AcqRel);
            // SAFETY: null, or a domain that has no fewer lives than its children.
            if let Some(parent) = unsafe { of.parent.as_ref() } {
                parent.uses.fetch_sub(1, Ordering::AcqRel);
            }
            // SAFETY: made by `Box::into_raw`, and given back once.
            drop(unsafe { Box::from_raw(domain) });
            0
        }
    }
}

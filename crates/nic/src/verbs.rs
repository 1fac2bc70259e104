//! The functions of libibverbs that are served: one device, its port, protection domains, memory.

use std::{
    ffi::{c_char, c_int, c_void},
    mem::MaybeUninit,
    process, ptr,
    ptr::NonNull,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use outboard_net::{Access, Error, Mapped, Network, Nic, REGIONS_MAX};

use crate::{
    abi::{
        compat_ibv_port_attr, ibv_context, ibv_context_ops, ibv_device, ibv_device_attr, ibv_mr,
        ibv_pd,
    },
    refused::{refuse, set_errno},
};

const NAME: &str = "mlx5_0";
/// The vendor and part that programs look for before they use mlx5's formats: a ConnectX-7.
const VENDOR: u32 = 0x02c9;
const PART: u32 = 4129;
const GUID: u64 = 0x024f_7574_626f_6172;
const PORT: u8 = 1;
/// The only address: loopback, as RoCE writes IPv4.
const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];

const NODE_CA: c_int = 1;
const TRANSPORT_IB: c_int = 0;
const ATOMIC_HCA: c_int = 1;
const PORT_ACTIVE: c_int = 4;
const MTU_4096: c_int = 5;
const WIDTH_4X: u8 = 2;
const SPEED_EDR: u8 = 32;
const LINK_UP: u8 = 5;
const ETHERNET: u8 = 2;
const ROCE_V2: c_int = 1;
/// Access that registrations have here, and what asks for no more than that.
const ACCESS_SERVED: u32 = 15;
const ACCESS_OPTIONAL: u32 = 0x3ff0_0000;

const QUEUE_ENTRIES_MAX: c_int = 1 << 15;
const QUEUES_MAX: c_int = 1 << 16;
const READS_MAX: c_int = 16;

/// The adapter of this process, which a forked child has not.
struct Adapter {
    nic: Nic,
    process: u32,
}

/// A context that was opened; programs have the address of its first field.
#[repr(C)]
struct Context {
    context: ibv_context,
    domains: AtomicU32,
}

/// A protection domain; programs have the address of its first field, whose handle is the domain's
/// number in the adapter.
#[repr(C)]
struct Domain {
    pd: ibv_pd,
    regions: AtomicU32,
}

pub(crate) fn adapter() -> Result<&'static Nic, c_int> {
    static ADAPTER: OnceLock<Result<Adapter, Error>> = OnceLock::new();
    let start = || {
        let process = process::id();
        Nic::start(Network::default()).map(|nic| Adapter { nic, process })
    };
    match ADAPTER.get_or_init(start) {
        Ok(adapter) if adapter.process == process::id() => Ok(&adapter.nic),
        Ok(_) => Err(libc::ENODEV),
        Err(error) => {
            eprintln!("outboard nic: {error}");
            Err(libc::EAGAIN)
        }
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

/// Fails as calls that return a pointer do.
pub(crate) fn fail<T>(number: c_int) -> *mut T {
    set_errno(number);
    ptr::null_mut()
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

/// Memory is not given to children here, so that there is nothing to prepare for.
#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_ibv_open_device(of: *const ibv_device) -> *mut ibv_context {
    if !ptr::eq(of, device()) {
        return fail(libc::ENODEV);
    }
    if let Err(number) = adapter() {
        return fail(number);
    }
    let context = ibv_context {
        device: of,
        ops: ibv_context_ops {
            _control: [ptr::null_mut(); 32],
        },
        cmd_fd: -1,
        async_fd: -1,
        num_comp_vectors: 1,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        abi_compat: ptr::null_mut(),
    };
    let domains = AtomicU32::new(0);
    Box::into_raw(Box::new(Context { context, domains })).cast()
}

/// # Safety
///
/// `context` is null or open, and is not used again if this succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_close_device(context: *mut ibv_context) -> c_int {
    let context = context.cast::<Context>();
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
    (about.max_qp_wr, about.max_cqe) = (QUEUE_ENTRIES_MAX, QUEUE_ENTRIES_MAX);
    (about.max_sge, about.max_sge_rd) = (2, 2);
    (about.max_mr, about.max_pd) = (REGIONS_MAX as c_int, QUEUES_MAX);
    (about.max_qp_rd_atom, about.max_qp_init_rd_atom) = (READS_MAX, READS_MAX);
    about.max_res_rd_atom = READS_MAX * QUEUES_MAX;
    about.atomic_cap = ATOMIC_HCA;
    (about.max_pkeys, about.phys_port_cnt) = (1, PORT);
    // SAFETY: room for one, which may be uninitialised.
    unsafe { out.write(about) };
    0
}

/// # Safety
///
/// `out` is null or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_query_port(
    _context: *mut ibv_context,
    port: u8,
    out: *mut compat_ibv_port_attr,
) -> c_int {
    if out.is_null() || port != PORT {
        return libc::EINVAL;
    }
    let about = compat_ibv_port_attr {
        state: PORT_ACTIVE,
        max_mtu: MTU_4096,
        active_mtu: MTU_4096,
        gid_tbl_len: 1,
        port_cap_flags: 0,
        max_msg_sz: 1 << 30,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: 1,
        lid: 0,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 0,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width: WIDTH_4X,
        active_speed: SPEED_EDR,
        phys_state: LINK_UP,
        link_layer: ETHERNET,
        flags: 0,
    };
    // SAFETY: room for one, which may be uninitialised.
    unsafe { out.write(about) };
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
    // SAFETY: room for one, which may be uninitialised.
    unsafe { out.write(GID) };
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
    let Some(open) = (unsafe { context.cast::<Context>().as_ref() }) else {
        return fail(libc::EINVAL);
    };
    open.domains.fetch_add(1, Ordering::AcqRel);
    let handle = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    Box::into_raw(Box::new(Domain {
        pd: ibv_pd { context, handle },
        regions: AtomicU32::new(0),
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
        Some(of) if of.regions.load(Ordering::Acquire) > 0 => libc::EBUSY,
        Some(of) => {
            // SAFETY: open for as long as its domains.
            let context = unsafe { &*of.pd.context.cast::<Context>() };
            context.domains.fetch_sub(1, Ordering::AcqRel);
            // SAFETY: made by `Box::into_raw`, and given back once.
            drop(unsafe { Box::from_raw(domain) });
            0
        }
    }
}

/// # Safety
///
/// `pd` is null or from `ibv_alloc_pd`, and the memory stays mapped until it is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_reg_mr(
    pd: *mut ibv_pd,
    memory: *mut c_void,
    bytes: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's duties are the same.
    unsafe {
        register(
            "ibv_reg_mr",
            pd,
            memory,
            bytes,
            memory as u64,
            access as u32,
        )
    }
}

/// # Safety
///
/// As of `ibv_reg_mr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    memory: *mut c_void,
    bytes: usize,
    address: u64,
    access: c_int,
) -> *mut ibv_mr {
    let access = access as u32;
    // SAFETY: the caller's duties are the same.
    unsafe { register("ibv_reg_mr_iova", pd, memory, bytes, address, access) }
}

/// # Safety
///
/// As of `ibv_reg_mr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    memory: *mut c_void,
    bytes: usize,
    address: u64,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: the caller's duties are the same.
    unsafe { register("ibv_reg_mr_iova2", pd, memory, bytes, address, access) }
}

/// # Safety
///
/// As of `ibv_reg_mr`.
unsafe fn register(
    name: &str,
    pd: *mut ibv_pd,
    memory: *mut c_void,
    bytes: usize,
    address: u64,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: null, or the beginning of a domain of ours.
    let domain = unsafe { pd.cast::<Domain>().as_ref() };
    let (Some(domain), Some(at)) = (domain, NonNull::new(memory.cast::<u8>())) else {
        return fail(libc::EINVAL);
    };
    let more = access & !ACCESS_SERVED & !ACCESS_OPTIONAL;
    if more != 0 {
        refuse(name, &format!("access {more:#x} is not served"));
        return ptr::null_mut();
    }
    if bytes == 0 || !is_mapped(at, bytes, access & 1 != 0) {
        return fail(if bytes == 0 {
            libc::EINVAL
        } else {
            libc::EFAULT
        });
    }
    // SAFETY: mapped, as was looked up, and it stays so by the caller's duty.
    let mapped = unsafe { Mapped::new(at, bytes, address) };
    let access = Access(access & ACCESS_SERVED);
    let key = adapter().and_then(|nic| {
        let key = nic.with(|adapter| adapter.register(domain.pd.handle, mapped, access));
        key.map_err(|_| libc::ENOMEM)
    });
    let key = match key {
        Ok(key) => key,
        Err(number) => return fail(number),
    };
    domain.regions.fetch_add(1, Ordering::AcqRel);
    Box::into_raw(Box::new(ibv_mr {
        context: domain.pd.context,
        pd,
        addr: memory,
        length: bytes,
        handle: key,
        lkey: key,
        rkey: key,
    }))
}

/// Looks up that memory is there, and writable if that is asked for.
pub(crate) fn is_mapped(at: NonNull<u8>, bytes: usize, is_written: bool) -> bool {
    let mut next = at.as_ptr() as usize;
    let Some(end) = next.checked_add(bytes) else {
        return false;
    };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for (start, stop, rights) in maps.lines().filter_map(mapping) {
        let is_usable = rights.starts_with(if is_written { "rw" } else { "r" });
        if is_usable && (start..stop).contains(&next) {
            next = stop;
        }
        if next >= end {
            return true;
        }
    }
    false
}

/// Reads a line of the mappings: their range and rights. They are in ascending order.
fn mapping(line: &str) -> Option<(usize, usize, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, stop) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some((address(start)?, address(stop)?, rest))
}

/// # Safety
///
/// `mr` is null or from a registration, its domain is not deallocated, and it is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: null, or a registration.
    let Some(of) = (unsafe { mr.as_ref() }) else {
        return libc::EINVAL;
    };
    let ended = adapter().map(|nic| nic.with(|adapter| adapter.unregister(of.lkey)));
    if !matches!(ended, Ok(Ok(()))) {
        return libc::EINVAL;
    }
    // SAFETY: a domain has no fewer lives than its registrations.
    let domain = unsafe { &*of.pd.cast::<Domain>() };
    domain.regions.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: made by `Box::into_raw`, and given back once.
    drop(unsafe { Box::from_raw(mr) });
    0
}

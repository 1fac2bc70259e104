//! RDMA devices of this machine: listed, opened, and asked about their ports, addresses and
//! partitions.

use std::{
    ffi::{CStr, c_int},
    fs,
    mem::MaybeUninit,
    sync::Arc,
};

use crate::{
    Error,
    abi::*,
    library::{Verbs, verbs},
};

/// An opened device.
pub struct Context {
    pub(crate) raw: *mut ibv_context,
    pub(crate) verbs: &'static Verbs,
    owner_pid: u32,
    /// Identity of the descriptor by which libibverbs talks to the kernel.
    identity: Option<(u64, u64)>,
}

// SAFETY: libibverbs's objects may be used from any thread, by its documentation.
unsafe impl Send for Context {}
// SAFETY: several threads may use libibverbs's objects at once, by its documentation.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of this name.
    pub(crate) fn open(name: &str) -> Result<Arc<Self>, Error> {
        let verbs = verbs()?;
        let opened = for_each_device(verbs, |device, its_name| {
            (its_name == name).then(|| {
                // SAFETY: a device of the list.
                let raw = unsafe { (verbs.ibv_open_device)(device) };
                match raw.is_null() {
                    true => Err(Error::last(
                        "opening the RDMA device (may this process use /dev/infiniband/uverbs*?)",
                    )),
                    false => Ok(raw),
                }
            })
        })?;
        let raw = opened.ok_or(Error::NoDevice)??;
        Ok(Arc::new(Self {
            raw,
            verbs,
            owner_pid: std::process::id(),
            identity: identity(descriptor(raw)),
        }))
    }

    /// Returns true if this process opened it and has not closed its descriptor. A forked child
    /// must not touch its parent's device; and libibverbs would write into a file that the program
    /// has opened under the number after closefrom(3).
    pub(crate) fn is_ours(&self) -> bool {
        self.owner_pid == std::process::id() && identity(descriptor(self.raw)) == self.identity
    }

    /// Returns an error where [`is_ours`](Self::is_ours) returns false.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.is_ours() {
            true => Ok(()),
            false => Err(Error::DescriptorClosed),
        }
    }

    /// Returns the device's name.
    pub fn name(&self) -> String {
        // SAFETY: the device of an open context.
        let name = unsafe { (self.verbs.ibv_get_device_name)(self.device().cast_mut()) };
        // SAFETY: the name is a C string for as long as the device.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    }

    /// Returns the device that was opened.
    pub(crate) fn device(&self) -> *const ibv_device {
        // SAFETY: the context is open, and the library does not change it.
        unsafe { (*self.raw).device }
    }

    /// Returns the state of a port; `None` if the device has no such port.
    pub(crate) fn port(&self, port: u8) -> Option<ibv_port_attr> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the context is open, and the symbol writes no more than the structure has.
        let rc = unsafe { (self.verbs.ibv_query_port)(self.raw, port, &mut attr) };
        (rc == 0).then_some(attr)
    }

    /// Returns the used ones of the first `count` GIDs of a port of this device, which is `device`.
    pub(crate) fn gids(&self, device: &str, port: u8, count: u8) -> Vec<Gid> {
        let used = |index: u8| {
            let mut gid = ibv_gid::default();
            // SAFETY: the context is open and `gid` outlives the call.
            let rc = unsafe { (self.verbs.ibv_query_gid)(self.raw, port, index.into(), &mut gid) };
            let is_used = rc == 0 && gid.0[8..].iter().any(|&byte| byte != 0);
            let kind =
                format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}");
            // Without sysfs (in some containers) the type is unknown, and no GID is refused.
            let is_v1 = fs::read_to_string(kind).is_ok_and(|kind| kind.trim() == "IB/RoCE v1");
            is_used.then_some(Gid {
                index,
                gid: gid.0,
                is_routable: !is_v1,
            })
        };
        (0..count).filter_map(used).collect()
    }

    /// Returns the P_Key at `index` of a port's table; `None` if it cannot be read.
    pub(crate) fn pkey(&self, port: u8, index: u16) -> Option<u16> {
        let mut pkey = 0;
        // SAFETY: the context is open and `pkey` outlives the call.
        let rc = unsafe { (self.verbs.ibv_query_pkey)(self.raw, port, index.into(), &mut pkey) };
        (rc == 0).then_some(u16::from_be(pkey))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: opened by us, and everything made with it holds it by an Arc.
            let _ = unsafe { (self.verbs.ibv_close_device)(self.raw) };
        }
    }
}

fn descriptor(raw: *mut ibv_context) -> c_int {
    // SAFETY: the context is open, and the library does not change the number.
    unsafe { (*raw).cmd_fd }
}

/// Returns the device and inode of what is open under this number.
fn identity(descriptor: c_int) -> Option<(u64, u64)> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for what the call writes, and any number may be asked about.
    let rc = unsafe { libc::fstat(descriptor, found.as_mut_ptr()) };
    // SAFETY: the call has succeeded, so it wrote all of it.
    (rc == 0)
        .then(|| unsafe { found.assume_init() })
        .map(|found| (found.st_dev, found.st_ino))
}

/// An entry of a port's GID table that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gid {
    pub(crate) index: u8,
    pub(crate) gid: [u8; 16],
    /// False for RoCE v1, which routers do not forward.
    pub(crate) is_routable: bool,
}

/// Returns the names of the machine's devices, of which there is one at least.
pub(crate) fn names() -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for_each_device(verbs()?, |_, name| -> Option<()> {
        names.push(name);
        None
    })?;
    match names.is_empty() {
        true => Err(Error::NoDevice),
        false => Ok(names),
    }
}

/// Runs `f` on each device until it returns something. The library owns the list.
fn for_each_device<T>(
    verbs: &Verbs,
    mut f: impl FnMut(*mut ibv_device, String) -> Option<T>,
) -> Result<Option<T>, Error> {
    let mut count = 0;
    // SAFETY: `count` outlives the call.
    let list = unsafe { (verbs.ibv_get_device_list)(&mut count) };
    if list.is_null() {
        // ENOSYS: the kernel has no RDMA at all.
        return match Error::last("listing RDMA devices") {
            Error::System {
                errno: libc::ENOSYS | libc::ENOENT,
                ..
            } => Err(Error::NoDevice),
            error => Err(error),
        };
    }
    let mut found = None;
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries.
        let device = unsafe { *list.add(at) };
        // SAFETY: a device of the list, whose name is a C string for as long as the list.
        let name = unsafe { CStr::from_ptr((verbs.ibv_get_device_name)(device)) };
        found = f(device, name.to_string_lossy().into_owned());
        if found.is_some() {
            break;
        }
    }
    // SAFETY: the list is the one from above. Opened devices stay open.
    unsafe { (verbs.ibv_free_device_list)(list) };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd},
    };

    use super::*;

    #[test]
    fn another_file_under_the_number_is_noticed() {
        let [first, second] = ["/dev/null", "/proc/self/exe"].map(|path| File::open(path).unwrap());
        let number = first.as_raw_fd();
        let before = identity(number);
        assert!(before.is_some() && before == identity(number));
        // SAFETY: the number is ours, and is closed once.
        let mut taken = unsafe { OwnedFd::from_raw_fd(first.into_raw_fd()) };
        rustix::io::dup2(&second, &mut taken).unwrap();
        assert_eq!(taken.as_raw_fd(), number);
        assert_eq!(identity(number), identity(second.as_raw_fd()));
        assert_ne!(identity(number), before);
        assert_eq!(identity(-1), None);
    }
}

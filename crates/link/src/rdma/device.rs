//! Chooses device, port, GID and MTU: opens devices, queries them, and applies the rule.

use std::{
    ffi::CStr,
    fs,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use super::{
    RdmaOptions,
    abi::*,
    error::RdmaError,
    library::{Verbs, verbs},
};

/// Entries of a port's GID table that are looked at, at most.
const GIDS_MAX: u8 = 255;

/// An opened device.
pub(super) struct Context {
    pub(super) raw: *mut ibv_context,
    pub(super) verbs: &'static Verbs,
    owner_pid: u32,
}

// SAFETY: libibverbs's objects may be used from any thread, by its documentation.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Returns true if this process opened it: a forked child must not touch its parent's device.
    pub(super) fn is_ours(&self) -> bool {
        self.owner_pid == std::process::id()
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

/// Time that a device waits for an acknowledgement before it sends again: 4.096 us * 2^this, by the
/// standard up to four times that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AckTimeout(pub(super) u8);

impl AckTimeout {
    /// 67 ms, so that a lost packet without later ones is soon sent again.
    pub(super) const ADAPTER: Self = Self(14);
    /// 268 ms: a software device acknowledges when its processor gets to it, which a busy machine
    /// sometimes delays by half a second.
    pub(super) const SOFTWARE: Self = Self(16);

    /// Chooses by the kernel's path of the device: one without a bus is software.
    fn of(device: &str) -> Self {
        let place = fs::canonicalize(format!("/sys/class/infiniband/{device}"));
        match place.is_ok_and(|place| !place.starts_with("/sys/devices/virtual")) {
            true => Self::ADAPTER,
            false => Self::SOFTWARE,
        }
    }

    /// Time after which a device gives up a peer that does not answer.
    pub(super) const fn unanswered_ms(self, retries: u8) -> u64 {
        const FACTOR_MAX: u64 = 4;
        (retries as u64 + 1) * FACTOR_MAX * (4_096 << self.0) / 1_000_000
    }
}

/// A device with its settings.
pub(super) struct Chosen {
    pub(super) context: Arc<Context>,
    pub(super) ack_timeout: AckTimeout,
    pub(super) port: u8,
    pub(super) lid: u16,
    pub(super) is_ethernet: bool,
    pub(super) gid_index: u8,
    pub(super) gid: [u8; 16],
    /// In bytes.
    pub(super) mtu: u16,
    pub(super) traffic_class: u8,
    pub(super) pkey_index: u16,
    /// Without the bit that marks full members.
    pub(super) partition: u16,
}

/// A device of this machine, for display (`outboard doctor`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RdmaDevice {
    pub name: String,
    /// The port and settings used by default, or the reason why it cannot be used.
    pub usable: Result<RdmaPort, RdmaError>,
}

#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RdmaPort {
    pub port: u8,
    /// "Ethernet" (RoCE) or "InfiniBand".
    pub link_layer: &'static str,
    pub gid_index: u8,
    pub gid: Ipv6Addr,
    pub mtu: u16,
}

/// Lists the RDMA devices of this machine.
pub fn rdma_devices() -> Result<Vec<RdmaDevice>, RdmaError> {
    let names = names(verbs()?)?;
    let open = |name: &String| {
        let options = RdmaOptions {
            device: Some(name.clone()),
            ..RdmaOptions::default()
        };
        let chosen = choose(&options, None, None)?;
        Ok(RdmaPort {
            port: chosen.port,
            link_layer: chosen.link_layer(),
            gid_index: chosen.gid_index,
            gid: chosen.gid.into(),
            mtu: chosen.mtu,
        })
    };
    let device = |name: String| RdmaDevice {
        usable: open(&name),
        name,
    };
    Ok(names.into_iter().map(device).collect())
}

/// Checks that the library can be loaded and that a device has the name asked for.
pub(crate) fn check(options: &RdmaOptions) -> Result<(), RdmaError> {
    let options = options
        .with_environment()
        .map_err(|reason| RdmaError::Options { reason })?;
    let have = names(verbs()?)?;
    match options.device {
        Some(asked) if !have.contains(&asked) => Err(RdmaError::NoSuchDevice { asked, have }),
        _ => Ok(()),
    }
}

/// Chooses the device for a connection whose local address is `ours`; `peer` is the peer's GID, if
/// known already.
pub(super) fn choose(
    options: &RdmaOptions,
    ours: Option<IpAddr>,
    peer: Option<[u8; 16]>,
) -> Result<Chosen, RdmaError> {
    let verbs = verbs()?;
    let names = names(verbs)?;
    if let Some(asked) = &options.device {
        if !names.contains(asked) {
            let asked = asked.clone();
            return Err(RdmaError::NoSuchDevice { asked, have: names });
        }
        return use_of(verbs, asked, options, ours, peer);
    }
    let mut best: Option<Chosen> = None;
    let mut first_error = None;
    for name in &names {
        match use_of(verbs, name, options, ours, peer) {
            Ok(chosen) if is_address(&chosen.gid, ours) => return Ok(chosen),
            Ok(chosen) => best = best.or(Some(chosen)),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    best.ok_or_else(|| first_error.unwrap_or(RdmaError::NoDevice))
}

impl Chosen {
    pub(super) fn link_layer(&self) -> &'static str {
        match self.is_ethernet {
            true => "Ethernet",
            false => "InfiniBand",
        }
    }
}

/// Runs `f` on each device until it returns something. The library owns the list.
fn for_each_device<T>(
    verbs: &Verbs,
    mut f: impl FnMut(*mut ibv_device, String) -> Option<T>,
) -> Result<Option<T>, RdmaError> {
    let mut count = 0;
    // SAFETY: `count` outlives the call.
    let list = unsafe { (verbs.ibv_get_device_list)(&mut count) };
    if list.is_null() {
        // ENOSYS: the kernel has no RDMA at all.
        return match RdmaError::last("listing RDMA devices") {
            RdmaError::Verbs {
                errno: libc::ENOSYS | libc::ENOENT,
                ..
            } => Err(RdmaError::NoDevice),
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

fn names(verbs: &Verbs) -> Result<Vec<String>, RdmaError> {
    let mut names = Vec::new();
    for_each_device(verbs, |_, name| -> Option<()> {
        names.push(name);
        None
    })?;
    match names.is_empty() {
        true => Err(RdmaError::NoDevice),
        false => Ok(names),
    }
}

fn open(verbs: &'static Verbs, name: &str) -> Result<Arc<Context>, RdmaError> {
    let opened = for_each_device(verbs, |device, its_name| {
        (its_name == name).then(|| {
            // SAFETY: a device of the list.
            let raw = unsafe { (verbs.ibv_open_device)(device) };
            match raw.is_null() {
                true => Err(RdmaError::last(
                    "opening the RDMA device (may this process use /dev/infiniband/uverbs*?)",
                )),
                false => Ok(raw),
            }
        })
    })?;
    let raw = opened.ok_or(RdmaError::NoDevice)??;
    Ok(Arc::new(Context {
        raw,
        verbs,
        owner_pid: std::process::id(),
    }))
}

fn use_of(
    verbs: &'static Verbs,
    name: &str,
    options: &RdmaOptions,
    ours: Option<IpAddr>,
    peer: Option<[u8; 16]>,
) -> Result<Chosen, RdmaError> {
    let context = open(verbs, name)?;
    let device = name.to_owned();
    let port = options.port.unwrap_or(1);
    let mut attr = ibv_port_attr::default();
    // SAFETY: the context is open, and the symbol writes no more than the structure has.
    let rc = unsafe { (verbs.ibv_query_port)(context.raw, port, &mut attr) };
    if rc != 0 {
        return Err(RdmaError::NoSuchPort { device, port });
    }
    if attr.state != IBV_PORT_ACTIVE {
        return Err(RdmaError::PortDown { device, port });
    }
    let largest = mtu_bytes(attr.active_mtu);
    let mtu = options.mtu.unwrap_or(largest);
    if mtu > largest {
        return Err(RdmaError::Mtu {
            device,
            port,
            asked: mtu,
            largest,
        });
    }
    let count = u8::try_from(attr.gid_tbl_len).unwrap_or(GIDS_MAX);
    let gids = gids(&context, name, port, count);
    let is_ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
    let gid = match options.gid {
        Some(index) => said(&gids, index, &device, port)?,
        None => preferred(&gids, ours, peer),
    };
    let gid = gid.ok_or_else(|| RdmaError::NoGid {
        device: device.clone(),
        port,
    })?;
    let (pkey_index, partition) = partition(&context, port, attr.pkey_tbl_len, options.pkey)
        .ok_or_else(|| RdmaError::NoPartition {
            device: device.clone(),
            port,
            asked: options.pkey.unwrap_or(0xffff),
        })?;
    Ok(Chosen {
        context,
        ack_timeout: AckTimeout::of(name),
        port,
        lid: attr.lid,
        is_ethernet,
        gid_index: gid.index,
        gid: gid.gid,
        mtu,
        traffic_class: options.traffic_class.unwrap_or(0),
        pkey_index,
        partition,
    })
}

/// An entry of a port's GID table that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gid {
    index: u8,
    gid: [u8; 16],
    /// False for RoCE v1, which routers do not forward.
    is_routable: bool,
}

fn gids(context: &Context, device: &str, port: u8, count: u8) -> Vec<Gid> {
    (0..count)
        .filter_map(|index| {
            let mut gid = ibv_gid::default();
            // SAFETY: the context is open and `gid` outlives the call.
            let rc =
                unsafe { (context.verbs.ibv_query_gid)(context.raw, port, index.into(), &mut gid) };
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
        })
        .collect()
}

/// Returns the GID that was asked for; `None` if the table is empty.
fn said<'g>(
    gids: &'g [Gid],
    index: u8,
    device: &str,
    port: u8,
) -> Result<Option<&'g Gid>, RdmaError> {
    let found = gids.iter().find(|gid| gid.index == index);
    match found.is_none() && !gids.is_empty() {
        true => Err(RdmaError::NoSuchGid {
            device: device.to_owned(),
            port,
            index,
            have: gids.iter().map(|gid| gid.index).collect(),
        }),
        false => Ok(found),
    }
}

/// Prefers GIDs that can reach the peer's, then RoCE v2 to RoCE v1, then the address of the tcp
/// connection, then a link-local one, then the first.
fn preferred(gids: &[Gid], ours: Option<IpAddr>, peer: Option<[u8; 16]>) -> Option<&Gid> {
    let rank = |gid: &&Gid| {
        let reaches = peer.is_none_or(|peer| is_v4(&peer) == is_v4(&gid.gid));
        let place = match () {
            () if is_address(&gid.gid, ours) => 0,
            () if gid.gid.starts_with(&[0xfe, 0x80]) => 1,
            () => 2,
        };
        (!reaches, !gid.is_routable, place, gid.index)
    };
    gids.iter().min_by_key(rank)
}

/// Returns true if RoCE v2 packets from this GID are IPv4.
pub(super) fn is_v4(gid: &[u8; 16]) -> bool {
    Ipv6Addr::from(*gid).to_ipv4_mapped().is_some()
}

fn is_address(gid: &[u8; 16], address: Option<IpAddr>) -> bool {
    address.is_some_and(|address| match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets() == *gid,
        IpAddr::V6(v6) => v6.octets() == *gid,
    })
}

fn partition(context: &Context, port: u8, count: u16, asked: Option<u16>) -> Option<(u16, u16)> {
    const MEMBER: u16 = 0x7fff;
    (0..count).find_map(|index| {
        let mut pkey = 0;
        // SAFETY: the context is open and `pkey` outlives the call.
        let rc =
            unsafe { (context.verbs.ibv_query_pkey)(context.raw, port, index.into(), &mut pkey) };
        let pkey = u16::from_be(pkey) & MEMBER;
        let is_it = rc == 0 && pkey != 0 && asked.is_none_or(|asked| asked & MEMBER == pkey);
        is_it.then_some((index, pkey))
    })
}

/// `enum ibv_mtu` in bytes.
fn mtu_bytes(mtu: u32) -> u16 {
    128 << mtu.clamp(1, 5)
}

/// Bytes as `enum ibv_mtu`.
pub(super) fn mtu_code(bytes: u16) -> u32 {
    bytes.max(256).ilog2() - 7
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, address: &str, is_routable: bool) -> Gid {
        let gid = address.parse::<Ipv6Addr>().unwrap().octets();
        Gid {
            index,
            gid,
            is_routable,
        }
    }

    #[test]
    fn the_gid_is_chosen_by_the_rule() {
        let table = [
            gid(0, "fe80::1", false),
            gid(1, "fe80::1", true),
            gid(2, "::ffff:10.0.0.1", false),
            gid(3, "::ffff:10.0.0.1", true),
            gid(5, "2001:db8::1", true),
        ];
        let of = |ours: &str, peer: Option<&str>| {
            let peer = peer.map(|peer| peer.parse::<Ipv6Addr>().unwrap().octets());
            preferred(&table, ours.parse().ok(), peer).map(|gid| gid.index)
        };
        assert_eq!(of("10.0.0.1", None), Some(3));
        assert_eq!(of("2001:db8::1", None), Some(5));
        assert_eq!(of("127.0.0.1", None), Some(1));
        assert_eq!(of("", None), Some(1));
        // If the peer has chosen already, reaching it matters most.
        assert_eq!(of("127.0.0.1", Some("::ffff:10.0.0.2")), Some(3));
        assert_eq!(of("10.0.0.1", Some("fe80::2")), Some(1));
        assert_eq!(preferred(&[], None, None), None);
        assert_eq!(
            preferred(&table[..1], None, None).map(|gid| gid.index),
            Some(0)
        );
    }

    #[test]
    fn a_gid_that_is_not_there_is_named_and_so_is_a_port_that_has_none() {
        let table = [gid(0, "fe80::1", true), gid(3, "::ffff:10.0.0.1", true)];
        assert_eq!(said(&table, 3, "d", 1).unwrap(), Some(&table[1]));
        let error = said(&table, 7, "d", 1).unwrap_err().to_string();
        assert!(
            error.contains("port 1 of RDMA device d has no GID 7; it has [0, 3]"),
            "{error}"
        );
        // Whichever index is asked for.
        assert_eq!(said(&[], 7, "d", 1).unwrap(), None);
        assert_eq!(preferred(&[], None, None), None);
    }

    #[test]
    fn what_is_not_known_to_be_an_adapter_is_waited_for_longer() {
        assert_eq!(AckTimeout::of("no such device"), AckTimeout::SOFTWARE);
        assert_eq!(AckTimeout::ADAPTER.unanswered_ms(7), 2_147);
    }

    #[test]
    fn mtus_are_counted_in_bytes() {
        for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            assert_eq!(mtu_bytes(code), bytes);
            assert_eq!(mtu_code(bytes), code);
        }
    }
}

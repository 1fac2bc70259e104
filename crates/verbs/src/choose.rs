//! Chooses device, port, GID and MTU for a connection.

use std::{
    fs,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use crate::{
    Error, Options,
    abi::{IBV_LINK_LAYER_ETHERNET, IBV_PORT_ACTIVE},
    device::{Context, Gid, names},
};

/// Entries of a port's GID table that are looked at, at most.
const GIDS_MAX: u8 = 255;

/// Time that a device waits for an acknowledgement before it sends again: 4.096 us * 2^this, by the
/// standard up to four times that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckTimeout(pub(crate) u8);

impl AckTimeout {
    /// 67 ms, so that a lost packet without later ones is soon sent again.
    pub const ADAPTER: Self = Self(14);
    /// 268 ms: a software device acknowledges when its processor gets to it, which a busy machine
    /// sometimes delays by half a second.
    pub const SOFTWARE: Self = Self(16);

    /// Chooses by the kernel's path of the device: one without a bus is software.
    fn of(device: &str) -> Self {
        let place = fs::canonicalize(format!("/sys/class/infiniband/{device}"));
        match place.is_ok_and(|place| !place.starts_with("/sys/devices/virtual")) {
            true => Self::ADAPTER,
            false => Self::SOFTWARE,
        }
    }

    /// Returns the number that adapters have for it.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Time after which a device gives up a peer that does not answer.
    pub const fn unanswered_ms(self, retries: u8) -> u64 {
        const FACTOR_MAX: u64 = 4;
        (retries as u64 + 1) * FACTOR_MAX * (4_096 << self.0) / 1_000_000
    }
}

/// A device, opened, with its settings.
pub struct Chosen {
    pub context: Arc<Context>,
    pub ack_timeout: AckTimeout,
    pub port: u8,
    pub lid: u16,
    pub is_ethernet: bool,
    pub gid_index: u8,
    pub gid: [u8; 16],
    /// In bytes.
    pub mtu: u16,
    /// Most bytes of a message.
    pub message_bytes_max: u32,
    pub traffic_class: u8,
    pub pkey_index: u16,
    /// Without the bit that marks full members.
    pub partition: u16,
}

/// A device of this machine, for display (`outboard doctor`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Device {
    pub name: String,
    /// The port and settings used by default, or the reason why it cannot be used.
    pub usable: Result<Port, Error>,
}

#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Port {
    pub port: u8,
    /// "Ethernet" (RoCE) or "InfiniBand".
    pub link_layer: &'static str,
    pub gid_index: u8,
    pub gid: Ipv6Addr,
    pub mtu: u16,
}

/// Lists the devices of this machine.
pub fn devices() -> Result<Vec<Device>, Error> {
    let names = names()?;
    let open = |name: &String| {
        let options = Options {
            device: Some(name.clone()),
            ..Options::default()
        };
        let chosen = choose(&options, None, None)?;
        Ok(Port {
            port: chosen.port,
            link_layer: chosen.link_layer(),
            gid_index: chosen.gid_index,
            gid: chosen.gid.into(),
            mtu: chosen.mtu,
        })
    };
    let device = |name: String| Device {
        usable: open(&name),
        name,
    };
    Ok(names.into_iter().map(device).collect())
}

/// Checks that the library can be loaded and that a device has the name asked for.
pub fn check(options: &Options) -> Result<(), Error> {
    let have = names()?;
    match &options.device {
        Some(asked) if !have.contains(asked) => {
            let asked = asked.clone();
            Err(Error::NoSuchDevice { asked, have })
        }
        _ => Ok(()),
    }
}

/// Chooses the device for a connection whose local address is `ours`; `peer` is the peer's GID, if
/// known already.
pub fn choose(
    options: &Options,
    ours: Option<IpAddr>,
    peer: Option<[u8; 16]>,
) -> Result<Chosen, Error> {
    let names = names()?;
    if let Some(asked) = &options.device {
        if !names.contains(asked) {
            let asked = asked.clone();
            return Err(Error::NoSuchDevice { asked, have: names });
        }
        return use_of(asked, options, ours, peer);
    }
    let mut best: Option<Chosen> = None;
    let mut first_error = None;
    for name in &names {
        match use_of(name, options, ours, peer) {
            Ok(chosen) if is_address(&chosen.gid, ours) => return Ok(chosen),
            Ok(chosen) => best = best.or(Some(chosen)),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    best.ok_or_else(|| first_error.unwrap_or(Error::NoDevice))
}

impl Chosen {
    pub fn link_layer(&self) -> &'static str {
        match self.is_ethernet {
            true => "Ethernet",
            false => "InfiniBand",
        }
    }

    /// Returns false once the device is gone. Asks the kernel.
    pub fn is_there(&self) -> bool {
        self.context.is_ours() && self.context.port(self.port).is_some()
    }
}

fn use_of(
    name: &str,
    options: &Options,
    ours: Option<IpAddr>,
    peer: Option<[u8; 16]>,
) -> Result<Chosen, Error> {
    let context = Context::open(name)?;
    let device = name.to_owned();
    let port = options.port.unwrap_or(1);
    let Some(attr) = context.port(port) else {
        return Err(Error::NoSuchPort { device, port });
    };
    if attr.state != IBV_PORT_ACTIVE {
        return Err(Error::PortDown { device, port });
    }
    let largest = mtu_bytes(attr.active_mtu);
    let mtu = options.mtu.unwrap_or(largest);
    if mtu > largest {
        return Err(Error::Mtu {
            device,
            port,
            asked: mtu,
            largest,
        });
    }
    let count = u8::try_from(attr.gid_tbl_len).unwrap_or(GIDS_MAX);
    let gids = context.gids(name, port, count);
    let is_ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
    let gid = match options.gid {
        Some(index) => said(&gids, index, &device, port)?,
        None => preferred(&gids, ours, peer),
    };
    let gid = gid.ok_or_else(|| Error::NoGid {
        device: device.clone(),
        port,
    })?;
    let (pkey_index, partition) = partition(&context, port, attr.pkey_tbl_len, options.pkey)
        .ok_or_else(|| Error::NoPartition {
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
        message_bytes_max: attr.max_msg_sz,
        traffic_class: options.traffic_class.unwrap_or(0),
        pkey_index,
        partition,
    })
}

/// Returns the GID that was asked for; `None` if the table is empty.
fn said<'g>(gids: &'g [Gid], index: u8, device: &str, port: u8) -> Result<Option<&'g Gid>, Error> {
    let found = gids.iter().find(|gid| gid.index == index);
    match found.is_none() && !gids.is_empty() {
        true => Err(Error::NoSuchGid {
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
pub fn is_v4(gid: &[u8; 16]) -> bool {
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
        let pkey = context.pkey(port, index)? & MEMBER;
        let is_it = pkey != 0 && asked.is_none_or(|asked| asked & MEMBER == pkey);
        is_it.then_some((index, pkey))
    })
}

/// `enum ibv_mtu` in bytes.
fn mtu_bytes(mtu: u32) -> u16 {
    128 << mtu.clamp(1, 5)
}

/// Bytes as `enum ibv_mtu`.
pub fn mtu_code(bytes: u16) -> u32 {
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

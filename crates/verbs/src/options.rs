//! Options for an adapter, each of which has a name and a text: `device=mlx5_0`, `port=1`, `gid=3`,
//! `mtu=4096`, `traffic_class=106`, `pkey=0xffff`.

use std::fmt;

/// Longest name of a device: `IB_DEVICE_NAME_MAX` of the kernel less its NUL.
const DEVICE_NAME_BYTES_MAX: usize = 63;

/// Options for one side's adapter. What they leave open is chosen: the device and the GID by the
/// address of this side, the MTU by the ports of both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options {
    pub device: Option<String>,
    pub port: Option<u8>,
    /// Index in the port's table.
    pub gid: Option<u8>,
    /// Bytes of payload in one packet: 256, 512, 1024, 2048 or 4096.
    pub mtu: Option<u16>,
    /// For the packets that this side sends: its upper six bits are the DSCP.
    pub traffic_class: Option<u8>,
    /// The partition, as a P_Key whose uppermost bit is ignored.
    pub pkey: Option<u16>,
}

impl Options {
    /// The names that [`set`](Self::set) knows.
    pub const NAMES: [&str; 6] = ["device", "port", "gid", "mtu", "traffic_class", "pkey"];

    /// Sets the option `name`, which is one of [`NAMES`](Self::NAMES), by its text. Returns true if
    /// it was set before.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, String> {
        Ok(match name {
            "device" => self.device.replace(device(value)?).is_some(),
            "port" => self.port.replace(byte(name, value, 1)?).is_some(),
            "gid" => self.gid.replace(byte(name, value, 0)?).is_some(),
            "mtu" => self.mtu.replace(mtu(value)?).is_some(),
            "traffic_class" => self.traffic_class.replace(byte(name, value, 0)?).is_some(),
            "pkey" => self.pkey.replace(number(name, value, 1, 0xffff)?).is_some(),
            _ => return Err(format!("{name:?} is none of {}", Self::NAMES.join(", "))),
        })
    }

    /// Takes what these leave open from `other`.
    pub fn or(&self, other: &Self) -> Self {
        Self {
            device: self.device.clone().or_else(|| other.device.clone()),
            port: self.port.or(other.port),
            gid: self.gid.or(other.gid),
            mtu: self.mtu.or(other.mtu),
            traffic_class: self.traffic_class.or(other.traffic_class),
            pkey: self.pkey.or(other.pkey),
        }
    }
}

/// Shows the options that are set, as `NAME=VALUE` with `&` in between.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = [
            ("port", self.port.map(u16::from)),
            ("gid", self.gid.map(u16::from)),
            ("mtu", self.mtu),
            ("traffic_class", self.traffic_class.map(u16::from)),
        ];
        let device = self.device.iter().map(|name| format!("device={name}"));
        let numbers = numbers
            .iter()
            .filter_map(|(name, value)| value.map(|value| format!("{name}={value}")));
        let pkey = self.pkey.iter().map(|pkey| format!("pkey={pkey:#06x}"));
        let parts: Vec<String> = device.chain(numbers).chain(pkey).collect();
        f.write_str(&parts.join("&"))
    }
}

fn device(name: &str) -> Result<String, String> {
    // The name becomes part of a path under /sys.
    let is_fine = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if name.is_empty()
        || name.len() > DEVICE_NAME_BYTES_MAX
        || name.starts_with('.')
        || !name.bytes().all(is_fine)
    {
        return Err(format!("{name:?} is not the name of an RDMA device"));
    }
    Ok(name.into())
}

fn mtu(text: &str) -> Result<u16, String> {
    let mtu = number("mtu", text, 256, 4096)?;
    match mtu.is_power_of_two() {
        true => Ok(mtu),
        false => Err(format!("mtu={text} is none of 256, 512, 1024, 2048, 4096")),
    }
}

fn byte(name: &str, text: &str, min: u16) -> Result<u8, String> {
    number(name, text, min, u8::MAX.into()).map(|number| number as u8)
}

fn number(name: &str, text: &str, min: u16, max: u16) -> Result<u16, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok(),
        None if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok(),
        None => None,
    };
    parsed
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| format!("{name}={text} is not a number from {min} to {max}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_known_and_shown_again() {
        let mut options = Options::default();
        for name in Options::NAMES {
            let value = if name == "mtu" { "1024" } else { "1" };
            assert_eq!(options.set(name, value), Ok(false));
            assert_eq!(options.set(name, value), Ok(true));
            assert!(options.to_string().contains(&format!("{name}=")), "{name}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for (name, value) in [
            ("device", ""),
            ("device", "../x"),
            ("device", "a/b"),
            ("gid", "-1"),
            ("gid", "256"),
            ("gid", "+1"),
            ("mtu", ""),
            ("mtu", "1500"),
            ("mtu", "8192"),
            ("port", "0"),
            ("pkey", "0"),
            ("pkey", "0x10000"),
            ("traffic_class", "300"),
            ("colour", "red"),
        ] {
            assert!(
                Options::default().set(name, value).is_err(),
                "{name}={value}"
            );
        }
    }
}

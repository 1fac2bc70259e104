//! Options in a URL or the environment: for the device,
//! `device=mlx5_0&port=1&gid=3&mtu=4096&traffic_class=106&pkey=0xffff`; for how adapters access the
//! GPU's memory, `gpu_memory=auto`.

use std::{fmt, str::FromStr};

/// Variable with options, in a URL's form, for what the URL leaves open.
const ENVIRONMENT: &str = "OUTBOARD_RDMA";
/// Longest name of a device: `IB_DEVICE_NAME_MAX` of the kernel less its NUL.
const DEVICE_NAME_BYTES_MAX: usize = 63;

/// Options for one side's RDMA device. What they leave open is chosen: the device and the GID by
/// the address of the tcp connection, the MTU by the ports of both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RdmaOptions {
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
    /// Way in which adapters access the GPU's memory in place: the server's option says what may be
    /// tried, the client's whether it is wanted.
    pub gpu_memory: Option<GpuMemory>,
}

/// Ways in which adapters access the GPU's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GpuMemory {
    /// Whichever works: a dma-buf, otherwise the driver's nvidia-peermem.
    #[default]
    Auto,
    /// A dma-buf of the GPU driver's, or none.
    DmaBuf,
    /// The address, which a kernel module of the GPU driver's resolves, or none.
    Peermem,
    /// None: data passes through pinned memory.
    Off,
}

impl GpuMemory {
    const ALL: [(&'static str, Self); 4] = [
        ("auto", Self::Auto),
        ("dmabuf", Self::DmaBuf),
        ("peermem", Self::Peermem),
        ("off", Self::Off),
    ];

    /// Returns the name in the options' text.
    pub fn name(self) -> &'static str {
        let named = Self::ALL.iter().find(|(_, one)| *one == self);
        named.map_or("auto", |(name, _)| name)
    }
}

impl RdmaOptions {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Takes what this leaves open from the environment.
    pub(crate) fn with_environment(&self) -> Result<Self, String> {
        let said = match std::env::var(ENVIRONMENT) {
            Ok(text) => text
                .parse()
                .map_err(|reason| format!("{ENVIRONMENT}={text:?}: {reason}"))?,
            Err(_) => Self::default(),
        };
        Ok(self.or(&said))
    }

    fn or(&self, other: &Self) -> Self {
        Self {
            device: self.device.clone().or_else(|| other.device.clone()),
            port: self.port.or(other.port),
            gid: self.gid.or(other.gid),
            mtu: self.mtu.or(other.mtu),
            traffic_class: self.traffic_class.or(other.traffic_class),
            pkey: self.pkey.or(other.pkey),
            gpu_memory: self.gpu_memory.or(other.gpu_memory),
        }
    }
}

impl FromStr for RdmaOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| format!("{part:?} is not NAME=VALUE"))?;
            let is_again = match name {
                "device" => options.device.replace(device(value)?).is_some(),
                "port" => options
                    .port
                    .replace(number(name, value, 1, 255)? as u8)
                    .is_some(),
                "gid" => options
                    .gid
                    .replace(number(name, value, 0, 255)? as u8)
                    .is_some(),
                "mtu" => options.mtu.replace(mtu(value)?).is_some(),
                "traffic_class" => {
                    let class = number(name, value, 0, 255)? as u8;
                    options.traffic_class.replace(class).is_some()
                }
                "pkey" => options
                    .pkey
                    .replace(number(name, value, 1, 0xffff)?)
                    .is_some(),
                "gpu_memory" => options.gpu_memory.replace(gpu_memory(value)?).is_some(),
                _ => {
                    return Err(format!(
                        "{name:?} is none of device, port, gid, mtu, traffic_class, pkey, gpu_memory"
                    ));
                }
            };
            if is_again {
                return Err(format!("{name} is said twice"));
            }
        }
        Ok(options)
    }
}

impl fmt::Display for RdmaOptions {
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
        let gpu_memory = self.gpu_memory.iter();
        let gpu_memory = gpu_memory.map(|said| format!("gpu_memory={}", said.name()));
        let parts: Vec<String> = device
            .chain(numbers)
            .chain(pkey)
            .chain(gpu_memory)
            .collect();
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

fn gpu_memory(text: &str) -> Result<GpuMemory, String> {
    let named = GpuMemory::ALL.iter().find(|(name, _)| *name == text);
    named
        .map(|(_, said)| *said)
        .ok_or_else(|| format!("gpu_memory={text} is none of auto, dmabuf, peermem, off"))
}

fn mtu(text: &str) -> Result<u16, String> {
    let mtu = number("mtu", text, 256, 4096)?;
    match mtu.is_power_of_two() {
        true => Ok(mtu),
        false => Err(format!("mtu={text} is none of 256, 512, 1024, 2048, 4096")),
    }
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
    fn what_is_said_is_read_back() {
        for (text, shown) in [
            ("", ""),
            ("device=mlx5_0", "device=mlx5_0"),
            (
                "pkey=32767&traffic_class=106&mtu=4096&gid=3&port=2&device=rxe0",
                "device=rxe0&port=2&gid=3&mtu=4096&traffic_class=106&pkey=0x7fff",
            ),
            ("gid=0&", "gid=0"),
            ("gpu_memory=off&gid=1", "gid=1&gpu_memory=off"),
        ] {
            let options: RdmaOptions = text.parse().unwrap();
            assert_eq!(options.to_string(), shown);
            assert_eq!(shown.parse::<RdmaOptions>().unwrap(), options);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "device",
            "device=",
            "device=../x",
            "device=a/b",
            "gid=-1",
            "gid=256",
            "gid=+1",
            "mtu=1500",
            "mtu=8192",
            "port=0",
            "pkey=0",
            "pkey=0x10000",
            "traffic_class=300",
            "colour=red",
            "gid=1&gid=1",
            "mtu=",
            "gpu_memory=on",
        ] {
            assert!(text.parse::<RdmaOptions>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_url_goes_before_the_environment() {
        let url: RdmaOptions = "gid=1&mtu=1024".parse().unwrap();
        let environment = "gid=2&device=rxe1".parse().unwrap();
        assert_eq!(
            url.or(&environment).to_string(),
            "device=rxe1&gid=1&mtu=1024"
        );
    }
}

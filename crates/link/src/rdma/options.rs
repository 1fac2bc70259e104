//! Options in a URL or the environment: for the device,
//! `device=mlx5_0&port=1&gid=3&mtu=4096&traffic_class=106&pkey=0xffff`; for how adapters access the
//! GPU's memory, `gpu_memory=auto`.

use std::{fmt, str::FromStr};

use outboard_verbs::Options;

use crate::error::RdmaError;

/// Variable with options, in a URL's form, for what the URL leaves open.
const ENVIRONMENT: &str = "OUTBOARD_RDMA";

/// Options for one side of a rdma link. What they leave open is chosen: the device and the GID by
/// the address of the tcp connection, the MTU by the ports of both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RdmaOptions {
    pub adapter: Options,
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
            adapter: self.adapter.or(&other.adapter),
            gpu_memory: self.gpu_memory.or(other.gpu_memory),
        }
    }
}

/// Checks that the library can be loaded and that a device has the name asked for.
pub(crate) fn check(options: &RdmaOptions) -> Result<(), RdmaError> {
    let options = options
        .with_environment()
        .map_err(|reason| RdmaError::Options { reason })?;
    Ok(outboard_verbs::check(&options.adapter)?)
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
                "gpu_memory" => options.gpu_memory.replace(gpu_memory(value)?).is_some(),
                _ if Options::NAMES.contains(&name) => options.adapter.set(name, value)?,
                _ => {
                    let names = Options::NAMES.join(", ");
                    return Err(format!("{name:?} is none of {names}, gpu_memory"));
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
        let adapter = self.adapter.to_string();
        let gpu_memory = self.gpu_memory.iter();
        let gpu_memory = gpu_memory.map(|said| format!("gpu_memory={}", said.name()));
        let parts: Vec<String> = (!adapter.is_empty())
            .then_some(adapter)
            .into_iter()
            .chain(gpu_memory)
            .collect();
        f.write_str(&parts.join("&"))
    }
}

fn gpu_memory(text: &str) -> Result<GpuMemory, String> {
    let named = GpuMemory::ALL.iter().find(|(name, _)| *name == text);
    named
        .map(|(_, said)| *said)
        .ok_or_else(|| format!("gpu_memory={text} is none of auto, dmabuf, peermem, off"))
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

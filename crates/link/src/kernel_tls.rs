//! Says whether the kernel makes and reads the records of encrypted connections of this process.

use std::{env, fmt, fs, io, sync::OnceLock};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
};

use crate::sys;

/// Environment variable that keeps encryption out of the kernel: `off`.
pub const KERNEL_TLS_VARIABLE: &str = "OUTBOARD_KERNEL_TLS";
/// Counters of the kernel's TLS, of this network namespace. There once the kernel has it loaded.
const COUNTERS: &str = "/proc/self/net/tls_stat";
/// Counter of a kernel that can change the keys of a connection (Linux 6.14 and later).
const COUNTER_OF_UPDATES: &str = "TlsRxRekeyOk";

/// Use of the kernel's TLS by this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelTls {
    /// Encrypted connections that open from now on.
    Used,
    /// Not by choice: [`KERNEL_TLS_VARIABLE`].
    TurnedOff,
    /// The kernel has none, or it is a module that is not loaded.
    Missing,
    /// The kernel cannot change a key, which has to be done once in 2^23 records.
    NoKeyUpdates,
}

impl KernelTls {
    /// Returns what a user can do about it.
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Self::Used => None,
            Self::TurnedOff => Some("--kernel-tls auto, and OUTBOARD_KERNEL_TLS not set"),
            Self::Missing => {
                Some("modprobe tls, as root (a kernel with CONFIG_TLS); matters only for tcps")
            }
            Self::NoKeyUpdates => Some("Linux 6.14 or later; matters only for tcps"),
        }
    }
}

impl fmt::Display for KernelTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Used => "the kernel encrypts tcps connections",
            Self::TurnedOff => {
                "each process encrypts its tcps connections itself, as --kernel-tls or OUTBOARD_KERNEL_TLS says"
            }
            Self::Missing => {
                "each process encrypts its tcps connections itself: the kernel's TLS is not loaded"
            }
            Self::NoKeyUpdates => {
                "each process encrypts its tcps connections itself: the kernel's TLS cannot change keys"
            }
        })
    }
}

/// Returns whether encrypted connections of this process use the kernel's TLS. Found out once; a
/// privileged process has the kernel load its module.
pub fn kernel_tls() -> KernelTls {
    static FOUND: OnceLock<KernelTls> = OnceLock::new();
    *FOUND.get_or_init(|| match env::var_os(KERNEL_TLS_VARIABLE) {
        Some(said) if said == "off" => KernelTls::TurnedOff,
        _ => found(),
    })
}

fn found() -> KernelTls {
    let counters = fs::read_to_string(COUNTERS).or_else(|_| {
        load()?;
        fs::read_to_string(COUNTERS)
    });
    match counters {
        Ok(counters) => of_counters(&counters),
        Err(_) => KernelTls::Missing,
    }
}

/// Has the kernel load its module, which it does for privileged processes.
fn load() -> io::Result<()> {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    match sys::use_kernel_tls(&socket) {
        // The module is there, and wants a connected socket.
        Err(Errno::NOTCONN) => Ok(()),
        other => Ok(other?),
    }
}

fn of_counters(counters: &str) -> KernelTls {
    let names = counters
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    match names.into_iter().any(|name| name == COUNTER_OF_UPDATES) {
        true => KernelTls::Used,
        false => KernelTls::NoKeyUpdates,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_cannot_change_keys_is_known_by_its_counters() {
        let old = "TlsCurrTxSw                     \t0\nTlsDecryptError                 \t0\n";
        assert_eq!(of_counters(old), KernelTls::NoKeyUpdates);
        let new = format!("{old}TlsTxRekeyOk \t0\nTlsRxRekeyOk                    \t0\n");
        assert_eq!(of_counters(&new), KernelTls::Used);
        assert_eq!(of_counters(""), KernelTls::NoKeyUpdates);
    }

    #[test]
    fn every_reason_has_a_remedy() {
        for reason in [
            KernelTls::TurnedOff,
            KernelTls::Missing,
            KernelTls::NoKeyUpdates,
        ] {
            assert!(reason.remedy().is_some(), "{reason}");
        }
    }
}

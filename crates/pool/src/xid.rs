//! Errors of NVIDIA's driver (Xid): which are a program's own, which a GPU survives, and which make
//! it broken.
//!
//! An Xid that the table does not have makes a GPU broken: a healthy GPU that is kept back costs
//! less than a broken one that is given out.
//!
//! Sources: the immediate action in NVIDIA's catalogue for Ampere and later
//! (<https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html>), and the application
//! errors that NVIDIA's device plugin for Kubernetes ignores (`ignoredXids` in
//! `internal/rm/health.go` of NVIDIA/k8s-device-plugin).

use std::ops::RangeInclusive;

/// Begins the reason for which a GPU is broken.
const WORD: &str = "Xid ";

/// Consequence of an error for the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The program's own error, or one that ends the program alone.
    Program,
    /// A notice: the GPU works on.
    Survived,
    /// The GPU is given to nobody until somebody has looked.
    Broken,
}

/// Reason for a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The catalogue's immediate action.
    Catalogue(&'static str),
    /// The list of the device plugin.
    DevicePlugin,
}

use Source::{Catalogue, DevicePlugin};
use Verdict::{Broken, Program, Survived};

/// Errors in a row, and their consequence.
pub struct Entry {
    pub numbers: RangeInclusive<u64>,
    pub text: &'static str,
    pub verdict: Verdict,
    pub source: Source,
}

const fn one(first: u64, last: u64, verdict: Verdict, source: Source, text: &'static str) -> Entry {
    Entry {
        numbers: first..=last,
        text,
        verdict,
        source,
    }
}

const RESTART_APP: Source = Catalogue("RESTART_APP");
const IGNORE: Source = Catalogue("IGNORE");
const RESET_GPU: Source = Catalogue("RESET_GPU");

/// The known errors, by number.
#[rustfmt::skip]
pub static XIDS: &[Entry] = &[
    one(8, 8, Program, RESTART_APP, "GPU stopped processing"),
    one(11, 11, Program, RESTART_APP, "invalid push buffer stream"),
    one(13, 13, Program, RESTART_APP, "graphics engine exception"),
    one(25, 25, Program, RESTART_APP, "illegal push buffer stream"),
    one(31, 31, Program, RESTART_APP, "memory page fault"),
    one(32, 32, Program, RESTART_APP, "corrupted push buffer stream"),
    one(37, 38, Survived, IGNORE, "driver firmware error"),
    one(39, 41, Program, RESTART_APP, "copy engine exception"),
    one(43, 43, Program, DevicePlugin, "GPU stopped processing"),
    one(44, 44, Survived, IGNORE, "fault during a context switch"),
    one(45, 45, Program, DevicePlugin, "cleanup after an earlier error"),
    one(46, 46, Broken, RESET_GPU, "GPU stopped processing"),
    one(48, 48, Broken, Catalogue("WORKFLOW_XID_48"), "double-bit ECC error"),
    one(54, 54, Broken, Catalogue("CHECK_MECHANICALS"), "auxiliary power is not connected"),
    one(60, 60, Program, RESTART_APP, "video processor exception"),
    one(62, 62, Broken, RESET_GPU, "internal micro-controller halt"),
    one(63, 63, Survived, IGNORE, "a row of memory is remapped"),
    one(64, 64, Broken, RESET_GPU, "remapping of memory failed"),
    one(66, 67, Survived, IGNORE, "illegal access by the driver"),
    one(68, 68, Program, RESTART_APP, "video decoder exception"),
    one(69, 69, Program, RESTART_APP, "graphics engine class error"),
    one(70, 72, Program, RESTART_APP, "copy engine error"),
    one(74, 74, Broken, Catalogue("WORKFLOW_NVLINK_ERR"), "NVLink error"),
    one(75, 77, Program, RESTART_APP, "copy engine error"),
    one(79, 79, Broken, Catalogue("RESTART_BM"), "GPU has fallen off the bus"),
    one(80, 80, Program, RESTART_APP, "corrupted data sent to the GPU"),
    one(82, 84, Program, RESTART_APP, "video engine error"),
    one(85, 85, Program, RESTART_APP, "copy engine error"),
    one(86, 86, Program, RESTART_APP, "optical flow exception"),
    one(88, 89, Program, RESTART_APP, "video decoder error"),
    one(92, 92, Survived, IGNORE, "many single-bit ECC errors"),
    one(93, 93, Survived, IGNORE, "infoROM is written often"),
    one(94, 94, Program, RESTART_APP, "contained memory error"),
    one(95, 95, Broken, RESET_GPU, "uncontained memory error"),
    one(96, 105, Program, RESTART_APP, "video engine error"),
    one(106, 107, Survived, IGNORE, "test message"),
    // The catalogue would reset the GPU: if it does not work on, its next sessions fail.
    one(109, 109, Program, DevicePlugin, "context switch timeout"),
    one(110, 110, Broken, RESET_GPU, "security fault"),
    one(119, 119, Broken, RESET_GPU, "GSP does not answer"),
    one(120, 120, Broken, RESET_GPU, "GSP error"),
    one(121, 121, Survived, IGNORE, "C2C error"),
    one(126, 135, Program, RESTART_APP, "copy engine error"),
    one(136, 136, Broken, RESET_GPU, "link training failed"),
    one(137, 137, Survived, IGNORE, "NVLink privilege error"),
    one(139, 139, Program, RESTART_APP, "optical flow error"),
    one(140, 140, Broken, RESET_GPU, "unrecovered ECC error"),
    one(141, 141, Survived, IGNORE, "fast path error"),
    one(143, 143, Broken, RESET_GPU, "GPU initialisation error"),
    one(144, 150, Broken, Catalogue("WORKFLOW_NVLINK5_ERR"), "NVLink error"),
    one(151, 151, Broken, Catalogue("RESTART_VM"), "key rotation error"),
    one(154, 154, Survived, Catalogue("XID_154"), "recovery action changed, with another Xid"),
    one(155, 155, Broken, RESET_GPU, "NVLink error"),
    one(156, 156, Broken, RESET_GPU, "a resource is retired"),
    one(157, 157, Survived, IGNORE, "retiring a resource failed"),
    one(158, 158, Broken, RESET_GPU, "fatal timeout"),
    one(160, 161, Survived, IGNORE, "a channel is retired"),
    // The catalogue has no action for them.
    one(162, 165, Survived, Catalogue(""), "power smoothing"),
];

/// Returns what an error means for its GPU.
pub fn verdict(xid: u64) -> Verdict {
    entry(xid).map_or(Broken, |entry| entry.verdict)
}

/// Returns the error in words that [`of_reason`] understands.
pub fn reason(xid: u64) -> String {
    let text = entry(xid).map_or("not a known one", |entry| entry.text);
    format!("{WORD}{xid}: {text}")
}

/// Returns the number of the error that a reason begins with.
pub fn of_reason(reason: &str) -> Option<u32> {
    let (number, _) = reason.strip_prefix(WORD)?.split_once(':')?;
    number.parse().ok()
}

fn entry(xid: u64) -> Option<&'static Entry> {
    XIDS.iter().find(|entry| entry.numbers.contains(&xid))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Application errors of the device plugin, which the table must not call broken.
    const IGNORED: [u64; 6] = [13, 31, 43, 45, 68, 109];

    #[test]
    fn programs_errors_condemn_no_gpu() {
        assert!(IGNORED.iter().all(|xid| verdict(*xid) == Program));
        assert_eq!(verdict(63), Survived);
        for broken in [48, 64, 74, 79, 95, 119, 171, 999, 100_000] {
            assert_eq!(verdict(broken), Broken, "{broken}");
        }
        let follows = |entry: &Entry| match entry.source {
            Catalogue("RESTART_APP") => entry.verdict == Program,
            Catalogue("" | "IGNORE" | "XID_154") => entry.verdict == Survived,
            Catalogue(_) => entry.verdict == Broken,
            DevicePlugin => entry.numbers.clone().all(|xid| IGNORED.contains(&xid)),
        };
        assert!(XIDS.iter().all(follows));
        let in_order = |pair: &[Entry]| pair[0].numbers.end() < pair[1].numbers.start();
        assert!(XIDS.windows(2).all(in_order));
    }

    #[test]
    fn a_reason_says_its_number() {
        assert_eq!(reason(79), "Xid 79: GPU has fallen off the bus");
        assert_eq!(reason(171), "Xid 171: not a known one");
        assert_eq!(of_reason(&reason(79)), Some(79));
        for other in ["", "Xid", "Xid 79", "Xid x: y", "its box does not answer"] {
            assert_eq!(of_reason(other), None, "{other}");
        }
    }
}

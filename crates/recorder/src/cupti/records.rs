//! CUPTI's activity records, as far as they are used. The offsets are those of `cupti_activity.h` from CUDA 11.8 to 13.5
//! (`CUpti_ActivityKernel8` to 13, `Memcpy5` to 7, `Memset4` to 5): what was added since came behind.

use outboard_trace::GpuWork;

/// `CUPTI_API_VERSION`s whose records are known.
pub(super) fn is_known(version: u32) -> bool {
    matches!(version, 18..=28 | 130_000..=130_599)
}

/// `CUPTI_ACTIVITY_KIND_*`.
pub(super) const MEMCPY: u32 = 1;
pub(super) const MEMSET: u32 = 2;
const KERNEL: u32 = 3;
pub(super) const CONCURRENT_KERNEL: u32 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) kind: GpuWork,
    /// Of a kernel: where its name lies; else 0.
    pub(super) name: u64,
    pub(super) device: u32,
    /// As CUPTI counts.
    pub(super) stream: u32,
    /// On CUPTI's clock.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) bytes: u64,
    pub(super) correlation: u32,
}

/// How long a record of a kind is, as far as it is looked at; none of a kind that is not.
pub(super) fn len(kind: u32) -> Option<usize> {
    match kind {
        KERNEL | CONCURRENT_KERNEL => Some(112),
        MEMCPY | MEMSET => Some(48),
        _ => None,
    }
}

/// A record of at least [`len`] bytes.
pub(super) fn parse(record: &[u8]) -> Option<Done> {
    let (kind, times) = (u32_at(record, 0)?, (u64_at(record, 16), u64_at(record, 24)));
    Some(match kind {
        KERNEL | CONCURRENT_KERNEL => Done {
            kind: GpuWork::Kernel,
            name: u64_at(record, 104)?,
            device: u32_at(record, 40)?,
            stream: u32_at(record, 48)?,
            start: times.0?,
            end: times.1?,
            bytes: 0,
            correlation: u32_at(record, 92)?,
        },
        MEMCPY | MEMSET => Done {
            kind: match kind {
                MEMCPY => copy(*record.get(4)?),
                _ => GpuWork::Memset,
            },
            name: 0,
            device: u32_at(record, 32)?,
            stream: u32_at(record, 40)?,
            start: times.0?,
            end: times.1?,
            bytes: u64_at(record, 8)?,
            correlation: u32_at(record, 44)?,
        },
        _ => return None,
    })
}

/// `CUPTI_ACTIVITY_MEMCPY_KIND_*`.
fn copy(kind: u8) -> GpuWork {
    match kind {
        // From the host to memory or an array.
        1 | 3 => GpuWork::CopyToDevice,
        2 | 4 => GpuWork::CopyToHost,
        _ => GpuWork::CopyOnDevice,
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|b| u32::from_le_bytes(*b))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|b| u64::from_le_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record with these fields: offset, length, value.
    fn record(len: usize, fields: &[(usize, usize, u64)]) -> Vec<u8> {
        let mut bytes = vec![0xee; len];
        for (at, len, value) in fields {
            bytes[*at..at + len].copy_from_slice(&value.to_le_bytes()[..*len]);
        }
        bytes
    }

    #[test]
    fn kernels_of_every_length() {
        // CUpti_ActivityKernel8 to 13.
        for len in [200, 208, 216, 224, 232, 248] {
            let bytes = record(
                len,
                &[
                    (0, 4, 10),
                    (16, 8, 1_000),
                    (24, 8, 1_500),
                    (40, 4, 1),
                    (48, 4, 7),
                    (92, 4, 33),
                    (104, 8, 0x7000),
                ],
            );
            let Some(done) = parse(&bytes) else {
                panic!("a kernel");
            };
            assert_eq!((done.kind, done.name), (GpuWork::Kernel, 0x7000));
            assert_eq!((done.start, done.end), (1_000, 1_500));
            assert_eq!((done.device, done.stream, done.correlation), (1, 7, 33));
        }
    }

    #[test]
    fn copies_and_memsets() {
        for (kind, copy_kind, expected) in [
            (MEMCPY, 1, GpuWork::CopyToDevice),
            (MEMCPY, 2, GpuWork::CopyToHost),
            (MEMCPY, 8, GpuWork::CopyOnDevice),
            (MEMCPY, 10, GpuWork::CopyOnDevice),
            (MEMSET, 0, GpuWork::Memset),
        ] {
            let bytes = record(
                112,
                &[
                    (0, 4, kind.into()),
                    (4, 1, copy_kind),
                    (8, 8, 4096),
                    (16, 8, 5),
                    (24, 8, 9),
                    (32, 4, 2),
                    (40, 4, 3),
                    (44, 4, 4),
                ],
            );
            let Some(done) = parse(&bytes) else {
                panic!("work");
            };
            assert_eq!(
                (done.kind, done.bytes, done.start, done.end),
                (expected, 4096, 5, 9)
            );
            assert_eq!((done.device, done.stream, done.correlation), (2, 3, 4));
        }
    }

    #[test]
    fn what_is_short_or_unknown_is_nothing() {
        for kind in [MEMCPY, CONCURRENT_KERNEL] {
            let whole = record(248, &[(0, 4, kind.into())]);
            let needed = len(kind).unwrap();
            assert!(parse(&whole[..needed]).is_some());
            for short in 0..needed {
                assert_eq!(parse(&whole[..short]), None, "kind {kind}, {short} bytes");
            }
        }
        assert_eq!(parse(&record(64, &[(0, 4, 99)])), None);
        assert!(is_known(28) && is_known(130_500) && !is_known(17) && !is_known(140_000));
    }
}

//! The parts of CUPTI's activity records that a recording keeps.

use outboard_api::cupti_records::{
    CONCURRENT_KERNEL, KERNEL, KernelView, MEMCPY, MEMSET, MemcpyView, MemsetView,
};
use outboard_trace::GpuWork;

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

/// Parses the record at the beginning of `record`. Returns none for other kinds and cut records.
pub(super) fn parse(record: &[u8]) -> Option<Done> {
    let (kernel, copy, set) = (KernelView(record), MemcpyView(record), MemsetView(record));
    Some(match kernel.kind()? {
        KERNEL | CONCURRENT_KERNEL => Done {
            kind: GpuWork::Kernel,
            name: kernel.name()?,
            device: kernel.deviceId()?,
            stream: kernel.streamId()?,
            start: kernel.start()?,
            end: kernel.end()?,
            bytes: 0,
            correlation: kernel.correlationId()?,
        },
        MEMCPY => Done {
            kind: copy_of(copy.copyKind()?),
            name: 0,
            device: copy.deviceId()?,
            stream: copy.streamId()?,
            start: copy.start()?,
            end: copy.end()?,
            bytes: copy.bytes()?,
            correlation: copy.correlationId()?,
        },
        MEMSET => Done {
            kind: GpuWork::Memset,
            name: 0,
            device: set.deviceId()?,
            stream: set.streamId()?,
            start: set.start()?,
            end: set.end()?,
            bytes: set.bytes()?,
            correlation: set.correlationId()?,
        },
        _ => return None,
    })
}

/// `CUPTI_ACTIVITY_MEMCPY_KIND_*`.
fn copy_of(kind: u8) -> GpuWork {
    match kind {
        // From the host to memory or an array.
        1 | 3 => GpuWork::CopyToDevice,
        2 | 4 => GpuWork::CopyToHost,
        _ => GpuWork::CopyOnDevice,
    }
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
        for (kind, needed) in [(MEMCPY, 48), (MEMSET, 48), (CONCURRENT_KERNEL, 112)] {
            let whole = record(248, &[(0, 4, kind.into())]);
            assert!(parse(&whole[..needed]).is_some());
            for short in 0..needed {
                assert_eq!(parse(&whole[..short]), None, "kind {kind}, {short} bytes");
            }
        }
        assert_eq!(parse(&record(64, &[(0, 4, 99)])), None);
    }
}

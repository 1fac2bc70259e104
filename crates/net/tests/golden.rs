//! Bytes of entries as rdma-core 44's inline helpers (`mlx5dv.h`) wrote them.
#![allow(clippy::unwrap_used)]

use outboard_net::wqe::{Data, Entry, Flags, Operation, Remote, Segment};
use smallvec::smallvec;

const REMOTE: Remote = Remote {
    address: 0x1122_3344_5566_7788,
    rkey: 0x0102_0304,
};

fn local(length: u32) -> Segment {
    Segment {
        length,
        lkey: 0x0a0b_0c0d,
        address: 0x8877_6655_4433_2211,
    }
}

fn check(operation: Operation, flags: Flags, expected: &str) {
    let entry = Entry {
        index: 0x1234,
        qpn: 0xabcde,
        flags,
        operation,
    };
    let bytes = entry.encode();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, expected.replace(' ', ""));
    assert_eq!(Entry::parse(&bytes, 0x1234, 0xabcde), Ok(entry));
}

/// As GPUNetIO's `wqe_prepare_dump` and `wqe_prepare_wait` store them.
#[test]
fn dumps_and_waits_have_the_bytes_of_gpunetio() {
    let on = Flags::SIGNALLED;
    check(
        Operation::Dump {
            from: smallvec![local(1)],
        },
        on,
        "00123423 0abcde02 00000008 00000000 00000001 0a0b0c0d 88776655 44332211",
    );
    check(
        Operation::Wait {
            completions: 0x43,
            number: 0x0001_2345,
        },
        on,
        "0012340f 0abcde02 00000008 00000000 00000000 00000000 00012345 00000043",
    );
}

#[test]
fn entries_have_the_bytes_of_rdma_core() {
    let raddr = "11223344 55667788 01020304 00000000";
    let laddr = "0a0b0c0d 88776655 44332211";
    let on = Flags::SIGNALLED;
    let data = || Data::Gather(smallvec![local(4096)]);
    check(
        Operation::Write {
            remote: REMOTE,
            imm: None,
            data: data(),
        },
        on,
        &format!("00123408 0abcde03 00000008 00000000 {raddr} 00001000 {laddr}"),
    );
    check(
        Operation::Write {
            remote: REMOTE,
            imm: Some(0xcafe_0001),
            data: data(),
        },
        on,
        &format!("00123409 0abcde03 00000008 cafe0001 {raddr} 00001000 {laddr}"),
    );
    let inline = Data::Inline(smallvec![1, 2, 3, 4, 5, 6, 7, 8]);
    check(
        Operation::Write {
            remote: REMOTE,
            imm: None,
            data: inline,
        },
        on,
        &format!("00123408 0abcde03 00000008 00000000 {raddr} 80000008 01020304 05060708 00000000"),
    );
    check(Operation::Nop, on, "00123400 0abcde01 00000008 00000000");
    check(
        Operation::Read {
            remote: REMOTE,
            into: smallvec![local(64)],
        },
        on.and(Flags::FENCE),
        &format!("00123410 0abcde03 00000088 00000000 {raddr} 00000040 {laddr}"),
    );
    check(
        Operation::FetchAdd {
            remote: REMOTE,
            add: 5,
            into: local(8),
        },
        on,
        &format!(
            "00123412 0abcde04 00000008 00000000 {raddr} 00000000 00000005 00000000 00000000 00000008 {laddr}"
        ),
    );
}

#[test]
fn every_prefix_and_every_changed_byte_is_an_entry_or_an_error() {
    let data = Data::Gather(smallvec![local(4096)]);
    let operation = Operation::Write {
        remote: REMOTE,
        imm: None,
        data,
    };
    let bytes = Entry {
        index: 7,
        qpn: 9,
        flags: Flags::SIGNALLED,
        operation,
    }
    .encode();
    for length in 0..bytes.len() {
        assert!(
            Entry::parse(&bytes[..length], 7, 9).is_err(),
            "{length} bytes"
        );
    }
    for at in 0..bytes.len() {
        for change in 1..=255 {
            let mut bytes = bytes.clone();
            bytes[at] ^= change;
            if let Ok(entry) = Entry::parse(&bytes, 7, 9) {
                assert_eq!((entry.index, entry.qpn), (7, 9), "byte {at}");
            }
        }
    }
}

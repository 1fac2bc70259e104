//! The format: what is written can be read again, and errors are named.

mod common;

use common::{Random, trace};
use outboard_trace::{
    Damage, Error, Record, Trace, VERSION, VERSION_MIN, read, read_bytes, to_bytes, write,
};

const HEAD_BYTES: usize = 12;
const BLOCK_HEADER_BYTES: usize = 24;

#[test]
fn random_recordings_come_back() {
    let mut random = Random(1);
    for round in 0..200 {
        let count = random.below(if round % 20 == 0 { 20_000 } else { 300 }) as usize;
        let written = trace(&mut random, count);
        let bytes = to_bytes(&written);
        assert_eq!(read_bytes(&bytes).as_ref(), Ok(&written), "round {round}");
    }
}

#[test]
fn large_files_have_several_blocks_and_lose_only_the_last() {
    let mut random = Random(3);
    let written = trace(&mut random, 50_000);
    let whole = to_bytes(&written);
    let cut = read_bytes(&whole[..whole.len() / 2]).unwrap();
    assert!(!cut.complete);
    assert!(cut.records.len() > 10_000 && cut.records.len() < 40_000);
}

#[test]
fn one_flipped_bit_is_found_and_its_block_named() {
    let mut random = Random(4);
    let written = trace(&mut random, 30);
    let whole = to_bytes(&written);
    let about_bytes = u32::from_le_bytes(whole[16..20].try_into().unwrap()) as usize;
    let second = HEAD_BYTES + BLOCK_HEADER_BYTES + about_bytes;
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let error = read_bytes(&flipped).expect_err("a bit was flipped");
        match bit / 8 {
            0..8 => assert_eq!(error, Error::NotARecording),
            8..HEAD_BYTES => assert!(matches!(error, Error::Version { .. })),
            at => {
                let Error::Damaged { block, damage, .. } = error else {
                    panic!("byte {at}: {error}");
                };
                assert!(matches!(damage, Damage::HeaderChecksum | Damage::Checksum));
                match at < second {
                    true => assert_eq!(block, 1, "byte {at}"),
                    false => assert!(block > 1, "byte {at}"),
                }
            }
        }
    }
}

#[test]
fn another_version_is_named_beside_ours() {
    let mut bytes = to_bytes(&Trace::default());
    bytes[8..12].copy_from_slice(&77u32.to_le_bytes());
    let error = read_bytes(&bytes).unwrap_err();
    assert_eq!(
        error,
        Error::Version {
            file: 77,
            oldest: VERSION_MIN,
            ours: VERSION
        }
    );
    let said = error.to_string();
    assert!(said.contains("77") && said.contains(&VERSION.to_string()));
}

#[test]
fn older_versions_had_one_server_or_no_events_and_are_read() {
    let mut longer = to_bytes(&trace(&mut Random(8), 300)).len();
    for (version, has_events) in [(2u32, true), (1, false)] {
        let mut written = trace(&mut Random(8), 300);
        for record in &mut written.records {
            if let Record::Call(call) = record {
                call.server = 0;
                call.event *= u32::from(has_events);
            }
        }
        let mut bytes = to_bytes(&written);
        assert!(bytes.len() < longer, "nothing was left out");
        longer = bytes.len();
        assert_eq!(bytes[8..HEAD_BYTES], VERSION.to_le_bytes());
        bytes[8..HEAD_BYTES].copy_from_slice(&version.to_le_bytes());
        assert_eq!(read_bytes(&bytes), Ok(written));
    }
}

#[test]
fn other_files_are_no_recordings() {
    assert_eq!(read_bytes(b""), Err(Error::Empty));
    for bytes in [
        &b"hello"[..],
        b"{\"a\": 1}            ",
        &[0; 100],
        b"\x7fELF\x02\x01\x01\0\0\0\0\0",
    ] {
        assert_eq!(read_bytes(bytes), Err(Error::NotARecording));
    }
    let mut random = Random(5);
    for _ in 0..1000 {
        let len = 1 + random.below(200) as usize;
        let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        assert!(read_bytes(&bytes).is_err());
    }
}

#[test]
fn a_missing_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing");
    let said = read(&path).unwrap_err().to_string();
    assert!(said.contains("missing"), "{said}");
    let trace = trace(&mut Random(6), 50);
    write(&path, &trace).unwrap();
    assert_eq!(read(&path), Ok(trace));
}

#[test]
fn names_of_any_length_are_cut_not_refused() {
    let trace = Trace {
        names: vec!["é".repeat(100_000)],
        complete: true,
        ..Trace::default()
    };
    let again = read_bytes(&to_bytes(&trace)).unwrap();
    assert_eq!(again.names[0].len(), outboard_trace::NAME_BYTES_MAX);
    assert!(trace.names[0].starts_with(&again.names[0]));
}

#[test]
fn it_is_small() {
    // A typical loop: some hundred thousand launches that hardly differ.
    let mut trace = Trace {
        names: vec!["cuLaunchKernel".into()],
        ..Trace::default()
    };
    let mut random = Random(7);
    for n in 0..100_000u64 {
        trace.records.push(Record::Call(outboard_trace::Call {
            function: 0,
            class: outboard_trace::Class::Outstanding,
            thread: 0,
            start_ns: n * 5_000 + random.below(1000),
            duration_ns: 400 + random.below(100),
            request_bytes: 100,
            response_bytes: 0,
            stream: 0,
            event: 0,
            correlation: 0,
            status: 0,
            server: 0,
        }));
    }
    let bytes = to_bytes(&trace);
    assert!(bytes.len() < 16 * trace.records.len(), "{}", bytes.len());
}

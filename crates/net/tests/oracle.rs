//! Entries and completions beside those of rdma-core's header, which a C compiler reads here.
#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
};

use outboard_net::{
    cqe::{Completion, Kind},
    wqe::{Data, Entry, Flags, Operation, Remote, Segment},
};
use smallvec::smallvec;

const ROUNDS: u64 = 4000;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An operation of random fields.
fn operation(random: &mut Random, remote: Remote, local: Segment) -> Operation {
    let (first, second, imm) = (random.next(), random.next(), random.next() as u32);
    let inline: Vec<u8> = (0..=random.next() % 60)
        .map(|_| random.next() as u8)
        .collect();
    let data = if random.next().is_multiple_of(2) {
        Data::Inline(inline.as_slice().into())
    } else {
        Data::Gather(smallvec![local])
    };
    let imm = random.next().is_multiple_of(2).then_some(imm);
    match random.next() % 6 {
        0 => Operation::Nop,
        1 => Operation::Write { remote, imm, data },
        2 => Operation::Send { imm, data },
        3 => Operation::Read {
            remote,
            into: smallvec![local],
        },
        4 => Operation::FetchAdd {
            remote,
            add: first,
            into: local,
        },
        _ => Operation::CompareSwap {
            remote,
            swap: first,
            compare: second,
            into: local,
        },
    }
}

/// An entry of random fields, and the line that asks the header for it.
fn entry(random: &mut Random) -> (Entry, String) {
    let (index, qpn) = (random.next() as u16, random.next() as u32 & 0x00ff_ffff);
    let flags = Flags(random.next() as u8);
    let remote = Remote {
        address: random.next(),
        rkey: random.next() as u32,
    };
    let length = random.next() as u32 & 0x7fff_ffff;
    let local = Segment {
        length,
        lkey: random.next() as u32,
        address: random.next(),
    };
    let operation = operation(random, remote, local);
    let (mut imm, mut inlined, mut first, mut second) = (0, "-".to_owned(), 0, 0);
    match &operation {
        Operation::Write {
            imm: wanted, data, ..
        }
        | Operation::Send { imm: wanted, data } => {
            imm = wanted.unwrap_or(0);
            if let Data::Inline(bytes) = data {
                inlined = hex(bytes);
            }
        }
        Operation::FetchAdd { add, .. } => first = *add,
        Operation::CompareSwap { swap, compare, .. } => (first, second) = (*swap, *compare),
        _ => {}
    }
    let line = format!(
        "E {} {index} {qpn} {} {imm} {} {} {length} {} {} {first} {second} {inlined}",
        operation.opcode(),
        flags.0,
        remote.address,
        remote.rkey,
        local.lkey,
        local.address,
    );
    (
        Entry {
            index,
            qpn,
            flags,
            operation,
        },
        line,
    )
}

fn completion(random: &mut Random) -> (Completion, bool) {
    let kinds = [
        Kind::Requester,
        Kind::ReceivedWriteImm,
        Kind::Received,
        Kind::ReceivedImm,
        Kind::RequesterError,
        Kind::ResponderError,
    ];
    let kind = kinds[random.next() as usize % kinds.len()];
    let is_error = matches!(kind, Kind::RequesterError | Kind::ResponderError);
    let completion = Completion {
        kind,
        qpn: random.next() as u32 & 0x00ff_ffff,
        opcode: random.next() as u8,
        index: random.next() as u16,
        bytes: random.next() as u32,
        imm: random.next() as u32,
        timestamp: if is_error { 0 } else { random.next() },
        syndrome: if is_error { random.next() as u8 } else { 0 },
        vendor_syndrome: if is_error { random.next() as u8 } else { 0 },
    };
    (completion, random.next().is_multiple_of(2))
}

#[test]
fn entries_and_completions_are_those_of_rdma_core() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("oracle");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle.c");
    let compiled = Command::new("cc")
        .arg("-O1")
        .arg("-o")
        .args([&program, &source])
        .status()
        .unwrap();
    assert!(
        compiled.success(),
        "infiniband/mlx5dv.h is needed: tools/verbs.sh installs it"
    );
    let mut oracle = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ask = oracle.stdin.take().unwrap();
    let mut answers = BufReader::new(oracle.stdout.take().unwrap()).lines();
    let mut random = Random(19);
    for round in 0..ROUNDS {
        let (entry, line) = entry(&mut random);
        writeln!(ask, "{line}").unwrap();
        let expected = answers.next().unwrap().unwrap();
        assert_eq!(hex(&entry.encode()), expected, "round {round}: {entry:?}");
        assert_eq!(
            Entry::parse(&entry.encode(), entry.index, entry.qpn),
            Ok(entry)
        );

        let (completion, owner) = completion(&mut random);
        let bytes = completion.encode(owner);
        writeln!(ask, "C {}", hex(&bytes)).unwrap();
        let Completion {
            kind,
            qpn,
            opcode,
            index,
            bytes: count,
            imm,
            syndrome,
            ..
        } = completion;
        let owner_bit = u8::from(owner);
        let expected = format!(
            "{} {owner_bit} {qpn} {opcode} {index} {count} {imm} {syndrome}",
            kind as u8
        );
        assert_eq!(answers.next().unwrap().unwrap(), expected, "round {round}");
        assert_eq!(Completion::parse(&bytes), Some((completion, owner)));
    }
    drop(ask);
    assert!(oracle.wait().unwrap().success());
}

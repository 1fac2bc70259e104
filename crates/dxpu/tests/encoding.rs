//! Transactions and packets against bytes that others have written down.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use outboard_dxpu::{
    packet::{Body, End, Joiner, Node, Packet, PacketError, Route, split},
    random::Random,
    tlp::{Common, Id, Kind, MessageRoute, Request, Status, Tlp, TlpError},
};

/// Doublewords as PCIe's documents print them.
fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn request(requester: u16, tag: u16, first_enable: u8, last_enable: u8) -> Request {
    Request {
        requester: Id(requester),
        tag,
        first_enable,
        last_enable,
    }
}

#[track_caller]
fn is_written_as(kind: Kind, data: &[u8], words: &[u32]) {
    let expected = [&bytes(words)[..], data].concat();
    let tlp = Tlp::new(kind, data);
    let mut out = Vec::new();
    tlp.emit(&mut out).unwrap();
    assert_eq!(out, expected);
    assert_eq!(Tlp::parse(&expected), Ok(tlp));
}

/// A write, a read and its completion, from a logic analyser: the examples that tutorials print.
#[test]
fn memory_transactions_are_encoded_as_on_a_real_link() {
    let address = 0xFDAF_F040;
    let data = [0x12, 0x34, 0x56, 0x78];
    let write = Kind::MemoryWrite {
        request: request(0, 0, 15, 0),
        address,
    };
    is_written_as(write, &data, &[0x4000_0001, 0x0000_000F, 0xFDAF_F040]);
    let read = Kind::MemoryRead {
        request: request(0, 0x0C, 15, 0),
        address,
        dwords: 1,
    };
    is_written_as(read, &[], &[0x0000_0001, 0x0000_0C0F, 0xFDAF_F040]);
    let completion = Kind::Completion {
        completer: Id(0x0100),
        requester: Id(0),
        tag: 0x0C,
        status: Status::Successful,
        byte_count: 4,
        lower_address: 0x40,
    };
    is_written_as(completion, &data, &[0x4A00_0001, 0x0100_0004, 0x0000_0C40]);
}

/// By the tables of the base specification: formats, types, and the places of the tag's high bits.
#[test]
fn other_transactions_are_encoded_as_specified() {
    let address = 0x0000_0101_0000_1000;
    let read = Kind::MemoryRead {
        request: request(0x0300, 0x3FF, 15, 15),
        address,
        dwords: 1_024,
    };
    is_written_as(read, &[], &[0x2088_0000, 0x0300_FFFF, 0x101, 0x1000]);
    let configuration = Kind::ConfigurationWrite {
        request: request(0, 1, 15, 0),
        target: Id::new(3, 0, 0),
        register: 0x104,
        is_local: true,
    };
    is_written_as(
        configuration,
        &[0; 4],
        &[0x4400_0001, 0x0000_010F, 0x0300_0104],
    );
    let configuration = Kind::ConfigurationRead {
        request: request(0, 1, 15, 0),
        target: Id::new(4, 31, 7),
        register: 0,
        is_local: false,
    };
    is_written_as(configuration, &[], &[0x0500_0001, 0x0000_010F, 0x04FF_0000]);
    let io = Kind::IoRead {
        request: request(8, 2, 1, 0),
        address: 0x3F8,
    };
    is_written_as(io, &[], &[0x0200_0001, 0x0008_0201, 0x0000_03F8]);
    let io = Kind::IoWrite {
        request: request(8, 2, 1, 0),
        address: 0x3F8,
    };
    is_written_as(io, &[9; 4], &[0x4200_0001, 0x0008_0201, 0x0000_03F8]);
    // Assert_INTA, code 0x20, ends at the link's receiver.
    let message = Kind::Message {
        requester: Id(0x0100),
        tag: 0,
        code: 0x20,
        route: MessageRoute::Local,
        fields: 0,
    };
    is_written_as(message, &[], &[0x3400_0000, 0x0100_0020, 0, 0]);
    let refused = Kind::Completion {
        completer: Id(0x0200),
        requester: Id(0),
        tag: 5,
        status: Status::UnsupportedRequest,
        byte_count: 4,
        lower_address: 0,
    };
    is_written_as(refused, &[], &[0x0A00_0000, 0x0200_2004, 0x0000_0500]);
}

#[test]
fn a_class_attributes_and_poison_stay() {
    let mut tlp = Tlp::new(
        Kind::MemoryWrite {
            request: request(1, 2, 15, 0),
            address: 0x40,
        },
        &[1, 2, 3, 4],
    );
    tlp.common = Common {
        traffic_class: 5,
        attributes: 7,
        is_poisoned: true,
        has_hint: false,
    };
    let mut out = Vec::new();
    tlp.emit(&mut out).unwrap();
    assert_eq!(out[..4], [0x40, 0x54, 0x70, 0x01]);
    assert_eq!(Tlp::parse(&out), Ok(tlp));
}

#[test]
fn what_the_specification_forbids_is_refused() {
    for (words, reason) in [
        (vec![0x8000_0001, 0, 0], "prefix"),
        (vec![0x4C00_0001, 0xF, 0x40, 0], "atomic"),
        (vec![0x0100_0001, 0xF, 0x40], "locked"),
        (vec![0x0000_8001, 0xF, 0x40], "digest"),
        (vec![0x0000_0401, 0xF, 0x40], "translated"),
        (vec![0x0000_0002, 0xF, 0x40], "byte enables"),
        (vec![0x0000_0002, 0xFF, 0xFFC], "border"),
        (vec![0x2000_0001, 0xF, 0, 0x40], "below 4 GiB"),
        (vec![0x0500_0002, 0xF, 0x40], "one doubleword"),
        (vec![0x0510_0001, 0xF, 0x40], "class 0"),
        (vec![0x0A00_0000, 0xE004, 0], "unknown status"),
        (vec![0x3600_0000, 0, 0, 0], "unknown route"),
        (vec![0x1400_0000, 0, 0], "short header"),
        (vec![0x1F00_0000, 0, 0], "this type"),
        (
            vec![0x4A00_0002, 4, 0, 0, 0],
            "more data than its byte count",
        ),
        (vec![0x0000_0001, 0xF], "cut off"),
        (vec![0x0000_0001, 0xF, 0x40, 0], "after its"),
    ] {
        let error = Tlp::parse(&bytes(&words)).unwrap_err().to_string();
        assert!(
            error.contains(reason),
            "{words:08x?}: {error}, not {reason}"
        );
    }
    assert!(matches!(Tlp::parse(&[]), Err(TlpError::Short { .. })));
}

/// One bit at a time, as the polynomials' definitions have it.
fn crc(polynomial: u32, bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1
                ^ if crc & 1 != 0 {
                    polynomial.reverse_bits()
                } else {
                    0
                };
        }
    }
    !crc
}

const ROUTE: Route = Route {
    from: End {
        node: Node(7),
        slot: 3,
    },
    to: End {
        node: Node(0x102),
        slot: 0,
    },
    path: 9,
};

#[test]
fn packets_have_the_route_the_header_and_both_crcs() {
    assert_eq!(crc(0x04C1_1DB7, b"123456789"), 0xCBF4_3926);
    assert_eq!(crc(0x1EDC_6F41, b"123456789"), 0xE306_9283);
    let data: Vec<u8> = (0..2_048_u32).map(|number| number as u8).collect();
    let write = Kind::MemoryWrite {
        request: request(0x0300, 1, 15, 15),
        address: 1 << 40,
    };
    let tlp = Tlp::new(write, &data);
    let mut packets = Vec::new();
    let count = split(&tlp, ROUTE, 5, |packet| packets.push(packet.to_vec())).unwrap();
    assert_eq!((count, packets.len()), (3, 3));
    let mut whole = Vec::new();
    tlp.emit(&mut whole).unwrap();
    let header = &packets[0];
    assert_eq!(header.len(), 16 + 16 + 4 + 4);
    assert_eq!(
        header[..16],
        [0x10, 0, 8, 0, 0, 0, 0, 5, 0, 7, 3, 0, 1, 2, 0, 9]
    );
    assert_eq!(header[16..32], whole[..16]);
    assert_eq!(header[32..36], crc(0x04C1_1DB7, &whole).to_be_bytes());
    for packet in &packets {
        let (body, end) = packet.split_last_chunk::<4>().unwrap();
        assert_eq!(*end, crc(0x1EDC_6F41, body).to_be_bytes());
    }
    let mut joiner = Joiner::default();
    for (number, packet) in packets.iter().enumerate() {
        let parsed = Packet::parse(packet).unwrap();
        let joined = joiner.take(&parsed).unwrap();
        assert_eq!(joined, (number == 2).then(|| (ROUTE, tlp.clone())));
    }
}

#[test]
fn every_changed_bit_is_noticed() {
    let write = Kind::MemoryWrite {
        request: request(1, 2, 15, 15),
        address: 0x1000,
    };
    let data = [0xA5; 64];
    let mut packets = Vec::new();
    split(&Tlp::new(write, &data), ROUTE, 0, |packet| {
        packets.push(packet.to_vec())
    })
    .unwrap();
    for packet in &packets {
        for bit in 0..packet.len() * 8 {
            let mut changed = packet.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let error = Packet::parse(&changed).unwrap_err();
            assert!(matches!(error, PacketError::PacketCrc { .. }), "{error}");
        }
    }
    // An error made between the two checks, in a proxy's memory: the packet's CRC is right.
    let mut joiner = Joiner::default();
    joiner.take(&Packet::parse(&packets[0]).unwrap()).unwrap();
    let mut wrong = Packet::parse(&packets[1]).unwrap();
    let other = [0xA4; 64];
    wrong.body = Body::Data(&other);
    let error = joiner.take(&wrong).unwrap_err();
    assert!(matches!(error, PacketError::TlpCrc { .. }), "{error}");
}

#[test]
fn random_writes_come_through() {
    let mut random = Random::new(3);
    let mut joiner = Joiner::default();
    for _ in 0..2_000 {
        let dwords = 1 + random.below(1_024);
        let data: Vec<u8> = (0..dwords * 4).map(|_| random.number() as u8).collect();
        let address = random.below(1 << 50) << 12;
        let last = if dwords == 1 { 0 } else { 15 };
        let write = Kind::MemoryWrite {
            request: request(9, random.below(1_024) as u16, 15, last),
            address,
        };
        let tlp = Tlp::new(write, &data);
        let mut got = None;
        split(&tlp, ROUTE, 0, |packet| {
            let packet = Packet::parse(packet).unwrap();
            if let Some((_, tlp)) = joiner.take(&packet).unwrap() {
                got = Some((tlp.kind, tlp.data.to_vec()));
            }
        })
        .unwrap();
        assert_eq!(got, Some((write, data.clone())));
    }
}

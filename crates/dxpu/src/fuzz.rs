//! Targets of the fuzzer: bytes become packets and transactions, or errors.

use crate::{
    ethernet,
    packet::{Joiner, Packet, Route, split},
    proxy::HostProxy,
    tlp::{Kind, Request, Tlp},
};

/// Reads bytes as a transaction; one that is read is written as it was.
pub fn transaction(data: &[u8]) {
    if let Ok(tlp) = Tlp::parse(data) {
        let mut out = Vec::new();
        assert_eq!(tlp.emit(&mut out), Ok(()), "{tlp:?}");
        let again = Tlp::parse(&out);
        assert_eq!(again.as_ref(), Ok(&tlp));
        HostProxy::new(Default::default(), 4).take(&tlp.kind, tlp.data);
    }
}

/// Reads bytes as packets one after the other, each after its length in two bytes.
pub fn packets(mut data: &[u8]) {
    let mut joiner = Joiner::default();
    while let Some((length, rest)) = data.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
        let (bytes, after) = rest.split_at(length);
        let _ = ethernet::packet(bytes, ethernet::Mac::default());
        if let Ok(packet) = Packet::parse(bytes) {
            let mut out = Vec::new();
            packet.emit(&mut out);
            assert_eq!(out, bytes);
            let _ = joiner.take(&packet);
        }
        data = after;
    }
}

/// Transactions to begin with.
pub fn transactions() -> Vec<Vec<u8>> {
    samples()
        .iter()
        .map(|(kind, data)| emitted(kind, data))
        .collect()
}

/// Packets to begin with.
pub fn packet_seeds() -> Vec<Vec<u8>> {
    let framed = |kind: &Kind, data: &[u8]| {
        let mut out = Vec::new();
        let _ = split(&Tlp::new(*kind, data), Route::default(), 0, |packet| {
            out.extend_from_slice(&(packet.len() as u16).to_be_bytes());
            out.extend_from_slice(packet);
        });
        out
    };
    samples()
        .iter()
        .map(|(kind, data)| framed(kind, data))
        .collect()
}

fn emitted(kind: &Kind, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let _ = Tlp::new(*kind, data).emit(&mut out);
    out
}

fn samples() -> Vec<(Kind, Vec<u8>)> {
    let request = Request {
        first_enable: 15,
        last_enable: 15,
        ..Request::default()
    };
    let single = Request {
        last_enable: 0,
        ..request
    };
    let (address, dwords) = (1 << 40, 32);
    vec![
        (
            Kind::MemoryRead {
                request,
                address,
                dwords,
            },
            Vec::new(),
        ),
        (Kind::MemoryWrite { request, address }, vec![7; 2_048]),
        (
            Kind::IoWrite {
                request: single,
                address: 0x1000,
            },
            vec![1; 4],
        ),
    ]
}

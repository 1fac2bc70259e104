//! Captures of real programs, replayed.

use outboard_flow::aging::Timeouts;
use outboard_flow::path::{Deletion, Tracker};
use outboard_flow::traffic::pcap::Reader;
use outboard_flow::traffic::{Frame, parse};
use outboard_flow::{BATCH_MAX, Batched, FlowTable, Secret, V4};
use std::collections::{HashMap, HashSet};

const PROGRAMS: &[u8] = include_bytes!("../captures/programs.pcap");

/// The programs of `captures/record.sh` open as many connections as the script says, each of which
/// the table has in both directions, and every one of their packets goes on.
#[test]
fn connections_of_programs_are_found() {
    let mut reader = Reader::new(PROGRAMS).expect("a capture");
    let mut frames = Vec::new();
    let mut to_port: HashMap<(u8, u16), HashSet<V4>> = HashMap::new();
    while let Some(record) = reader.read().expect("a record") {
        let mut begin = [0; 64];
        let kept = record.bytes.len().min(begin.len());
        begin[..kept].copy_from_slice(&record.bytes[..kept]);
        let bytes = u16::try_from(record.length).expect("an MTU of 1,500");
        let key = parse(&begin, bytes.into()).expect("TCP or UDP").key;
        let fields = key.bytes();
        if fields[4..8] == [198, 51, 100, 1] {
            let port = u16::from_be_bytes([fields[10], fields[11]]);
            to_port.entry((fields[12], port)).or_default().insert(key);
        }
        frames.push(Frame { begin, bytes });
    }
    let expected = [((6, 80), 21), ((6, 81), 1), ((6, 5201), 2), ((17, 53), 10)];
    let counted = |port| to_port.get(&port).map_or(0, HashSet::len);
    assert_eq!(expected.map(|(port, _)| (port, counted(port))), expected);

    let table = Batched::<V4>::with_capacity(1000, Secret::from_seed(1)).expect("memory");
    let (backends, secret) = ([[203, 0, 113, 1].into()], Secret::from_seed(2));
    let tracker = Tracker::new(table, &backends, Timeouts::LINUX, &Deletion::None, secret);
    let mut tracker = tracker.expect("a tracker");
    let count = frames.len() as u64;
    for frames in frames.chunks_mut(BATCH_MAX) {
        tracker.forward(frames, 0);
    }
    assert_eq!(
        (tracker.counts.forwarded, tracker.counts.opened),
        (count, 68)
    );
    assert_eq!(tracker.table().len(), 68);
    for key in to_port.values().flatten() {
        assert!(tracker.table().get(key).is_some(), "{key:?}");
    }
}

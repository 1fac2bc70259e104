//! GPU memory that adapters access in place, over this machine's device, if it has one. A link does
//! not know what memory a GPU's addresses are of: here it is the test's own.

use std::os::fd::OwnedFd;

use rustix::fs::MemfdFlags;

use outboard_verbs::{DeviceMemory, Error as Verbs, Reach};

use super::{
    Bulk, DeviceBulk, GpuMemory, RdmaTarget, Registered,
    bulk_tests::{HEAD, Mine, failure, received},
    link_tests::{expect, pair, send},
    sender::Sender,
};
use crate::{
    conformance::{RdmaFixture, is_possible},
    error::RdmaError,
};

const LEN: usize = 300_000;

fn address(mine: &Mine) -> u64 {
    mine.0.as_ptr().expose_provenance() as u64
}

fn registered(sender: &Sender, mine: &Mine) -> Registered {
    // SAFETY: declared before the links that it is registered with, and so dropped after them; read
    // while no device writes.
    let memory = unsafe { DeviceMemory::new(address(mine), mine.0.len(), Reach::Address) };
    sender.registrar().register_device(memory).unwrap()
}

/// A client's adapter writes it, and the server's own adapter reads it; the frame that says so
/// comes after the data.
#[test]
fn a_gpu_s_memory_is_written_and_read_where_it_lies() {
    if !is_possible(
        &RdmaFixture,
        "a_gpu_s_memory_is_written_and_read_where_it_lies",
    ) {
        return;
    }
    let (mut gpu, mut program) = (Mine::new(LEN + 2, 3), Mine::new(LEN, 9));
    let ((mut to_client, mut from_client), (mut to_server, mut from_server)) = pair();
    assert_eq!(to_client.registrar().gpu_memory(), GpuMemory::Auto);
    let memory = registered(&to_client, &gpu);
    let target = memory.target(address(&gpu) + 1);
    let bulk = Bulk {
        data: &program.0,
        source: None,
        target: Some(target),
    };
    to_server.send_long(&[HEAD], bulk).unwrap();
    let (rest, was_granted) = received(&mut from_client);
    assert!(rest.is_empty() && !was_granted);
    assert!(gpu.0[1..=LEN] == program.0);
    let theirs = Mine::new(LEN + 2, 3);
    assert_eq!([gpu.0[0], gpu.0[LEN + 1]], [theirs.0[0], theirs.0[LEN + 1]]);

    gpu.0[1..=LEN].reverse();
    program.0.fill(0);
    let place = registered(&to_server, &program);
    for target in [None, Some(place.target(address(&program)))] {
        assert!(to_client.device_is_read());
        let bulk = DeviceBulk {
            address: address(&gpu) + 1,
            len: LEN,
            source: &memory,
            target,
        };
        to_client.send_device(&[HEAD], bulk).unwrap();
        to_client.wait_until_device_read().unwrap();
        // Memory that has been read may change.
        assert!(to_client.device_is_read());
        let (rest, _) = received(&mut from_server);
        match target {
            None => assert!(rest == gpu.0[1..=LEN]),
            Some(_) => assert!(rest.is_empty() && program.0 == gpu.0[1..=LEN]),
        }
    }
    // Nothing is posted beyond the registered range.
    let beyond = DeviceBulk {
        address: address(&gpu) + 3,
        len: LEN,
        source: &memory,
        target: None,
    };
    assert!(to_client.send_device(&[HEAD], beyond).is_err());
    send(&mut to_client, 1_000);
    expect(&mut from_server, 1_000);
}

/// Writes beyond an end, with the key of freed memory, and with a key of another session are
/// refused and change nothing.
#[test]
fn only_what_was_exposed_can_be_written() {
    if !is_possible(&RdmaFixture, "only_what_was_exposed_can_be_written") {
        return;
    }
    let (gpu, others, data) = (Mine::new(LEN, 1), Mine::new(LEN, 2), Mine::new(LEN, 7));
    let untouched = [gpu.0.clone(), others.0.clone()];
    let ((mut other_to_client, _from_client), (_to_server, mut other_from_server)) = pair();
    let of_other = registered(&other_to_client, &others);
    for case in 0..4 {
        let ((to_client, _from_client), (mut to_server, _from_server)) = pair();
        let memory = registered(&to_client, &gpu);
        let start = memory.target(address(&gpu));
        let target = match case {
            0 => RdmaTarget {
                address: start.address + 1,
                ..start
            },
            1 => RdmaTarget {
                address: start.address - 1,
                ..start
            },
            2 => of_other.target(address(&others)),
            _ => {
                drop(memory.clone());
                start
            }
        };
        // Freed before the attempt in the last case, otherwise kept until after it.
        let kept = (case != 3).then_some(memory);
        let bulk = Bulk {
            data: &data.0,
            source: None,
            target: Some(target),
        };
        to_server.send_long(&[HEAD], bulk).unwrap();
        let error = failure(&mut to_server);
        assert!(
            matches!(
                error.rdma(),
                Some(RdmaError::Verbs(Verbs::AccessRefused { .. }))
            ),
            "{case}: {error}"
        );
        drop(kept);
        assert!(
            [&gpu.0, &others.0] == [&untouched[0], &untouched[1]],
            "{case}"
        );
    }
    // The other session, whose key was used, goes on.
    send(&mut other_to_client, 1_000);
    expect(&mut other_from_server, 1_000);
}

/// An address without memory, and a file that is no dma-buf or that the device's driver refuses: an
/// error, and the link goes on.
#[test]
fn what_an_adapter_cannot_reach_is_said() {
    if !is_possible(&RdmaFixture, "what_an_adapter_cannot_reach_is_said") {
        return;
    }
    let ((mut to_client, _from_client), (_to_server, mut from_server)) = pair();
    let registrar = to_client.registrar();
    // SAFETY: no memory is mapped there, which the test is about.
    let nothing = unsafe { DeviceMemory::new(1 << 30, 1 << 20, Reach::Address) };
    assert!(registrar.register_device(nothing).is_err());
    let no_dma_buf: OwnedFd = rustix::fs::memfd_create("no dma-buf", MemfdFlags::CLOEXEC).unwrap();
    // SAFETY: no memory is mapped there either; registering it must fail.
    let memory = unsafe { DeviceMemory::new(1 << 30, 1 << 20, Reach::DmaBuf(no_dma_buf)) };
    let error = registrar.register_device(memory).err().unwrap().to_string();
    assert!(
        error.contains("dma-buf") || error.contains("dmabuf"),
        "{error}"
    );
    send(&mut to_client, 1_000);
    expect(&mut from_server, 1_000);
}

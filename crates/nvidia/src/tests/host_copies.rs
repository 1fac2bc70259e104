//! Copies from host memory to host memory while a stream waits for the client.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use outboard_wire::doc::{self, BoxEnd, CopyBox};

use super::*;

const LEN: u64 = 5 << 20;

/// A client with two pieces of host memory, the second of which begins with `bytes`.
fn client_with_memory(fake: &Fake, bytes: &[u8]) -> (Client, [u64; 2]) {
    client_with_memory_of(fake, LEN, bytes)
}

/// A client with two pieces of host memory of this length.
fn client_with_memory_of(fake: &Fake, len: u64, bytes: &[u8]) -> (Client, [u64; 2]) {
    static NEXT: AtomicU64 = AtomicU64::new(0x5400_0000_0000);
    let mut client = Client::new(fake);
    let base = NEXT.fetch_add(4 * len, Relaxed);
    let places = [base, base + 2 * len];
    for va in places {
        client.done(Request::HostMap(messages::HostMap {
            va,
            len,
            flags: 0,
            fd_tag: 0,
        }));
    }
    client.done(Request::HostWrite(messages::HostWrite {
        va: places[1],
        data: bytes,
    }));
    (client, places)
}

fn host_func(client: &mut Client) {
    client.done(Request::HostFunc(messages::HostFunc {
        stream: 0,
        call: 11,
    }));
}

fn answer(client: &mut Client) {
    let mut told = Vec::new();
    let start = Instant::now();
    while told.is_empty() && start.elapsed() < Duration::from_secs(10) {
        outboard_device::Host::take_host_calls(&mut client.device, &mut told);
    }
    client.done(Request::HostFuncDone(messages::HostFuncDone { call: 11 }));
}

fn copy([dst, src]: [u64; 2]) -> Request<'static> {
    Request::Copy(messages::Copy {
        dst,
        src,
        len: LEN,
        stream: 0,
        sync: 0,
    })
}

fn contents(client: &mut Client, src: u64) -> Vec<u8> {
    let mut out = client.wait(Request::CopyOut(messages::CopyOut {
        src,
        len: LEN,
        stream: 0,
    }));
    assert_eq!(out.ready(), Ok(true));
    out.data().expect("bytes").to_vec()
}

#[test]
fn a_copy_between_host_memory_leaves_host_functions_running() {
    let fake = Fake::build(&[]);
    let bytes: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    let (mut client, [dst, src]) = client_with_memory(&fake, &bytes);
    host_func(&mut client);
    client.done(copy([dst, src]));
    client.done(Request::CopyIn(messages::CopyIn {
        dst: dst + 1,
        stream: 0,
        sync: 0,
        data: b"in"[..].into(),
    }));
    answer(&mut client);
    let mut wanted = bytes;
    wanted[1..3].copy_from_slice(b"in");
    assert!(contents(&mut client, dst) == wanted);
    assert!(fake.ask("fake_bounces", 0) >= 2);
    drop(client);
    assert_eq!(fake.ask("fake_live", 0), 0);
}

#[test]
fn without_device_memory_the_client_is_served_while_a_copy_between_host_memory_waits() {
    let fake = Fake::build(&[]);
    let bytes = vec![7; LEN as usize];
    let (mut client, places) = client_with_memory(&fake, &bytes);
    fake.ask("fake_pools_refuse", 1);
    host_func(&mut client);
    let mut answered = 0;
    let mut answer = |device: &mut dyn HeldUp, done: &mut Vec<u64>| {
        let mut reached = Vec::new();
        device.take_host_calls(&mut reached);
        done.extend(reached.iter().map(|(call, _)| *call));
        answered += reached.len();
        true
    };
    let mut cx = Cx {
        context: client.context,
        images: &mut client.images,
        placed: None,
        fds: &mut |_| unreachable!(),
        service: &mut answer,
        unserved: None,
    };
    let [dst, src] = places;
    let copy = messages::Copy {
        dst,
        src,
        len: LEN,
        stream: 0,
        sync: 0,
    };
    client.device.copy(&mut cx, &copy).expect("copied");
    assert_eq!(answered, 1);
    assert!(contents(&mut client, dst) == bytes);
    // A copy of a message's data waits for a word of the program, as do the kernels before it.
    kernel_that_waits(&mut client, dst + 8);
    let into = Request::CopyIn(messages::CopyIn {
        dst,
        stream: 0,
        sync: 0,
        data: b"in"[..].into(),
    });
    client.send_served(into, dst + 8).expect("copied");
    assert_eq!(contents(&mut client, dst)[..2], *b"in");
}

#[test]
fn a_copy_that_has_to_wait_is_refused_where_its_client_is_not_served() {
    let fake = Fake::build(&[]);
    let (mut client, [dst, _]) = client_with_memory(&fake, &[7; 8]);
    fake.ask("fake_pools_refuse", 1);
    let unserved = Cell::new(false);
    let mut cx = Cx {
        context: client.context,
        images: &mut client.images,
        placed: None,
        fds: &mut |_| unreachable!(),
        service: &mut |_, _| unreachable!(),
        unserved: Some(&unserved),
    };
    let copy = messages::CopyIn {
        dst,
        stream: 0,
        sync: 0,
        data: b"in"[..].into(),
    };
    let refused = client.device.copy_in(&mut cx, &copy).expect_err("refused");
    assert_eq!(refused.status, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert!(unserved.get());
}

#[test]
fn a_copy_with_more_pieces_than_a_stream_takes_is_submitted_with_the_client_served() {
    const LEN: u64 = 128 << 20;
    let fake = Fake::build(&[]);
    let (mut client, [dst, src]) = client_with_memory_of(&fake, LEN, b"begin");
    host_func(&mut client);
    let copy = messages::Copy {
        dst,
        src,
        len: LEN,
        stream: 0,
        sync: 0,
    };
    client
        .send_served(Request::Copy(copy), dst + LEN - 1)
        .expect("copied");
    assert!(!outboard_device::Host::awaits_host_calls(&client.device));
    assert_eq!(contents(&mut client, dst)[..5], *b"begin");
}

#[test]
fn a_large_box_between_host_memory_leaves_host_functions_running() {
    let (width, height, depth, pitch) = (10_000_u64, 64, 110, 16_384);
    let len = pitch * height * depth;
    let fake = Fake::build(&[]);
    let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
    let (mut client, [dst, src]) = client_with_memory_of(&fake, len, &bytes);
    host_func(&mut client);
    let end = |address| BoxEnd::Pitched {
        address,
        pitch_bytes: pitch,
        height,
    };
    let desc = doc::to_bytes(&CopyBox {
        src: end(src),
        src_x: 0,
        src_y: 0,
        src_z: 0,
        dst: end(dst),
        dst_x: 3,
        dst_y: 0,
        dst_z: 0,
        width,
        height,
        depth,
    })
    .expect("encoded");
    let copy = messages::CopyBox {
        stream: 0,
        desc: &desc,
    };
    client.done(Request::CopyBox(copy));
    assert!(outboard_device::Host::awaits_host_calls(&client.device));
    answer(&mut client);
    let slice = pitch * height;
    for z in 0..depth {
        let mut out = client.wait(Request::CopyOut(messages::CopyOut {
            src: dst + z * slice,
            len: slice,
            stream: 0,
        }));
        assert_eq!(out.ready(), Ok(true));
        let copied = out.data().expect("bytes").chunks(16_384);
        let from = bytes[(z * slice) as usize..].chunks(16_384);
        for (copied, from) in copied.zip(from) {
            assert!(copied[..3] == [0; 3] && copied[10_003..].iter().all(|byte| *byte == 0));
            assert!(copied[3..10_003] == from[..10_000], "slice {z}");
        }
    }
}

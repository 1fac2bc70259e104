//! Copies from host memory to host memory while a stream waits for the client.

use std::cell::Cell;

use super::*;

const LEN: u64 = 5 << 20;

/// A client with two pieces of host memory, the second of which begins with `bytes`.
fn client_with_memory(fake: &Fake, bytes: &[u8]) -> (Client, [u64; 2]) {
    let mut client = Client::new(fake);
    let base = 0x5400_0000_0000 + std::ptr::from_ref(&client) as u64 % (1 << 30) / 4096 * 4096;
    let places = [base, base + 2 * LEN];
    for va in places {
        client.done(Request::HostMap(messages::HostMap {
            va,
            len: LEN,
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

//! Synchronous copies that later work of other streams waits for.

use super::*;

const FREE: u64 = 0x21;
const BLOCKING: u64 = 0x22;
const ELSEWHERE: u64 = 0x11;

fn stream(client: &mut Client, stream: u64, flags: u32) {
    let priority = 0;
    client.done(Request::StreamCreate(messages::StreamCreate {
        stream,
        flags,
        priority,
    }));
}

fn copy_in(client: &mut Client, dst: u64, stream: u64, sync: u32) {
    let data = [7; 100][..].into();
    client.done(Request::CopyIn(messages::CopyIn {
        dst,
        stream,
        sync,
        data,
    }));
}

fn set(client: &mut Client, dst_device: u64, h_stream: u64) {
    client.done(Request::CuMemsetD8Async(messages::CuMemsetD8Async {
        dst_device,
        uc: 0,
        n: 1,
        h_stream,
    }));
}

#[test]
fn each_stream_waits_once_for_a_synchronous_copy_that_is_not_done() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    stream(&mut client, STREAM, 1);
    stream(&mut client, BLOCKING, 0);
    let va = client.map(0, 2 * MIB);
    let waits = || fake.ask("fake_waits", 0);
    fake.ask("fake_hold", 1);
    // Nothing waits for an asynchronous copy.
    copy_in(&mut client, va, 0, 0);
    set(&mut client, va, STREAM);
    assert_eq!(waits(), 0);
    copy_in(&mut client, va, 0, 1);
    set(&mut client, va, STREAM);
    assert_eq!(waits(), 1);
    set(&mut client, va, STREAM);
    assert_eq!(waits(), 1);
    // A stream created later waits too; blocking streams and the default stream are ordered by the
    // driver.
    stream(&mut client, FREE, 1);
    set(&mut client, va, FREE);
    assert_eq!(waits(), 2);
    set(&mut client, va, BLOCKING);
    set(&mut client, va, 0);
    assert_eq!(waits(), 2);
    // A copy in a blocking stream, such as a thread's own default stream: the driver does not order
    // other blocking streams after it.
    let other = FREE + 8;
    stream(&mut client, other, 0);
    copy_in(&mut client, va, BLOCKING, 1);
    set(&mut client, va, 0);
    set(&mut client, va, BLOCKING);
    assert_eq!(waits(), 2);
    set(&mut client, va, other);
    set(&mut client, va, STREAM);
    assert_eq!(waits(), 4);
    // A copy that is done needs no wait.
    copy_in(&mut client, va, 0, 1);
    fake.ask("fake_hold", 0);
    set(&mut client, va, STREAM);
    set(&mut client, va, FREE);
    assert_eq!(waits(), 4);
    drop(client);
    assert_eq!(fake.ask("fake_live", 0), 0);
}

#[test]
fn the_default_stream_waits_for_a_copy_of_a_stream_that_it_is_not_ordered_with() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    stream(&mut client, STREAM, 1);
    let va = client.map(0, 2 * MIB);
    let waits = || fake.ask("fake_waits", 0);
    fake.ask("fake_hold", 1);
    set(&mut client, va, 0);
    copy_in(&mut client, va, STREAM, 1);
    set(&mut client, va, 0);
    assert_eq!(waits(), 1);
    // Without a stream's number.
    copy_in(&mut client, va, STREAM, 1);
    client.done(Request::CuMemsetD8V2(messages::CuMemsetD8V2 {
        dst_device: va,
        uc: 0,
        n: 1,
    }));
    assert_eq!(waits(), 2);
    // Asked for on the way to other streams, nothing waits.
    copy_in(&mut client, va, STREAM, 1);
    set(&mut client, va, STREAM);
    assert_eq!(waits(), 2);
    set(&mut client, va, 0);
    assert_eq!(waits(), 3);
    fake.ask("fake_hold", 0);
    drop(client);
    assert_eq!(fake.ask("fake_live", 0), 0);
}

#[test]
fn another_context_waits_too_and_a_context_that_goes_takes_its_copies_along() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    client.done(Request::ContextCreate(messages::ContextCreate {
        context: ELSEWHERE,
        device: 0,
        flags: 0,
    }));
    let va = client.map(0, 2 * MIB);
    let waits = || fake.ask("fake_waits", 0);
    fake.ask("fake_hold", 1);
    copy_in(&mut client, va, 0, 1);
    client.context = ELSEWHERE;
    // The default stream of this context, used without a stream's number.
    client.done(Request::CuMemsetD8V2(messages::CuMemsetD8V2 {
        dst_device: va,
        uc: 0,
        n: 1,
    }));
    assert_eq!(waits(), 1);
    copy_in(&mut client, va, 0, 1);
    client.context = CONTEXT;
    fake.ask("fake_hold", 0);
    client.done(Request::ContextDestroy(messages::ContextDestroy {
        context: ELSEWHERE,
    }));
    fake.ask("fake_hold", 1);
    stream(&mut client, STREAM, 1);
    set(&mut client, va, STREAM);
    assert_eq!(waits(), 2);
    fake.ask("fake_hold", 0);
    drop(client);
    assert_eq!(fake.ask("fake_live", 0), 0);
}

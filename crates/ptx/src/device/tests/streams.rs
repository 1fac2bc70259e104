use super::*;

#[test]
fn a_stream_keeps_its_order() {
    let b = bench();
    let (stream, gate) = (b.non_blocking(), gate());
    b.gpu.submit(stream, gated(&gate)).unwrap();
    b.set32(stream, b.base, 1);
    b.gpu
        .submit(stream, Op::Copy(Copy::line(b.base + 4, b.base, 4)))
        .unwrap();
    b.set32(stream, b.base, 2);
    let mut fetched = b
        .gpu
        .download(stream, Rows::line(b.base), Extent::line(8))
        .unwrap();
    b.set32(stream, b.base, 3);
    assert!(stays_pending(&mut fetched));
    assert_eq!(b.peek32(b.base), 0);
    open(&gate);
    wait(&mut fetched).unwrap();
    assert_eq!(fetched.data().unwrap(), [2, 0, 0, 0, 1, 0, 0, 0]);
    b.sync(stream).unwrap();
    assert_eq!(b.peek32(b.base), 3);
}

#[test]
fn streams_run_beside_each_other() {
    let b = bench();
    let (one, two, gate) = (b.non_blocking(), b.non_blocking(), gate());
    b.gpu.submit(one, gated(&gate)).unwrap();
    let opened = gate.clone();
    let opener = kernel(move |_| {
        open(&opened);
        Ok(())
    });
    b.gpu.submit(two, opener).unwrap();
    b.sync(one).unwrap();
}

#[test]
fn the_legacy_stream_and_blocking_streams_wait_for_each_other() {
    let b = bench();
    let (blocking, free, gate) = (b.blocking(), b.non_blocking(), gate());
    b.gpu.submit(blocking, gated(&gate)).unwrap();
    b.set32(b.legacy(), b.base, 1);
    let later = b.blocking();
    b.set32(later, b.base + 4, 1);
    b.set32(free, b.base + 8, 1);
    b.sync(free).unwrap();
    let mut legacy = b.gpu.stream_fence(b.legacy()).unwrap();
    let mut later = b.gpu.stream_fence(later).unwrap();
    assert!(stays_pending(&mut legacy) && stays_pending(&mut later));
    assert_eq!(
        [b.peek32(b.base), b.peek32(b.base + 4), b.peek32(b.base + 8)],
        [0, 0, 1]
    );
    open(&gate);
    wait(&mut later).unwrap();
    assert_eq!([b.peek32(b.base), b.peek32(b.base + 4)], [1, 1]);
}

#[test]
fn synchronising_with_the_legacy_stream_waits_for_blocking_streams() {
    let b = bench();
    let (blocking, gate) = (b.blocking(), gate());
    b.gpu.submit(blocking, gated(&gate)).unwrap();
    let mut legacy = b.gpu.stream_fence(b.legacy()).unwrap();
    assert!(stays_pending(&mut legacy));
    // A destroyed stream's work still counts.
    b.gpu.destroy_stream(blocking).unwrap();
    let mut after = b.gpu.stream_fence(b.legacy()).unwrap();
    let mut context = b.gpu.context_fence(b.context).unwrap();
    assert!(stays_pending(&mut after) && stays_pending(&mut context));
    open(&gate);
    wait(&mut legacy).unwrap();
    wait(&mut after).unwrap();
    wait(&mut context).unwrap();
}

#[test]
fn what_is_settled_comes_first_in_every_later_stream_and_holds_up_no_earlier_work() {
    let b = bench();
    let (early, free, gate) = (b.non_blocking(), b.non_blocking(), gate());
    let elsewhere = b.gpu.create_context();
    let elsewhere = b.gpu.legacy_stream(elsewhere).unwrap();
    b.gpu.submit(b.legacy(), gated(&gate)).unwrap();
    b.set32(b.legacy(), b.base, 1);
    b.set32(early, b.base + 4, 1);
    b.gpu.settle(b.legacy()).unwrap();
    b.sync(early).unwrap();
    assert_eq!(b.peek32(b.base + 4), 1);
    // Later work: of an existing stream, of a new one, of another context, and after an event.
    let (new, waits, event) = (b.non_blocking(), b.non_blocking(), b.event());
    b.gpu.submit(free, Op::RecordEvent(event)).unwrap();
    b.gpu.submit(waits, Op::WaitEvent(event)).unwrap();
    let line = |to: u64| Op::Copy(Copy::line(b.base + to, b.base, 4));
    for (to, stream) in [(8, free), (12, new), (16, elsewhere), (20, waits)] {
        b.gpu.submit(stream, line(to)).unwrap();
    }
    let (src, extent) = (Rows::line(b.base), Extent::line(4));
    let mut fetched = b.gpu.download(early, src, extent).unwrap();
    assert!(stays_pending(&mut fetched));
    // Later work of the settled stream delays no other stream.
    let never = Arc::new(AtomicBool::new(false));
    b.gpu.submit(b.legacy(), gated(&never)).unwrap();
    open(&gate);
    wait(&mut fetched).unwrap();
    assert_eq!(fetched.data().unwrap(), [1, 0, 0, 0]);
    for (to, stream) in [(8, free), (12, new), (16, elsewhere), (20, waits)] {
        b.sync(stream).unwrap();
        assert_eq!(b.peek32(b.base + to), 1, "{to}");
    }
    open(&never);
}

#[test]
fn a_wait_is_for_the_event_as_it_was() {
    let b = bench();
    let (one, two, event) = (b.non_blocking(), b.non_blocking(), b.event());
    let (first, second) = (gate(), gate());
    b.gpu.submit(one, gated(&first)).unwrap();
    b.gpu.submit(one, Op::RecordEvent(event)).unwrap();
    b.gpu.submit(two, Op::WaitEvent(event)).unwrap();
    b.set32(two, b.base, 1);
    b.gpu.submit(one, gated(&second)).unwrap();
    b.gpu.submit(one, Op::RecordEvent(event)).unwrap();
    let mut waited = b.gpu.stream_fence(two).unwrap();
    assert!(stays_pending(&mut waited));
    open(&first);
    wait(&mut waited).unwrap();
    assert_eq!(b.peek32(b.base), 1);
    let mut again = b.gpu.event_fence(event).unwrap();
    assert!(stays_pending(&mut again));
    open(&second);
    wait(&mut again).unwrap();
}

#[test]
fn events_that_were_never_recorded_are_reached() {
    let b = bench();
    let event = b.event();
    wait(&mut b.gpu.event_fence(event).unwrap()).unwrap();
    b.gpu.submit(b.legacy(), Op::WaitEvent(event)).unwrap();
    b.sync(b.legacy()).unwrap();
    assert_eq!(
        b.gpu.elapsed_ms(event, event),
        Err(Error::NoTime("never recorded"))
    );
    let quiet = b.gpu.create_event(b.context, false).unwrap();
    b.gpu.submit(b.legacy(), Op::RecordEvent(quiet)).unwrap();
    assert_eq!(
        b.gpu.elapsed_ms(quiet, quiet),
        Err(Error::NoTime("created without timing"))
    );
}

#[test]
fn time_between_events() {
    let b = bench();
    let (stream, start, end, gate) = (b.non_blocking(), b.event(), b.event(), gate());
    b.gpu.submit(stream, Op::RecordEvent(start)).unwrap();
    b.gpu.submit(stream, gated(&gate)).unwrap();
    b.gpu.submit(stream, Op::RecordEvent(end)).unwrap();
    assert_eq!(b.gpu.elapsed_ms(start, end), Err(Error::NotReady));
    thread::sleep(Duration::from_millis(10));
    open(&gate);
    b.sync(stream).unwrap();
    let ms = b.gpu.elapsed_ms(start, end).unwrap();
    assert!((9.0..10_000.0).contains(&ms), "{ms} ms");
    assert_eq!(b.gpu.elapsed_ms(end, start).unwrap(), -ms);
}

#[test]
fn waits_on_memory() {
    for (action, value, goes_on) in [
        (Action::WaitGreaterOrEqual, 5, 7),
        (Action::WaitEqual, 5, 5),
        (Action::WaitAnd, 4, 12),
        (Action::WaitNor, 0xffff_fff0, 1),
    ] {
        let b = bench();
        let (waiter, writer) = (b.non_blocking(), b.non_blocking());
        let start = if action == Action::WaitNor { 15 } else { 2 };
        b.set32(writer, b.base, start);
        b.sync(writer).unwrap();
        let wait_for = ValueOp {
            address: b.base,
            value,
            wide: false,
            action,
        };
        b.gpu.submit(waiter, Op::Value(wait_for)).unwrap();
        b.set32(waiter, b.base + 8, 1);
        let mut fence = b.gpu.stream_fence(waiter).unwrap();
        assert!(stays_pending(&mut fence), "{action:?}");
        let write = ValueOp {
            value: goes_on,
            action: Action::Write,
            ..wait_for
        };
        b.gpu.submit(writer, Op::Value(write)).unwrap();
        wait(&mut fence).unwrap();
        assert_eq!(b.peek32(b.base + 8), 1);
    }
}

#[test]
fn a_kernel_can_open_a_wait_on_memory() {
    let b = bench();
    let (waiter, runner) = (b.non_blocking(), b.non_blocking());
    let wait_for = ValueOp {
        address: b.base,
        value: 1 << 40,
        wide: true,
        action: Action::WaitGreaterOrEqual,
    };
    b.gpu.submit(waiter, Op::Value(wait_for)).unwrap();
    let (memory, address) = (b.gpu.memory().clone(), b.base);
    let writer = kernel(move |_| {
        thread::sleep(QUIET);
        memory.write(address, &(1u64 << 40).to_le_bytes()).unwrap();
        Ok(())
    });
    b.gpu.submit(runner, writer).unwrap();
    b.sync(waiter).unwrap();
}

#[test]
fn host_functions_run_in_the_streams_order() {
    let b = bench();
    let (stream, gate) = (b.non_blocking(), gate());
    b.gpu.submit(stream, gated(&gate)).unwrap();
    b.gpu.submit(stream, Op::Host(42)).unwrap();
    b.set32(stream, b.base, 1);
    let mut calls = Vec::new();
    b.gpu.take_host_calls(&mut calls);
    assert!(calls.is_empty() && b.gpu.awaits_host_calls());
    open(&gate);
    let start = Instant::now();
    while calls.is_empty() && start.elapsed() < WAIT_MAX {
        b.gpu.take_host_calls(&mut calls);
    }
    assert_eq!(
        calls,
        [HostCall {
            call: 42,
            stuck: None
        }]
    );
    let mut fence = b.gpu.stream_fence(stream).unwrap();
    assert!(stays_pending(&mut fence));
    assert!(b.gpu.host_func_done(41).is_err());
    b.gpu.host_func_done(42).unwrap();
    wait(&mut fence).unwrap();
    assert!(!b.gpu.awaits_host_calls());
    assert!(b.gpu.host_func_done(42).is_err());
}

#[test]
fn boxes_and_memsets() {
    let b = bench();
    let stream = b.legacy();
    let set = Set {
        dst: b.base,
        pitch_bytes: 16,
        value: 0xabcd,
        element_bytes: 2,
        width: 3,
        height: 4,
    };
    b.gpu.submit(stream, Op::Set(set)).unwrap();
    let rows = |address, pitch_bytes| Rows {
        address,
        pitch_bytes,
        slice_rows: 2,
    };
    let extent = Extent {
        width: 4,
        height: 2,
        depth: 2,
    };
    let copy = Copy {
        dst: rows(b.base + 4096, 4),
        src: rows(b.base + 4, 16),
        extent,
    };
    b.gpu.submit(stream, Op::Copy(copy)).unwrap();
    let mut out = b
        .gpu
        .download(stream, Rows::packed(b.base + 4096, extent), extent)
        .unwrap();
    wait(&mut out).unwrap();
    assert_eq!(out.data().unwrap(), [0xcd, 0xab, 0, 0].repeat(4));
    // Copies packed bytes into pitched rows.
    let data: Vec<u8> = (0..16).collect();
    b.gpu
        .upload(stream, rows(b.base + 8192, 100), extent, &data)
        .unwrap();
    let mut out = b
        .gpu
        .download(stream, Rows::line(b.base + 8192 + 300), Extent::line(4))
        .unwrap();
    wait(&mut out).unwrap();
    assert_eq!(out.data().unwrap(), [12, 13, 14, 15]);
}

#[test]
fn operations_on_memory_that_is_not_there_are_refused_and_do_no_harm() {
    let b = bench();
    let stream = b.legacy();
    let end = b.base + (1 << 20);
    let refused = |op: Op| matches!(b.gpu.submit(stream, op), Err(Error::InvalidValue(_)));
    assert!(refused(Op::Copy(Copy::line(end - 4, b.base, 8))));
    assert!(refused(Op::Copy(Copy::line(b.base, 0x1000, 8))));
    assert!(refused(Op::Copy(Copy::line(u64::MAX - 3, b.base, 8))));
    assert!(refused(set32(end, 1)));
    assert!(refused(set32(b.base + 2, 1)));
    let overlapping = Copy {
        dst: Rows {
            address: b.base,
            pitch_bytes: 1,
            slice_rows: 1,
        },
        src: Rows::packed(b.base + 4096, Extent::line(4)),
        extent: Extent {
            width: 4,
            height: u64::MAX,
            depth: 1,
        },
    };
    assert!(refused(Op::Copy(overlapping)));
    assert!(
        b.gpu
            .download(stream, Rows::line(b.base), Extent::line(1 << 40))
            .is_err()
    );
    assert!(
        b.gpu
            .upload(stream, Rows::line(b.base), Extent::line(5), &[0; 4])
            .is_err()
    );
    b.set32(stream, end - 4, 1);
    b.sync(stream).unwrap();
}

#[test]
fn a_fault_ends_its_context_and_no_other() {
    let b = bench();
    let (stream, other) = (b.non_blocking(), b.non_blocking());
    let (begin, shut) = (gate(), gate());
    let mut before = b
        .gpu
        .download(stream, Rows::line(b.base), Extent::line(4))
        .unwrap();
    b.gpu.submit(other, gated(&shut)).unwrap();
    b.gpu.submit(stream, gated(&begin)).unwrap();
    b.gpu.submit(stream, faulty()).unwrap();
    b.gpu.submit(stream, set32(b.base, 1)).unwrap();
    b.gpu.submit(stream, Op::Host(7)).unwrap();
    let mut fence = b.gpu.stream_fence(stream).unwrap();
    open(&begin);
    let Err(Error::Stuck(stuck)) = wait(&mut fence) else {
        panic!("no fault");
    };
    assert_eq!(stuck.cause, Cause::IllegalAddress);
    assert!(stuck.message.contains("faulty"), "{stuck}");
    // Bytes fetched before the fault are valid.
    wait(&mut before).unwrap();
    let again = Err(Error::Stuck(stuck.clone()));
    assert_eq!(b.gpu.submit(stream, Op::Empty), again);
    assert_eq!(b.gpu.check_context(b.context), again);
    assert_eq!(b.gpu.stream_fence(other).map(|_| ()), again);
    assert_eq!(b.gpu.create_event(b.context, true).map(|_| ()), again);
    // The concurrent kernel was cancelled although its gate is closed, and queued work never ran.
    wait(&mut b.gpu.fence_all()).unwrap();
    assert_eq!(b.peek32(b.base), 0);
    let mut calls = Vec::new();
    b.gpu.take_host_calls(&mut calls);
    assert_eq!(
        calls,
        [HostCall {
            call: 7,
            stuck: Some(stuck)
        }]
    );
    let fresh = b.gpu.create_context();
    let stream = b.gpu.legacy_stream(fresh).unwrap();
    b.set32(stream, b.base, 5);
    b.sync(stream).unwrap();
    assert_eq!(b.peek32(b.base), 5);
}

#[test]
fn a_panic_in_a_kernel_is_a_fault_of_its_context() {
    let b = bench();
    let stream = b.legacy();
    b.gpu.submit(stream, kernel(|_| panic!("bug"))).unwrap();
    let Err(Error::Stuck(stuck)) = b.sync(stream) else {
        panic!("no fault");
    };
    assert_eq!(stuck.cause, Cause::LaunchFailed);
}

#[test]
fn dropping_the_device_cancels_endless_kernels() {
    let b = bench();
    for _ in 0..4 {
        b.gpu.submit(b.non_blocking(), gated(&gate())).unwrap();
    }
    b.gpu.submit(b.legacy(), Op::Host(1)).unwrap();
    drop(b);
}

#[test]
fn memory_goes_when_the_work_before_is_done() {
    let b = bench();
    let (stream, gate) = (b.non_blocking(), gate());
    let range = b.base + (2 << 20);
    b.gpu.map(range, 8192).unwrap();
    b.gpu.submit(stream, gated(&gate)).unwrap();
    b.set32(stream, range, 77);
    b.gpu
        .submit(stream, Op::Copy(Copy::line(b.base, range, 4)))
        .unwrap();
    assert_eq!(b.gpu.unmap(range).unwrap(), 8192);
    // Removed from the map at once ...
    assert!(b.gpu.submit(stream, set32(range, 1)).is_err());
    assert!(b.gpu.unmap(range).is_err());
    // ... and a later mapping there is new memory, for later work.
    b.gpu.map(range + 4096, 4096).unwrap();
    let other = b.non_blocking();
    let mut fresh = b
        .gpu
        .download(other, Rows::line(range + 4096), Extent::line(4))
        .unwrap();
    assert!(stays_pending(&mut fresh));
    open(&gate);
    wait(&mut fresh).unwrap();
    assert_eq!(fresh.data().unwrap(), [0; 4]);
    b.sync(stream).unwrap();
    assert_eq!(b.peek32(b.base), 77);
    assert!(!b.gpu.memory().is_mapped(range, 1));
}

#[test]
fn ranges_are_checked() {
    let b = bench();
    for (address, bytes) in [
        (b.base, 4096),
        (b.base + 4096, 1),
        (b.base + 100, 4096),
        (0, 4096),
        (b.base + (2 << 20), 0),
        (b.base, u64::MAX),
    ] {
        assert!(
            b.gpu.map(address, bytes).is_err(),
            "{address:#x}+{bytes:#x}"
        );
    }
    assert!(b.gpu.unmap(b.base + 4096).is_err());
    assert!(b.gpu.unmap_all(b.base, 4096).is_err());
    b.gpu.map(b.base + (1 << 20), 4096).unwrap();
    // Across two adjoining ranges.
    b.set32(b.legacy(), b.base, 9);
    b.gpu
        .submit(
            b.legacy(),
            Op::Copy(Copy::line(b.base + (1 << 20) - 2, b.base, 4)),
        )
        .unwrap();
    b.gpu.unmap_all(b.base, (1 << 20) + 4096).unwrap();
}

#[test]
fn physical_memory_outlives_its_mappings_and_may_have_two() {
    let b = bench();
    let physical = Physical::new(8192).unwrap();
    let (one, two) = (b.base + (4 << 20), b.base + (8 << 20));
    b.gpu.map_physical(one, 8192, &physical, 0).unwrap();
    b.gpu.map_physical(two, 4096, &physical, 4096).unwrap();
    assert!(
        b.gpu
            .map_physical(two + 4096, 8192, &physical, 4096)
            .is_err()
    );
    b.set32(b.legacy(), one + 4096, 31);
    b.sync(b.legacy()).unwrap();
    assert_eq!(b.peek32(two), 31);
    b.gpu.unmap_all(one, 8192).unwrap();
    b.gpu.unmap_all(two, 4096).unwrap();
    b.gpu.map_physical(one, 4096, &physical, 4096).unwrap();
    assert_eq!(b.peek32(one), 31);
}

#[test]
fn an_idle_device_has_no_work() {
    let b = bench();
    assert!(b.gpu.is_idle());
    b.gpu.submit(b.non_blocking(), kernel(|_| Ok(()))).unwrap();
    wait(&mut b.gpu.fence_all()).unwrap();
    assert!(b.gpu.is_idle());
}

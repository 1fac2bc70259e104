//! Waits and queries, answered by replies.

use std::sync::atomic::AtomicBool;

use super::*;
use outboard_api::cuda::CUevent;

#[test]
fn work_that_is_known_to_be_done_is_not_asked_about_again() {
    let client = Client::start(Kind::Tcp, |_, _| Answer::Usual);
    let function = load();
    assert_eq!(launch(function, [1; 3], [1; 3], CUstream::NULL), SUCCESS);
    for _ in 0..3 {
        assert_eq!(synchronize(), SUCCESS);
        // SAFETY: a call without pointers.
        assert_eq!(unsafe { cuStreamQuery(CUstream::NULL) }, SUCCESS);
    }
    assert_eq!(client.count("FenceStream"), 1);
    assert_eq!(launch(function, [1; 3], [1; 3], CUstream::NULL), SUCCESS);
    assert_eq!(synchronize(), SUCCESS);
    assert_eq!(client.count("FenceStream"), 2);
}

#[test]
fn an_event_is_ready_when_its_reply_has_come() {
    let is_done = Arc::new(AtomicBool::new(false));
    let done = is_done.clone();
    let client = Client::start(Kind::Tcp, move |request, notes| match request {
        Request::FenceEvent(_) => Answer::Later,
        _ => {
            if done.load(Ordering::Acquire) {
                notes.release();
            }
            Answer::Usual
        }
    });
    let (mut event, mut other) = (CUevent::NULL, CUevent::NULL);
    // SAFETY: local outputs, and calls without pointers.
    unsafe {
        assert_eq!(cuEventCreate(&mut event, 0), SUCCESS);
        assert_eq!(cuEventCreate(&mut other, 0), SUCCESS);
        assert_eq!(cuEventQuery(other), SUCCESS, "never recorded");
        assert_eq!(launch(load(), [1; 3], [1; 3], CUstream::NULL), SUCCESS);
        assert_eq!(cuEventRecord(event, CUstream::NULL), SUCCESS);
        for _ in 0..5 {
            assert_eq!(cuEventQuery(event), CUresult::CUDA_ERROR_NOT_READY);
        }
        is_done.store(true, Ordering::Release);
        assert_eq!(client.count("FenceEvent"), 1);
        assert_eq!(cuEventQuery(event), SUCCESS);
        assert_eq!(cuEventQuery(event), SUCCESS);
    }
    assert_eq!(client.count("FenceEvent"), 1);
}

#[test]
fn several_threads_wait_while_one_of_them_reads() {
    let client = Client::start(Kind::Tcp, |_, _| Answer::Usual);
    let (driver, function) = (client.driver, load());
    let mut context = CUcontext::NULL;
    // SAFETY: a local output.
    assert_eq!(unsafe { cuCtxGetCurrent(&mut context) }, SUCCESS);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                set_driver_of_thread(driver);
                let mut stream = CUstream::NULL;
                // SAFETY: a local output.
                unsafe {
                    assert_eq!(cuCtxSetCurrent(context), SUCCESS);
                    assert_eq!(cuStreamCreate(&mut stream, 1), SUCCESS);
                }
                for _ in 0..50 {
                    assert_eq!(launch(function, [1; 3], [1; 3], stream), SUCCESS);
                    // SAFETY: a call without pointers.
                    assert_eq!(unsafe { cuStreamSynchronize(stream) }, SUCCESS);
                }
            });
        }
    });
    assert_eq!(client.count("Launch"), 200);
    assert_eq!(client.count("FenceStream"), 200);
}

#[test]
fn text_of_kernels_comes_before_the_wait_ends() {
    let client = Client::start(Kind::Tcp, |request, notes| {
        if matches!(request, Request::FenceStream(_)) {
            notes.print(b"one\n");
            notes.print(b"two\n");
        }
        Answer::Usual
    });
    assert_eq!(launch(load(), [1; 3], [1; 3], CUstream::NULL), SUCCESS);
    assert!(client.printed.lock().is_empty());
    assert_eq!(synchronize(), SUCCESS);
    let printed = client.printed.lock().clone();
    assert_eq!(printed, [(1, b"one\n".to_vec()), (1, b"two\n".to_vec())]);
}

#[test]
fn events_without_times_leave_with_the_next_message() {
    let client = Client::start(Kind::Tcp, |_, _| Answer::Usual);
    let function = load();
    assert_eq!(synchronize(), SUCCESS);
    let sent = [
        "EventCreate",
        "EventRecord",
        "StreamWaitEvent",
        "EventDestroy",
    ];
    let arrived = || {
        let seen = client.peer.seen();
        sent.map(|name| seen.iter().filter(|m| is_named(m, name)).count())
    };
    let join = |flags| {
        let mut event = CUevent::NULL;
        // SAFETY: a local output, and calls without pointers.
        unsafe {
            assert_eq!(cuEventCreate(&mut event, flags), SUCCESS);
            assert_eq!(cuEventRecord(event, CUstream::NULL), SUCCESS);
            assert_eq!(cuStreamWaitEvent(CUstream::NULL, event, 0), SUCCESS);
            assert_eq!(cuEventDestroy_v2(event), SUCCESS);
        }
    };
    join(CU_EVENT_DISABLE_TIMING);
    thread::sleep(Duration::from_millis(50));
    assert_eq!(arrived(), [0; 4]);
    assert_eq!(launch(function, [1; 3], [1; 3], CUstream::NULL), SUCCESS);
    assert_eq!(synchronize(), SUCCESS);
    assert_eq!(arrived(), [1; 4]);

    // The time of a record is when it is made, so that one leaves, and what was made before it.
    join(0);
    let late = soon();
    while arrived()[1] < 2 {
        assert!(Instant::now() < late, "a timed record rests");
        thread::yield_now();
    }
    assert_eq!(arrived(), [2, 2, 1, 1]);
}

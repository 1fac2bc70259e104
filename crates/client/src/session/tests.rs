//! Tests of replies with data, from a server of raw bytes.

use std::{
    thread,
    time::{Duration, Instant},
};

use outboard_link::{Listener, Stream, connect};
use outboard_wire::{
    Writer,
    frame::{HEADER_BYTES, ReplyHeader},
    messages::CopyOut,
    runs::Runs,
};

use super::*;

const LEN: usize = 300_000;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// Returns a session, and the server's end of its connection.
fn session() -> (Session, Stream) {
    let listener =
        Listener::bind(&"tcp://127.0.0.1:0".parse().expect("an address")).expect("to listen");
    let endpoint = listener.endpoint().clone();
    let client = thread::spawn(move || {
        connect(&endpoint, Duration::from_secs(10))
            .and_then(|stream| stream.into_link_client(soon()))
            .expect("a link")
    });
    let (server, _) = listener.accept(Some(soon())).expect("a client");
    let link = client.join().expect("the client's thread");
    (Session::new(link, Vec::new(), Box::new(Unexpected)), server)
}

/// These tests' servers send no such messages.
struct Unexpected;

impl Handler for Unexpected {
    fn host_call(&self, _: u64, _: CUresult) {}
    fn print(&self, _: u8, _: &[u8]) {}
    fn host_pages(&self, _: Runs<'_>) {}
    fn written_by_adapter(&self, _: u64, _: u64) {}
}

/// A copy's destination, which the test reads while it is being filled.
struct Destination(Vec<u8>);

impl Destination {
    fn new() -> Destination {
        Destination(vec![0; LEN])
    }

    /// Requests the bytes; the first request of a session has the token 1.
    fn ask(&mut self, session: &Session, detached: bool) -> Arc<Group> {
        self.ask_over(session, detached, false)
    }

    fn ask_over(
        &mut self,
        session: &Session,
        detached: bool,
        on_data_connection: bool,
    ) -> Arc<Group> {
        let group = Group::new(1);
        let sink = Sink::Memory(ReceiveBuffer {
            address: self.0.as_mut_ptr(),
            rows: Rows::contiguous(LEN),
            detached,
            stream: 0,
            in_order: false,
        });
        let message = CopyOut {
            src: 1,
            len: LEN as u64,
            stream: 0,
        };
        session
            .ask_over(on_data_connection, Numbered::No, 0, &message, &group, sink)
            .expect("to be sent");
        group
    }

    /// Returns how many of the first bytes have arrived; all bytes sent are 7.
    fn filled(&self) -> usize {
        let first = self.0.as_ptr();
        // SAFETY: inside the vector; read as volatile, since the session writes it through a raw
        // pointer.
        (0..LEN)
            .take_while(|at| unsafe { first.add(*at).read_volatile() } == 7)
            .count()
    }
}

fn answer(token: u32, status: CUresult, len: usize) -> Vec<u8> {
    answer_after(0, token, status, len)
}

/// An answer that the server sent after this number of replies on data connections.
fn answer_after(replies_before: u32, token: u32, status: CUresult, len: usize) -> Vec<u8> {
    let frame_len = HEADER_BYTES + 4 + len;
    let mut bytes = (frame_len as u32).to_le_bytes().to_vec();
    bytes.resize(4 + HEADER_BYTES, 0);
    let header = ReplyHeader {
        note: 0,
        placed: 0,
        token,
        status: status.0,
        replies_before,
    };
    header
        .encode(&mut Writer::new(&mut bytes[4..]))
        .expect("room for it");
    bytes.extend((len as u32).to_le_bytes());
    bytes.resize(4 + frame_len, 7);
    bytes
}

fn write(server: &mut Stream, bytes: &[u8]) {
    server.write_all_deadline(bytes, soon()).expect("to write");
}

/// Polls the session until `filled` bytes have arrived.
fn poll_until(session: &Session, destination: &Destination, filled: usize) {
    let deadline = soon();
    while destination.filled() < filled {
        assert!(Instant::now() < deadline, "{} bytes", destination.filled());
        session.poll();
    }
}

#[test]
fn bytes_land_as_they_come() {
    let (session, mut server) = session();
    let mut destination = Destination::new();
    let group = destination.ask(&session, false);
    let bytes = answer(1, CUresult::CUDA_SUCCESS, LEN);
    write(&mut server, &bytes[..LEN / 2]);
    poll_until(&session, &destination, LEN / 2 - HEADER_BYTES - 8);
    assert!(!group.is_complete());
    write(&mut server, &bytes[LEN / 2..]);
    assert_eq!(session.wait(&group), Ok(Vec::new()));
    assert_eq!(destination.filled(), LEN);
    assert_eq!(session.receiving.load(Ordering::Acquire), 0);
    assert!(session.check().is_ok());
}

#[test]
fn bytes_do_not_land_before_those_of_a_data_connection() {
    let (session, mut server) = session();
    let mut destination = Destination::new();
    destination.ask_over(&session, false, true);
    let group = destination.ask(&session, false);
    write(
        &mut server,
        &answer_after(1, 2, CUresult::CUDA_SUCCESS, LEN),
    );
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        session.poll();
    }
    assert_eq!(destination.filled(), 0);
    // The effect of the data's arrival.
    session.waiters.lock().remove(&1);
    session.data_connections.arrived.add(0);
    assert_eq!(session.wait(&group), Ok(Vec::new()));
    assert_eq!(destination.filled(), LEN);
}

#[test]
fn a_server_that_leaves_in_mid_copy_ends_the_wait() {
    for cut in [100, 1_000, LEN] {
        let (session, mut server) = session();
        let mut destination = Destination::new();
        let group = destination.ask(&session, false);
        write(&mut server, &answer(1, CUresult::CUDA_SUCCESS, LEN)[..cut]);
        drop(server);
        let gone = CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE;
        assert_eq!(session.wait(&group), Err(gone));
        assert_eq!(session.check(), Err(gone));
    }
}

#[test]
fn memory_is_not_given_back_while_bytes_land() {
    let (session, mut server) = session();
    let mut destination = Destination::new();
    let group = destination.ask(&session, false);
    let bytes = answer(1, CUresult::CUDA_SUCCESS, LEN);
    write(&mut server, &bytes[..LEN / 2]);
    poll_until(&session, &destination, 1);
    // The effect of a thread that fails to send.
    session.lost("a test");
    assert!(!group.is_complete());
    write(&mut server, &bytes[LEN / 2..]);
    let gone = CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE;
    assert_eq!(session.wait(&group), Err(gone));
    // No more of it is written.
    let filled = destination.filled();
    session.poll();
    assert_eq!(destination.filled(), filled);
}

#[test]
fn what_is_no_data_of_the_right_length_does_not_land() {
    let cases = [
        (
            CUresult::CUDA_SUCCESS,
            LEN - 1,
            CUresult::CUDA_ERROR_UNKNOWN,
        ),
        (
            CUresult::CUDA_SUCCESS,
            LEN + 1,
            CUresult::CUDA_ERROR_UNKNOWN,
        ),
        (
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            LEN,
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
        ),
    ];
    for (status, len, expected) in cases {
        let (session, mut server) = session();
        let mut destination = Destination::new();
        let group = destination.ask(&session, false);
        write(&mut server, &answer(1, status, len));
        assert_eq!(session.wait(&group), Err(expected), "{len} bytes");
        assert_eq!(destination.filled(), 0);
    }
    // Data for a call that was never made.
    let (session, mut server) = session();
    let mut destination = Destination::new();
    let group = destination.ask(&session, false);
    write(&mut server, &answer(2, CUresult::CUDA_SUCCESS, LEN));
    let gone = CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE;
    assert_eq!(session.wait(&group), Err(gone));
    assert_eq!(destination.filled(), 0);
}

#[test]
fn a_copy_that_nobody_waits_for_tells_of_its_failure() {
    let (session, mut server) = session();
    let mut destination = Destination::new();
    let group = destination.ask(&session, true);
    let status = CUresult::CUDA_ERROR_INVALID_VALUE;
    write(&mut server, &answer(1, status, LEN));
    let deadline = soon();
    while !group.is_complete() {
        assert!(Instant::now() < deadline);
        session.poll();
    }
    assert_eq!(session.take_fault(|| 0), Err(status));
    assert_eq!(session.take_fault(|| 0), Ok(()));
}

#[test]
fn a_lost_context_keeps_no_other_from_going_on() {
    let (session, _server) = session();
    let (lost, wrong) = (
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
        CUresult::CUDA_ERROR_INVALID_VALUE,
    );
    assert!(session.set_fault(lost, session.origin(1)));
    session.set_fault(wrong, session.origin(2));
    assert_eq!(session.check_in(1), Err(lost));
    assert_eq!(session.take_fault(|| 1), Err(lost));
    assert!([0, 2, 3].iter().all(|of| session.check_in(*of).is_ok()));
    assert_eq!(session.take_fault(|| 3), Ok(()));
    // The end of another leaves it lost, and another's error to be told.
    let late = session.origin(1);
    session.end_context(3, || assert_eq!(session.check_in(1), Err(lost)));
    assert_eq!(session.take_fault(|| 1), Err(lost));
    assert_eq!(session.take_fault(|| 2), Err(wrong));
    assert_eq!(session.take_fault(|| 2), Ok(()));
    // What ends it is sent.
    session.end_context(1, || assert_eq!(session.check_in(1), Ok(())));
    assert_eq!(session.check_in(1), Ok(()));
    assert!(!session.set_fault(lost, late) && !session.has_fault());
    assert!(session.set_fault(lost, session.origin(1)));
}

#[test]
fn a_look_does_not_go_through_all_that_is_expected() {
    let (session, mut server) = session();
    let mut destination = Destination::new();
    let group = destination.ask(&session, true);
    let session: &Session = &session;
    thread::scope(|scope| {
        // Whoever looks through the replies waits for this.
        let expected = session.waiters.lock();
        let (done, is_done) = std::sync::mpsc::channel();
        scope.spawn(move || {
            session.poll();
            let _ = session.look(&group);
            let _ = done.send(());
        });
        let looked = is_done.recv_timeout(Duration::from_secs(10));
        drop(expected);
        assert_eq!(looked, Ok(()));
    });
    write(&mut server, &answer(1, CUresult::CUDA_SUCCESS, LEN));
    poll_until(session, &destination, LEN);
}

#[test]
fn a_copy_that_is_asked_for_in_part_ends_after_its_bytes() {
    let (session, mut server) = session();
    let mut destination = Destination::new();
    let group = destination.ask(&session, false);
    // A second piece that cannot be asked for.
    group.expect_one();
    let error = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let ending = scope.spawn(|| {
            let told = session.end_in_part(&group, 1, false, error);
            is_over.store(true, Ordering::Release);
            told
        });
        let bytes = answer(1, CUresult::CUDA_SUCCESS, LEN);
        write(&mut server, &bytes[..LEN / 2]);
        while destination.filled() == 0 {
            thread::yield_now();
        }
        assert!(!is_over.load(Ordering::Acquire), "bytes are still to come");
        write(&mut server, &bytes[LEN / 2..]);
        assert_eq!(ending.join().expect("no panic"), error);
    });
    assert_eq!(destination.filled(), LEN);
    // Nobody waits for a copy into pinned memory, nor for its end in part.
    let group = destination.ask(&session, true);
    group.expect_one();
    assert_eq!(session.end_in_part(&group, 1, true, error), error);
}

/// A wait that ends by the board's word or its deadline leaves its own request unanswered: the lead
/// would go back to nobody.
#[test]
fn the_lead_goes_to_another_thread_than_the_one_that_leaves() {
    let (session, _server) = session();
    let mut memory = [Destination::new(), Destination::new()];
    let [first, second] = memory.each_mut().map(|of| of.ask(&session, false));
    let is = |own: &Arc<Group>, found: Option<&Arc<Group>>| {
        let next = session.awaited_by_another(Some(own));
        next.as_ref().map(Arc::as_ptr) == found.map(Arc::as_ptr)
    };
    for group in [&first, &second] {
        group.waiting.fetch_add(1, Ordering::AcqRel);
    }
    assert!(is(&first, Some(&second)) && is(&second, Some(&first)));
    second.waiting.fetch_sub(1, Ordering::AcqRel);
    assert!(is(&first, None), "no other thread waits");
    first.waiting.fetch_add(1, Ordering::AcqRel);
    assert!(is(&first, Some(&first)), "two threads wait for it");
}

/// Data connections complete a group without the lead, which may be on its way to it.
#[test]
fn the_lead_of_a_group_that_is_complete_goes_on() {
    let (session, _server) = session();
    let mut memory = [Destination::new(), Destination::new()];
    let [first, second] = memory.each_mut().map(|of| of.ask(&session, false));
    second.waiting.fetch_add(1, Ordering::AcqRel);
    session.waiting.fetch_add(1, Ordering::SeqCst);
    first.complete(Ok(Vec::new()));
    first.state.lock().lead = true;
    assert_eq!(session.wait(&first), Ok(Vec::new()));
    assert!(second.state.lock().lead);
}

//! Replies and their order.

use std::net::Shutdown;

use rustix::fs::{MemfdFlags, SealFlags};

use super::*;
use crate::waiting::{Admission, Origin, Queue, Waiting};

fn of_none() -> Origin {
    Origin {
        op: 0,
        context: 0,
        ended: 0,
    }
}

#[test]
fn data_of_earlier_copies_precedes_a_fence_over_every_link() {
    for mut client in [Client::shm(), Client::tcp()] {
        for copy in 1..=20 {
            client.copy_out(copy, 3, copy as u8, u64::from(copy) * 50_000);
        }
        client.fence(100, 3);
        // This stream does not delay another one.
        client.board.done.store(1, SeqCst);
        client.fence(101, 0);
        assert!(client.recv().is_answer_to(101));
        client.recv_nothing(20);
        client.board.done.store(4, SeqCst);
        for copy in 1..=20u32 {
            let answer = client.recv();
            assert!(answer.is_answer_to(copy));
            let data = Reader::new(&answer.body).bytes("data").unwrap();
            assert_eq!(data.len(), copy as usize * 50_000);
            assert!(data.iter().all(|b| *b == copy as u8));
        }
        assert!(client.recv().is_answer_to(100));
        let (end, stats, _) = client.leave();
        assert!(matches!(end, End::ClientLeft), "{end}");
        let by_name: HashMap<_, _> = stats.by_name().into_iter().collect();
        assert_eq!(by_name["copy_out"].calls, 20);
        assert_eq!(by_name["copy_out"].sent_bytes, 210 * 50_000);
        assert_eq!(by_name["fence_stream"].calls, 2);
    }
}

#[test]
fn data_for_the_device_is_received_where_the_device_wants_it() {
    for (mut client, is_tcp) in [(Client::tcp(), true), (Client::shm(), false)] {
        client.board.done.store(1, SeqCst);
        let mut placed = 0;
        for (number, len) in [1, 20_000, 300_000, ROOM_BYTES_MAX, 1 << 20, 16_384]
            .into_iter()
            .enumerate()
        {
            let data: Vec<u8> = (0..len).map(|i| (i * 7 + number) as u8).collect();
            let is_box = number % 2 == 1;
            let dst = match is_box {
                true => {
                    let (stream, desc) = (0, &[7; 150][..]);
                    client.send(
                        0,
                        &messages::CopyBoxIn {
                            stream,
                            sync: 0,
                            desc,
                            data: data[..].into(),
                        },
                    );
                    150
                }
                false => {
                    let (dst, stream) = (9, 0);
                    client.send(
                        0,
                        &messages::CopyIn {
                            dst,
                            stream,
                            sync: 0,
                            data: data[..].into(),
                        },
                    );
                    9
                }
            };
            client.fence(1, 0);
            let answer = client.recv();
            let Note::HostPages(pages) = answer.note() else {
                panic!("{answer:?}");
            };
            assert_eq!(pages.va, dst);
            assert!(pages.data == data, "the data of {len} bytes");
            assert!(client.recv().is_answer_to(1));
            placed += usize::from(is_tcp && (16_384..=ROOM_BYTES_MAX).contains(&len));
            assert_eq!(client.board.placed.load(SeqCst), placed, "{len} bytes");
        }
        client.leave();
    }
}

#[test]
fn a_copy_that_becomes_ready_while_the_list_is_looked_at_is_answered_first() {
    /// Becomes ready at the `after`th poll.
    struct Late(u32);
    impl DeviceWait for Late {
        fn ready(&mut self) -> Result<bool, Failure> {
            self.0 = self.0.saturating_sub(1);
            Ok(self.0 == 0)
        }
    }
    let mut list = WaitingList::default();
    let now = Instant::now();
    for (token, asked, stream) in [(1, 2, 5), (2, 2, 6), (3, 9, 7), (4, 1, 8)] {
        let queue = Queue::Stream { context: 0, stream };
        let entry = Waiting::new(
            of_none(),
            token,
            queue,
            false,
            0,
            now,
            Box::new(Late(asked)),
        );
        list.push(entry).unwrap();
    }
    assert!(list.poll());
    let tokens: Vec<_> = list
        .take_ready(now, |_| true)
        .map(|(entry, _)| entry.token)
        .collect();
    assert_eq!(tokens, [1, 2, 4]);
    assert_eq!(list.len(), 1);
}

#[test]
fn replies_without_room_and_those_after_them_are_left_in_order() {
    struct Ready;
    impl DeviceWait for Ready {
        fn ready(&mut self) -> Result<bool, Failure> {
            Ok(true)
        }
    }
    let mut list = WaitingList::default();
    let now = Instant::now();
    for token in 1..=4 {
        let (queue, has_data) = (Queue::Own, token != 3);
        let entry = Waiting::new(
            of_none(),
            token,
            queue,
            has_data,
            10 << 20,
            now,
            Box::new(Ready),
        );
        list.push(entry).unwrap();
    }
    assert!(list.poll() && list.held_back().is_none());
    let mut room = 1;
    let mut has_room = |entry: &Waiting| {
        room -= i32::from(entry.gives_data());
        room >= 0
    };
    let taken = |list: &mut WaitingList, has_room: &mut dyn FnMut(&Waiting) -> bool| {
        let ready = list.take_ready(now, has_room);
        ready.map(|(entry, _)| entry.token).collect::<Vec<_>>()
    };
    assert_eq!(taken(&mut list, &mut has_room), [1]);
    assert_eq!(list.held_back().map(|entry| entry.token), Some(2));
    // However long the client takes, no more is added meanwhile.
    list.push(Waiting::new(
        of_none(),
        5,
        Queue::Own,
        true,
        64 << 20,
        now,
        Box::new(Ready),
    ))
    .unwrap();
    for later in [0, 1, 1_000] {
        let later = now + Duration::from_secs(later);
        assert_eq!(list.admission(later), Admission::Stalled);
    }
    assert!(list.poll());
    assert_eq!(taken(&mut list, &mut |_| true), [2, 3, 4, 5]);
    assert!(list.held_back().is_none() && list.is_empty());
    assert_eq!(list.admission(now), Admission::Open);
}

#[test]
fn contexts_tokens_and_who_wants_no_answer() {
    let mut client = Client::shm();
    client.board.done.store(1, SeqCst);
    client.send(u32::MAX, &messages::FenceContext { slot: 0, value: 0 });
    assert!(client.recv().is_answer_to(u32::MAX));
    assert_eq!(client.contexts.recv_timeout(PATIENCE).unwrap(), 7);
    // Messages without a token get no reply.
    client.send(0, &messages::FenceContext { slot: 0, value: 0 });
    client.send(0, &messages::Ping {});
    // A message that is usually outstanding, sent with a token.
    client.send(9, &messages::StreamDestroy { stream: 1 });
    assert!(client.recv().is_answer_to(9));
    // Using a token twice is the client's affair.
    client.send(5, &messages::Ping {});
    client.send(5, &messages::Ping {});
    assert!(client.recv().is_answer_to(5));
    assert!(client.recv().is_answer_to(5));
    client.send(6, &messages::EventDestroy { event: 3 });
    assert_eq!(
        client.recv().failure(),
        (6, CUresult::CUDA_ERROR_INVALID_HANDLE, "xxx".into())
    );
    // An operation that the device does not implement.
    client.send(8, &messages::ContextDestroy { context: 1 });
    let (token, status, reason) = client.recv().failure();
    assert_eq!((token, status), (8, CUresult::CUDA_ERROR_NOT_SUPPORTED));
    assert!(reason.contains("context_destroy"), "{reason}");
}

#[test]
fn faults_come_at_once_and_before_waits() {
    let mut client = Client::shm();
    client.send(0, &messages::EventDestroy { event: 4 });
    let number = messages::EventDestroy::NUMBER;
    assert_eq!(
        client.recv().fault(),
        (
            number,
            CUresult::CUDA_ERROR_INVALID_HANDLE,
            false,
            "xxxx".into()
        )
    );
    client.send(0, &messages::EventDestroy { event: 0 });
    assert_eq!(
        client.recv().fault(),
        (
            number,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            true,
            "lost".into()
        )
    );
}

#[test]
fn a_flood_of_faults_is_summed_up_before_the_next_answer() {
    let mut client = Client::shm();
    client.board.done.store(9, SeqCst);
    for _ in 0..2_000 {
        client.send(0, &messages::EventDestroy { event: 1 });
    }
    client.fence(1, 3);
    let mut faults = 0;
    let mut summed = 0;
    loop {
        let received = client.recv();
        if received.is_answer_to(1) {
            break;
        }
        let (.., message) = received.fault();
        faults += 1;
        if let Some((_, rest)) = message.split_once("(and ") {
            summed += rest.split(' ').next().unwrap().parse::<u64>().unwrap();
        }
    }
    assert_eq!(faults + summed, 2_000);
    // A slow machine may take more than a second for them.
    assert!(
        faults <= 8 * u64::from(limits::FAULTS_PER_SECOND_MAX),
        "{faults}"
    );
}

/// Only adapters write to memory that a client names; over other links the reply carries the data.
#[test]
fn data_that_cannot_be_written_where_it_is_wanted_comes_with_the_answer() {
    for mut client in [Client::shm(), Client::tcp()] {
        client.board.done.store(4, SeqCst);
        let wanted = messages::CopyOutTo {
            src: 7,
            len: 100_000,
            stream: 3,
            to: 0x1000,
            key: 1,
        };
        client.send(5, &wanted);
        let answer = client.recv();
        assert!(answer.is_answer_to(5) && answer.header.placed == 0);
        let data = Reader::new(&answer.body).bytes("data").unwrap();
        assert!(data.len() == 100_000 && data.iter().all(|b| *b == 7));
        // Too long a copy is refused as always.
        client.send(
            6,
            &messages::CopyOutTo {
                len: u64::MAX,
                ..wanted
            },
        );
        let (token, status, _) = client.recv().failure();
        assert_eq!((token, status), (6, CUresult::CUDA_ERROR_INVALID_VALUE));
    }
}

#[test]
fn a_lost_gpu_fails_every_wait() {
    let mut client = Client::shm();
    client.fence(1, 3);
    client.copy_out(2, 4, 1, 10);
    client.fence(0, 3);
    client.board.is_lost.store(true, SeqCst);
    for token in [1, 2] {
        let (answered, status, _) = client.recv().failure();
        assert_eq!(
            (answered, status),
            (token, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)
        );
    }
    // The third message has no token, so its failure is a fault note.
    let (op, status, is_sticky, _) = client.recv().fault();
    assert_eq!(op, messages::FenceStream::NUMBER);
    assert_eq!(
        (status, is_sticky),
        (CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, true)
    );
}

#[test]
fn prints_and_pages_precede_the_answer_to_a_wait() {
    let mut client = Client::shm();
    let mut file = File::from(memfd(20, SealFlags::SHRINK));
    file.write_all(b"hello from a kernel!").unwrap();
    client
        .sender
        .fds()
        .unwrap()
        .send_fd(77, file.as_fd())
        .unwrap();
    let (va, len, flags, fd_tag) = (1 << 30, 4096, 0, 77);
    client.send(
        1,
        &messages::HostMap {
            va,
            len,
            flags,
            fd_tag,
        },
    );
    assert!(client.recv().is_answer_to(1));
    let data = &vec![5; CHUNK_BYTES_MAX];
    client.send(0, &messages::HostWrite { va: 1 << 20, data });
    client.fence(2, 0);
    client.recv_nothing(20);
    client.board.done.store(1, SeqCst);
    match client.recv().note() {
        Note::Print(print) => assert_eq!(print.text, b"hello from a kernel!"),
        other => panic!("{other:?}"),
    }
    match client.recv().note() {
        Note::HostPages(pages) => assert_eq!((pages.va, pages.data), (1 << 20, &data[..])),
        other => panic!("{other:?}"),
    }
    assert!(client.recv().is_answer_to(2));
}

/// Of a page in which every second word changed, as of many, one note tells.
#[test]
fn short_runs_of_changed_bytes_come_together_and_in_their_order() {
    for mut client in [Client::tcp(), Client::shm()] {
        let words = (0..1000u64).map(|at| ((1 << 20) + 8 * at, vec![(at % 251) as u8; 4]));
        let long = ((1 << 20) + 8000, vec![7; 2000]);
        // Bytes that changed once more.
        let again = (1 << 20, vec![9; 4]);
        let far = (1 << 30, vec![8; 4]);
        let changes: Vec<_> = words.chain([long, again, far]).collect();
        for (dst, data) in &changes {
            let message = messages::CopyIn {
                dst: *dst,
                stream: 0,
                sync: 0,
                data: data[..].into(),
            };
            client.send(0, &message);
        }
        client.board.done.store(1, SeqCst);
        client.fence(1, 0);
        let (mut come, mut notes) = (Vec::new(), Vec::new());
        loop {
            let answer = client.recv();
            if answer.is_answer_to(1) {
                break;
            }
            let before = come.len();
            come.extend(answer.changes());
            notes.push(come.len() - before);
        }
        assert_eq!(come, changes);
        assert_eq!(notes, [1000, 1, 1, 1]);
        client.leave();
    }
}

#[test]
fn a_missing_file_descriptor_is_a_failure() {
    for mut client in [Client::shm(), Client::tcp()] {
        let (va, len, flags, fd_tag) = (1 << 30, 4096, 0, 77);
        client.send(
            1,
            &messages::HostMap {
                va,
                len,
                flags,
                fd_tag,
            },
        );
        let (token, status, reason) = client.recv().failure();
        assert_eq!((token, status), (1, CUresult::CUDA_ERROR_INVALID_VALUE));
        assert!(reason.contains("file descriptor"), "{reason}");
        client.send(2, &messages::Ping {});
        assert!(client.recv().is_answer_to(2));
    }
}

#[test]
fn host_functions_are_called_and_answered() {
    let mut client = Client::shm();
    client.send(
        0,
        &messages::HostFunc {
            stream: 1,
            call: 42,
        },
    );
    match client.recv().note() {
        Note::HostCall(call) => assert_eq!((call.call, call.status), (42, 0)),
        other => panic!("{other:?}"),
    }
    client.send(0, &messages::HostFuncDone { call: 42 });
    client.send(1, &messages::Ping {});
    assert!(client.recv().is_answer_to(1));
    assert_eq!(client.board.host_funcs_done.load(SeqCst), 42);
}

#[test]
fn a_device_that_is_held_up_gives_all_that_came_before_a_host_function() {
    let mut client = Client::shm();
    client.copy_out(1, 3, 5, 8);
    let (library, name) = (1, &b"variable"[..]);
    client.send(2, &messages::LibraryGlobal { library, name });
    match client.recv().note() {
        Note::Print(print) => assert_eq!(print.text, b"printed"),
        other => panic!("{other:?}"),
    }
    match client.recv().note() {
        Note::HostPages(pages) => assert_eq!((pages.va, pages.data), (1 << 20, &b"word"[..])),
        other => panic!("{other:?}"),
    }
    assert!(client.recv().is_answer_to(1));
    match client.recv().note() {
        Note::HostCall(call) => assert_eq!((call.call, call.status), (42, 0)),
        other => panic!("{other:?}"),
    }
    let (va, data) = (1 << 20, &b"written"[..]);
    // A write that wants an answer gets one before the call that is held up.
    client.send(3, &messages::HostWrite { va, data });
    assert!(client.recv().is_answer_to(3));
    client.send(0, &messages::NetHold { held: 0 });
    client.send(0, &messages::HostFuncDone { call: 42 });
    assert!(client.recv().is_answer_to(2));
}

#[test]
fn a_copy_to_the_device_that_is_held_up_waits_with_its_client_served() {
    for (mut client, len) in [
        (Client::shm(), 100),
        (Client::shm(), 50_000),
        (Client::tcp(), 100),
        (Client::tcp(), 50_000),
    ] {
        let data: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        let copy = messages::CopyIn {
            dst: 9,
            stream: HELD_UP,
            sync: 0,
            data: data[..].into(),
        };
        client.send(0, &copy);
        let called = client.recv();
        let Note::HostCall(call) = called.note() else {
            panic!("{called:?}");
        };
        assert_eq!(call.call, 42);
        // Taken meanwhile, where the copy's own bytes were received.
        client.fence(1, 0);
        client.send(0, &messages::HostFuncDone { call: 42 });
        client.board.done.store(1, SeqCst);
        let answer = client.recv();
        let Note::HostPages(pages) = answer.note() else {
            panic!("{answer:?}");
        };
        assert_eq!(pages.va, 9);
        assert!(pages.data == data, "the data of {len} bytes");
        assert!(client.recv().is_answer_to(1));
    }
}

#[test]
fn why_a_session_is_over_is_known_while_the_device_is_held_up() {
    let held_up = messages::CopyIn {
        dst: 9,
        stream: NEVER_DONE,
        sync: 0,
        data: b"data"[..].into(),
    };
    for (garbage, counted) in [(true, SessionEnd::Link), (false, SessionEnd::Left)] {
        let (ours, theirs) = tcp_pair();
        let mut raw = TcpStream::from(ours.try_clone().unwrap());
        let mut client = Client::over(ours, theirs, Purpose::Session);
        client.send(0, &held_up);
        let called = client.recv();
        assert!(matches!(called.note(), Note::HostCall(_)), "{called:?}");
        assert_eq!(client.pulse.end(), None);
        if garbage {
            raw.write_all(&[0xff; 64]).unwrap();
        } else {
            raw.shutdown(Shutdown::Both).unwrap();
        }
        let start = Instant::now();
        while client.pulse.end().is_none() && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(client.pulse.end(), Some(counted));
        assert!(!client.server.is_finished(), "the call does not return");
        client.board.is_let_go.store(true, SeqCst);
        let (end, ..) = client.server.join().unwrap();
        assert_eq!(end.counted(), counted, "{end}");
    }
}

#[test]
fn more_copies_than_may_wait_do_not_hold_up_what_they_wait_for() {
    let mut client = Client::shm();
    let count = limits::WAITING_MAX as u32 + 500;
    for copy in 1..=count {
        client.copy_out(copy, 0, 1, 8);
    }
    // Sent after all of them; without it they are never done.
    client.send(0, &messages::HostFuncDone { call: 1 });
    let start = Instant::now();
    while client.board.host_funcs_done.load(SeqCst) == 0 {
        assert!(start.elapsed() < PATIENCE, "deadlock");
        thread::sleep(Duration::from_millis(1));
    }
    client.board.done.store(1, SeqCst);
    for copy in 1..=count {
        assert!(client.recv().is_answer_to(copy));
    }
}

fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

#[test]
fn memory_that_could_shrink_is_refused() {
    let mut client = Client::shm();
    let unsealed = memfd(4096, SealFlags::GROW | SealFlags::SEAL);
    let no_memory = rustix::fs::open(
        "/dev/null",
        rustix::fs::OFlags::RDWR,
        rustix::fs::Mode::empty(),
    )
    .unwrap();
    for (token, file) in [(1, &unsealed), (2, &no_memory)] {
        let fd_tag = u64::from(token);
        client
            .sender
            .fds()
            .unwrap()
            .send_fd(fd_tag, file.as_fd())
            .unwrap();
        let (va, len, flags) = (1 << 30, 4096, 0);
        client.send(
            token,
            &messages::HostMap {
                va,
                len,
                flags,
                fd_tag,
            },
        );
        let (answered, status, _) = client.recv().failure();
        assert_eq!(
            (answered, status),
            (token, CUresult::CUDA_ERROR_INVALID_VALUE)
        );
    }
    client.send(3, &messages::Ping {});
    assert!(client.recv().is_answer_to(3));
}

#[test]
fn a_long_wait_leaves_the_core_to_others_and_ends_in_time() {
    let mut client = Client::shm();
    let board = Arc::clone(&client.board);
    client.fence(1, 0);
    thread::sleep(Duration::from_secs(1));
    let start = Instant::now();
    board.done.store(1, SeqCst);
    assert!(client.recv().is_answer_to(1));
    // Half a millisecond is intended, but the machine may be busy.
    assert!(start.elapsed() < Duration::from_millis(50));
    let (.., cpu) = client.leave();
    assert!(cpu < Duration::from_millis(300), "{cpu:?} in 1 s");
}

#[test]
fn an_echo_is_as_long_as_asked_for_up_to_a_chunk() {
    let mut client = Client::shm();
    for (token, there, back) in [(1, 0, 0), (2, 300_000, 5), (3, 1, CHUNK_BYTES_MAX as u32)] {
        let data = vec![7; there];
        client.send(
            token,
            &messages::Echo {
                answer_bytes: back,
                data: &data,
            },
        );
        let answer = client.recv();
        assert!(answer.is_answer_to(token));
        let reply = messages::EchoReply::decode(&mut Reader::new(&answer.body)).unwrap();
        assert_eq!(reply.data.len(), back as usize);
    }
    client.send(
        4,
        &messages::Echo {
            answer_bytes: CHUNK_BYTES_MAX as u32 + 1,
            data: &[],
        },
    );
    let (token, status, _) = client.recv().failure();
    assert_eq!((token, status), (4, CUresult::CUDA_ERROR_INVALID_VALUE));
}

//! Clients that break the protocol, ask for the impossible, or die.

use super::*;

#[test]
fn malformed_messages_end_the_session_with_the_reason() {
    let ping = messages::Ping::NUMBER;
    let header = |op: u16| {
        let mut frame = vec![0; frame::HEADER_BYTES];
        frame[..2].copy_from_slice(&op.to_le_bytes());
        frame
    };
    // A long copy to the device whose header claims `len` bytes of data.
    let copy_in = |len: u32, data: usize| {
        let fields = [0; 20];
        let mut frame = [
            &header(messages::CopyIn::NUMBER)[..],
            &fields,
            &len.to_le_bytes(),
        ]
        .concat();
        frame.resize(frame.len() + data, 7);
        frame
    };
    let cases: [(Vec<u8>, &str); 9] = [
        (vec![1], "ends inside"),
        (header(ping)[..15].to_vec(), "ends inside"),
        (header(60_000), "no message has the number 60000"),
        ([header(ping), vec![0]].concat(), "1 bytes follow"),
        (header(messages::CopyOut::NUMBER), "ends inside"),
        // A byte field that claims to be longer than the frame.
        (
            [header(messages::HostWrite::NUMBER), vec![0xff; 12]].concat(),
            "ends inside",
        ),
        (copy_in(20_001, 20_000), "ends inside"),
        (copy_in(19_999, 20_000), "1 bytes follow"),
        (copy_in(u32::MAX, 20_000), "ends inside"),
    ];
    for (frame, reason) in cases {
        for mut client in [Client::shm(), Client::tcp()] {
            client.send_raw(&frame);
            let (_, status, is_sticky, message) = client.recv().fault();
            assert_eq!((status, is_sticky), (CUresult::CUDA_ERROR_UNKNOWN, true));
            assert!(message.contains(reason), "{message}");
            assert!(
                message.contains("the server ends this session"),
                "{message}"
            );
            let (end, ..) = client.server.join().unwrap();
            assert!(matches!(end, End::Malformed { .. }), "{end}");
        }
    }
}

#[test]
fn answers_of_impossible_sizes_are_failures() {
    let mut client = Client::shm();
    client.board.done.store(1, SeqCst);
    client.copy_out(1, 0, 1, u64::MAX);
    let (_, status, reason) = client.recv().failure();
    assert_eq!(status, CUresult::CUDA_ERROR_INVALID_VALUE);
    assert!(reason.contains("CHUNK_BYTES_MAX"), "{reason}");
    client.copy_out(2, 0, 1, CHUNK_BYTES_MAX as u64);
    let answer = client.recv();
    assert!(answer.is_answer_to(2));
    assert_eq!(answer.body.len(), CHUNK_BYTES_MAX + 4);
    // The device returns no data where the reply needs some.
    client.copy_out(3, 0, 0, 1);
    let (_, status, reason) = client.recv().failure();
    assert_eq!(status, CUresult::CUDA_ERROR_UNKNOWN);
    assert!(reason.contains("gave no data"), "{reason}");
    client.send(4, &messages::EventDestroy { event: 1 << 20 });
    let (.., reason) = client.recv().failure();
    assert_eq!(reason.len(), limits::REASON_BYTES_MAX);
}

#[test]
fn images_are_put_once_and_got_back() {
    let mut client = Client::tcp();
    let image: Vec<u8> = (0..3 * CHUNK_BYTES_MAX / 2)
        .map(|at| (at / 7) as u8)
        .collect();
    let hash = *blake3::hash(&image).as_bytes();
    let hash = &hash[..];
    let len = image.len() as u64;
    client.send(1, &messages::ImageOffer { hash, len });
    assert_eq!(client.recv().body, [0]);
    for (at, data) in image.chunks(CHUNK_BYTES_MAX).enumerate() {
        let offset = (at * CHUNK_BYTES_MAX) as u64;
        client.send(
            0,
            &messages::ImagePut {
                hash,
                offset,
                len,
                data,
            },
        );
    }
    client.send(2, &messages::ImageOffer { hash, len });
    assert_eq!(client.recv().body, [1]);
    let offset = len - 10;
    client.send(
        3,
        &messages::ImageGet {
            hash,
            offset,
            len: 10,
        },
    );
    assert_eq!(client.recv().body[4..], image[image.len() - 10..]);
    for (offset, len) in [(u64::MAX, 2), (0, u64::MAX), (len, 1)] {
        client.send(4, &messages::ImageGet { hash, offset, len });
        assert_eq!(
            client.recv().failure().1,
            CUresult::CUDA_ERROR_INVALID_VALUE
        );
    }
    client.send(
        5,
        &messages::ImageOffer {
            hash: b"short",
            len,
        },
    );
    assert_eq!(
        client.recv().failure().1,
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
}

#[test]
fn a_query_gets_no_device() {
    let (a, b) = UnixStream::pair().unwrap();
    let mut client = Client::over(a.into(), b.into(), Purpose::Query);
    client.send(1, &messages::Ping {});
    assert!(client.recv().is_answer_to(1));
    client.send(2, &messages::FenceContext { slot: 0, value: 0 });
    assert_eq!(
        client.recv().failure().1,
        CUresult::CUDA_ERROR_NOT_PERMITTED
    );
    assert!(client.contexts.try_recv().is_err(), "the device was asked");
}

#[test]
fn a_client_that_dies_in_mid_copy_leaves_nothing_behind() {
    for mut client in [Client::shm(), Client::tcp()] {
        for copy in 1..=200 {
            client.copy_out(copy, 9, 1, 100);
        }
        client.send(1_000, &messages::Ping {});
        assert!(client.recv().is_answer_to(1_000));
        let board = Arc::clone(&client.board);
        assert_eq!(board.pendings.load(SeqCst), 200);
        let start = Instant::now();
        let (end, ..) = client.leave();
        assert!(matches!(end, End::ClientLeft), "{end}");
        assert!(start.elapsed() < PATIENCE / 2);
        assert_eq!(board.pendings.load(SeqCst), 0);
    }
}

#[test]
fn a_client_that_stops_reading_and_dies_does_not_hold_the_session() {
    let mut client = Client::shm();
    client.board.done.store(1, SeqCst);
    // More data than the ring holds: the session is inside a send when the client leaves.
    for copy in 1..=20 {
        client.copy_out(copy, 0, 1, CHUNK_BYTES_MAX as u64);
    }
    thread::sleep(Duration::from_millis(100));
    let (end, ..) = client.leave();
    assert!(matches!(end, End::ClientLeft), "{end}");
}

#[test]
fn an_idle_session_costs_less_than_a_hundredth_of_a_core() {
    for mut client in [Client::shm(), Client::tcp()] {
        client.send(1, &messages::Ping {});
        assert!(client.recv().is_answer_to(1));
        thread::sleep(Duration::from_secs(2));
        let (.., cpu) = client.leave();
        assert!(cpu < Duration::from_millis(20), "{cpu:?} in 2 s");
    }
}

#[test]
fn no_bytes_make_the_decoder_panic() {
    let (contexts, _seen) = mpsc::channel();
    let mut fake = Fake {
        board: Arc::default(),
        printed: Vec::new(),
        pages: Vec::new(),
        host_calls: Vec::new(),
        written: 0,
        contexts,
    };
    let mut images = ImageStore::new(None, "", Default::default());
    // xorshift64, so that a failure can be repeated.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut decoded = 0;
    for _ in 0..300_000 {
        let op = (random() % (messages::OPS.len() as u64 + 2)) as u16;
        let mut body: Vec<u8> = (0..random() % 96).map(|_| random() as u8).collect();
        // Small numbers make lengths that fit, so some messages reach the device.
        if random() % 2 == 0 {
            body.iter_mut()
                .for_each(|b| *b &= (random() & random() & random()) as u8 & 7);
        }
        let mut fds = |_| Err(Failure::unsupported("a file descriptor"));
        let mut cx = Cx {
            context: random(),
            images: &mut images,
            placed: None,
            fds: &mut fds,
            service: &mut |_, _| true,
            unserved: None,
        };
        if matches!(
            Request::decode(op, &mut Reader::new(&body)),
            Ok(Request::EventDestroy(_) | Request::LibraryGlobal(_))
        ) {
            continue;
        }
        let mut exposed = exposed::Exposed::new(None, &mut fake);
        let mut reply = Vec::new();
        let reader = Reader::new(&body);
        let purpose = Purpose::Session;
        decoded += u32::from(
            execute::execute(
                &mut fake,
                purpose,
                &mut cx,
                &mut exposed,
                op,
                reader,
                &mut reply,
            )
            .is_ok(),
        );
    }
    assert!(decoded > 1_000, "{decoded}");
}

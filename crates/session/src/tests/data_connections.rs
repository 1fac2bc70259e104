//! Data on data connections: in the order of messages, however it arrives; and clients that break
//! the rules.

use std::os::fd::BorrowedFd;

use outboard_link::{Link, Way, open_data_connections};
use outboard_wire::{
    frame::{
        DATA_FRAME_HEAD_BYTES, encode_request_for_data_connection,
        encode_request_head_for_data_connection,
    },
    limits::{
        DATA_CONNECTION_END_MS_MAX, DATA_CONNECTIONS_OPEN_MS_MAX, DATA_FRAMES_AHEAD_MAX,
        DATA_PIECE_BYTES_MAX,
    },
};

use super::*;

type DataConnection = (Sender, Receiver);

/// Asks for data connections and returns the server's reply.
fn ask(client: &mut Client, connections_max: u32) -> (usize, Option<(Way, SessionKey)>) {
    client.send(77, &messages::DataConnectionsOpen { connections_max });
    let answer = client.recv();
    assert!(answer.is_answer_to(77), "{answer:?}");
    let mut r = Reader::new(&answer.body);
    let reply = messages::DataConnectionsOpenReply::decode(&mut r).unwrap();
    r.end().unwrap();
    let key = reply.key.as_ref().try_into().map(SessionKey::new).ok();
    let server = Way::from(client.port.listener.local_addr().unwrap());
    (reply.connections as usize, key.map(|key| (server, key)))
}

fn with_data_connections() -> (Client, Vec<DataConnection>) {
    let mut client = Client::tcp();
    let (count, at) = ask(&mut client, 9);
    assert_eq!(count, DATA_CONNECTIONS);
    let (server, key) = at.unwrap();
    let links =
        open_data_connections(&server, None, key, count, Instant::now() + PATIENCE).unwrap();
    let connections = links.into_iter().map(|(link, _)| Link::split(link));
    (client, connections.collect())
}

fn put(connection: &mut DataConnection, number: u64, data: &[u8]) {
    connection.0.send(&[&number.to_le_bytes(), data]).unwrap();
    connection.0.flush().unwrap();
}

/// Sends the message of data that goes on a data connection.
fn announce(client: &mut Client, dst: u64, data: &[u8]) {
    let mut head = [0; 64];
    let message = messages::CopyIn {
        dst,
        stream: 0,
        sync: 0,
        data: data.into(),
    };
    let len = encode_request_head_for_data_connection(&mut head, 7, &message).unwrap();
    client.send_raw(&head[..len]);
}

fn copy_out_for_data_connection(client: &mut Client, token: u32, stream: u64, byte: u8, len: u64) {
    let src = byte.into();
    let message = messages::CopyOut { src, len, stream };
    let mut frame = client.sender.reserve(frame::request_len(&message)).unwrap();
    encode_request_for_data_connection(&mut frame, token, 7, &message).unwrap();
    frame.commit().unwrap();
    client.sender.flush().unwrap();
}

/// Returns the copies to the device that were executed, in order: destination and data.
fn executed(client: &mut Client) -> Vec<(u64, Vec<u8>)> {
    client.board.done.store(1, SeqCst);
    client.fence(50, 0);
    let mut copies = Vec::new();
    loop {
        let received = client.recv();
        if received.is_answer_to(50) {
            return copies;
        }
        copies.extend(received.changes());
    }
}

fn pattern(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + number * 31) as u8).collect()
}

#[test]
fn copies_happen_in_the_order_of_their_messages() {
    let (mut client, mut connections) = with_data_connections();
    let lens = [1, 300, 20_000, DATA_PIECE_BYTES_MAX, 100_000, 16_384, 7];
    let data: Vec<_> = lens
        .iter()
        .enumerate()
        .map(|(number, len)| pattern(number, *len))
        .collect();
    // Later data may come first if it is on another connection.
    for (connection, numbers) in [(2, &[4, 6][..]), (0, &[1, 2, 5]), (1, &[0, 3])] {
        for &number in numbers {
            put(&mut connections[connection], number as u64, &data[number]);
        }
    }
    for (number, data) in data.iter().enumerate() {
        announce(&mut client, number as u64, data);
        if number == 3 {
            // A message with its own data takes no number.
            let (dst, stream) = (100, 0);
            let data = &[9; 40_000][..];
            let message = messages::CopyIn {
                dst,
                stream,
                sync: 0,
                data: data.into(),
            };
            client.send(0, &message);
        }
    }
    let copies = executed(&mut client);
    let order: Vec<_> = copies.iter().map(|(dst, _)| *dst).collect();
    assert_eq!(order, [0, 1, 2, 3, 100, 4, 5, 6]);
    for (dst, copied) in copies.iter().filter(|(dst, _)| *dst < 100) {
        assert!(*copied == data[*dst as usize], "copy {dst}");
    }
    // If the device gives no memory, data stays in the connection's own buffer.
    assert_eq!(client.board.placed.load(SeqCst), lens.len() + 1);
    let (end, stats, _) = client.leave();
    assert!(matches!(end, End::ClientLeft), "{end}");
    let by_name: HashMap<_, _> = stats.by_name().into_iter().collect();
    assert_eq!(by_name["copy_in"].calls, lens.len() as u64 + 1);
}

#[test]
fn a_message_waits_for_its_data_and_others_are_answered_meanwhile() {
    let (mut client, mut connections) = with_data_connections();
    let data = pattern(3, 100_000);
    client.fence(1, 5);
    announce(&mut client, 4, &data);
    client.recv_nothing(30);
    client.board.done.store(6, SeqCst);
    assert!(client.recv().is_answer_to(1));
    put(&mut connections[1], 0, &data);
    assert!(executed(&mut client) == [(4, data)]);
}

#[test]
fn many_more_copies_than_data_connections_keep() {
    let (mut client, mut connections) = with_data_connections();
    let count = 20 * DATA_CONNECTIONS * DATA_FRAMES_AHEAD_MAX;
    let len = 50_000;
    thread::scope(|scope| {
        for (index, connection) in connections.iter_mut().enumerate() {
            scope.spawn(move || {
                for number in (index..count).step_by(DATA_CONNECTIONS) {
                    put(connection, number as u64, &pattern(number, len));
                }
            });
        }
        for number in 0..count {
            announce(&mut client, number as u64, &pattern(number, len));
        }
    });
    let copies = executed(&mut client);
    assert_eq!(copies.len(), count);
    for (number, (dst, copied)) in copies.into_iter().enumerate() {
        assert!(dst == number as u64 && copied == pattern(number, len));
    }
}

#[test]
fn answers_come_on_data_connections_and_what_follows_says_how_many() {
    let (mut client, mut connections) = with_data_connections();
    let lens = [1 << 20, 1, 70_000, 0, 300_000];
    for (copy, len) in lens.iter().enumerate() {
        let token = copy as u32 + 1;
        copy_out_for_data_connection(&mut client, token, 3, token as u8, *len);
    }
    // A reply that was not asked for on a data connection comes here, and so does a failure.
    client.copy_out(10, 3, 10, 500_000);
    copy_out_for_data_connection(&mut client, 11, 3, 11, u64::MAX);
    client.fence(12, 3);
    let failed = client.recv();
    assert_eq!((failed.header.replies_before, failed.failure().0), (0, 11));
    client.board.done.store(4, SeqCst);
    for token in [10, 12] {
        let answer = client.recv();
        assert!(answer.is_answer_to(token), "{:?}", answer.header);
        assert_eq!(answer.header.replies_before as usize, lens.len());
    }
    let mut seen = Vec::new();
    for (_, receiver) in &mut connections {
        let until = |ms| Wait::Until(Instant::now() + Duration::from_millis(ms));
        while let Some(frame) = receiver.recv(until(100)).unwrap() {
            let (header, mut body) = decode_reply(frame).unwrap();
            let data = body.bytes("data").unwrap();
            body.end().unwrap();
            let index = header.token as usize - 1;
            assert_eq!((header.note, header.status), (0, 0));
            assert_eq!(header.replies_before as usize, index);
            assert_eq!(data.len() as u64, lens[index]);
            assert!(data.iter().all(|byte| *byte == header.token as u8));
            seen.push(index);
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3, 4]);
    assert_eq!(client.board.pendings.load(SeqCst), 0);
}

#[test]
fn copies_to_the_device_do_not_wait_for_copies_that_the_client_has_not_received() {
    const COPIES: u32 = 200;
    let (mut client, mut connections) = with_data_connections();
    client.board.done.store(10, SeqCst);
    for copy in 1..=COPIES {
        copy_out_for_data_connection(&mut client, copy, 3, copy as u8, 1 << 20);
    }
    client.fence(COPIES + 1, 3);
    // Nobody reads the data connections.
    client.copy_in(5);
    client.wait_until_placed(1);
    // Nothing passes a copy in the stream of the others.
    client.copy_in(3);
    client.copy_in(6);
    client.fence(COPIES + 2, 6);
    thread::sleep(Duration::from_millis(3 * limits::STALL_MS_MAX));
    client.wait_until_placed(1);
    let mut seen: Vec<_> = thread::scope(|scope| {
        let read = |(_, receiver): &mut DataConnection| {
            let mut seen = Vec::new();
            let until = || Wait::Until(Instant::now() + Duration::from_secs(1));
            while let Some(frame) = receiver.recv(until()).unwrap() {
                let (header, mut body) = decode_reply(frame).unwrap();
                let data = body.bytes("data").unwrap();
                assert!(data.len() == 1 << 20 && data[0] == header.token as u8);
                seen.push((header.replies_before, header.token));
            }
            seen
        };
        let readers: Vec<_> = connections
            .iter_mut()
            .map(|connection| scope.spawn(move || read(connection)))
            .collect();
        let all = readers
            .into_iter()
            .flat_map(|reader| reader.join().unwrap());
        all.collect()
    });
    seen.sort_unstable();
    assert!(
        seen.into_iter()
            .eq((0..COPIES).map(|copy| (copy, copy + 1)))
    );
    let (mut answers, mut copies) = (Vec::new(), Vec::new());
    while answers.len() < 2 {
        match client.recv() {
            note if note.header.note != 0 => copies.extend(note.changes()),
            answer => answers.push((answer.header.token, answer.header.replies_before)),
        }
    }
    assert_eq!(answers, [(COPIES + 1, COPIES), (COPIES + 2, COPIES)]);
    let order: Vec<_> = copies.iter().map(|(dst, data)| (*dst, data[0])).collect();
    assert_eq!(order, [(5, 5), (3, 3), (6, 6)]);
    assert!(matches!(client.leave().0, End::ClientLeft));
}

#[test]
fn without_data_connections_everything_comes_on_the_sessions_own_connection() {
    // There are none over shm, for a client that wants none, and for a second request.
    let mut client = Client::shm();
    assert!(matches!(ask(&mut client, 4), (0, None)));
    let mut client = Client::tcp();
    assert!(matches!(ask(&mut client, 0), (0, None)));
    let (count, at) = ask(&mut client, 2);
    assert_eq!(count, 2);
    assert!(matches!(ask(&mut client, 2), (0, None)));
    // No client with the key connects.
    let (server, _) = at.unwrap();
    let other = SessionKey::new([0; SESSION_KEY_BYTES]);
    let wrong = open_data_connections(&server, None, other, 2, Instant::now() + PATIENCE);
    assert!(wrong.is_err());
    client.board.done.store(9, SeqCst);
    copy_out_for_data_connection(&mut client, 5, 3, 5, 100_000);
    let answer = client.recv();
    assert!(answer.is_answer_to(5));
    assert_eq!(
        (answer.header.replies_before, answer.body.len()),
        (0, 100_004)
    );
    let start = Instant::now();
    let (end, ..) = client.leave();
    assert!(matches!(end, End::ClientLeft), "{end}");
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "nobody is waited for"
    );
}

#[test]
fn data_on_a_data_connection_that_never_was_ends_the_session() {
    for mut client in [Client::shm(), Client::tcp()] {
        announce(&mut client, 1, b"data");
        let (op, status, is_sticky, why) = client.recv().fault();
        assert_eq!(op, messages::CopyIn::NUMBER);
        assert!(status == CUresult::CUDA_ERROR_UNKNOWN && is_sticky);
        assert!(why.contains("data connection"), "{why}");
        let (end, ..) = client.leave();
        assert!(matches!(end, End::Malformed { .. }), "{end}");
    }
}

#[test]
fn data_of_another_length_ends_the_session() {
    let (mut client, mut connections) = with_data_connections();
    put(&mut connections[0], 0, &[1; 30_000]);
    announce(&mut client, 1, &[1; 30_001]);
    client.recv().fault();
    assert!(matches!(client.leave().0, End::Malformed { .. }));
}

#[test]
fn a_data_connection_that_breaks_the_rules_is_closed_and_its_data_is_not_waited_for_long() {
    type Abuse = fn(&mut Vec<DataConnection>);
    let abuses: [(&str, Abuse); 6] = [
        ("a number twice", |connections| {
            put(&mut connections[0], 7, b"x");
            put(&mut connections[0], 7, b"y");
        }),
        ("a frame too long", |connections| {
            put(&mut connections[0], 0, &vec![0; DATA_PIECE_BYTES_MAX + 1])
        }),
        ("a frame without a number", |connections| {
            connections[0]
                .0
                .send(&[&[1; DATA_FRAME_HEAD_BYTES - 1]])
                .unwrap();
            connections[0].0.flush().unwrap();
        }),
        ("a data connection that ends", |connections| {
            drop(connections.remove(0))
        }),
        ("all data connections end", Vec::clear),
        ("a number from the past", |connections| {
            put(&mut connections[1], 0, &[5; 10]);
            thread::sleep(Duration::from_millis(50));
            put(&mut connections[0], 0, &[5; 10]);
        }),
    ];
    for (what, abuse) in abuses {
        let (mut client, mut connections) = with_data_connections();
        if what.contains("past") {
            announce(&mut client, 1, &[5; 10]);
        }
        abuse(&mut connections);
        if let Some((_, receiver)) = connections.first_mut().filter(|_| !what.contains("end")) {
            let closed = receiver.recv(Wait::Until(Instant::now() + PATIENCE));
            assert!(closed.is_err(), "{what}: the data connection is closed");
        }
        // Its session goes on until it needs data that does not come.
        client.board.done.store(1, SeqCst);
        client.fence(3, 0);
        while !client.recv().is_answer_to(3) {}
        announce(&mut client, 2, &[5; 20_000]);
        let start = Instant::now();
        let until = Wait::Until(start + PATIENCE);
        assert!(client.receiver.recv(until).is_err(), "{what}");
        let waited = start.elapsed();
        assert!(
            waited < Duration::from_millis(DATA_CONNECTION_END_MS_MAX) + Duration::from_secs(2),
            "{what}: {waited:?}"
        );
        client.leave();
    }
}

#[test]
fn a_data_connection_that_stalls_in_the_middle_of_a_frame_holds_nobody_up_for_ever() {
    let mut client = Client::tcp();
    let (server, key) = ask(&mut client, 1).1.unwrap();
    let links = open_data_connections(&server, None, key, 1, Instant::now() + PATIENCE).unwrap();
    // SAFETY: the descriptor is the link's, which the test holds.
    let socket = unsafe { BorrowedFd::borrow_raw(links[0].1) };
    let mut connection = TcpStream::from(socket.try_clone_to_owned().unwrap());
    // Length of a frame, its number, and half of its data.
    connection.write_all(&100_008u32.to_le_bytes()).unwrap();
    connection.write_all(&[0; 50_008]).unwrap();
    announce(&mut client, 1, &[0; 100_000]);
    client.recv_nothing(50);
    let start = Instant::now();
    let leaving = thread::spawn(move || client.leave());
    thread::sleep(Duration::from_millis(100));
    drop((connection, links));
    let (end, ..) = leaving.join().unwrap();
    assert!(matches!(end, End::ClientLeft), "{end}");
    assert!(
        start.elapsed()
            < Duration::from_millis(DATA_CONNECTION_END_MS_MAX) + Duration::from_secs(1)
    );
}

#[test]
fn data_that_nobody_asks_for_is_not_taken_in_without_end() {
    let (client, mut connections) = with_data_connections();
    let (mut sender, _receiver) = connections.remove(0);
    let closer = sender.closer();
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let flood = thread::spawn(move || {
        for number in 1u64.. {
            let frame = [&number.to_le_bytes()[..], &[0; DATA_PIECE_BYTES_MAX]].concat();
            if sender
                .send(&[&frame])
                .and_then(|()| sender.flush())
                .is_err()
            {
                return;
            }
            counted.fetch_add(1, SeqCst);
        }
    });
    let settled = |sent: &AtomicUsize| loop {
        let before = sent.load(SeqCst);
        thread::sleep(Duration::from_millis(300));
        if sent.load(SeqCst) == before {
            return before;
        }
    };
    // Frames that the server keeps, and those that fit into the kernel's buffers of both sides.
    let count = settled(&sent);
    assert!(count >= DATA_FRAMES_AHEAD_MAX, "{count}");
    assert!(count <= DATA_FRAMES_AHEAD_MAX + 64, "{count}");
    let (end, ..) = client.leave();
    assert!(matches!(end, End::ClientLeft), "{end}");
    closer.close();
    flood.join().unwrap();
}

#[test]
fn data_connections_that_do_not_come_are_not_waited_for_without_end() {
    let mut client = Client::tcp();
    let (server, key) = ask(&mut client, 2).1.unwrap();
    // One of two comes, and the client says that the other has data.
    let deadline = Instant::now() + PATIENCE;
    let lone = thread::spawn(move || open_data_connections(&server, None, key, 1, deadline));
    announce(&mut client, 1, &[0; 100_000]);
    let start = Instant::now();
    let until = Wait::Until(start + PATIENCE);
    assert!(client.receiver.recv(until).is_err());
    let longest = DATA_CONNECTIONS_OPEN_MS_MAX + DATA_CONNECTION_END_MS_MAX + 2_000;
    assert!(start.elapsed() < Duration::from_millis(longest));
    assert!(lone.join().unwrap().is_err());
}

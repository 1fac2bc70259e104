//! Replies with data that a thread of their own sends, over emulated networks.

use super::*;

/// More than the rings or sockets, the thread's queue, and what may be pending.
const COPIES: u32 = 150;

/// Asks for much data after some has been sent, so that replies are left to the thread, and does
/// not receive it.
fn with_replies_under_way(is_shm: bool, copies: u32) -> Client {
    let mut client = Client::emulated(is_shm);
    client.board.done.store(10, SeqCst);
    client.copy_in(5);
    for copy in 1..=copies {
        client.copy_out(copy, 3, copy as u8, 1 << 20);
    }
    client
}

#[test]
fn copies_to_the_device_do_not_wait_for_replies_that_fill_the_link() {
    for is_shm in [true, false] {
        let mut client = with_replies_under_way(is_shm, COPIES);
        // Nobody receives, and more comes than the link and the queue hold.
        for _ in 0..20 {
            client.copy_in(6);
        }
        client.wait_until_placed(21);
        client.fence(COPIES + 1, 3);
        client.fence(COPIES + 2, 3);
        // Everything comes in order, what the session sends by itself included.
        let mut copies = 0;
        for token in 1..=COPIES + 2 {
            let mut received = client.recv();
            while received.header.note != 0 {
                copies += received.changes().len();
                received = client.recv();
            }
            assert!(
                received.is_answer_to(token),
                "{token}: {:?}",
                received.header
            );
            if token <= COPIES {
                let data = Reader::new(&received.body).bytes("data").unwrap();
                assert!(data.len() == 1 << 20 && data.iter().all(|byte| *byte == token as u8));
            }
        }
        assert_eq!(copies, 21);
        assert_eq!(client.board.pendings.load(SeqCst), 0);
        let (end, stats, _) = client.leave();
        assert!(matches!(end, End::ClientLeft), "{end}");
        let by_name: HashMap<_, _> = stats.by_name().into_iter().collect();
        let sent = u64::from(COPIES) << 20;
        assert!(by_name["copy_out"].sent_bytes >= sent);
    }
}

#[test]
fn a_session_ends_although_its_client_does_not_take_what_is_queued() {
    // With few copies the session still takes the message that ends it.
    for (is_shm, copies) in [(true, COPIES), (false, COPIES), (true, 30), (false, 30)] {
        let mut client = with_replies_under_way(is_shm, copies);
        client.wait_until_placed(1);
        let start = Instant::now();
        let leaves = copies == COPIES;
        if !leaves {
            client.send_raw(&[0xff; 40]);
        }
        let Client {
            server,
            sender,
            receiver,
            board,
            ..
        } = client;
        let kept = (!leaves).then_some((sender, receiver));
        let (end, ..) = server.join().unwrap();
        assert_eq!(matches!(end, End::ClientLeft), leaves, "{end}");
        let parting = Duration::from_millis(limits::PARTING_MS_MAX);
        assert!(start.elapsed() < parting + Duration::from_secs(5));
        assert_eq!(
            board.pendings.load(SeqCst),
            0,
            "what the device gave is back"
        );
        drop(kept);
    }
}

#[test]
fn a_session_ends_if_the_thread_that_sends_replies_panics() {
    for is_shm in [true, false] {
        let mut client = with_replies_under_way(is_shm, 0);
        client.wait_until_placed(1);
        client.board.data_panics.store(true, SeqCst);
        for copy in 1..=COPIES {
            client.copy_out(copy, 3, copy as u8, 1 << 20);
        }
        // The client waits for replies, and sends nothing.
        let until = Instant::now() + PATIENCE;
        while !client.server.is_finished() && Instant::now() < until {
            thread::yield_now();
        }
        assert!(client.server.is_finished(), "the client waits for ever");
        assert_eq!(client.board.pendings.load(SeqCst), 0);
    }
}

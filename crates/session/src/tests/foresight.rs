//! Fences that are made before their messages come.

use super::*;

const STREAM: u64 = 3;
/// Waits at the usual distance, after which the next is foreseen.
const HABIT: u32 = 3;

impl Client {
    /// Sends two messages, as a step of a program does before it waits.
    fn step(&mut self) {
        for _ in 0..2 {
            self.send(0, &messages::StreamDestroy { stream: 9 });
        }
    }

    /// A client that has waited for its stream after every step.
    fn of_habits(can_fence_early: bool) -> Client {
        let mut client = Client::tcp();
        client.board.can_fence_early.store(can_fence_early, SeqCst);
        client.board.done.store(STREAM + 1, SeqCst);
        for token in 1..=HABIT {
            client.step();
            client.fence(token, STREAM);
            assert!(client.recv().is_answer_to(token));
        }
        assert_eq!(client.fences(), HABIT as usize);
        client
    }

    fn fences(&self) -> usize {
        self.board.fences.load(SeqCst)
    }

    /// Waits until `count` fences were made.
    fn expect_fences(&self, count: usize) {
        let until = Instant::now() + PATIENCE;
        while self.fences() < count && Instant::now() < until {
            thread::yield_now();
        }
        assert_eq!(self.fences(), count);
    }
}

#[test]
fn a_usual_fence_is_made_before_its_message() {
    let mut client = Client::of_habits(true);
    client.step();
    client.expect_fences(4);
    client.fence(10, STREAM);
    assert!(client.recv().is_answer_to(10));
    assert_eq!(client.fences(), 4);
}

#[test]
fn an_early_fence_is_answered_once_the_gpu_is_there() {
    let mut client = Client::of_habits(true);
    client.board.done.store(0, SeqCst);
    client.step();
    client.expect_fences(4);
    client.fence(10, STREAM);
    client.recv_nothing(20);
    client.board.done.store(STREAM + 1, SeqCst);
    assert!(client.recv().is_answer_to(10));
}

#[test]
fn work_after_an_early_fence_is_waited_for() {
    let mut client = Client::of_habits(true);
    client.board.done.store(0, SeqCst);
    client.step();
    client.expect_fences(4);
    client.step();
    client.fence(10, STREAM);
    client.expect_fences(5);
    // The one that was made in vain is not reached.
    assert_eq!(client.board.pendings.load(SeqCst), 2);
    client.board.done.store(STREAM + 1, SeqCst);
    assert!(client.recv().is_answer_to(10));
    // Another habit, with fences made early again, for which the old one goes.
    for token in 11..14 {
        client.step();
        client.step();
        client.fence(token, STREAM);
        assert!(client.recv().is_answer_to(token));
    }
    client.step();
    client.step();
    client.expect_fences(9);
    assert_eq!(client.board.pendings.load(SeqCst), 1);
}

#[test]
fn a_fence_of_another_stream_is_its_own() {
    let mut client = Client::of_habits(true);
    client.step();
    client.expect_fences(4);
    client.board.done.store(STREAM + 1, SeqCst);
    client.fence(10, STREAM + 1);
    client.expect_fences(5);
    client.recv_nothing(20);
    client.board.done.store(STREAM + 2, SeqCst);
    assert!(client.recv().is_answer_to(10));
}

#[test]
fn a_device_that_cannot_makes_no_fence_early() {
    let mut client = Client::of_habits(false);
    client.step();
    client.recv_nothing(20);
    assert_eq!(client.fences(), HABIT as usize);
    client.fence(10, STREAM);
    assert!(client.recv().is_answer_to(10));
}

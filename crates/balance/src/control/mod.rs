//! Runs a balancer: the loop that passes frames, and threads for commands, checks and HTTP,
//! which give the loop small tasks with the engine.

mod api;
mod client;
mod hand_over;
mod health;
mod http;
mod links;
mod metrics;
mod question;
mod room;
mod run;
mod state;
mod status;

pub use client::{Api, ApiError};
pub use hand_over::TakeError;
pub use health::Greet;
pub use question::{Bytes, FRAMES_MAX, QUESTION_BYTES_MAX, Question};
pub use run::{Means, RunError, Start, check, run};
pub use status::{BackendStatus, Flow, Health, ServiceHealth, ServiceStatus, Status};

use crate::engine::Engine;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// Time after which a command that the loop has not answered fails.
const ANSWER_MAX: Duration = Duration::from_secs(10);

type Task = Box<dyn FnOnce(&mut Engine) + Send>;

/// Gives the loop tasks.
#[derive(Clone)]
struct Tasks {
    sender: Sender<Task>,
    wake: Arc<OwnedFd>,
}

/// The loop does not answer.
#[derive(Debug, thiserror::Error)]
#[error("the balancer is ending, or is too busy to answer")]
struct NoAnswer;

impl Tasks {
    /// Has the loop do something soon.
    fn tell(&self, task: impl FnOnce(&mut Engine) + Send + 'static) {
        if self.sender.send(Box::new(task)).is_ok() {
            // A full pipe wakes the loop, too.
            let _ = rustix::io::write(&*self.wake, &[1]);
        }
    }

    /// Has the loop do something, and waits for what comes of it.
    fn ask<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let (sender, receiver) = channel();
        self.tell(move |engine| {
            // Whoever asked may have gone.
            let _ = sender.send(task(engine));
        });
        receiver.recv_timeout(ANSWER_MAX).map_err(|_| NoAnswer)
    }
}

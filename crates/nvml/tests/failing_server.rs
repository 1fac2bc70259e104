//! Tests without a server, with a server that goes away, and with one that answers wrongly. Every
//! call returns an error soon, and works again as soon as the server does.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::{Answer, Server, library::*, turn};
use outboard_link::LinkKind;
use outboard_nvml::{entry::*, types::*};

#[test]
fn no_server() {
    let _turn = turn();
    let none = std::env::temp_dir().join("outboard-nvml-nobody.sock");
    for url in [
        format!("shm://{}", none.display()),
        "tcp://127.0.0.1:1".into(),
        "nonsense".into(),
        String::new(),
    ] {
        // A failure is not retried at once.
        let_it_rest();
        use_server(&url);
        let start = Instant::now();
        assert_eq!(init(), nvmlReturn_t::DRIVER_NOT_LOADED, "{url}");
        assert_eq!(init(), nvmlReturn_t::DRIVER_NOT_LOADED, "{url}");
        assert!(
            start.elapsed() < Duration::from_secs(2),
            "{url}: {:?}",
            start.elapsed()
        );
    }
    let_it_rest();
}

#[test]
fn a_server_that_goes_and_comes_back() {
    let _turn = turn();
    let server = Server::start(LinkKind::Shm, well());
    let endpoint = server.endpoint.clone();
    use_server(&endpoint.to_string());
    assert_eq!(init(), nvmlReturn_t::SUCCESS);
    let gpu = device(0);
    drop(server);
    pause_until_stale();
    let start = Instant::now();
    for _ in 0..100 {
        assert_eq!(
            ask(nvmlDeviceGetPowerUsage, gpu),
            Err(nvmlReturn_t::UNKNOWN)
        );
    }
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    let _server = Server::at(&endpoint, well());
    let_it_rest();
    assert_eq!(ask(nvmlDeviceGetPowerUsage, gpu), Ok(123_456));
    assert_eq!(shutdown(), nvmlReturn_t::SUCCESS);
}

#[test]
fn a_server_that_only_dropped_the_connection_is_dialled_again_at_once() {
    let _turn = turn();
    let server = Server::start(LinkKind::Tcp, well());
    let endpoint = server.endpoint.clone();
    use_server(&endpoint.to_string());
    assert_eq!(init(), nvmlReturn_t::SUCCESS);
    let gpu = device(0);
    drop(server);
    let _server = Server::at(&endpoint, well());
    pause_until_stale();
    assert_eq!(ask(nvmlDeviceGetPowerUsage, gpu), Ok(123_456));
    assert_eq!(shutdown(), nvmlReturn_t::SUCCESS);
}

#[test]
fn a_server_that_answers_badly() {
    let _turn = turn();
    for kind in KINDS {
        for answer in [
            Answer::Refusal(801, "no NVML here"),
            Answer::Garbage,
            Answer::Strays,
            Answer::HangUp,
        ] {
            let session = Session::start(kind);
            let gpu = device(0);
            session.server.set(answer);
            pause_until_stale();
            let start = Instant::now();
            assert_eq!(
                ask(nvmlDeviceGetPowerUsage, gpu),
                Err(nvmlReturn_t::UNKNOWN)
            );
            assert!(
                start.elapsed() < Duration::from_secs(2),
                "{:?}",
                start.elapsed()
            );
            session.server.set(well());
            let_it_rest();
            assert_eq!(ask(nvmlDeviceGetPowerUsage, gpu), Ok(123_456));
        }
    }
}

#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let _turn = turn();
    let server = Server::start(LinkKind::Shm, Answer::Silence);
    use_server(&server.endpoint.to_string());
    let start = Instant::now();
    assert_eq!(init(), nvmlReturn_t::DRIVER_NOT_LOADED);
    assert!(
        (9..13).contains(&start.elapsed().as_secs()),
        "{:?}",
        start.elapsed()
    );
    let_it_rest();
}

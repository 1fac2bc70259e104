use outboard_link::*;
use std::{
    thread,
    time::{Duration, Instant},
};

fn pair(url: &str) -> (Link, Link) {
    let listener = Listener::bind(&url.parse().unwrap()).unwrap();
    let endpoint = listener.endpoint().clone();
    let client = thread::spawn(move || {
        let stream = connect(&endpoint, Duration::from_secs(5)).unwrap();
        stream
            .into_link_client(Instant::now() + Duration::from_secs(5))
            .unwrap()
    });
    let (stream, _) = listener.accept(None).unwrap();
    (stream.into_link_server().unwrap(), client.join().unwrap())
}

#[test]
fn echo() {
    for url in ["shm:target-smoke.sock", "tcp://127.0.0.1:0"] {
        let (server, client) = pair(url);
        let echo = thread::spawn(move || {
            let (mut tx, mut rx) = server.split();
            loop {
                match rx.recv(Wait::Forever) {
                    Ok(Some(frame)) => {
                        tx.send(&[frame]).unwrap();
                        tx.flush().unwrap();
                    }
                    Ok(None) => unreachable!(),
                    Err(Error::Closed) => return,
                    Err(e) => panic!("{e}"),
                }
            }
        });
        let (mut tx, mut rx) = client.split();
        for len in [1usize, 7, 8, 9, 4096, 1 << 20, (1 << 20) + 4096] {
            for _ in 0..20 {
                tx.reserve(len).unwrap().fill(len as u8 | 1);
                tx.commit(len).unwrap();
                tx.flush().unwrap();
                let got = rx.recv(Wait::Forever).unwrap().unwrap();
                assert!(got.len() == len && got.iter().all(|&b| b == len as u8 | 1));
            }
        }
        drop((tx, rx));
        echo.join().unwrap();
    }
}

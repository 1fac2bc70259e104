//! Tests of `outboard probe`: its figures agree with each other, and it ends in bounded time.
use std::{thread, time::Duration};

use crate::common::*;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

fn probe(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = output(outboard().arg("probe").args(arguments));
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn figures_agree_with_each_other() {
    let server = Server::start(&[]);
    for endpoint in server.endpoints() {
        let url = endpoint.to_string();
        let (code, out, err) = probe(&[&url, "--seconds", "1", "--connections", "2", "--json"]);
        assert_eq!(code, Some(0), "{err}");
        let found: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(
            (&found["url"], &found["connections"]),
            (&Value::from(url.as_str()), &2.into())
        );
        for load in ["idle", "loaded_there", "loaded_back"] {
            let us = ["min_us", "median_us", "p90_us", "p99_us", "max_us"];
            let us = us.map(|name| found[load][name].as_f64().unwrap());
            assert!(us[0] > 0.0 && us.is_sorted(), "{load}: {us:?}");
            assert!(found[load]["samples"].as_u64().unwrap() >= 1);
        }
        for connections in ["one_connection", "several_connections"] {
            for way in ["there_gbit_per_s", "back_gbit_per_s"] {
                let rate = found[connections][way].as_f64().unwrap();
                // Slower than a modem or faster than memory means a wrong measurement.
                assert!(
                    (0.001..10_000.0).contains(&rate),
                    "{connections} {way}: {rate}"
                );
            }
        }
        // As text.
        let (code, out, _) = probe(&[&url, "--seconds", "1", "--connections", "1"]);
        assert_eq!(code, Some(0));
        assert!(
            out.contains("round trip, idle") && out.contains("bps there"),
            "{out}"
        );
    }
    eventually("the end of all workers", || server.workers().is_empty());
}

#[test]
fn no_server_and_wrong_arguments() {
    let (code, _, err) = probe(&["shm:///nobody/there"]);
    assert_eq!(code, Some(1));
    assert!(
        err.contains("outboard serve --listen shm:///nobody/there"),
        "{err}"
    );
    for (arguments, said) in [
        (&["tcp://"][..], "host is missing"),
        (&["--seconds", "0"], "it is a whole number from 1 to 3600"),
        (
            &["--connections", "17"],
            "it is a whole number from 1 to 16",
        ),
    ] {
        let (code, _, err) = probe(arguments);
        assert_eq!(code, Some(2), "{arguments:?}");
        assert!(err.contains(said), "{err}");
    }
}

#[test]
fn a_server_that_dies_or_stops_meanwhile_is_named_in_time() {
    for signal in [Signal::KILL, Signal::STOP] {
        let server = Server::start(&[]);
        let url = server.endpoints()[1].to_string();
        let running = thread::spawn(move || probe(&[&url, "--seconds", "60"]));
        // A worker stopped before its welcome has longer: opening a device takes time.
        server.expect_log("purpose=Query");
        // At any of its connections.
        let mut signalled = Vec::new();
        while !running.is_finished() {
            for worker in server.workers() {
                let _ = kill_process(worker, signal);
                signalled.push(worker);
            }
            thread::sleep(Duration::from_millis(20));
        }
        let (code, _, err) = running.join().unwrap();
        assert_eq!(code, Some(1), "{err}");
        assert!(err.starts_with("outboard: "), "{err}");
        for worker in signalled {
            let _ = kill_process(worker, Signal::CONT);
        }
    }
}

//! Tests of spare workers: which clients they serve, and what happens when one is lost.
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::common::*;
use outboard_link::{Endpoint, Link, Sender, Wait, connect, dial};
use outboard_wire::{
    Message as _, Op,
    doc::{self, NVML_FACTS, NVML_NOW, NVML_SAMPLES, NvmlSnapshot},
    frame,
    handshake::{Purpose, ServerWelcome},
    messages,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

fn session(endpoint: &Endpoint) -> (Link, ServerWelcome) {
    let (link, _, welcome) = dial(endpoint, &hello(Purpose::Session), PATIENCE).unwrap();
    (link, welcome)
}

/// Checks that the server closes the link.
fn assert_ends(link: Link) {
    let (_sender, mut receiver) = link.split();
    let error = receiver
        .recv(Wait::Until(Instant::now() + PATIENCE))
        .unwrap_err();
    assert!(error.is_disconnect(), "{error}");
}

#[test]
fn a_client_gets_the_spare_and_the_next_one_another() {
    let server = Server::start(&[]);
    let mut seen: Vec<Pid> = Vec::new();
    for (nth, endpoint) in server.endpoints().iter().cycle().take(4).enumerate() {
        let spare = server.ready_spare(nth + 1);
        assert!(!seen.contains(&spare), "a worker serves one client");
        let (link, welcome) = session(endpoint);
        assert_eq!(welcome.session, nth as u64 + 1);
        assert!(welcome.window_bytes > 0);
        assert_eq!(server.only_worker(), spare);
        seen.push(spare);
        drop(link);
        eventually("the worker's end", || !is_alive(spare));
    }
    assert!(!server.log().contains("WARN"), "{}", server.log());
}

#[test]
fn questions_greetings_and_strangers_leave_the_spare_alone() {
    let server = Server::start(&[]);
    let spare = server.ready_spare(1);
    for endpoint in server.endpoints() {
        dial(&endpoint, &hello(Purpose::Query), PATIENCE).unwrap();
        dial(&endpoint, &hello(Purpose::Greeting), PATIENCE).unwrap();
        let mut stranger = connect(&endpoint, PATIENCE).unwrap();
        let deadline = Instant::now() + PATIENCE;
        stranger
            .write_all_deadline(b"GET / HTTP/1.1\r\n\r\n GET / HTTP/1.1", deadline)
            .unwrap();
        assert!(stranger.read_exact_deadline(&mut [0], deadline).is_err());
    }
    assert_eq!(server.spares(), [spare]);
    assert!(!server.log().contains("takes over"), "{}", server.log());
}

#[test]
fn a_spare_takes_no_processor_time() {
    let server = Server::start(&[]);
    let spare = server.ready_spare(1);
    let ticks = || -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", spare.as_raw_nonzero())).unwrap();
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let before = ticks();
    thread::sleep(Duration::from_millis(500));
    assert_eq!(ticks(), before);
}

#[test]
fn without_spares_every_client_gets_a_fresh_worker() {
    let server = Server::start(&["--spare", "0"]);
    for endpoint in server.endpoints() {
        let (_link, welcome) = session(&endpoint);
        assert!(welcome.window_bytes > 0);
        assert_eq!(server.spares(), []);
    }
    assert!(!server.log().contains("spare worker"), "{}", server.log());
}

#[test]
fn several_clients_at_once_share_one_spare() {
    let server = Server::start(&["--sessions-max", "6"]);
    server.ready_spare(1);
    let dials: Vec<_> = (0..8)
        .map(|n| {
            let endpoint = server.endpoints()[n % 2].clone();
            thread::spawn(move || dial(&endpoint, &hello(Purpose::Session), PATIENCE))
        })
        .collect();
    let dialled = dials.into_iter().map(|dial| dial.join().unwrap());
    let (served, refused): (Vec<_>, Vec<_>) = dialled.partition(Result::is_ok);
    assert_eq!((served.len(), refused.len()), (6, 2));
    for error in refused.into_iter().filter_map(Result::err) {
        assert!(
            error.to_string().contains("all of its 6 sessions"),
            "{error}"
        );
    }
    let mut sessions: Vec<_> = served.iter().flatten().map(|(.., w)| w.session).collect();
    sessions.sort();
    sessions.dedup();
    assert_eq!(sessions.len(), 6);
    eventually("six workers", || server.workers().len() == 6);
    assert!(server.log().contains("takes over"));
    drop(served);
    eventually("the end of all workers", || server.workers().is_empty());
}

#[test]
fn a_killed_spare_is_replaced_later_and_clients_are_served_meanwhile() {
    let mut server = Server::start(&[]);
    let first = server.ready_spare(1);
    kill_process(first, Signal::KILL).unwrap();
    server.expect_log("a spare worker ended (signal: 9 (SIGKILL))");
    let (link, _) = session(&server.shm);
    assert!(!server.log().contains("takes over"));
    drop(link);
    let second = server.ready_spare(2);
    assert_ne!(first, second);
    let (_link, _) = session(&server.tcp);
    assert_eq!(server.only_worker(), second);
    assert!(server.is_running());
}

#[test]
fn a_spare_that_dies_with_its_client_in_hand_leaves_it_to_the_first_worker() {
    let server = Server::start(&[]);
    let spare = server.ready_spare(1);
    kill_process(spare, Signal::STOP).unwrap();
    let endpoint = server.shm.clone();
    let client = thread::spawn(move || session(&endpoint));
    server.expect_log("a spare worker takes over");
    kill_process(spare, Signal::KILL).unwrap();
    let (link, welcome) = client.join().unwrap();
    assert_eq!((welcome.session, welcome.devices.len()), (1, 1));
    server.expect_log("its first worker serves it");
    let worker = server.only_worker();
    assert_ne!(worker, spare);
    kill_process(worker, Signal::KILL).unwrap();
    assert_ends(link);
}

#[test]
fn a_stopped_spare_leaves_its_client_to_the_first_worker_in_time() {
    let server = Server::start(&[]);
    let spare = server.ready_spare(1);
    kill_process(spare, Signal::STOP).unwrap();
    let (_link, welcome) = session(&server.tcp);
    assert_eq!((welcome.session, welcome.devices.len()), (1, 1));
    server.expect_log("a spare worker does not take its client over");
    eventually("the spare's end", || !is_alive(spare));
    assert_ne!(server.only_worker(), spare);
}

#[test]
fn a_client_of_a_spare_learns_of_its_end() {
    let server = Server::start(&[]);
    for (nth, endpoint) in server.endpoints().iter().enumerate() {
        let spare = server.ready_spare(nth + 1);
        let (link, _) = session(endpoint);
        assert_eq!(server.only_worker(), spare);
        kill_process(spare, Signal::KILL).unwrap();
        server.expect_log("the worker was killed by SIGKILL (9)");
        assert_ends(link);
    }
}

#[test]
fn signals_end_spares_too() {
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        let mut server = Server::start(&["--spare", "2"]);
        eventually("two spares", || {
            server.log().matches("a spare worker is ready").count() == 2
        });
        let spares = server.spares();
        assert_eq!(spares.len(), 2);
        let (_link, _) = session(&server.shm);
        server.signal(signal);
        let status = server.wait();
        assert_eq!(status.success(), signal != Signal::KILL);
        for pid in spares {
            eventually("the end of a spare", || !is_alive(pid));
        }
    }
}

/// A server of the nvidia kind whose driver is the tests' own, controlled by files.
struct FakeDriver {
    folder: TempDir,
}

const DRIVER: &str = "libcuda.so.1";
const NVML: &str = "libnvidia-ml.so.1";
/// Says what the daemon would: a number in the test's file, or what the real one says without any.
const MPS_CONTROL: &str = "#!/bin/sh
cat \"$FAKE_DRIVER/mps_percentage\" 2>/dev/null || { echo Cannot find MPS control daemon process; exit 1; }
";

impl FakeDriver {
    fn build() -> FakeDriver {
        let folder = TempDir::new().unwrap();
        for (source, library) in [("driver.c", DRIVER), ("nvml.c", NVML)] {
            let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nvidia/src/tests");
            let built = Command::new("cc")
                .args(["-shared", "-fPIC", "-O1", "-w", "-pthread", "-o"])
                .args([folder.path().join(library), sources.join(source)])
                .status()
                .unwrap();
            assert!(built.success());
        }
        let control = folder.path().join("nvidia-cuda-mps-control");
        fs::write(&control, MPS_CONTROL).unwrap();
        fs::set_permissions(&control, fs::Permissions::from_mode(0o755)).unwrap();
        FakeDriver { folder }
    }

    /// Returns how often the management library was started.
    fn nvml_starts(&self) -> usize {
        fs::read(self.folder.path().join("nvml_starts")).map_or(0, |starts| starts.len())
    }

    fn set(&self, name: &str, value: i64) {
        let partial = self.folder.path().join("partial");
        fs::write(&partial, value.to_string()).unwrap();
        fs::rename(partial, self.folder.path().join(name)).unwrap();
    }

    fn serve(&self, flags: &[&str]) -> Server {
        Server::start_with(&mut self.command(flags))
    }

    fn command(&self, flags: &[&str]) -> Command {
        let folder = self.folder.path();
        let mut command = outboard();
        command
            .args(["serve", "--device", "nvidia"])
            .args(flags)
            .env("OUTBOARD_DRIVER", folder.join(DRIVER))
            .env("OUTBOARD_NVML", folder.join(NVML))
            .env("PATH", format!("{}:/usr/bin:/bin", folder.display()))
            .env("FAKE_DRIVER", folder);
        command
    }
}

#[test]
fn a_device_that_does_not_open_is_tried_less_and_less_often() {
    let fake = FakeDriver::build();
    fake.set("no_context", 1);
    let mut server = fake.serve(&[]);
    let start = Instant::now();
    server.expect_log("the next one is started in 2 s");
    assert!(start.elapsed() >= Duration::from_secs(1));
    // A client gets the reason, as without spares.
    let error = dial(&server.shm, &hello(Purpose::Session), PATIENCE)
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("the device cannot be used"),
        "{error}"
    );
    assert_eq!(server.log().matches("a spare worker starts").count(), 2);
    // There is a spare as soon as the device opens.
    fake.set("no_context", 0);
    let spare = server.ready_spare(1);
    let (_link, _) = session(&server.shm);
    assert_eq!(server.only_worker(), spare);
    assert!(server.is_running());
}

#[test]
fn a_gpu_for_one_process_at_a_time_gets_no_spare() {
    let fake = FakeDriver::build();
    // CU_COMPUTEMODE_EXCLUSIVE_PROCESS
    fake.set("compute_mode", 3);
    let server = fake.serve(&[]);
    server.expect_log("exclusive compute mode has no room for a spare worker");
    let (_link, welcome) = session(&server.shm);
    assert_eq!(welcome.devices[0].name, "Fake");
    assert!(!server.log().contains("takes over"));
}

#[test]
fn the_quota_is_of_the_moment_when_the_client_comes() {
    let fake = FakeDriver::build();
    fake.set("free_mib", 1000);
    let server = fake.serve(&["--spare", "1"]);
    let spare = server.ready_spare(1);
    fake.set("free_mib", 950);
    let (_link, welcome) = session(&server.shm);
    assert_eq!(server.only_worker(), spare);
    // The quota excludes the memory that drivers need in addition, and the context of the spare
    // that replaces this one (CONTEXT_BYTES_MAX, until the management library reports its real
    // size).
    assert_eq!(welcome.devices[0].quota_bytes, (950 - 256 - 640) * MIB);
}

#[test]
fn a_device_lost_while_a_spare_waited_is_opened_anew() {
    let fake = FakeDriver::build();
    let server = fake.serve(&["--spare", "1", "--memory", "100MiB"]);
    let spare = server.ready_spare(1);
    fake.set("free_mib", -1);
    let endpoint = server.shm.clone();
    let client = thread::spawn(move || dial(&endpoint, &hello(Purpose::Session), PATIENCE));
    server.expect_log("its first worker serves it");
    eventually("the spare's end", || !is_alive(spare));
    // The fake's device stays lost: the client gets the error of a new worker.
    let error = client.join().unwrap().err().unwrap();
    assert!(
        error.to_string().contains("the device cannot be used"),
        "{error}"
    );
}

#[test]
fn a_tenant_gets_its_part_of_a_gpu_and_no_spare_that_has_all_of_it() {
    let fake = FakeDriver::build();
    fake.set("mps", 1);
    fake.set("mps_percentage", 100);
    let mine = format!("uid:{}:gpu-percent=25", rustix::process::getuid().as_raw());
    let server = fake.serve(&["--share", &mine]);
    let spare = server.ready_spare(1);
    let (_link, welcome) = session(&server.shm);
    assert_eq!(multiprocessors(&welcome), 160 * 25 / 100);
    // The address of the tcp client is another tenant.
    let (_link, welcome) = session(&server.tcp);
    assert_eq!(multiprocessors(&welcome), 160);
    assert!(server.workers().contains(&spare));
    // The daemon ends: the share cannot be kept, so that the program gets nothing rather than all.
    fake.set("mps", 0);
    let hello = hello(Purpose::Session);
    let error = dial(&server.shm, &hello, PATIENCE).err().unwrap();
    assert!(error.to_string().contains("MPS does not serve"), "{error}");
}

#[test]
fn a_part_of_a_gpu_needs_a_daemon_that_divides_it() {
    let fake = FakeDriver::build();
    let refused = |why: &str| {
        let done = output(&mut fake.command(&["--share", "gpu-percent=50", "--check-config"]));
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{said}");
        assert!(said.contains(why), "{said}");
    };
    refused("no control daemon of MPS answers");
    fs::remove_file(fake.folder.path().join("nvidia-cuda-mps-control")).unwrap();
    refused("nvidia-cuda-mps-control is not on this machine");
}

fn multiprocessors(welcome: &ServerWelcome) -> i32 {
    // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    welcome.devices[0].attributes[16].unwrap()
}

/// Makes the request of the management library's replacement.
fn snapshot(link: Link, detail: u32) -> NvmlSnapshot {
    let (mut sender, mut receiver) = link.split();
    let question = messages::NvmlSnapshot { detail };
    let mut frame = sender.reserve(frame::request_len(&question)).unwrap();
    frame::encode_request(&mut frame, 1, 0, &question).unwrap();
    frame.commit().unwrap();
    sender.flush().unwrap();
    let wait = Wait::Until(Instant::now() + PATIENCE);
    let answer = receiver.recv(wait).unwrap().unwrap();
    let (header, mut body) = frame::decode_reply(answer).unwrap();
    assert_eq!(header.status, 0);
    let reply = messages::NvmlSnapshotReply::decode(&mut body).unwrap();
    doc::from_bytes(&reply.document).unwrap()
}

fn management(endpoint: &Endpoint) -> Link {
    let (link, _, welcome) = dial(endpoint, &hello(Purpose::Management), PATIENCE).unwrap();
    assert_eq!((welcome.window_bytes, welcome.devices.len()), (0, 0));
    link
}

#[test]
fn facts_of_the_devices_come_from_the_spare_and_the_rest_opens_no_device() {
    let fake = FakeDriver::build();
    let server = fake.serve(&["--spare", "1"]);
    let spare = server.ready_spare(1);
    assert_eq!(fake.nvml_starts(), 1);
    // From here on the driver could not even be loaded.
    fs::remove_file(fake.folder.path().join(DRIVER)).unwrap();
    for endpoint in server.endpoints() {
        let facts = snapshot(management(&endpoint), NVML_FACTS);
        assert_eq!(facts.driver_version, "580.0.1");
        assert_eq!(facts.devices[0].name, "Fake");
    }
    assert_eq!(fake.nvml_starts(), 1);
    let now = snapshot(management(&server.shm), NVML_NOW);
    assert_eq!(now.devices[0].temperature_celsius, Some(42));
    assert_eq!(now.devices[0].pci.throughput_kilobytes_per_s, None);
    let sampled = snapshot(management(&server.tcp), NVML_SAMPLES);
    assert_eq!(
        sampled.devices[0].pci.throughput_kilobytes_per_s,
        Some((7, 7))
    );
    assert_eq!(fake.nvml_starts(), 3);
    assert_eq!(server.spares(), [spare]);
}

#[test]
fn without_spares_the_management_library_is_asked_and_no_context_made() {
    let fake = FakeDriver::build();
    fake.set("no_context", 1);
    let server = fake.serve(&["--spare", "0"]);
    for detail in [NVML_FACTS, NVML_NOW] {
        let snapshot = snapshot(management(&server.shm), detail);
        assert_eq!(snapshot.devices[0].name, "Fake");
    }
    assert_eq!(fake.nvml_starts(), 2);
}

#[test]
fn a_spare_spares_the_client_the_opening_of_the_device() {
    const INIT_MS: u64 = 300;
    let fake = FakeDriver::build();
    fake.set("init_ms", INIT_MS as i64);
    let took = |flags: &[&str]| {
        let server = fake.serve(flags);
        if flags.is_empty() {
            server.ready_spare(1);
        }
        let start = Instant::now();
        let (_link, _) = session(&server.shm);
        start.elapsed()
    };
    assert!(took(&["--spare", "0"]) >= Duration::from_millis(INIT_MS));
    let took = took(&[]);
    assert!(took < Duration::from_millis(INIT_MS / 2), "{took:?}");
}

/// Sends a message without a reply.
fn send<'a, M: Op<'a>>(sender: &mut Sender, message: &M) {
    let mut frame = sender.reserve(frame::request_len(message)).unwrap();
    frame::encode_request(&mut frame, 0, 0, message).unwrap();
    frame.commit().unwrap();
}

#[test]
fn a_worker_whose_driver_call_does_not_return_is_named() {
    let fake = FakeDriver::build();
    fake.set("pools_refuse", 1);
    let server = fake.serve(&[]);
    let worker = server.ready_spare(1);
    let (link, _) = session(&server.shm);
    let (mut sender, receiver) = link.split();
    let places = [0x5900_0000_0000, 0x5900_0001_0000];
    for va in places {
        let (len, flags, fd_tag) = (4096, 0, 0);
        let map = messages::HostMap {
            va,
            len,
            flags,
            fd_tag,
        };
        send(&mut sender, &map);
    }
    let [dst, src] = places;
    // The fake's kernel, which waits for a word that the client never writes.
    let kernel = messages::CuMemsetD8Async {
        dst_device: dst,
        uc: 0xee,
        n: 1,
        h_stream: 0,
    };
    send(&mut sender, &kernel);
    // Without device memory, the driver's copy waits for the kernel.
    let (dst, len, stream, sync) = (dst + 8, 8, 0, 0);
    let copy = messages::Copy {
        dst,
        src,
        len,
        stream,
        sync,
    };
    send(&mut sender, &copy);
    sender.flush().unwrap();
    drop((sender, receiver));
    server.expect_log("ended in a driver call that did not return");
    assert!(!is_alive(worker));
    assert!(!server.log().contains("ERROR"), "{}", server.log());
}

#[test]
fn a_worker_whose_device_is_not_released_ends_and_is_named() {
    let fake = FakeDriver::build();
    let server = fake.serve(&[]);
    let worker = server.ready_spare(1);
    let (link, _) = session(&server.shm);
    fake.set("stays", 1);
    drop(link);
    server.expect_log("ended before its device was released");
    assert!(!is_alive(worker));
    assert!(!server.log().contains("ERROR"), "{}", server.log());
    fake.set("stays", 0);
}

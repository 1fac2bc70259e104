//! Recording from several threads while a program runs, and when it ends abnormally.

#![allow(clippy::unwrap_used)]

use std::{path::Path, sync::Arc, thread};

use outboard_trace::{About, Call, Class, Error, Mark, Record, SHARED_RECORDS_MAX, Writer, read};

fn call(function: u32, thread: u32, start_ns: u64) -> Record {
    Record::Call(Call {
        function,
        class: Class::Local,
        thread,
        start_ns,
        duration_ns: 1,
        request_bytes: 0,
        response_bytes: 0,
        stream: 0,
        event: 0,
        correlation: 0,
        status: 0,
        server: 0,
    })
}

fn start(path: &Path) -> (Arc<Writer>, thread::JoinHandle<()>) {
    let (writer, drain) = Writer::create(path, &About::default()).unwrap();
    (writer, thread::spawn(move || drain.run()))
}

#[test]
fn many_threads() {
    const THREADS: u32 = 11;
    const CALLS: u64 = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let (writer, drain) = start(&path);
    writer.set_about(About {
        release: "later".into(),
        ..About::default()
    });
    let names: Vec<u32> = (0..5).map(|n| writer.name(&format!("f{n}"))).collect();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (writer, names) = (&writer, &names);
            scope.spawn(move || {
                for n in 0..CALLS {
                    writer.append(call(names[(n % 5) as usize], thread, n));
                    if n == CALLS / 2 {
                        let name = writer.name(&format!("thread {thread}"));
                        let at_ns = n;
                        let mark = Mark {
                            name,
                            thread,
                            at_ns,
                            is_end: false,
                        };
                        writer.append(Record::Mark(mark));
                    }
                }
            });
        }
    });
    let summary = writer.finish().unwrap();
    drain.join().unwrap();
    let trace = read(&path).unwrap();
    assert!(trace.complete);
    assert_eq!(trace.about.release, "later");
    assert_eq!(trace.lost, summary.lost);
    assert_eq!(trace.records.len() as u64, summary.records);
    assert_eq!(
        summary.records + summary.lost,
        u64::from(THREADS) * (CALLS + 1),
        "every record is written or counted as lost"
    );
    for call in trace.calls() {
        assert_eq!(trace.name(call.function), format!("f{}", call.start_ns % 5));
    }
    for mark in trace.marks() {
        assert_eq!(trace.name(mark.name), format!("thread {}", mark.thread));
    }
}

#[test]
fn what_does_not_fit_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let (writer, drain) = Writer::create(&path, &About::default()).unwrap();
    let name = writer.name("f");
    // The drain does not run meanwhile.
    for n in 0..SHARED_RECORDS_MAX as u64 + 7 {
        writer.append(call(name, 0, n));
    }
    let drain = thread::spawn(move || drain.run());
    let summary = writer.finish().unwrap();
    drain.join().unwrap();
    assert_eq!(summary.lost, 7);
    let trace = read(&path).unwrap();
    assert_eq!((trace.records.len(), trace.lost), (SHARED_RECORDS_MAX, 7));
}

#[test]
fn a_program_that_is_killed_leaves_what_it_did() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let (writer, _drain) = start(&path);
    let name = writer.name("f");
    writer.append(call(name, 0, 1));
    // The file as it is at any moment: no end is ever written.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let trace = loop {
        let trace = read(&path).unwrap();
        if !trace.records.is_empty() || std::time::Instant::now() > until {
            break trace;
        }
        thread::sleep(std::time::Duration::from_millis(5));
    };
    assert_eq!(trace.records.len(), 1);
    assert!(!trace.complete);
    drop(writer);
}

#[test]
fn a_file_that_is_removed_meanwhile_harms_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let (writer, drain) = start(&path);
    let name = writer.name("f");
    std::fs::remove_file(&path).unwrap();
    for n in 0..1000 {
        writer.append(call(name, 0, n));
    }
    assert_eq!(writer.finish().unwrap().records, 1000);
    drain.join().unwrap();
}

#[test]
fn a_place_that_cannot_be_written_is_said() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().join("no/folder"), "/dev/full".into()] {
        let error = Writer::create(&path, &About::default())
            .map(drop)
            .unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()));
    }
}

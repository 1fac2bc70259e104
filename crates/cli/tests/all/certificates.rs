//! Tests of certificates: a server's that programs check by name, programs' own, and their files.
// The helpers of tests are no `#[test]`s, which clippy.toml exempts.

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
};

use crate::common::{
    authority::{Authority, Wanted, write_pair},
    *,
};
use outboard_trust::Certificate;
use rustix::process::Signal;

const HERE: Wanted<'_> = Wanted::server("IP:127.0.0.1");
const PAST: Option<[&str; 2]> = Some(["20200101000000Z", "20210101000000Z"]);
const FUTURE: Option<[&str; 2]> = Some(["21000101000000Z", "21010101000000Z"]);

/// Certificates of a server, what the program says of them, and what the server does.
const SERVER_FAULTS: [(Wanted<'_>, &str, &str); 7] = [
    (
        Wanted::server("DNS:gpu-host.example.org, IP:127.0.0.2"),
        "certificate is for another name: not for 127.0.0.1, but for gpu-host.example.org, 127.0.0.2",
        "is for another name",
    ),
    (
        Wanted::server("DNS:127.0.0.1"),
        "certificate is for another name: not for 127.0.0.1",
        "is for another name",
    ),
    (
        Wanted {
            subject: "/CN=127.0.0.1",
            ..Wanted::server("")
        },
        "certificate is for another name: not for 127.0.0.1",
        "is for another name",
    ),
    (
        Wanted {
            dates: PAST,
            ..HERE
        },
        "certificate has expired on 2021-01-01",
        "this side's certificate has expired",
    ),
    (
        Wanted {
            dates: FUTURE,
            ..HERE
        },
        "certificate is not valid before 2100-01-01",
        "or is not valid yet",
    ),
    (
        Wanted {
            usage: "clientAuth",
            ..HERE
        },
        "certificate is not for this use",
        "is for another use",
    ),
    (
        Wanted {
            is_authority: true,
            ..HERE
        },
        "certificate is that of an authority",
        "cannot be checked",
    ),
];

/// Certificates of a program, and what the server says of them.
const CLIENT_FAULTS: [(Wanted<'_>, &str); 6] = [
    (
        Wanted {
            dates: PAST,
            ..Wanted::client("/CN=old")
        },
        "has expired on 2021-01-01",
    ),
    (
        Wanted {
            dates: FUTURE,
            ..Wanted::client("/CN=early")
        },
        "is not valid before 2100-01-01",
    ),
    (
        Wanted::server("DNS:host"),
        "is not for this use: a server's needs serverAuth",
    ),
    (
        Wanted {
            is_authority: true,
            ..Wanted::client("/CN=chief")
        },
        "is that of an authority",
    ),
    (
        Wanted::client("/CN=Alice A"),
        "has a name that cannot be used, \"Alice A\"",
    ),
    (Wanted::client("/O=nobody"), "has no name"),
];

fn start([chain, key]: &[PathBuf; 2], flags: &[&str]) -> Server {
    let mut all = vec!["--spare", "1"];
    all.extend(["--certificate", chain.to_str().unwrap()]);
    all.extend(["--key", key.to_str().unwrap()]);
    all.extend(flags);
    Server::start(&all)
}

fn run(url: &str, more: &[&Path]) -> Command {
    let mut command = outboard();
    command.args(["run", "--gpu", url]);
    for (option, file) in ["--ca", "--certificate", "--key"].iter().zip(more) {
        command.arg(option).arg(file);
    }
    command.args(["--", "true"]);
    for unset in [
        "OUTBOARD_CA",
        "OUTBOARD_CERTIFICATE",
        "OUTBOARD_CERTIFICATE_KEY",
        "SSL_CERT_DIR",
    ] {
        command.env_remove(unset);
    }
    command.env("XDG_CONFIG_HOME", "/proc/nowhere");
    command
}

fn done(command: &mut Command) {
    let Output { status, stderr, .. } = output(command);
    assert!(status.success(), "{}", text(&stderr));
}

fn refused(command: &mut Command) -> String {
    let Output { status, stderr, .. } = output(command);
    assert_eq!(status.code(), Some(1), "{}", text(&stderr));
    assert!(!text(&stderr).contains("panicked"), "{}", text(&stderr));
    text(&stderr)
}

#[test]
fn a_server_is_known_by_a_certificate_or_by_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let root = Authority::new(dir.path(), "root");
    let foreign = Authority::new(dir.path(), "foreign");
    let signed = root.below("between").below("next").sign(&Wanted {
        names: "DNS:localhost, IP:127.0.0.1, IP:::1",
        key: &["rsa:2048"],
        ..HERE
    });
    let files = write_pair(dir.path(), "server", &signed);
    let mut server = start(&files, &[]);
    let url = server.tcp.to_string();
    assert!(url.starts_with("tcps://127.0.0.1:") && !url.contains('?'));
    done(&mut run(&url, &[&root.file]));
    done(&mut run(
        &url.replace("127.0.0.1", "localhost"),
        &[&root.file],
    ));
    done(run(&url, &[]).env("OUTBOARD_CA", &root.file));
    // Without the certificates in between nothing leads to the authority.
    let alone = format!(
        "{}-----END CERTIFICATE-----\n",
        signed[0].split("-----END").next().unwrap()
    );
    let bare = write_pair(dir.path(), "bare", &[alone, signed[1].clone()]);
    let other = start(&bare, &[]);
    let said = refused(&mut run(&other.tcp.to_string(), &[&root.file]));
    assert!(said.contains("no authority that is trusted here"), "{said}");
    // Authorities of the system.
    done(run(&url, &[]).env("SSL_CERT_FILE", &root.file));
    let said = refused(run(&url, &[]).env("SSL_CERT_FILE", "/proc/nowhere/roots"));
    assert!(said.contains("no certificates of authorities"), "{said}");
    for other in [
        &mut run(&url, &[&foreign.file]),
        run(&url, &[]).env("SSL_CERT_FILE", &foreign.file),
    ] {
        let said = refused(other);
        assert!(said.contains("no authority that is trusted here"), "{said}");
        assert!(
            said.contains("--ca") && said.contains("fingerprint"),
            "{said}"
        );
    }
    server.expect_log("does not trust the authority");
    let pin = Certificate::read(&files[0], &files[1])
        .unwrap()
        .fingerprint();
    done(&mut run(&format!("{url}?fingerprint={pin}"), &[]));
    let other = format!("{url}?fingerprint=sha256:{}", "0f".repeat(32));
    assert!(refused(&mut run(&other, &[])).contains("another key"));
    let said = refused(&mut run(&url.replace("tcps", "tcp"), &[]));
    assert!(said.contains("tcps:// or rdmas:// address"), "{said}");
    assert!(server.is_running());
}

/// Writes the files of a server anew, and has them read.
fn renew(server: &Server, folder: &Path, signed: &[String; 2], says: &str) {
    let before = server.log().matches(says).count();
    write_pair(folder, "server", signed);
    server.signal(Signal::HUP);
    eventually(says, || server.log().matches(says).count() > before);
}

#[test]
fn the_fault_of_a_servers_certificate_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let root = Authority::new(dir.path(), "root");
    let files = write_pair(dir.path(), "server", &root.sign(&HERE));
    let mut server = start(&files, &[]);
    let url = server.tcp.to_string();
    for (wanted, said_here, said_there) in SERVER_FAULTS {
        renew(&server, dir.path(), &root.sign(&wanted), "valid until");
        let before = server.log().matches(said_there).count();
        let said = refused(&mut run(&url, &[&root.file]));
        assert!(said.contains(said_here), "{said_here}: {said}");
        eventually("the server's line", || {
            server.log().matches(said_there).count() > before
        });
    }
    server.expect_log("it has expired on 2021-01-01");
    assert!(server.is_running());
    assert!(!server.log().contains("panicked"));
}

#[test]
fn renewed_files_are_shown_if_they_can_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let root = Authority::new(dir.path(), "root");
    let foreign = Authority::new(dir.path(), "foreign").sign(&HERE);
    let right = root.sign(&HERE);
    let mut server = start(&write_pair(dir.path(), "server", &foreign), &[]);
    let url = server.tcp.to_string();
    refused(&mut run(&url, &[&root.file]));
    // Without a signal.
    write_pair(dir.path(), "server", &right);
    eventually("the renewed certificate", || {
        output(&mut run(&url, &[&root.file])).status.success()
    });
    // Half of a renewal, and noise: what was shown before is shown on.
    for [chain, key] in [[foreign[0].as_str(), &right[1]], ["noise", "noise"]] {
        let signed = [chain.into(), key.into()];
        renew(&server, dir.path(), &signed, "is used on");
        done(&mut run(&url, &[&root.file]));
    }
    renew(&server, dir.path(), &foreign, "valid until");
    refused(&mut run(&url, &[&root.file]));
    assert!(server.is_running());
    assert!(!server.log().contains("panicked"));
}

#[test]
fn programs_are_known_by_their_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let root = Authority::new(dir.path(), "root");
    let foreign = Authority::new(dir.path(), "foreign");
    let server_files = write_pair(dir.path(), "server", &root.sign(&HERE));
    let ca = dir.path().join("clients.pem");
    fs::copy(&root.file, &ca).unwrap();
    let mut server = start(&server_files, &["--client-ca", ca.to_str().unwrap()]);
    let url = server.tcp.to_string();
    let with = |name: &str, signed: &[String; 2]| {
        let [chain, key] = write_pair(dir.path(), name, signed);
        run(&url, &[&root.file, &chain, &key])
    };
    let alice = root.sign(&Wanted::client("/CN=alice"));
    done(&mut with("alice", &alice));
    let said = refused(&mut run(&url, &[&root.file]));
    assert!(
        said.contains("this server asks for a certificate"),
        "{said}"
    );
    let mallory = foreign.sign(&Wanted::client("/CN=alice"));
    let said = refused(&mut with("mallory", &mallory));
    assert!(
        said.contains("the program's certificate is signed by no authority"),
        "{said}"
    );
    for (wanted, says) in CLIENT_FAULTS {
        let said = refused(&mut with("other", &root.sign(&wanted)));
        let says = format!("the program's certificate {says}");
        assert!(said.contains(&says), "{says}: {said}");
    }
    for line in [
        "is signed by no authority",
        "has expired on",
        "is not for this use",
    ] {
        server.expect_log(&format!("the program's certificate {line}"));
    }
    // Another authority from now on, then none.
    fs::copy(&foreign.file, &ca).unwrap();
    assert!(refused(&mut with("alice", &alice)).contains("signed by no authority"));
    done(&mut with("mallory", &mallory));
    fs::write(&ca, "noise").unwrap();
    assert!(refused(&mut with("mallory", &mallory)).contains("its log says why"));
    assert!(server.is_running() && !server.log().contains("panicked"));
}

#[test]
fn revoked_certificates_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let root = Authority::new(dir.path(), "root");
    let right = root.sign(&HERE);
    let files = write_pair(dir.path(), "server", &right);
    let ca = dir.path().join("clients.pem");
    fs::copy(&root.file, &ca).unwrap();
    let server = start(&files, &["--client-ca", ca.to_str().unwrap()]);
    let url = server.tcp.to_string();
    let alice = root.sign(&Wanted::client("/CN=alice"));
    let [chain, key] = write_pair(dir.path(), "alice", &alice);
    let mut alices = run(&url, &[&root.file, &chain, &key]);
    let [chain, key] = write_pair(dir.path(), "bob", &root.sign(&Wanted::client("/CN=bob")));
    done(&mut alices);
    let trusted = fs::read_to_string(&root.file).unwrap();
    fs::write(
        &ca,
        trusted.clone() + &root.revoke(&dir.path().join("alice.pem")),
    )
    .unwrap();
    let said = refused(&mut alices);
    assert!(
        said.contains("the program's certificate was revoked"),
        "{said}"
    );
    done(&mut run(&url, &[&root.file, &chain, &key]));
    // The server's own, in the list that programs have.
    let both = dir.path().join("both");
    fs::write(&both, trusted + &root.revoke(&files[0])).unwrap();
    let said = refused(&mut run(&url, &[&both, &chain, &key]));
    assert!(
        said.contains("the server's certificate was revoked"),
        "{said}"
    );
}

#[test]
fn names_are_listed_and_taken_off() {
    let dir = tempfile::tempdir().unwrap();
    let root = Authority::new(dir.path(), "root");
    let server_files = write_pair(dir.path(), "server", &root.sign(&HERE));
    let list = dir.path().join("list");
    let put = |text: &str| {
        fs::write(&list, text).unwrap();
        fs::set_permissions(&list, fs::Permissions::from_mode(0o644)).unwrap();
    };
    put("cert:alice@example.org a friend\n");
    let (ca, list) = (root.file.to_str().unwrap(), list.to_str().unwrap());
    let server = start(&server_files, &["--client-ca", ca, "--authorized", list]);
    let url = server.tcp.to_string();
    let with = |name: &str, signed: [String; 2]| {
        let [chain, key] = write_pair(dir.path(), name, &signed);
        run(&url, &[&root.file, &chain, &key])
    };
    let alice = Wanted {
        names: "email:alice@example.org, DNS:laptop",
        ..Wanted::client("/CN=Alice A")
    };
    done(&mut with("alice", root.sign(&alice)));
    let said = refused(&mut with("bob", root.sign(&Wanted::client("/CN=bob"))));
    assert!(said.contains("add the line cert:bob"), "{said}");
    put("cert:bob\n");
    let said = refused(&mut with("alice", root.sign(&alice)));
    assert!(
        said.contains("alice@example.org is not authorized"),
        "{said}"
    );
    // A server of keys alone says so.
    let mut keygen = outboard();
    let made = output(keygen.arg("keygen").arg(dir.path().join("key")));
    put(&text(&made.stdout));
    let server = start(&server_files, &["--authorized", list]);
    let [chain, key] = write_pair(dir.path(), "bob", &root.sign(&Wanted::client("/CN=bob")));
    let url = server.tcp.to_string();
    let said = refused(&mut run(&url, &[&root.file, &chain, &key]));
    assert!(said.contains("not by certificates"), "{said}");
    done(run(&url, &[&root.file]).env("OUTBOARD_KEY_FILE", dir.path().join("key")));
}

#[test]
fn files_that_cannot_be_used_are_named_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let root = Authority::new(dir.path(), "root");
    let [chain, key] = write_pair(dir.path(), "one", &root.sign(&HERE));
    let [_, other] = write_pair(dir.path(), "two", &root.sign(&HERE));
    let noise = dir.path().join("noise");
    fs::write(
        &noise,
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    )
    .unwrap();
    let empty = dir.path().join("empty");
    fs::write(&empty, "no key").unwrap();
    fs::set_permissions(&empty, fs::Permissions::from_mode(0o600)).unwrap();
    let open = dir.path().join("open");
    fs::copy(&key, &open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let serve = |options: &[(&str, &Path)]| {
        let mut command = outboard();
        command.args(["serve", "--device", "soft", "--listen", "tcp://127.0.0.1:0"]);
        for (option, value) in options {
            command.arg(option).arg(value);
        }
        let ended = output(&mut command);
        assert!(!ended.status.success());
        text(&ended.stderr)
    };
    let (c, k) = ("--certificate", "--key");
    for (options, says) in [
        (
            &[(c, &*chain), (k, &*other)][..],
            "is not that of the first certificate",
        ),
        (&[(c, &*noise), (k, &*key)], "cannot be read"),
        (&[(c, &*key), (k, &*key)], "holds no certificate"),
        (&[(c, &*chain), (k, &*empty)], "holds no private key"),
        (&[(c, &*chain), (k, &*open)], "chmod 600"),
        (
            &[(c, Path::new("/proc/nowhere/x")), (k, &*key)],
            "/proc/nowhere/x",
        ),
        (&[(c, &*chain)], "--key"),
        (
            &[(c, &*chain), (k, &*key), ("--client-ca", &*key)],
            "--client-ca",
        ),
        (
            &[("--client-ca", &*root.file)],
            "add --tls or --certificate",
        ),
    ] {
        let said = serve(options);
        assert!(said.contains(says), "{says}: {said}");
    }
    let half =
        refused(run("tcps://127.0.0.1:9", &[&root.file]).env("OUTBOARD_CERTIFICATE", &chain));
    assert!(half.contains("one alone is set"), "{half}");
    let plain = refused(&mut run("tcp://127.0.0.1:9", &[&root.file]));
    assert!(plain.contains("are for encrypted connections"), "{plain}");
}

/// Passes a connection on, but only so many bytes of the client's; then noise.
fn cutting_relay(port: u16, at: usize, noise: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (mut back, mut there) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        thread::spawn(move || {
            let _ = std::io::copy(&mut &server, &mut back);
            let _ = back.shutdown(Shutdown::Both);
        });
        let mut first = vec![0; at];
        let _ = client.read_exact(&mut first);
        let _ = there.write_all(&first);
        let _ = there.write_all(noise);
        let _ = there.shutdown(Shutdown::Write);
    });
    here
}

#[test]
fn cut_and_broken_handshakes_harm_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let root = Authority::new(dir.path(), "root");
    let files = write_pair(dir.path(), "server", &root.sign(&HERE));
    let ca = root.file.to_str().unwrap();
    let mut server = start(&files, &["--client-ca", ca]);
    let url = server.tcp.to_string();
    let port: u16 = url.rsplit(':').next().unwrap().parse().unwrap();
    let [chain, key] = write_pair(
        dir.path(),
        "alice",
        &root.sign(&Wanted::client("/CN=alice")),
    );
    let all = [root.file.as_path(), &chain, &key];
    // In the client's hello, in its certificate, and after it.
    for at in [3, 90, 400, 700] {
        for noise in [&b""[..], &[22, 3, 3, 0, 1, 2], &[23, 3, 3, 0, 40]] {
            let through = url.replace(
                &port.to_string(),
                &cutting_relay(port, at, noise).to_string(),
            );
            refused(&mut run(&through, &all));
        }
    }
    done(&mut run(&url, &all));
    eventually("the end of all workers", || server.workers().is_empty());
    assert!(server.is_running());
    assert!(!server.log().contains("panicked"));
}

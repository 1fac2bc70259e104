//! `outboard doctor`: reports what works, what does not, and the remedy.

mod finding;
mod slowness;

use std::{process::ExitCode, time::Duration};

use outboard_link::{Endpoint, kernel_tls, rdma_devices};
use outboard_net::{PROVIDER_VARIABLE, Provider, WAY_VARIABLE, Way};
use outboard_nvidia::gpu_direct_report;
use outboard_pages::Tracker;
use outboard_server::{Available, DeviceKind, sandbox_available};
use outboard_wire::{
    handshake::PROTOCOL_VERSION,
    limits::{DATA_CONNECTIONS, RDMA_RING_BYTES},
    messages::FINGERPRINT,
};
use rustix::process::{Resource, getrlimit};

use finding::{Finding, Verdict};

use crate::{
    args::DoctorArgs,
    libraries,
    peer::{NotAllowed, Server},
    said::whole,
    serve::default_endpoint,
    signals::Cut,
    token,
};

/// The address window that a session reserves, and room for the program, in bytes.
const ADDRESS_SPACE_BYTES_MIN: u64 = 1 << 42;
/// Descriptors that a program with a few links and libraries opens.
const DESCRIPTORS_MIN: u64 = 256;
/// Locked bytes of an rdma link: both rings, and its queues.
const RDMA_LOCKED_BYTES: u64 = 2 * RDMA_RING_BYTES as u64 + (1 << 20);
const PINGS: usize = 200;
/// Bytes under way at 100 Gbps and 1 ms.
const FULL_AT_1_MS_BYTES: u64 = 12_500_000;

pub(crate) fn doctor(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let endpoint = match args.gpu {
        Some(endpoint) => endpoint,
        None => default_endpoint()?,
    };
    token::use_files(&args.token, std::slice::from_ref(&endpoint))?;
    let json = args.json;
    let say = move |all: &Vec<Finding>| json.say(all, || table(all));
    let cut = Cut::watch(Vec::new(), say)?;
    look(&cut, &endpoint);
    let is_well = cut.look(|all| all.iter().all(|f| f.verdict != Verdict::Fail));
    cut.finish()?;
    Ok(if is_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Looks at all that a program, or a server, needs here, and at the server.
fn look(cut: &Cut<Vec<Finding>>, endpoint: &Endpoint) {
    let add = |more: Vec<Finding>| cut.note(|all| all.extend(more));
    let release = format!(
        "{}, protocol {PROTOCOL_VERSION}, declarations {FINGERPRINT:016x}",
        env!("CARGO_PKG_VERSION")
    );
    add(vec![Finding::ok("release", release)]);
    cut.doing("loading the libraries");
    add(vec![
        library("client library", &libraries::CUDA, Finding::fail),
        library("management library", &libraries::NVML, Finding::note),
    ]);
    cut.doing("looking at this machine");
    add(vec![
        shared_memory(),
        address_space(),
        descriptors(),
        written_pages(),
        tcp_buffers(),
        kernel_encryption(),
        sandbox(),
        control_groups(),
    ]);
    cut.doing("looking at this machine's GPU");
    add(vec![local_device()]);
    cut.doing("looking at what makes this machine slow");
    add(slowness::of_this_machine());
    cut.doing("looking at RDMA devices");
    add(rdma(matches!(endpoint, Endpoint::Rdma { .. })));
    add(gpu_memory().into_iter().collect());
    cut.doing("looking at the providers of net.h");
    let is_far = !matches!(endpoint, Endpoint::Shm(_));
    add(Provider::ALL.map(|of| provider(of, is_far)).into());
    add(by_verbs(is_far).into_iter().collect());
    cut.doing("asking the server");
    add(server(endpoint));
}

fn table(findings: &[Finding]) -> String {
    let mut out = String::new();
    let width = findings.iter().map(|f| f.what.len()).max().unwrap_or(0);
    for finding in findings {
        let mark = match finding.verdict {
            Verdict::Ok => "ok  ",
            Verdict::Note => "note",
            Verdict::Fail => "FAIL",
        };
        out += &format!("{mark}  {:width$}  {}\n", finding.what, finding.found);
        if let Some(remedy) = &finding.remedy {
            out += &format!("      {:width$}  -> {remedy}\n", "");
        }
    }
    out
}

fn library(
    what: &'static str,
    library: &libraries::Library,
    missing: fn(&'static str, String, String) -> Finding,
) -> Finding {
    let reinstall = || {
        format!(
            "install Outboard again, with {} in lib/outboard",
            library.names[0]
        )
    };
    match library.find() {
        Err(error) => missing(what, error.to_string(), reinstall()),
        Ok(path) => match libraries::loads(&path) {
            Ok(()) => Finding::ok(what, path.display().to_string()),
            Err(error) => Finding::fail(
                what,
                format!("{} cannot be loaded: {error}", path.display()),
                reinstall(),
            ),
        },
    }
}

/// Says who encrypts tcps connections of this machine's programs and servers.
fn kernel_encryption() -> Finding {
    const WHAT: &str = "kernel TLS";
    let found = kernel_tls();
    match found.remedy() {
        None => Finding::ok(WHAT, found.to_string()),
        Some(remedy) => Finding::note(WHAT, found.to_string(), remedy),
    }
}

/// Checks what the kernel has for the sandbox of a server's workers.
fn sandbox() -> Finding {
    const WHAT: &str = "sandbox of workers";
    match sandbox_available() {
        Available {
            system_calls: true,
            files: true,
        } => Finding::ok(WHAT, "seccomp and Landlock"),
        Available {
            system_calls: true,
            files: false,
        } => Finding::note(
            WHAT,
            "seccomp, but no Landlock: workers can open the files of the server's user",
            "Linux 5.13 or later with landlock in its list of security modules (lsm=), or a user of its own for the server",
        ),
        Available { .. } => Finding::note(
            WHAT,
            "the kernel has no seccomp: workers can do what the server's user can",
            "a kernel with CONFIG_SECCOMP_FILTER, or a user of its own for the server",
        ),
    }
}

/// Says whether a server that starts here gives each worker a control group.
fn control_groups() -> Finding {
    const WHAT: &str = "control groups";
    match outboard_server::control_groups() {
        Ok(()) => Finding::ok(
            WHAT,
            "a server started here gives each worker one of its own",
        ),
        Err(why) => Finding::note(
            WHAT,
            format!("a server started here gives workers none of their own: {why}"),
            "Delegate=memory pids cpu in the server's systemd unit (docs/security.md)",
        ),
    }
}

/// Checks the anonymous files that shm links need. /dev/shm and its size do not matter.
fn shared_memory() -> Finding {
    const WHAT: &str = "shared memory";
    if let Some(bytes) = getrlimit(Resource::Fsize).current {
        return Finding::fail(
            WHAT,
            format!("files are limited to {bytes} bytes, and shared memory counts as a file"),
            "lift the limit (ulimit -f unlimited), or use a tcp address",
        );
    }
    match rustix::fs::memfd_create("outboard-doctor", rustix::fs::MemfdFlags::CLOEXEC) {
        Ok(_) => Finding::ok(WHAT, "memfd_create works"),
        Err(error) => Finding::fail(
            WHAT,
            format!("memfd_create: {error}"),
            "use a tcp address, or a kernel or sandbox that has memfd_create",
        ),
    }
}

fn address_space() -> Finding {
    const WHAT: &str = "address space";
    match getrlimit(Resource::As).current {
        Some(bytes) if bytes < ADDRESS_SPACE_BYTES_MIN => Finding::note(
            WHAT,
            format!(
                "limited to {bytes} bytes: programs have at most a quarter of it of GPU memory"
            ),
            "lift the limit (ulimit -v unlimited) if programs run out of GPU memory",
        ),
        _ => Finding::ok(WHAT, "not limited"),
    }
}

fn descriptors() -> Finding {
    const WHAT: &str = "open files";
    match getrlimit(Resource::Nofile).current {
        Some(count) if count < DESCRIPTORS_MIN => Finding::note(
            WHAT,
            format!("{count} at most"),
            format!(
                "raise the limit (ulimit -n {DESCRIPTORS_MIN}) if programs run out of descriptors"
            ),
        ),
        count => Finding::ok(
            WHAT,
            count.map_or("not limited".into(), |count| format!("{count} at most")),
        ),
    }
}

/// Checks whether the Linux kernel reports the pages that a process has written, for mirrors of
/// host memory.
fn written_pages() -> Finding {
    const WHAT: &str = "memory that kernels touch";
    match Tracker::new() {
        Ok(_) => Finding::ok(WHAT, "the kernel says which pages were written"),
        Err(why) => Finding::note(
            WHAT,
            format!("is compared before each launch: {why}"),
            "a kernel from Linux 6.7 on, and a sandbox that allows userfaultfd; matters only where kernels read host memory in place",
        ),
    }
}

/// Compares the kernel's buffers for one connection with the bytes under way on a long, fast
/// network.
fn tcp_buffers() -> Finding {
    const WHAT: &str = "tcp buffers";
    let most = |name: &str| -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
        text.split_ascii_whitespace().nth(2)?.parse().ok()
    };
    let (Some(sent), Some(received)) = (most("tcp_wmem"), most("tcp_rmem")) else {
        return Finding::ok(WHAT, "the system does not say how large they may be");
    };
    // The kernel counts its own records as part of the buffer: about half of it is data.
    let data_bytes = sent.min(received) / 2;
    let gbps_at_1_ms = data_bytes as f64 * 8.0 / 1e6;
    let found = format!(
        "{} KiB for one connection: {gbps_at_1_ms:.0} Gbps at 1 ms RTT, and {DATA_CONNECTIONS} times that for copies of 2 MiB and more",
        sent.min(received) / 1024
    );
    if data_bytes * DATA_CONNECTIONS as u64 >= FULL_AT_1_MS_BYTES {
        return Finding::ok(WHAT, found);
    }
    Finding::note(
        WHAT,
        found,
        "where RTT times bandwidth is more: sysctl net.ipv4.tcp_wmem='4096 65536 33554432' net.ipv4.tcp_rmem='4096 131072 33554432'",
    )
}

/// Checks this machine's GPU, which matters only if the machine is to be a server.
fn local_device() -> Finding {
    const WHAT: &str = "this machine's GPU";
    match DeviceKind::Nvidia.check() {
        Ok(()) => Finding::ok(WHAT, "its driver works; outboard serve can offer it"),
        Err(reason) => Finding::note(
            WHAT,
            reason,
            "nothing, unless this machine is to serve its GPU; outboard serve --device soft works without",
        ),
    }
}

/// Checks whether adapters can use this machine's GPUs' memory, if it has both.
fn gpu_memory() -> Option<Finding> {
    const WHAT: &str = "rdma to GPU memory";
    rdma_devices().ok().filter(|devices| !devices.is_empty())?;
    DeviceKind::Nvidia.check().ok()?;
    Some(match gpu_direct_report() {
        Ok(ways) => Finding::ok(WHAT, ways),
        Err(reason) => Finding::note(
            WHAT,
            reason,
            "only rdma:// copies lose by it: they pass through pinned memory; docs/rdma.md",
        ),
    })
}

/// Says whether operations that kernels post can be executed in this way here, or where a GPU is
/// that is far.
fn provider(of: Provider, is_far: bool) -> Finding {
    const WHAT: &str = "net provider";
    let name = of.name().to_string_lossy();
    match of.reason() {
        Ok(_) if is_far && of == Provider::Nic => {
            let found =
                "the adapter in software, a thread of the server's, where the GPU is; what auto is";
            Finding::ok(WHAT, format!("{name}: {found}"))
        }
        Ok(found) if is_far && of == Provider::Nvlink => {
            Finding::ok(WHAT, format!("{name}: {found}, by tables of the server's"))
        }
        _ if is_far && matches!(of, Provider::Proxy | Provider::Mlx5) => {
            let found = match of {
                Provider::Proxy => "a thread of the server's that posts to an RDMA device there",
                _ => "queues of an adapter there, for which a thread of the server's rings",
            };
            Finding::note(
                WHAT,
                format!("{name}: {found}, if the server lends one"),
                "outboard serve --net-device; docs/net.md",
            )
        }
        Ok(found) => Finding::ok(WHAT, format!("{name}: {found}")),
        Err(why) => Finding::note(
            WHAT,
            format!("{name}: {why}"),
            format!("another provider, by name or {PROVIDER_VARIABLE}; docs/net.md"),
        ),
    }
}

/// Says which device entries of `nic` travel by between processes, if they are to travel by verbs.
/// Returns nothing where the library of verbs finds no device.
fn by_verbs(is_far: bool) -> Option<Finding> {
    let device = Way::verbs().ok().filter(|_| !is_far)?;
    let found = format!("nic, with {WAY_VARIABLE}=verbs: {device}");
    Some(Finding::ok("net way", found))
}

/// Checks this machine's RDMA setup. A gap is a failure if the user asked for rdma, otherwise a
/// note.
fn rdma(is_wanted: bool) -> Vec<Finding> {
    const WHAT: &str = "rdma";
    let missing = |found: String, remedy: &str| match is_wanted {
        true => Finding::fail(WHAT, found, remedy),
        false => Finding::note(WHAT, found, remedy),
    };
    let remedy = "only rdma:// addresses need it; docs/rdma.md says how it is set up";
    let devices = match rdma_devices() {
        Ok(devices) => devices,
        Err(error) => return vec![missing(error.to_string(), remedy)],
    };
    let mut findings: Vec<Finding> = devices
        .into_iter()
        .map(|device| match device.usable {
            Ok(port) => Finding::ok(
                WHAT,
                format!(
                    "{}, port {}: {}, GID {} ({}), MTU {}",
                    device.name, port.port, port.link_layer, port.gid_index, port.gid, port.mtu
                ),
            ),
            Err(error) => missing(format!("{}: {error}", device.name), remedy),
        })
        .collect();
    let limit = getrlimit(Resource::Memlock).current;
    let is_privileged = rustix::process::geteuid().is_root();
    if let Some(limit) = limit.filter(|&limit| !is_privileged && limit < RDMA_LOCKED_BYTES) {
        let remedy = "ulimit -l unlimited; LimitMEMLOCK=infinity of a systemd unit; --ulimit memlock=-1 of a container";
        let found =
            format!("{limit} bytes may be locked in memory, a link needs {RDMA_LOCKED_BYTES}");
        findings.push(missing(found, remedy));
    }
    findings
}

/// Returns what helps where no server answers.
fn remedy(endpoint: &Endpoint, is_of_another_user: bool) -> String {
    match is_of_another_user {
        true => "run the program as the user who started the server, or have that user start it with --allow-uid and --socket-group (outboard serve --help)".into(),
        false => format!(
            "start one there with outboard serve --listen {endpoint}, or name another with --gpu URL"
        ),
    }
}

fn server(endpoint: &Endpoint) -> Vec<Finding> {
    const WHAT: &str = "server";
    let mut server = match Server::query(endpoint) {
        Ok(server) => server,
        Err(error) => {
            let remedy = remedy(endpoint, error.is::<NotAllowed>());
            return vec![Finding::fail(WHAT, whole(&error), remedy)];
        }
    };
    let welcome = &server.welcome;
    let driver = welcome.driver_version;
    let mut findings = vec![Finding::ok(
        WHAT,
        format!(
            "{endpoint}: release {}, CUDA {}.{}",
            welcome.release,
            driver / 1000,
            driver % 1000 / 10
        ),
    )];
    for device in &welcome.devices {
        findings.push(Finding::ok(
            "device",
            format!(
                "{}, {:.1} GiB, of which a program may have {:.1} GiB",
                device.name,
                gib(device.memory_bytes),
                gib(device.quota_bytes)
            ),
        ));
    }
    if welcome.devices.is_empty() {
        let remedy = "look at the server's log; outboard serve --device soft works without a GPU";
        findings.push(Finding::fail("device", "the server has none", remedy));
    }
    findings.push(round_trip(&mut server));
    findings.extend(slowness::of_server(endpoint));
    findings
}

fn round_trip(server: &mut Server) -> Finding {
    const WHAT: &str = "round trip";
    let times: anyhow::Result<Vec<Duration>> = (0..PINGS).map(|_| server.ping()).collect();
    match times {
        Ok(mut times) => {
            times.sort();
            let us = |at: usize| times[at].as_secs_f64() * 1e6;
            Finding::ok(
                WHAT,
                format!(
                    "{:.1} us (median of {PINGS}; fastest {:.1}, slowest {:.1})",
                    us(PINGS / 2),
                    us(0),
                    us(PINGS - 1)
                ),
            )
        }
        Err(error) => Finding::fail(WHAT, whole(&error), "look at the server's log"),
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

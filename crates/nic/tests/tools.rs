//! Programs that were built with rdma-core, not changed, load the stand-ins.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use outboard_net::WAY_VARIABLE;
use outboard_nic::{
    FILES, FILES_VARIABLE, LIBRARIES, PRELOADED, SERVING, fabric::VARIABLE, functions,
};
use tempfile::TempDir;

/// A folder with the libraries of this build, which lie in the folder of the test's executable.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in LIBRARIES {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    let test = std::env::current_exe().unwrap();
    let serving = test.parent().unwrap().join(SERVING);
    symlink(serving, folder.path().join(SERVING)).unwrap();
    folder
}

fn run(folder: &Path, program: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).env("LD_LIBRARY_PATH", folder);
    command.env(VARIABLE, folder.join("fabric"));
    command.output().unwrap_or_else(|error| {
        panic!("{}: {error}: tools/verbs.sh installs it", program.display())
    })
}

/// A program of this folder, linked as programs for real adapters are.
fn compile(folder: &Path, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.c"));
    compile_source(folder, name, &source)
}

fn compile_source(folder: &Path, name: &str, source: &Path) -> PathBuf {
    let program = folder.join(name);
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-o"])
        .arg(&program)
        .arg(source)
        .args(["-libverbs", "-lmlx5", "-pthread"])
        .status()
        .unwrap();
    assert!(compiled.success(), "tools/verbs.sh installs the headers");
    program
}

#[test]
fn ibv_devinfo_describes_the_adapter() {
    let folder = folder();
    let done = run(folder.path(), Path::new("ibv_devinfo"), &["-v"]);
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{said}");
    let own = fs::read(folder.path().join("fabric").join("address")).unwrap();
    let gid = format!("::ffff:127.{}.{}.{}, RoCE v2", own[0], own[1], own[2]);
    for (name, value) in [
        ("hca_id", "mlx5_0"),
        ("vendor_id", "0x02c9"),
        ("atomic_cap", "ATOMIC_HCA (1)"),
        ("max_pkeys", "1"),
        ("state", "PORT_ACTIVE (4)"),
        ("active_mtu", "4096 (5)"),
        ("link_layer", "Ethernet"),
        ("phys_state", "LINK_UP (5)"),
        ("GID[  0]", gid.as_str()),
    ] {
        let is_it = |(left, right): (&str, &str)| (left.trim(), right.trim()) == (name, value);
        let mut fields = said.lines().filter_map(|line| line.split_once(':'));
        assert!(fields.any(is_it), "{name} is not {value}:\n{said}");
    }
}

#[test]
fn memory_is_registered_and_functions_that_are_not_served_name_themselves() {
    let folder = folder();
    let program = compile(folder.path(), "memory");
    let done = run(folder.path(), &program, &[]);
    let said = String::from_utf8(done.stdout).unwrap();
    let complained = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.success(), "{said}{complained}");
    assert_eq!(said, "right\n");
    let expected = [
        "outboard nic: ibv_reg_mr: access 0x40 is not served",
        "outboard nic: ibv_attach_mcast: not served",
        "outboard nic: mlx5dv_devx_umem_reg_ex: not served",
        "outboard nic: mlx5dv_devx_obj_create: command 0x0 is not served",
    ];
    assert_eq!(complained.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn objects_of_verbs_have_the_numbers_that_commands_name() {
    let folder = folder();
    let program = compile(folder.path(), "described");
    let done = run(folder.path(), &program, &[]);
    let said = String::from_utf8(done.stdout).unwrap();
    let complained = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.success(), "{said}{complained}");
    assert_eq!(said, "right\n");
    let expected = "outboard nic: mlx5dv_create_qp: other than targets of dynamic connections are not served\n";
    assert_eq!(complained, expected);
}

/// Programs look for an adapter under /sys; this machine has none, and the preload has its files.
#[test]
fn files_of_the_adapter_are_where_programs_look_for_them() {
    let folder = folder();
    let (name, bytes) = PRELOADED;
    let preload = folder.path().join(name);
    fs::write(&preload, bytes).unwrap();
    for (name, text) in FILES {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        let mut command = Command::new("cat");
        command.arg(format!("/{name}")).env("LD_PRELOAD", &preload);
        let done = command.env(FILES_VARIABLE, folder.path()).output();
        assert_eq!(String::from_utf8(done.unwrap().stdout).unwrap(), text);
    }
    let own = folder.path().join("own");
    fs::write(&own, "own").unwrap();
    let mut command = Command::new("cat");
    command.arg(&own).env("LD_PRELOAD", &preload);
    let done = command.env(FILES_VARIABLE, folder.path()).output();
    assert_eq!(done.unwrap().stdout, b"own");
}

#[test]
fn a_completion_queue_that_is_overrun_says_so_once() {
    let folder = folder();
    let program = compile(folder.path(), "overrun");
    let done = run(folder.path(), &program, &[]);
    let said = String::from_utf8(done.stdout).unwrap();
    let complained = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.success(), "{said}{complained}");
    assert_eq!(
        complained.matches("a completion queue is overrun").count(),
        1
    );
}

/// No event comes by itself: the tool says where it waits, and goes on waiting.
#[test]
fn ibv_asyncwatch_waits_for_events() {
    let folder = folder();
    let mut command = Command::new("ibv_asyncwatch");
    command.env("LD_LIBRARY_PATH", folder.path());
    command.env(VARIABLE, folder.path().join("fabric"));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    lines.read_line(&mut said).unwrap();
    assert!(said.starts_with("mlx5_0: async event FD"), "{said}");
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(child.try_wait().unwrap(), None);
    child.kill().unwrap();
    child.wait().unwrap();
    said.clear();
    lines.read_line(&mut said).unwrap();
    assert_eq!(said, "");
}

/// Compiles a source of this folder to a library or a program.
fn cc(source: &str, arguments: &[&str], target: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(source);
    let mut command = Command::new("cc");
    command
        .args(["-O1", "-Wall", "-Werror", "-o"])
        .arg(target)
        .arg(source);
    assert!(command.args(arguments).status().unwrap().success());
}

/// The driver refuses ordinary memory as I/O memory, as Nvidia's does; programs get its function
/// when they are linked with it, by its name, or by cuGetProcAddress, which comes by its name.
#[test]
fn a_driver_registers_doorbells_that_it_refuses_as_io_memory() {
    let folder = folder();
    let (name, bytes) = PRELOADED;
    let preload = folder.path().join(name);
    fs::write(&preload, bytes).unwrap();
    let (driver, program) = (
        folder.path().join("libcuda.so.1"),
        folder.path().join("doorbells"),
    );
    let soname = "-Wl,-soname,libcuda.so.1";
    cc("strict_cuda.c", &["-shared", "-fPIC", soname], &driver);
    cc(
        "doorbells.c",
        &[driver.to_str().unwrap(), "-libverbs", "-lmlx5"],
        &program,
    );
    let run = |preload: &Path| {
        let mut command = Command::new(&program);
        command
            .env("LD_LIBRARY_PATH", folder.path())
            .env("LD_PRELOAD", preload);
        let done = command.env(VARIABLE, folder.path().join("fabric")).output();
        String::from_utf8(done.unwrap().stdout).unwrap()
    };
    assert_eq!(run(&preload), "right\n");
    // Without the preloaded library it is refused.
    assert!(run(Path::new("")).contains("call(doorbell, 4096, ALL) == 0"));
}

/// Programs find out by the name whether there is a driver.
#[test]
fn without_a_driver_nothing_has_its_functions() {
    let folder = folder();
    let (name, bytes) = PRELOADED;
    let preload = folder.path().join(name);
    fs::write(&preload, bytes).unwrap();
    let program = folder.path().join("driverless");
    cc("driverless.c", &[], &program);
    let done = Command::new(&program).env("LD_PRELOAD", &preload).output();
    assert_eq!(String::from_utf8(done.unwrap().stdout).unwrap(), "right\n");
}

#[test]
fn a_program_that_needs_what_is_not_declared_is_not_started() {
    let folder = folder();
    let source = folder.path().join("missing.c");
    let text = "#include <infiniband/verbs.h>\nint main(void) { return ibv_rate_to_mult(2); }\n";
    fs::write(&source, text).unwrap();
    let program = compile_source(folder.path(), "missing", &source);
    let done = run(folder.path(), &program, &[]);
    assert!(!done.status.success());
    let complained = String::from_utf8(done.stderr).unwrap();
    assert!(
        complained.contains("undefined symbol: ibv_rate_to_mult"),
        "{complained}"
    );
}

/// A library that a program loads later, as UCX's, is there with the versions that it needs, and
/// hears of each function that is not served.
#[test]
fn a_library_that_is_loaded_later_finds_all_versions() {
    let folder = folder();
    let (library, program) = (folder.path().join("later.so"), folder.path().join("later"));
    let needs = [
        "-shared",
        "-fPIC",
        "-DLATER",
        "-libverbs",
        "-lmlx5",
        "-Wl,-z,now",
    ];
    cc("later.c", &needs, &library);
    cc("later.c", &[], &program);
    let done = run(folder.path(), &program, &[library.to_str().unwrap()]);
    let said = String::from_utf8(done.stdout).unwrap();
    let complained = String::from_utf8(done.stderr).unwrap();
    assert_eq!(said, "right\n", "{complained}");
    let named = complained
        .lines()
        .filter(|line| line.ends_with(": not served"));
    assert_eq!(named.count(), 5, "{complained}");
}

/// By memory of both, and over sockets.
#[test]
fn two_processes_exchange_data_by_verbs_until_one_is_killed() {
    let folder = folder();
    let program = compile(folder.path(), "queues");
    for (way, asked) in [("shm", "auto"), ("tcp", "tcp")] {
        let (said, complained) = exchange(folder.path(), &program, way, asked);
        assert_eq!(said, "right\n", "{way}: {complained}");
        for name in ["ibv_create_cq_ex", "ibv_create_qp", "ibv_post_send"] {
            assert!(complained.contains(&format!("outboard nic: {name}: ")));
        }
    }
    let (said, complained) = exchange(folder.path(), &program, "unlike", "auto");
    assert_eq!(said, "right\n", "{complained}");
    let reason = "do not connect, as OUTBOARD_NET_WAY is shm";
    assert!(complained.contains(reason), "{complained}");
}

/// Returns what `queues` says, and what is said on standard error.
fn exchange(folder: &Path, program: &Path, way: &str, asked: &str) -> (String, String) {
    let mut command = Command::new(program);
    command.arg(way).env(WAY_VARIABLE, asked);
    command.env("LD_LIBRARY_PATH", folder);
    let done = command.env(VARIABLE, folder.join("fabric")).output();
    let done = done.unwrap();
    let said = [done.stdout, done.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    said.into()
}

/// A send completes before the reply to it, by memory of both and over sockets.
#[test]
fn replies_come_after_the_completion_of_what_they_reply_to() {
    let folder = folder();
    let program = compile(folder.path(), "replies");
    for (way, how) in [
        ("auto", "events"),
        ("auto", "polls"),
        ("tcp", "events"),
        ("tcp", "polls"),
    ] {
        let (said, complained) = exchange(folder.path(), &program, how, way);
        assert_eq!(said, "right\n", "{way}, {how}: {complained}");
    }
}

#[test]
fn a_folder_that_others_can_write_to_is_no_meeting_place() {
    let folder = folder();
    let fabric = folder.path().join("fabric");
    fs::create_dir(&fabric).unwrap();
    fs::set_permissions(&fabric, fs::Permissions::from_mode(0o777)).unwrap();
    let done = run(folder.path(), Path::new("ibv_devinfo"), &[]);
    let complained = String::from_utf8(done.stderr).unwrap();
    assert!(!done.status.success());
    assert!(complained.contains("mode 700"), "{complained}");
}

#[test]
fn a_folder_with_too_long_a_name_is_named() {
    let folder = folder();
    let long = "long".repeat(30);
    let mut command = Command::new("ibv_devinfo");
    command.env("LD_LIBRARY_PATH", folder.path());
    let done = command.env(VARIABLE, folder.path().join(&long)).output();
    let complained = String::from_utf8(done.unwrap().stderr).unwrap();
    assert!(
        complained.contains(&format!("/{long}/1: path must be shorter")),
        "{complained}"
    );
}

/// The table of docs/net.md has a row for each library and answer.
#[test]
fn the_documentation_has_the_functions() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/net.md");
    let docs = fs::read_to_string(docs).unwrap();
    let rows = functions::LIBRARIES.iter().flat_map(|library| {
        [(true, "served"), (false, "an error that names it")].map(|(is_served, what)| {
            let of =
                |one: &&functions::Function| (one.answer == functions::Answer::Served) == is_served;
            let names = library.functions.iter().filter(of);
            let names: Vec<_> = names.map(|one| format!("`{}`", one.name)).collect();
            if names.is_empty() {
                return String::new();
            }
            format!("| `{}` | {what} | {} |", library.name, names.join(", "))
        })
    });
    let missing: Vec<_> = rows.filter(|row| !docs.contains(row)).collect();
    assert!(
        missing.is_empty(),
        "docs/net.md needs:\n{}",
        missing.join("\n")
    );
}

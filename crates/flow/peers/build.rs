//! Compiles the tables of C and C++ into the program if the distribution's packages are there: in
//! the system, or unpacked below the folder that `FLOW_PEERS` names.

use std::path::{Path, PathBuf};

/// DPDK's parts, which name each other in circles.
const DPDK: [&str; 7] = [
    "rte_hash",
    "rte_rcu",
    "rte_mempool",
    "rte_ring",
    "rte_eal",
    "rte_telemetry",
    "rte_kvargs",
];
const ARCHIVES: [&str; 13] = [
    "numa",
    "bsd",
    "md",
    "absl_raw_hash_set",
    "absl_hash",
    "absl_city",
    "absl_low_level_hash",
    "absl_hashtablez_sampler",
    "absl_raw_logging_internal",
    "absl_log_severity",
    "urcu-qsbr",
    "urcu-cds",
    "urcu-common",
];

fn main() {
    println!("cargo::rerun-if-changed=cpp/peers.cpp");
    println!("cargo::rerun-if-env-changed=FLOW_PEERS");
    println!("cargo::rustc-check-cfg=cfg(foreign)");
    let root = PathBuf::from(std::env::var_os("FLOW_PEERS").unwrap_or_else(|| "/".into()));
    let include = root.join("usr/include");
    let library = root.join("usr/lib/x86_64-linux-gnu");
    let wanted = [
        include.join("dpdk/rte_hash.h"),
        include.join("tsl/robin_map.h"),
        include.join("tsl/hopscotch_map.h"),
        include.join("libcuckoo/cuckoohash_map.hh"),
        include.join("absl/container/flat_hash_map.h"),
        include.join("tbb/concurrent_hash_map.h"),
        include.join("x86_64-linux-gnu/urcu-qsbr.h"),
        library.join("librte_hash.a"),
    ];
    if let Some(missing) = wanted.iter().find(|path| !path.exists()) {
        println!(
            "cargo::warning=without tables of C and C++: {} is missing",
            missing.display()
        );
        return;
    }
    println!("cargo::rustc-cfg=foreign");
    compile(&include);
    link(&library);
}

fn compile(include: &Path) {
    cc::Build::new()
        .cpp(true)
        .file("cpp/peers.cpp")
        .include(include)
        .include(include.join("dpdk"))
        .include(include.join("x86_64-linux-gnu"))
        .include(include.join("x86_64-linux-gnu/dpdk"))
        .flag("-includerte_config.h")
        .flag("-std=c++17")
        .flag("-msse4.2")
        .opt_level(3)
        .warnings(false)
        .compile("peers");
}

fn link(library: &Path) {
    let argument = |argument: &str| println!("cargo::rustc-link-arg={argument}");
    println!("cargo::rustc-link-search=native={}", library.display());
    argument("-Wl,--start-group");
    DPDK.iter()
        .for_each(|name| argument(&format!("-l:lib{name}.a")));
    argument("-Wl,--end-group");
    // Which of the last ones there are differs between versions.
    let there = |name: &&&str| library.join(format!("lib{name}.a")).exists();
    ARCHIVES
        .iter()
        .filter(there)
        .for_each(|name| argument(&format!("-l:lib{name}.a")));
    argument("-l:libtbb.so.12");
    argument("-ldl");
}

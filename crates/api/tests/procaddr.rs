//! The proc-address table against what real libraries were seen to ask of a real 580 driver, and
//! the declaration against the symbols that driver exports.

use std::collections::BTreeSet;

use outboard_api::{
    decl,
    procaddr::{Missing, Table},
};

#[test]
fn every_request_seen_has_an_exported_answer() {
    let table = Table::new().expect("declaration");
    let exports: BTreeSet<String> = decl::driver()
        .expect("declaration")
        .iter()
        .flat_map(|c| c.exports().collect::<Vec<_>>())
        .collect();
    let mut seen = 0;
    for line in include_str!("data/proc-address-requests.txt")
        .lines()
        .filter(|l| !l.starts_with('#'))
    {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // An empty symbol name is asked for once, and is missing on a real driver too.
        let [name, version, flags, ..] = fields[..] else {
            continue;
        };
        let (Ok(version), Ok(flags)) = (version.parse(), flags.parse()) else {
            continue;
        };
        let symbol = table
            .resolve(name, version, flags)
            .unwrap_or_else(|e| panic!("{name} {version}: {e:?}"));
        assert!(exports.contains(&symbol), "{name} {version} -> {symbol}");
        seen += 1;
    }
    assert!(seen > 450, "only {seen} requests in the file");
}

#[test]
fn versions_decide_the_abi() {
    let table = Table::new().expect("declaration");
    let symbol = |name, version, flags| table.resolve(name, version, flags).expect(name);
    assert_eq!(symbol("cuMemAlloc", 12000, 0), "cuMemAlloc_v2");
    assert_eq!(symbol("cuGetProcAddress", 11030, 0), "cuGetProcAddress");
    assert_eq!(symbol("cuGetProcAddress", 12000, 0), "cuGetProcAddress_v2");
    assert_eq!(
        symbol("cuMemPrefetchAsync", 12020, 2),
        "cuMemPrefetchAsync_v2_ptsz"
    );
    assert_eq!(
        symbol("cuStreamGetCaptureInfo", 12030, 0),
        "cuStreamGetCaptureInfo_v3"
    );
    assert_eq!(symbol("cuCtxCreate", 12050, 0), "cuCtxCreate_v4");
    assert_eq!(
        symbol("cuEventElapsedTime", 12080, 0),
        "cuEventElapsedTime_v2"
    );
    assert_eq!(symbol("cuCtxGetDevice", 13000, 0), "cuCtxGetDevice_v2");
    assert_eq!(symbol("cuCtxGetDevice", 12090, 0), "cuCtxGetDevice");
    assert_eq!(symbol("cuLaunchKernel", 7000, 2), "cuLaunchKernel_ptsz");
    assert_eq!(symbol("cuMemcpyHtoD", 7000, 2), "cuMemcpyHtoD_v2_ptds");
    assert_eq!(
        table.resolve("cuNoSuchThing", 13000, 0),
        Err(Missing::Symbol)
    );
    assert_eq!(table.resolve("", 13000, 0), Err(Missing::Symbol));
    assert_eq!(
        table.resolve("cuLibraryLoadData", 11000, 0),
        Err(Missing::Version)
    );
}

#[test]
fn the_declaration_is_the_export_list_of_a_real_driver() {
    let declared: BTreeSet<String> = decl::driver()
        .expect("declaration")
        .iter()
        .flat_map(|c| c.exports().collect::<Vec<_>>())
        .collect();
    let real: BTreeSet<String> = include_str!("data/libcuda-exports-580.txt")
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .map(String::from)
        .collect();
    assert_eq!(declared, real);
}

//! Several units in one module: each `.version` begins one, and names with linkage are shared.

use crate::common::{Arg, Device};
use outboard_ptx::{Error, lower};

const HEADER: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

fn join(units: &[&str]) -> String {
    units
        .iter()
        .map(|unit| format!("{HEADER}{unit}\n"))
        .collect()
}

/// Declares `f() -> value`.
fn function(linkage: &str, name: &str, value: u32) -> String {
    format!("{linkage} .func (.param .b32 r) {name}() {{ st.param.b32 [r], {value}; ret; }}\n")
}

const MAIN: &str = "
    .extern .func (.param .b32 r) shared_function();
    .func (.param .b32 r) own() { st.param.b32 [r], 1000; ret; }
    .extern .global .align 4 .u32 counter;
    .extern .const .align 4 .u32 factor;
    .global .align 4 .u32 hidden = 7;
    .visible .entry k(.param .u64 in, .param .u64 out) {
        .reg .b32 %r<9>; .reg .b64 %rd<3>;
        .param .b32 a;
        ld.param.u64 %rd0, [out];
        call (a), shared_function; ld.param.b32 %r0, [a]; st.global.u32 [%rd0], %r0;
        call (a), own; ld.param.b32 %r0, [a]; st.global.u32 [%rd0+4], %r0;
        ld.global.u32 %r0, [counter]; st.global.u32 [%rd0+8], %r0; add.u32 %r0, %r0, 1; st.global.u32 [counter], %r0;
        ld.const.u32 %r0, [factor]; st.global.u32 [%rd0+12], %r0;
        ld.global.u32 %r0, [hidden]; st.global.u32 [%rd0+16], %r0;
        ret;
    }";

const OTHER: &str = "
    .func (.param .b32 r) own() { st.param.b32 [r], 5; ret; }
    .visible .func (.param .b32 r) shared_function() {
        .reg .b32 %r<2>; .param .b32 a;
        call (a), own; ld.param.b32 %r0, [a]; ld.global.u32 %r1, [hidden]; add.u32 %r0, %r0, %r1; st.param.b32 [r], %r0; ret;
    }
    .global .align 4 .u32 hidden = 90;
    .visible .global .align 4 .u32 counter = 41;
    .visible .const .align 4 .u32 factor = 3;";

#[test]
fn units_share_what_has_linkage_and_nothing_else() {
    for units in [[MAIN, OTHER], [OTHER, MAIN]] {
        let device = Device::new(&join(&units));
        let out = device.alloc(20);
        device.run("k", 1, 1, &[Arg::Ptr(out), Arg::Ptr(out)]);
        assert_eq!(device.download::<u32>(out, 5), [95, 1000, 41, 3, 7]);
        let counter = device.module.global("counter").unwrap();
        assert_eq!(device.download::<u32>(counter.address, 1), [42]);
        let named = |name| {
            device
                .module
                .globals()
                .iter()
                .filter(|g| g.name == name)
                .count()
        };
        assert_eq!((named("counter"), named("hidden")), (1, 2));
    }
}

/// Returns what `k` of the last unit stores: the result of `f`, and the variable `v`.
fn linked(units: &[&str]) -> Result<[u32; 2], Error> {
    let main = ".extern .func (.param .b32 r) f(); .extern .global .u32 v;
        .visible .entry k(.param .u64 out) {
            .reg .b32 %r<2>; .reg .b64 %rd<2>; .param .b32 a;
            ld.param.u64 %rd0, [out]; call (a), f; ld.param.b32 %r0, [a]; ld.global.u32 %r1, [v]; st.global.v2.u32 [%rd0], {%r0, %r1}; ret;
        }";
    let mut units = units.to_vec();
    units.push(main);
    let text = join(&units);
    lower::check(&text)?;
    let device = Device::new(&text);
    let out = device.alloc(8);
    device.run("k", 1, 1, &[Arg::Ptr(out)]);
    Ok(device.download::<u32>(out, 2).try_into().unwrap())
}

#[test]
fn strong_definitions_win_over_weak_ones_and_the_first_weak_over_others() {
    let unit = |linkage, value: u32| {
        format!(
            "{} {linkage} .global .u32 v = {value};",
            function(linkage, "f", value)
        )
    };
    let (weak, other, strong) = (unit(".weak", 1), unit(".weak", 2), unit(".visible", 3));
    assert_eq!(linked(&[&weak, &other]).unwrap(), [1, 1]);
    assert_eq!(linked(&[&weak, &strong, &other]).unwrap(), [3, 3]);
    assert_eq!(linked(&[&strong]).unwrap(), [3, 3]);
    let twice = linked(&[&strong, &strong]);
    assert!(
        matches!(&twice, Err(Error::Invalid { message, .. }) if message.contains("is defined twice")),
        "{twice:?}"
    );
}

#[test]
fn common_variables_are_one_of_the_largest_size() {
    let f = function(".visible", "f", 9);
    let units = [
        format!("{f} .common .global .u32 v;"),
        ".common .global .align 4 .u32 v[4];".into(),
    ];
    let text = join(&[&units[0], &units[1]]);
    let device = Device::new(&text);
    assert_eq!(device.module.global("v").unwrap().bytes, 16);
    assert_eq!(linked(&[&units[0], &units[1]]).unwrap(), [9, 0]);
    assert_eq!(
        linked(&[&units[0], ".visible .global .u32 v = 6;"]).unwrap(),
        [9, 6]
    );
}

#[test]
fn an_alias_is_the_function_in_every_unit() {
    let unit = format!(
        "{} .visible .func (.param .b32 r) f(); .alias f, real; .visible .global .u32 v = 8;",
        function(".func", "real", 77).replacen(".func ", "", 1)
    );
    assert_eq!(linked(&[&unit]).unwrap(), [77, 8]);
}

#[test]
fn what_is_defined_nowhere_is_named() {
    let error = linked(&[&function(".visible", "f", 1)]).unwrap_err();
    assert!(
        error.to_string().contains("`v` is defined nowhere"),
        "{error}"
    );
    let error = linked(&[".visible .global .u32 v;"]).unwrap_err();
    assert!(
        error.to_string().contains("external function `f`"),
        "{error}"
    );
    // A name without linkage belongs to its unit.
    let error = linked(&[&function("", "f", 1), ".visible .global .u32 v;"]).unwrap_err();
    assert!(
        error.to_string().contains("external function `f`"),
        "{error}"
    );
}

#[test]
fn initialisers_name_symbols_of_other_units() {
    let device = Device::new(&join(&[
        ".extern .global .u32 a; .visible .global .u64 pointer = generic(a);",
        ".visible .global .u32 pad; .visible .global .u32 a = 5; .visible .entry k() { ret; }",
    ]));
    let pointer = device.module.global("pointer").unwrap().address;
    assert_eq!(
        device.download::<u64>(pointer, 1),
        [device.module.global("a").unwrap().address]
    );
}

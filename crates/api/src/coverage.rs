//! Writes `docs/coverage.md` from the declarations: how every driver and NVML call is answered.

use std::fmt::Write;

use crate::{
    decl::{self, Call, Class, DeclError},
    nvml::{self, Service},
};

const TITLE: &str = "\
# What is served

This page lists every function that `libcuda.so.1` of CUDA 13.0 and `libnvidia-ml.so.1` export, and how Outboard answers
it. `cargo run -p outboard-api --example coverage` writes it from the declarations in `crates/api`; a test fails if it is
out of date.

- Classes: the client answers a **local** call without sending anything; some first ask what it has not learnt (`may-ask`
  in `driver.calls`). It sends an **outstanding** call and returns at once. A **shadowed** call is outstanding too, and the client chooses its result, a handle or an address. A
  **synchronous** call waits for the server's reply.
- Implementation: **served** calls are written by hand, **derived** calls are generated from the declaration alone, and
  an **alias** is an older name of another function.
- An **unsupported** call returns `CUDA_ERROR_NOT_SUPPORTED` (`NVML_ERROR_NOT_SUPPORTED`). Its first use writes its name
  to stderr.
- *since* is the first CUDA version for which `cuGetProcAddress` returns this symbol for the name without its suffix.
";

/// Returns the whole document.
pub fn markdown() -> Result<String, DeclError> {
    let (driver, nvml) = (decl::driver()?, nvml::calls()?);
    let mut out = String::from(TITLE);
    // Writing to a string cannot fail.
    let _ = write_totals(&mut out, &driver, &nvml);
    let _ = write_driver(&mut out, &driver);
    let _ = write_nvml(&mut out, &nvml);
    Ok(out)
}

/// How a driver call is implemented.
fn service(call: &Call) -> &'static str {
    match call {
        Call {
            same_as: Some(_), ..
        } => "alias",
        Call {
            class: Class::Unsupported,
            ..
        } => "unsupported",
        Call { derived: true, .. } => "derived",
        _ => "served",
    }
}

/// The call that this one is an alias of, or the call itself.
fn target<'c>(calls: &'c [Call], call: &'c Call) -> &'c Call {
    let other = call
        .same_as
        .as_ref()
        .and_then(|other| calls.iter().find(|c| &c.symbol == other));
    other.unwrap_or(call)
}

fn write_totals(out: &mut String, driver: &[Call], nvml: &[nvml::Call]) -> std::fmt::Result {
    let supported = |c: &&Call| target(driver, c).class != Class::Unsupported;
    let answered = driver.iter().filter(supported).count();
    let exports = driver.iter().map(|c| c.exports().count()).sum::<usize>();
    writeln!(
        out,
        "\n| | calls | served | derived | alias | unsupported |\n|---|---|---|---|---|---|"
    )?;
    let count = |kind| driver.iter().filter(|c| service(c) == kind).count();
    writeln!(
        out,
        "| driver | {} | {} | {} | {} | {} |",
        driver.len(),
        count("served"),
        count("derived"),
        count("alias"),
        count("unsupported")
    )?;
    let count = |kind: fn(&Service) -> bool| nvml.iter().filter(|c| kind(&c.service)).count();
    writeln!(
        out,
        "| NVML | {} | {} | 0 | {} | {} |",
        nvml.len(),
        count(|s| *s == Service::Served),
        count(|s| matches!(s, Service::SameAs(_))),
        count(|s| *s == Service::Unsupported)
    )?;
    writeln!(
        out,
        "\nOutboard answers {answered} of the driver's calls. With the per-thread variants it exports {exports} symbols."
    )?;
    writeln!(out, "\n| class | answered calls |\n|---|---|")?;
    for class in [
        Class::Local,
        Class::Outstanding,
        Class::Shadowed,
        Class::Synchronous,
    ] {
        let calls = driver
            .iter()
            .filter(|c| target(driver, c).class == class)
            .count();
        writeln!(out, "| {} | {calls} |", class.name())?;
    }
    Ok(())
}

fn write_driver(out: &mut String, calls: &[Call]) -> std::fmt::Result {
    let mut section = "";
    for call in calls {
        let here = decl::section(&call.symbol).unwrap_or_default();
        if here != section {
            section = here;
            writeln!(
                out,
                "\n## {section}\n\n| call | since | class | |\n|---|---|---|---|"
            )?;
        }
        let since = call.since.map_or("–".to_string(), |v| {
            format!("{}.{}", v / 1000, v % 1000 / 10)
        });
        let variant = call
            .per_thread
            .map_or(String::new(), |p| format!(", `{}`", p.suffix()));
        let answered = target(calls, call);
        let class = if answered.class == Class::Unsupported {
            "–"
        } else {
            answered.class.name()
        };
        let how = match &call.same_as {
            Some(other) => format!("alias of `{other}`"),
            None => service(call).to_string(),
        };
        writeln!(
            out,
            "| `{}`{variant} | {since} | {class} | {how} |",
            call.symbol
        )?;
    }
    Ok(())
}

fn write_nvml(out: &mut String, calls: &[nvml::Call]) -> std::fmt::Result {
    writeln!(out, "\n## NVML\n\n| call | |\n|---|---|")?;
    for call in calls {
        let how = match &call.service {
            Service::Served => "served".to_string(),
            Service::Unsupported => "unsupported".to_string(),
            Service::SameAs(other) => format!("alias of `{other}`"),
        };
        writeln!(out, "| `{}` | {how} |", call.symbol)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_its_line_in_a_section() {
        let text = markdown().unwrap();
        for call in decl::driver().unwrap() {
            assert_eq!(
                text.matches(&format!("| `{}`", call.symbol)).count(),
                1,
                "{}",
                call.symbol
            );
            assert!(decl::section(&call.symbol).is_some(), "{}", call.symbol);
        }
        assert!(text.contains("| `cuMemAlloc_v2` | 3.2 | shadowed | served |"));
        assert!(text.contains("| `cuCtxCreate` | 2.0 | synchronous | alias of `cuCtxCreate_v2` |"));
        assert!(text.contains("| `cuMemcpy`, `_ptds` | 4.0 | synchronous | served |"));
        assert!(text.contains("| `cuArrayDestroy` | 2.0 | outstanding | derived |"));
        assert!(text.contains("| `cuEGLApiInit` | – | – | unsupported |"));
        assert!(text.contains("\n## Copies\n"));
    }

    #[test]
    fn the_committed_table_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/coverage.md");
        let committed = std::fs::read_to_string(path).unwrap();
        assert!(
            committed == markdown().unwrap(),
            "docs/coverage.md is not what the declarations say: cargo run -p outboard-api --example coverage > docs/coverage.md"
        );
    }
}

//! Parses `nvml.calls`: every function of `libnvidia-ml.so.1`.

use crate::decl::{DeclError, Param, lines, parse_params};

/// Service that a call gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Service {
    /// Answered from a snapshot of the server's devices.
    Served,
    /// Returns `NVML_ERROR_NOT_SUPPORTED` and prints its name.
    Unsupported,
    /// Another name for the symbol given, of the same ABI.
    SameAs(String),
}

/// One exported function.
#[derive(Debug, Clone)]
pub struct Call {
    pub symbol: String,
    pub params: Vec<Param>,
    /// The C type of the result, if it is not `nvmlReturn_t`.
    pub result: Option<String>,
    pub service: Service,
}

const NVML: &str = include_str!("nvml.calls");

/// Returns every exported function, in the order of declaration.
pub fn calls() -> Result<Vec<Call>, DeclError> {
    lines(NVML)
        .map(|(line, text)| {
            parse(text).map_err(|what| DeclError {
                file: "nvml.calls",
                line,
                what,
            })
        })
        .collect()
}

fn parse(text: &str) -> Result<Call, String> {
    let (signature, service) = text.rsplit_once(" : ").ok_or("no service")?;
    let (signature, result) = match signature.split_once(" -> ") {
        Some((signature, result)) => (signature, Some(result.trim().to_string())),
        None => (signature, None),
    };
    let (symbol, params) = signature.split_once(" (").ok_or("no parameters")?;
    let params = params.strip_suffix(')').ok_or("no )")?;
    Ok(Call {
        symbol: symbol.to_string(),
        params: parse_params(params)?,
        result,
        service: match service.split_once("same as ") {
            Some(("", other)) => Service::SameAs(other.to_string()),
            _ => match service {
                "served" => Service::Served,
                "unsupported" => Service::Unsupported,
                other => return Err(format!("service '{other}'")),
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_line_is_understood_and_every_symbol_unique() {
        let calls = calls().unwrap();
        assert!(calls.len() > 400, "{}", calls.len());
        let symbols: HashSet<_> = calls.iter().map(|c| &c.symbol).collect();
        assert_eq!(symbols.len(), calls.len());
        assert!(calls.iter().all(|c| c.symbol.starts_with("nvml")));
    }

    #[test]
    fn other_names_stand_for_served_calls_of_as_many_parameters() {
        let calls = calls().unwrap();
        for call in &calls {
            let Service::SameAs(other) = &call.service else {
                continue;
            };
            let target = calls
                .iter()
                .find(|c| &c.symbol == other)
                .unwrap_or_else(|| panic!("{other}"));
            assert_eq!(target.service, Service::Served, "{other}");
            assert_eq!(target.params.len(), call.params.len(), "{}", call.symbol);
        }
    }

    #[test]
    fn what_changes_a_device_is_unsupported() {
        let calls = calls().unwrap();
        let setters: Vec<_> = calls
            .iter()
            .filter(|c| c.symbol.contains("Set") && !c.symbol.contains("EventSet"))
            .collect();
        assert!(setters.len() > 30);
        for call in setters {
            assert_eq!(call.service, Service::Unsupported, "{}", call.symbol);
        }
    }

    #[test]
    fn a_result_and_parameters() {
        let call = parse("nvmlErrorString (nvmlReturn_t result) -> const char * : served").unwrap();
        assert_eq!(call.result.as_deref(), Some("const char *"));
        assert_eq!(call.params[0].ctype, "nvmlReturn_t");
        assert!(parse("nvmlInit (void)").is_err());
        assert!(parse("nvmlInit (void) : perhaps").is_err());
    }
}

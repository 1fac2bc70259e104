//! Parses `cupti.calls` and `cupti.cbids`: the functions that `libcupti.so.13` exports, and its
//! numbers for driver and runtime calls.

/// An exported function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    pub is_served: bool,
}

/// A driver or runtime function that CUPTI reports, with its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traced {
    pub number: u32,
    pub name: String,
}

/// Returns every exported function, by name.
pub fn calls() -> Result<Vec<Call>, String> {
    lines(include_str!("cupti.calls"))
        .map(|line| {
            let wrong = || format!("cupti.calls: {line}");
            let (name, service) = line.split_once(" : ").ok_or_else(wrong)?;
            let is_served = match service {
                "served" => true,
                "unsupported" => false,
                _ => return Err(wrong()),
            };
            Ok(Call {
                name: name.into(),
                is_served,
            })
        })
        .collect()
}

/// Returns the functions of the driver, or of the runtime, by number.
pub fn traced(domain: &str) -> Result<Vec<Traced>, String> {
    let mut found = Vec::new();
    for line in lines(include_str!("cupti.cbids")) {
        let wrong = || format!("cupti.cbids: {line}");
        let [of, number, name] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(wrong());
        };
        if of == domain {
            found.push(Traced {
                number: number.parse().map_err(|_| wrong())?,
                name: name.into(),
            });
        }
    }
    Ok(found)
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read_and_every_name_is_there_once() {
        let calls = calls().unwrap();
        assert!(calls.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert!(calls.iter().any(|call| call.is_served));
        for (domain, number, name) in [
            ("driver", 307, "cuLaunchKernel"),
            ("runtime", 211, "cudaLaunchKernel_v7000"),
        ] {
            let traced = traced(domain).unwrap();
            assert!(
                traced
                    .windows(2)
                    .all(|pair| pair[0].number < pair[1].number)
            );
            let found = traced.iter().find(|t| t.name == name).unwrap();
            assert_eq!(found.number, number);
        }
    }
}

//! Resolves `cuGetProcAddress`: a name, the CUDA version asked for and flags select the symbol.

use std::collections::HashMap;

use crate::decl::{Call, DeclError, PerThread, driver};

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
pub const PER_THREAD_DEFAULT_STREAM: u64 = 2;

/// Reason why a name has no symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// No function of that name in any version.
    Symbol,
    /// The function exists only in later CUDA versions.
    Version,
}

/// Versions of each unversioned name, in ascending order.
pub struct Table {
    by_name: HashMap<String, Vec<Entry>>,
}

struct Entry {
    since: u32,
    symbol: String,
    per_thread: Option<PerThread>,
}

impl Table {
    pub fn new() -> Result<Table, DeclError> {
        Ok(Table::from_calls(&driver()?))
    }

    fn from_calls(calls: &[Call]) -> Table {
        let mut by_name: HashMap<String, Vec<Entry>> = HashMap::new();
        for call in calls {
            by_name
                .entry(call.unversioned().to_string())
                .or_default()
                .push(Entry {
                    // Functions without a typedef (debugger entries) existed from the start.
                    since: call.since.unwrap_or(0),
                    symbol: call.symbol.clone(),
                    per_thread: call.per_thread,
                });
        }
        for versions in by_name.values_mut() {
            versions.sort_by_key(|e| e.since);
        }
        Table { by_name }
    }

    /// Returns the exported symbol that serves `name` for a program built against `cuda_version`.
    pub fn resolve(&self, name: &str, cuda_version: u32, flags: u64) -> Result<String, Missing> {
        let versions = self.by_name.get(name).ok_or(Missing::Symbol)?;
        let entry = versions
            .iter()
            .rev()
            .find(|e| e.since <= cuda_version)
            .ok_or(Missing::Version)?;
        Ok(match entry.per_thread {
            Some(p) if flags & PER_THREAD_DEFAULT_STREAM != 0 => {
                format!("{}{}", entry.symbol, p.suffix())
            }
            _ => entry.symbol.clone(),
        })
    }
}

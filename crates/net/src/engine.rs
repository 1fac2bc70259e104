//! Choice of who executes the entries of `nic`: a thread of the program, or a kernel of its GPU.

use std::env;

use crate::error::Error;

/// Variable of the environment that names the engine of `nic`: `thread`, or `gpu` with numbers.
pub const ENGINE_VARIABLE: &str = "OUTBOARD_NET_ENGINE";

const BLOCKS_MAX: u32 = 8;
const WARPS_MAX: u32 = 16;

/// Engine of an adapter in software.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Engine {
    #[default]
    Thread,
    /// A kernel: blocks, each with a group of queues, of warps that copy together.
    Gpu { blocks: u32, warps: u32 },
}

impl Engine {
    /// The kernel without numbers.
    pub const GPU: Engine = Engine::Gpu {
        blocks: 1,
        warps: 4,
    };

    /// Returns the engine of a name, `gpu,blocks=2,warps=8` for example.
    pub fn named(name: &str) -> Result<Engine, Error> {
        let unknown = || Error::NoEngine {
            variable: ENGINE_VARIABLE,
            given: name.into(),
            blocks_max: BLOCKS_MAX,
            warps_max: WARPS_MAX,
        };
        let mut parts = name.split(',');
        let (mut blocks, mut warps) = match (parts.next(), Engine::GPU) {
            (Some("thread"), _) if name == "thread" => return Ok(Engine::Thread),
            (Some("gpu"), Engine::Gpu { blocks, warps }) => (blocks, warps),
            _ => return Err(unknown()),
        };
        let mut given: Vec<&str> = Vec::new();
        for part in parts {
            let (key, value) = part.split_once('=').ok_or_else(unknown)?;
            let (to, max) = match key {
                "blocks" => (&mut blocks, BLOCKS_MAX),
                "warps" => (&mut warps, WARPS_MAX),
                _ => return Err(unknown()),
            };
            if given.contains(&key) {
                return Err(Error::Twice {
                    variable: ENGINE_VARIABLE,
                    key: key.into(),
                });
            }
            given.push(key);
            let value: u32 = value.parse().map_err(|_| unknown())?;
            *to = (1..=max)
                .contains(&value)
                .then_some(value)
                .ok_or_else(unknown)?;
        }
        Ok(Engine::Gpu { blocks, warps })
    }

    /// Returns the engine that the environment names, else a thread.
    pub fn asked() -> Result<Engine, Error> {
        match env::var_os(ENGINE_VARIABLE).filter(|said| !said.is_empty()) {
            Some(name) => Engine::named(&name.to_string_lossy()),
            None => Ok(Engine::Thread),
        }
    }

    /// Says what it is, as the provider `nic` does.
    pub(crate) fn describe(self) -> String {
        match self {
            Engine::Thread => "the adapter in software, a thread of the program".into(),
            Engine::Gpu { blocks, warps } => format!(
                "the adapter in software, a kernel of the program's GPU ({ENGINE_VARIABLE}): \
                 blocks {blocks}, warps {warps} each"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn engines_have_names_and_numbers_and_others_are_refused() {
        let gpu = |blocks, warps| Engine::Gpu { blocks, warps };
        for (name, engine) in [
            ("thread", Engine::Thread),
            ("gpu", gpu(1, 4)),
            ("gpu,warps=1", gpu(1, 1)),
            ("gpu,blocks=8,warps=16", gpu(8, 16)),
        ] {
            assert_eq!(Engine::named(name), Ok(engine));
        }
        for wrong in [
            "",
            "GPU",
            "thread,warps=1",
            "gpu,",
            "gpu,blocks=0",
            "gpu,blocks=9",
            "gpu,x=1",
            "gpu,blocks=2,blocks=3",
            "gpu,warps=2,blocks=1,warps=2",
        ] {
            let said = Engine::named(wrong).unwrap_err().to_string();
            assert!(said.starts_with("OUTBOARD_NET_ENGINE: "), "{said}");
        }
    }
}

//! Ways by which operations that kernels post are executed. One is chosen when an endpoint is made.

use std::{env, ffi::CStr};

use crate::{device, engine::Engine, error::Error};

/// Names the provider of endpoints whose program leaves it open.
pub const PROVIDER_VARIABLE: &str = "OUTBOARD_NET_PROVIDER";

/// `enum outboard_net_provider`, whose 0 leaves the choice open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Provider {
    /// An adapter in hardware.
    Mlx5 = 1,
    /// The adapter in software.
    Nic,
    /// Loads and stores of the threads that post.
    Nvlink,
    /// A thread of the CPU that posts for kernels.
    Proxy,
}

impl Provider {
    pub const ALL: [Provider; 4] = [
        Provider::Mlx5,
        Provider::Nic,
        Provider::Nvlink,
        Provider::Proxy,
    ];

    #[must_use]
    pub fn name(self) -> &'static CStr {
        match self {
            Provider::Mlx5 => c"mlx5",
            Provider::Nic => c"nic",
            Provider::Nvlink => c"nvlink",
            Provider::Proxy => c"proxy",
        }
    }

    /// Returns the provider of this name; none for `auto`.
    pub fn named(name: &str) -> Result<Option<Provider>, Error> {
        if name == "auto" {
            return Ok(None);
        }
        let is_it = |one: &Provider| one.name().to_bytes() == name.as_bytes();
        let found = Provider::ALL.into_iter().find(is_it);
        found.map(Some).ok_or_else(|| none(name))
    }

    /// Returns the provider of this number; none for 0.
    pub fn numbered(number: u32) -> Result<Option<Provider>, Error> {
        if number == 0 {
            return Ok(None);
        }
        let found = Provider::ALL.into_iter().find(|one| *one as u32 == number);
        found.map(Some).ok_or_else(|| none(&number.to_string()))
    }

    /// Returns the provider that was asked for, else that of the environment, if it names one.
    pub(crate) fn asked(asked: Option<Provider>) -> Result<Option<Provider>, Error> {
        let said = env::var_os(PROVIDER_VARIABLE).filter(|said| !said.is_empty());
        match (asked, said) {
            (None, Some(name)) => Provider::named(&name.to_string_lossy()),
            (asked, _) => Ok(asked),
        }
    }

    /// Returns the provider that was asked for, here or by the environment, else the first of those
    /// that reach every process; an error if it is not possible here.
    pub fn choose(asked: Option<Provider>) -> Result<Provider, Error> {
        let asked = Provider::asked(asked)?;
        let Some(provider) = asked else {
            let is_mlx5 = Provider::Mlx5.reason().is_ok();
            return Ok(if is_mlx5 {
                Provider::Mlx5
            } else {
                Provider::Nic
            });
        };
        match provider.reason() {
            Ok(_) => Ok(provider),
            Err(why) => Err(Error::Impossible {
                provider: provider.name().to_string_lossy().into(),
                why,
            }),
        }
    }

    /// Says what the provider uses here, or why it is not possible.
    pub fn reason(self) -> Result<String, String> {
        match self {
            Provider::Mlx5 => device::mlx5().map_err(|error| error.to_string()),
            Provider::Nic => Engine::asked()
                .map(Engine::describe)
                .map_err(|error| error.to_string()),
            Provider::Nvlink => {
                Ok("loads and stores of the threads that post, to memory that they reach".into())
            }
            Provider::Proxy => device::any()
                .map(|device| format!("a thread of the program that posts to {device}"))
                .map_err(|error| error.to_string()),
        }
    }
}

fn none(name: &str) -> Error {
    let names = Provider::ALL.map(|one| one.name().to_string_lossy());
    Error::NoProvider {
        name: name.into(),
        known: names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn providers_are_chosen_by_name_and_refused_with_a_reason() {
        for provider in Provider::ALL {
            let name = provider.name().to_str().unwrap();
            assert_eq!(Provider::named(name), Ok(Some(provider)));
            assert_eq!(Provider::numbered(provider as u32), Ok(Some(provider)));
        }
        assert_eq!(Provider::named("auto"), Ok(None));
        assert_eq!(Provider::numbered(0), Ok(None));
        assert_eq!(Provider::named("NIC"), Err(none("NIC")));
        assert_eq!(Provider::numbered(5), Err(none("5")));
        assert_eq!(Provider::choose(None), Ok(Provider::Nic));
        let said = Provider::choose(Some(Provider::Mlx5))
            .unwrap_err()
            .to_string();
        assert!(
            said.starts_with("the provider mlx5 is not possible here: "),
            "{said}"
        );
    }
}

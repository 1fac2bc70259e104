//! The choice of an endpoint.

use crate::{
    endpoint::Endpoint, engine::Engine, error::Error, faults::Network, here::here, placed::Placed,
    provider::Provider,
};

/// Opens an endpoint of the provider that was asked for, or of one that is chosen here.
pub fn open(asked: Option<Provider>, network: Network) -> Result<Box<dyn Endpoint>, Error> {
    open_by(asked, None, network)
}

/// Opens an endpoint with an engine of `nic`, or the one that the environment names.
pub fn open_by(
    asked: Option<Provider>,
    engine: Option<Engine>,
    network: Network,
) -> Result<Box<dyn Endpoint>, Error> {
    network.check()?;
    let asked = Provider::asked(asked)?;
    let provider = Provider::choose(asked)?;
    if provider != Provider::Nic && !network.is_perfect() {
        return Err(Error::Impossible {
            provider: provider.name().to_string_lossy().into(),
            why: "only nic has a network that loses, delays or limits".into(),
        });
    }
    let engine = engine.map_or_else(Engine::asked, Ok)?;
    if engine != Engine::Thread && !network.is_perfect() {
        return Err(Error::Impossible {
            provider: provider.name().to_string_lossy().into(),
            why: "the adapter that is a kernel has a perfect network alone".into(),
        });
    }
    match asked {
        // These use a device of the program's machine.
        Some(Provider::Mlx5 | Provider::Proxy) => here(provider, engine, network),
        _ => Ok(Box::new(Placed::new(asked, (provider, engine), network))),
    }
}

//! The choice of an endpoint.

use crate::{
    endpoint::Endpoint, engine::Engine, error::Error, faults::Network, placed::Placed,
    provider::Provider, remote::may_be_remote,
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
    // One of a server's machine is not possible or impossible here.
    let (here, provider) = match (Provider::choose(asked), asked) {
        (Err(_), Some(asked)) if may_be_remote() => (None, asked),
        (chosen, _) => chosen.map(|chosen| (Some(chosen), chosen))?,
    };
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
    Ok(Box::new(Placed::new(asked, (here, engine), network)))
}

//! The choice of an endpoint.

use crate::{
    endpoint::Endpoint, error::Error, faults::Network, mlx5::Mlx5, nvlink::Nvlink, placed::Placed,
    provider::Provider, proxy::Proxy,
};

/// Opens an endpoint of the provider that was asked for, or of one that is chosen here.
pub fn open(asked: Option<Provider>, network: Network) -> Result<Box<dyn Endpoint>, Error> {
    network.check()?;
    let provider = Provider::choose(asked)?;
    if provider != Provider::Nic && !network.is_perfect() {
        return Err(Error::Impossible {
            provider: provider.name().to_string_lossy().into(),
            why: "only nic has a network that loses, delays or limits".into(),
        });
    }
    match provider {
        Provider::Nic => Ok(Box::new(Placed::new(network))),
        Provider::Mlx5 => Ok(Box::new(Mlx5::open()?)),
        Provider::Nvlink => Ok(Box::new(Nvlink::default())),
        Provider::Proxy => Ok(Box::new(Proxy::open()?)),
    }
}

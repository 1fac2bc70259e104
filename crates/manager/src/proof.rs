//! The manager's key and certificate, for encrypted connections.

use std::{path::PathBuf, sync::Arc};

use outboard_trust::{
    CertificateFileError, CertificateFiles, CertificateText, Identity, IdentityError, ServerOwn,
};
use thiserror::Error;

/// Reason why the manager cannot encrypt.
#[derive(Debug, Error)]
pub enum ProofError {
    #[error("the key for encrypted connections: {0}")]
    Key(#[from] IdentityError),
    #[error("the certificate: {0}")]
    Certificate(#[from] CertificateFileError),
}

/// Files of a key, and of a certificate's chain and private key. One of both is there.
#[derive(Debug, Clone)]
pub struct ProofFiles {
    pub key: Option<PathBuf>,
    pub certificate: Option<(PathBuf, PathBuf)>,
}

pub(crate) struct Proof {
    key: Option<Identity>,
    certificate: Option<CertificateFiles>,
    /// The certificate that is shown, and what was made of it.
    shown: (Option<CertificateText>, Arc<ServerOwn>),
}

impl Proof {
    pub(crate) fn read(files: &ProofFiles) -> Result<Proof, ProofError> {
        let key = files.key.as_ref().map(|file| Identity::read(file));
        let key = key.transpose()?;
        let certificate = files.certificate.as_ref();
        let certificate = certificate.map(|(chain, key)| CertificateFiles::read(chain, key));
        let mut certificate = certificate.transpose()?;
        let text = certificate.as_mut().map(|files| files.current().clone());
        let own = ServerOwn {
            key: key.clone(),
            certificate: text.as_ref().map(CertificateText::parse).transpose()?,
        };
        Ok(Proof {
            key,
            certificate,
            shown: (text, Arc::new(own)),
        })
    }

    /// Returns what the next client is shown.
    pub(crate) fn current(&mut self) -> Arc<ServerOwn> {
        if let Some(files) = &mut self.certificate {
            let text = files.current();
            if self.shown.0.as_ref() != Some(text)
                && let Ok(certificate) = text.parse()
            {
                let own = ServerOwn {
                    key: self.key.clone(),
                    certificate: Some(certificate),
                };
                self.shown = (Some(text.clone()), Arc::new(own));
            }
        }
        Arc::clone(&self.shown.1)
    }
}

//! The handshake, by rustls, one record at a time: what follows it stays in the connection.

use std::{
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
};

use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Connection, KeyLog,
    PeerIncompatible, ServerConfig,
    client::{
        AlwaysResolvesClientRawPublicKeys, ResolvesClientCert, Resumption,
        danger::ServerCertVerifier,
    },
    crypto::CryptoProvider,
    pki_types::{InvalidDnsNameError, ServerName},
    server::{
        Accepted, AcceptedAlert, Acceptor, AlwaysResolvesServerRawPublicKeys, CertificateType,
        NoServerSessionStorage, ResolvesServerCert, danger::ClientCertVerifier,
    },
    sign::{CertifiedKey, SingleCertAndKey},
    version::TLS13,
};

use super::{
    certificates::{Authorities, Certificate, CertificateFault, Presented},
    error::TlsError,
    identity::{Fingerprint, Identity},
    records::{KEY_RECORDS_MAX, Opener, RECORD_BYTES_MAX, Sealer},
    schedule::{Direction, SECRET_BYTES, TlsState},
    verify::{AnyCertificate, AnyKey, Pinned, provider},
};

const HEADER_BYTES: usize = 5;
const BODY_BYTES_MAX: usize = RECORD_BYTES_MAX + 256;
/// Records of one handshake, at most; two real ones need fewer than ten.
const RECORDS_MAX: usize = 64;
/// Names the bytes that both ends of a channel can derive, and nobody else.
const BINDING_LABEL: &[u8] = b"EXPORTER-outboard-token";

/// The connection below, for handshakes.
pub trait RecordIo {
    type Error;
    /// Reads exactly so many bytes.
    fn read(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error>;
    /// Writes all of them.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;
}

/// An encrypted connection.
pub struct Channel {
    pub sealer: Sealer,
    pub opener: Opener,
    /// Bytes that only the two ends know, for proofs.
    pub binding: [u8; SECRET_BYTES],
    /// Key or certificate of the peer, which has the private key.
    pub peer: Shown,
}

/// Key or certificate that a client shows.
#[derive(Debug, Clone)]
pub enum Own {
    Key(Identity),
    Certificate(Certificate),
}

/// The server that a client wants to speak to.
#[derive(Debug, Clone)]
pub enum Expected {
    /// The one with this key.
    Key(Fingerprint),
    /// The one that has a certificate of this name, from these authorities.
    Certificate {
        name: ServerName<'static>,
        authorities: Authorities,
    },
}

/// Key and certificate of a server, which shows the one that the client asks for. One of both is
/// there.
#[derive(Debug, Clone)]
pub struct ServerOwn {
    /// None shows the certificate's key to clients that know servers by keys.
    pub key: Option<Identity>,
    pub certificate: Option<Certificate>,
}

/// Key or certificate that a peer has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    Nothing,
    Key(Fingerprint),
    Certificate(Presented),
}

impl Expected {
    /// Expects the certificate of a host, which is a name or an address.
    pub fn of_host(host: &str, authorities: Authorities) -> Result<Expected, TlsError> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| TlsError::NoName { host: host.into() })?;
        Ok(Expected::Certificate { name, authorities })
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

impl TlsState {
    /// Begins with secrets that both sides have, each its own first. For tests of what comes after
    /// a handshake.
    pub fn of_secrets(out: [u8; SECRET_BYTES], inward: [u8; SECRET_BYTES]) -> TlsState {
        Self::before_update(out, inward, KEY_RECORDS_MAX)
    }

    /// Makes keys as [`of_secrets`](Self::of_secrets) does, with `records` records left before the
    /// first change.
    pub fn before_update(
        out: [u8; SECRET_BYTES],
        inward: [u8; SECRET_BYTES],
        records: u64,
    ) -> TlsState {
        let record = KEY_RECORDS_MAX.saturating_sub(records);
        let direction = |secret| Direction { secret, record };
        TlsState {
            out: direction(out),
            inward: direction(inward),
        }
    }

    /// Returns what another process needs to go on with a connection; None if something has come
    /// that was not read.
    pub fn of(sealer: &Sealer, opener: &Opener) -> Option<TlsState> {
        Some(TlsState {
            out: sealer.direction(),
            inward: opener.direction()?,
        })
    }

    /// Goes on with a connection.
    pub fn resume(self) -> Result<(Sealer, Opener), TlsError> {
        Ok((Sealer::new(self.out)?, Opener::new(self.inward)?))
    }
}

/// Takes the traffic secrets, which rustls gives to those who log them.
#[derive(Default)]
struct Secrets(Mutex<[Option<[u8; SECRET_BYTES]>; 2]>);

const OF_CLIENT: usize = 0;
const OF_SERVER: usize = 1;

impl KeyLog for Secrets {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        let at = match label {
            "CLIENT_TRAFFIC_SECRET_0" => OF_CLIENT,
            "SERVER_TRAFFIC_SECRET_0" => OF_SERVER,
            _ => return,
        };
        let mut secrets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        secrets[at] = secret.try_into().ok();
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(..)")
    }
}

/// Opens the client's end, to the server that is expected.
pub fn open_as_client<I: RecordIo>(
    io: &mut I,
    own: &Own,
    server: &Expected,
) -> Result<Result<Channel, TlsError>, I::Error> {
    let secrets = Arc::new(Secrets::default());
    let connection = match client(own, server, Arc::clone(&secrets) as Arc<dyn KeyLog>) {
        Ok(connection) => connection,
        Err(error) => return Ok(Err(error)),
    };
    let is_raw = matches!(server, Expected::Key(_));
    let opened = open(io, Connection::Client(connection), &mut 0, &secrets, is_raw)?;
    Ok(opened.map_err(|error| fault_of_client(error, is_raw)))
}

/// Returns the fault as it is to a client, which knows the server by its key or not.
pub(super) fn fault_of_client(error: TlsError, is_raw: bool) -> TlsError {
    match error {
        // Its alert, when it has no certificate to show.
        TlsError::Declined {
            alert: AlertDescription::HandshakeFailure,
        } if !is_raw => TlsError::NoCertificate,
        error => error,
    }
}

/// Returns whether a peer's list of kinds has keys without certificates.
pub(super) fn is_raw(types: Option<&[CertificateType]>) -> bool {
    types.is_some_and(|types| types.contains(&CertificateType::RawPublicKey))
}

/// Opens the server's end, to a client that may show any key or certificate.
pub fn open_as_server<I: RecordIo>(
    io: &mut I,
    own: &ServerOwn,
) -> Result<Result<Channel, TlsError>, I::Error> {
    let mut records = 0;
    let accepted = match accept(io, &mut records)? {
        Ok(accepted) => accepted,
        Err(error) => return Ok(Err(error)),
    };
    let secrets = Arc::new(Secrets::default());
    let hello = accepted.client_hello();
    let (wants_raw, shows_raw) = (
        is_raw(hello.server_cert_types()),
        is_raw(hello.client_cert_types()),
    );
    let key_log = Arc::clone(&secrets) as Arc<dyn KeyLog>;
    let config = match server(own, wants_raw, shows_raw, key_log) {
        Ok(config) => config,
        Err(error) => return Ok(Err(error)),
    };
    match accepted.into_connection(Arc::new(config)) {
        Ok(connection) => open(
            io,
            Connection::Server(connection),
            &mut records,
            &secrets,
            shows_raw,
        ),
        Err((error, alert)) => {
            send_alert(io, alert)?;
            Ok(Err(not_accepted(error)))
        }
    }
}

/// Returns why a client's first message is not accepted.
pub(super) fn not_accepted(error: rustls::Error) -> TlsError {
    match error {
        rustls::Error::PeerIncompatible(PeerIncompatible::IncorrectCertificateTypeExtension) => {
            TlsError::CertificateAsked
        }
        error => TlsError::Handshake(error),
    }
}

/// Reads the client's first message.
fn accept<I: RecordIo>(
    io: &mut I,
    records: &mut usize,
) -> Result<Result<Accepted, TlsError>, I::Error> {
    let mut acceptor = Acceptor::default();
    loop {
        let record = match read_record(io, records)? {
            Ok(record) => record,
            Err(error) => return Ok(Err(error)),
        };
        let mut rest = &record[..];
        while !rest.is_empty() {
            if !acceptor.read_tls(&mut rest).is_ok_and(|count| count > 0) {
                return Ok(Err(TlsError::Record));
            }
        }
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) => return Ok(Ok(accepted)),
            Err((error, alert)) => {
                send_alert(io, alert)?;
                return Ok(Err(TlsError::Handshake(error)));
            }
        }
    }
}

fn send_alert<I: RecordIo>(io: &mut I, mut alert: AcceptedAlert) -> Result<(), I::Error> {
    let mut out = Vec::new();
    // Writing to memory does not fail.
    let _ = alert.write_all(&mut out);
    match out.is_empty() {
        true => Ok(()),
        false => io.write(&out),
    }
}

fn client(
    own: &Own,
    server: &Expected,
    key_log: Arc<dyn KeyLog>,
) -> Result<ClientConnection, TlsError> {
    let provider = Arc::new(provider());
    let verifier = verifier_of(server, &provider)?;
    let shown: Arc<dyn ResolvesClientCert> = match own {
        Own::Key(identity) => {
            let key = Arc::clone(&identity.certified);
            Arc::new(AlwaysResolvesClientRawPublicKeys::new(key))
        }
        Own::Certificate(certificate) => {
            let certified = Arc::clone(&certificate.certified);
            Arc::new(SingleCertAndKey::from(certified))
        }
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsError::Handshake)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(shown);
    config.key_log = key_log;
    config.resumption = Resumption::disabled();
    // The name is not sent if the key alone is checked.
    config.enable_sni = matches!(server, Expected::Certificate { .. });
    ClientConnection::new(Arc::new(config), name_of(server)?).map_err(TlsError::Handshake)
}

/// Returns the check of the server that is expected.
pub(super) fn verifier_of(
    server: &Expected,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    match server {
        Expected::Key(fingerprint) => Ok(Arc::new(Pinned {
            fingerprint: *fingerprint,
            algorithms: provider.signature_verification_algorithms,
        })),
        Expected::Certificate { authorities, .. } => authorities
            .server_verifier(provider)
            .map_err(|error| TlsError::Verifier(error.to_string())),
    }
}

/// Returns the name that a certificate must have; any, if there is none.
pub(super) fn name_of(server: &Expected) -> Result<ServerName<'static>, TlsError> {
    match server {
        Expected::Certificate { name, .. } => Ok(name.clone()),
        Expected::Key(_) => {
            let no_name = |error: InvalidDnsNameError| rustls::Error::General(error.to_string());
            let name = ServerName::try_from("outboard").map_err(no_name);
            name.map_err(TlsError::Handshake)
        }
    }
}

/// Returns the settings for a client that wants to see the server's key alone, and shows its own
/// key alone, or not.
fn server(
    own: &ServerOwn,
    wants_raw: bool,
    shows_raw: bool,
    key_log: Arc<dyn KeyLog>,
) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(provider());
    let algorithms = provider.signature_verification_algorithms;
    let shown = shown_by(own, wants_raw)?;
    let verifier: Arc<dyn ClientCertVerifier> = match shows_raw {
        true => Arc::new(AnyKey { algorithms }),
        false => Arc::new(AnyCertificate { algorithms }),
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsError::Handshake)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(shown);
    config.key_log = key_log;
    // A ticket would be a record after the handshake.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

/// Returns what the server shows to a client that wants to see its key alone, or its certificate.
pub(super) fn shown_by(
    own: &ServerOwn,
    wants_raw: bool,
) -> Result<Arc<dyn ResolvesServerCert>, TlsError> {
    let raw = |key: &Arc<CertifiedKey>| -> Arc<dyn ResolvesServerCert> {
        Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(key)))
    };
    match (&own.certificate, &own.key) {
        (Some(certificate), _) if !wants_raw => {
            let certified = Arc::clone(&certificate.certified);
            Ok(Arc::new(SingleCertAndKey::from(certified)))
        }
        (_, Some(key)) => Ok(raw(&key.certified)),
        (Some(certificate), None) => Ok(raw(&certificate.raw)),
        (None, None) => Err(TlsError::Keys),
    }
}

fn open<I: RecordIo>(
    io: &mut I,
    mut connection: Connection,
    records: &mut usize,
    secrets: &Secrets,
    is_raw: bool,
) -> Result<Result<Channel, TlsError>, I::Error> {
    loop {
        flush(io, &mut connection)?;
        if !connection.is_handshaking() {
            return Ok(channel(connection, secrets, is_raw));
        }
        let record = match read_record(io, records)? {
            Ok(record) => record,
            Err(error) => return Ok(Err(error)),
        };
        if let Err(error) = take_record(&mut connection, &record) {
            // The alert tells the peer why.
            flush(io, &mut connection)?;
            return Ok(Err(error));
        }
    }
}

/// Reads the next record of a handshake that has had `records` of them.
fn read_record<I: RecordIo>(
    io: &mut I,
    records: &mut usize,
) -> Result<Result<Vec<u8>, TlsError>, I::Error> {
    let mut record = vec![0; HEADER_BYTES];
    io.read(&mut record)?;
    let [kind, major, _, high, low] = record[..] else {
        return Ok(Err(TlsError::Record));
    };
    let len = usize::from(u16::from_be_bytes([high, low]));
    *records += 1;
    if !(20..=23).contains(&kind) || major != 3 {
        let first = [kind, major, record[2], high, low];
        return Ok(Err(TlsError::NotTls { first }));
    }
    if len > BODY_BYTES_MAX || *records > RECORDS_MAX {
        return Ok(Err(TlsError::Record));
    }
    record.resize(HEADER_BYTES + len, 0);
    io.read(&mut record[HEADER_BYTES..])?;
    Ok(Ok(record))
}

fn flush<I: RecordIo>(io: &mut I, connection: &mut Connection) -> Result<(), I::Error> {
    let mut out = Vec::new();
    // Writing to memory does not fail.
    while connection.wants_write() && connection.write_tls(&mut out).is_ok_and(|n| n > 0) {}
    match out.is_empty() {
        true => Ok(()),
        false => io.write(&out),
    }
}

fn take_record(connection: &mut Connection, mut record: &[u8]) -> Result<(), TlsError> {
    while !record.is_empty() {
        let read: io::Result<usize> = connection.read_tls(&mut record);
        if !read.is_ok_and(|count| count > 0) {
            return Err(TlsError::Record);
        }
        connection.process_new_packets().map_err(fault_of)?;
    }
    Ok(())
}

pub(super) fn fault_of(error: rustls::Error) -> TlsError {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
            TlsError::OtherKey
        }
        rustls::Error::AlertReceived(alert) => TlsError::Declined { alert },
        error @ rustls::Error::InvalidCertificate(_) => TlsError::Certificate {
            fault: CertificateFault::of(&error),
        },
        error => TlsError::Handshake(error),
    }
}

fn channel(connection: Connection, secrets: &Secrets, is_raw: bool) -> Result<Channel, TlsError> {
    let binding = connection
        .export_keying_material([0; SECRET_BYTES], BINDING_LABEL, None)
        .map_err(TlsError::Handshake)?;
    let peer = match connection.peer_certificates() {
        Some([key, ..]) if is_raw => Shown::Key(Fingerprint::of(key.as_ref())),
        Some(chain @ [_, ..]) => Shown::Certificate(Presented(
            chain.iter().map(|one| one.clone().into_owned()).collect(),
        )),
        _ => Shown::Nothing,
    };
    let taken = *secrets.0.lock().unwrap_or_else(PoisonError::into_inner);
    let [Some(of_client), Some(of_server)] = taken else {
        return Err(TlsError::Keys);
    };
    let (out, inward) = match connection {
        Connection::Client(_) => (of_client, of_server),
        Connection::Server(_) => (of_server, of_client),
    };
    // Neither side has sent a record with these keys yet.
    let direction = |secret| Direction { secret, record: 0 };
    Ok(Channel {
        sealer: Sealer::new(direction(out))?,
        opener: Opener::new(direction(inward))?,
        binding,
        peer,
    })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        os::unix::net::UnixStream,
        thread,
    };

    use super::*;

    impl RecordIo for UnixStream {
        type Error = io::Error;

        fn read(&mut self, bytes: &mut [u8]) -> io::Result<()> {
            self.read_exact(bytes)
        }

        fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.write_all(bytes)
        }
    }

    type Opened = Result<Channel, TlsError>;

    fn own(key: Identity) -> ServerOwn {
        ServerOwn {
            key: Some(key),
            certificate: None,
        }
    }

    fn shake(
        server: Identity,
        client: &Identity,
        expected: Fingerprint,
    ) -> (Opened, io::Result<Opened>) {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let serving = thread::spawn(move || open_as_server(&mut there, &own(server)));
        let client = Own::Key(client.clone());
        let client = open_as_client(&mut here, &client, &Expected::Key(expected)).unwrap();
        drop(here);
        (client, serving.join().unwrap())
    }

    #[test]
    fn both_ends_know_each_other_and_derive_the_same() {
        let (server, client) = (Identity::random().unwrap(), Identity::random().unwrap());
        let expected = server.fingerprint();
        let (ours, theirs) = shake(server, &client, expected);
        let (mut ours, mut theirs) = (ours.unwrap(), theirs.unwrap().unwrap());
        assert_eq!(ours.peer, Shown::Key(expected));
        assert_eq!(theirs.peer, Shown::Key(client.fingerprint()));
        assert!(ours.binding == theirs.binding && ours.binding != [0; 32]);
        for (from, to) in [
            (&mut ours.sealer, &mut theirs.opener),
            (&mut theirs.sealer, &mut ours.opener),
        ] {
            let mut bytes = Vec::new();
            from.seal(b"hello", &mut bytes).unwrap();
            to.room()[..bytes.len()].copy_from_slice(&bytes);
            assert!(!bytes.windows(5).any(|window| window == b"hello"));
            to.filled(bytes.len());
            let mut out = [0; 9];
            assert_eq!(to.take(&mut out).unwrap(), 5);
            assert_eq!(&out[..5], b"hello");
        }
        // Another process goes on where this one is.
        let (mut sealer, _) = TlsState::of(&ours.sealer, &ours.opener)
            .unwrap()
            .resume()
            .unwrap();
        let mut bytes = Vec::new();
        sealer.seal(b"again", &mut bytes).unwrap();
        theirs.opener.room()[..bytes.len()].copy_from_slice(&bytes);
        theirs.opener.filled(bytes.len());
        assert!(
            TlsState::of(&theirs.sealer, &theirs.opener).is_none(),
            "something has come"
        );
        assert_eq!(theirs.opener.take(&mut [0; 9]).unwrap(), 5);
    }

    #[test]
    fn a_server_with_another_key_is_refused() {
        let (server, client) = (Identity::random().unwrap(), Identity::random().unwrap());
        let other = Identity::random().unwrap().fingerprint();
        let (ours, theirs) = shake(server, &client, other);
        assert!(matches!(ours, Err(TlsError::OtherKey)));
        assert!(matches!(theirs, Ok(Err(_)) | Err(_)));
    }

    #[test]
    fn junk_and_cuts_are_errors() {
        let server = Identity::random().unwrap();
        let serve = |bytes: &[u8]| {
            let (mut here, mut there) = UnixStream::pair().unwrap();
            let server = own(server.clone());
            let serving = thread::spawn(move || open_as_server(&mut there, &server));
            let _ = here.write_all(bytes);
            here.shutdown(std::net::Shutdown::Write).unwrap();
            serving.join().unwrap()
        };
        assert!(
            matches!(serve(b"OUTBOARD"), Ok(Err(TlsError::NotTls { first })) if &first == b"OUTBO")
        );
        assert!(matches!(
            serve(&[22, 3, 1, 0xff, 0xff]),
            Ok(Err(TlsError::Record))
        ));
        assert!(serve(&[22, 3, 1, 0, 9]).is_err());
        assert!(serve(b"").is_err());
        let flood = [22, 3, 3, 0, 0].repeat(1000);
        assert!(matches!(serve(&flood), Ok(Err(_))));
        let noise: Vec<u8> = (0..900u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 9) as u8)
            .collect();
        let noise = [&[22, 3, 1, 3, 132][..], &noise].concat();
        assert!(matches!(serve(&noise), Ok(Err(TlsError::Handshake(_)))));
    }
}

//! The handshake, by rustls, one record at a time: what follows it stays in the connection.

use std::{
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
};

use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, KeyLog, ServerConfig,
    ServerConnection,
    client::{AlwaysResolvesClientRawPublicKeys, Resumption},
    crypto::{CryptoProvider, ring},
    pki_types::ServerName,
    server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage},
    version::TLS13,
};

use super::{
    error::TlsError,
    identity::{Fingerprint, Identity},
    records::{Opener, RECORD_BYTES_MAX, Sealer},
    schedule::{Direction, SECRET_BYTES, TlsState},
    verify::{AnyKey, Pinned},
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
    /// The peer's key.
    pub peer: Fingerprint,
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
        let direction = |secret| Direction { secret, record: 0 };
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

/// One suite and one group: both ends are of one release.
fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![ring::kx_group::X25519],
        ..ring::default_provider()
    }
}

/// Opens the client's end, to the server that has the key of `server`.
pub fn open_as_client<I: RecordIo>(
    io: &mut I,
    identity: &Identity,
    server: Fingerprint,
) -> Result<Result<Channel, TlsError>, I::Error> {
    let secrets = Arc::new(Secrets::default());
    let connection = client(identity, server, Arc::clone(&secrets) as Arc<dyn KeyLog>);
    match connection {
        Ok(connection) => open(io, Connection::Client(connection), &secrets),
        Err(error) => Ok(Err(TlsError::Handshake(error))),
    }
}

/// Opens the server's end, to a client of any key.
pub fn open_as_server<I: RecordIo>(
    io: &mut I,
    identity: &Identity,
) -> Result<Result<Channel, TlsError>, I::Error> {
    let secrets = Arc::new(Secrets::default());
    match server(identity, Arc::clone(&secrets) as Arc<dyn KeyLog>) {
        Ok(connection) => open(io, Connection::Server(connection), &secrets),
        Err(error) => Ok(Err(TlsError::Handshake(error))),
    }
}

fn client(
    identity: &Identity,
    fingerprint: Fingerprint,
    key_log: Arc<dyn KeyLog>,
) -> Result<ClientConnection, rustls::Error> {
    let provider = Arc::new(provider());
    let algorithms = provider.signature_verification_algorithms;
    let key = AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&identity.certified));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned {
            fingerprint,
            algorithms,
        }))
        .with_client_cert_resolver(Arc::new(key));
    config.key_log = key_log;
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    // The name is not sent, and the key alone is checked.
    let name = ServerName::try_from("outboard");
    let name = name.map_err(|error| rustls::Error::General(error.to_string()))?;
    ClientConnection::new(Arc::new(config), name)
}

fn server(
    identity: &Identity,
    key_log: Arc<dyn KeyLog>,
) -> Result<ServerConnection, rustls::Error> {
    let provider = Arc::new(provider());
    let algorithms = provider.signature_verification_algorithms;
    let key = AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&identity.certified));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(AnyKey { algorithms }))
        .with_cert_resolver(Arc::new(key));
    config.key_log = key_log;
    // A ticket would be a record after the handshake.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    ServerConnection::new(Arc::new(config))
}

fn open<I: RecordIo>(
    io: &mut I,
    mut connection: Connection,
    secrets: &Secrets,
) -> Result<Result<Channel, TlsError>, I::Error> {
    let mut records = 0;
    loop {
        flush(io, &mut connection)?;
        if !connection.is_handshaking() {
            return Ok(channel(connection, secrets));
        }
        let mut record = vec![0; HEADER_BYTES];
        io.read(&mut record)?;
        let [kind, major, _, high, low] = record[..] else {
            return Ok(Err(TlsError::Record));
        };
        let len = usize::from(u16::from_be_bytes([high, low]));
        records += 1;
        if !(20..=23).contains(&kind) || major != 3 {
            let first = [kind, major, record[2], high, low];
            return Ok(Err(TlsError::NotTls { first }));
        }
        if len > BODY_BYTES_MAX || records > RECORDS_MAX {
            return Ok(Err(TlsError::Record));
        }
        record.resize(HEADER_BYTES + len, 0);
        io.read(&mut record[HEADER_BYTES..])?;
        if let Err(error) = take_record(&mut connection, &record) {
            // The alert tells the peer why.
            flush(io, &mut connection)?;
            return Ok(Err(error));
        }
    }
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
        connection
            .process_new_packets()
            .map_err(|error| match error {
                rustls::Error::InvalidCertificate(
                    CertificateError::ApplicationVerificationFailure,
                ) => TlsError::OtherKey,
                error => TlsError::Handshake(error),
            })?;
    }
    Ok(())
}

fn channel(connection: Connection, secrets: &Secrets) -> Result<Channel, TlsError> {
    let binding = connection
        .export_keying_material([0; SECRET_BYTES], BINDING_LABEL, None)
        .map_err(TlsError::Handshake)?;
    let peer = connection.peer_certificates().and_then(<[_]>::first);
    let peer = Fingerprint::of(peer.ok_or(TlsError::Keys)?.as_ref());
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

    fn shake(
        server: Identity,
        client: &Identity,
        expected: Fingerprint,
    ) -> (Opened, io::Result<Opened>) {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let serving = thread::spawn(move || open_as_server(&mut there, &server));
        let client = open_as_client(&mut here, client, expected).unwrap();
        drop(here);
        (client, serving.join().unwrap())
    }

    #[test]
    fn both_ends_know_each_other_and_derive_the_same() {
        let (server, client) = (Identity::random().unwrap(), Identity::random().unwrap());
        let expected = server.fingerprint();
        let (ours, theirs) = shake(server, &client, expected);
        let (mut ours, mut theirs) = (ours.unwrap(), theirs.unwrap().unwrap());
        assert_eq!((ours.peer, theirs.peer), (expected, client.fingerprint()));
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
            let server = server.clone();
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

//! Encrypted connections of other protocols, such as HTTP, by rustls: bytes go in and out, and the
//! caller does the I/O. A server asks for no key of its clients.

use std::{
    io::{Read as _, Write as _},
    sync::Arc,
};

use rustls::{
    ClientConfig, ClientConnection, Connection, ServerConfig,
    client::Resumption,
    server::{Accepted, Acceptor, NoServerSessionStorage},
    version::TLS13,
};

use super::{
    error::TlsError,
    handshake::{
        Expected, ServerOwn, fault_of, fault_of_client, is_raw, name_of, not_accepted, shown_by,
        verifier_of,
    },
    verify::provider,
};

/// One end of an encrypted connection.
pub struct Secured {
    state: State,
    /// Bytes for the peer.
    out: Vec<u8>,
}

enum State {
    /// The client's first message has not come whole.
    Accepting(Box<Acceptor>, Arc<ServerOwn>),
    Server(Box<Connection>),
    Client {
        connection: Box<Connection>,
        /// It knows the server by its key.
        is_raw: bool,
    },
    Failed,
}

impl Secured {
    /// Begins the client's end, to the server that is expected.
    pub fn client(server: &Expected) -> Result<Secured, TlsError> {
        let provider = Arc::new(provider());
        let verifier = verifier_of(server, &provider)?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(TlsError::Handshake)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        let is_raw = matches!(server, Expected::Key(_));
        // The name is not sent, and the key alone is checked.
        config.enable_sni = !is_raw;
        let connection = ClientConnection::new(Arc::new(config), name_of(server)?);
        let mut connection = Connection::Client(connection.map_err(TlsError::Handshake)?);
        connection.set_buffer_limit(None);
        let mut out = Vec::new();
        write_out(&mut connection, &mut out);
        Ok(Secured {
            state: State::Client {
                connection: Box::new(connection),
                is_raw,
            },
            out,
        })
    }

    /// Begins the server's end.
    pub fn server(own: Arc<ServerOwn>) -> Secured {
        Secured {
            state: State::Accepting(Box::default(), own),
            out: Vec::new(),
        }
    }

    pub fn is_handshaking(&self) -> bool {
        match &self.state {
            State::Accepting(..) => true,
            State::Server(connection) | State::Client { connection, .. } => {
                connection.is_handshaking()
            }
            State::Failed => false,
        }
    }

    /// Takes bytes that have come, and appends their data to `data`. After an error there may
    /// still be [output](Self::take_output), which tells the peer.
    pub fn receive(&mut self, bytes: &[u8], data: &mut Vec<u8>) -> Result<(), TlsError> {
        let taken = self.take(bytes, data);
        if taken.is_err() {
            self.state = State::Failed;
        }
        taken
    }

    fn take(&mut self, mut bytes: &[u8], data: &mut Vec<u8>) -> Result<(), TlsError> {
        while !bytes.is_empty() {
            let read = match &mut self.state {
                State::Accepting(acceptor, _) => acceptor.read_tls(&mut bytes),
                State::Server(connection) | State::Client { connection, .. } => {
                    connection.read_tls(&mut bytes)
                }
                State::Failed => return Err(TlsError::Closed),
            };
            if !read.is_ok_and(|count| count > 0) {
                return Err(TlsError::Record);
            }
            self.accept()?;
            self.process(data)?;
        }
        Ok(())
    }

    /// Goes on to the handshake when the client's first message has come.
    fn accept(&mut self) -> Result<(), TlsError> {
        let State::Accepting(acceptor, own) = &mut self.state else {
            return Ok(());
        };
        let opened = match acceptor.accept() {
            Ok(None) => return Ok(()),
            Ok(Some(accepted)) => {
                let config = config_for(&accepted, own)?;
                accepted.into_connection(Arc::new(config))
            }
            Err(refused) => Err(refused),
        };
        match opened {
            Ok(mut connection) => {
                connection.set_buffer_limit(None);
                self.state = State::Server(Box::new(Connection::Server(connection)));
                Ok(())
            }
            Err((error, mut alert)) => {
                // Writing to memory does not fail.
                let _ = alert.write_all(&mut self.out);
                Err(not_accepted(error))
            }
        }
    }

    fn process(&mut self, data: &mut Vec<u8>) -> Result<(), TlsError> {
        let (connection, is_raw) = match &mut self.state {
            State::Server(connection) => (connection, None),
            State::Client { connection, is_raw } => (connection, Some(*is_raw)),
            State::Accepting(..) | State::Failed => return Ok(()),
        };
        let processed = connection.process_new_packets();
        write_out(connection, &mut self.out);
        let state = processed.map_err(|error| match is_raw {
            Some(is_raw) => fault_of_client(fault_of(error), is_raw),
            None => fault_of(error),
        })?;
        let start = data.len();
        data.resize(start + state.plaintext_bytes_to_read(), 0);
        let read = connection.reader().read_exact(&mut data[start..]);
        read.map_err(|_| TlsError::Record)
    }

    /// Encrypts data, at the end of the handshake if it lasts still.
    pub fn send(&mut self, data: &[u8]) -> Result<(), TlsError> {
        let (State::Server(connection) | State::Client { connection, .. }) = &mut self.state else {
            return Err(TlsError::Closed);
        };
        let written = connection.writer().write_all(data);
        write_out(connection, &mut self.out);
        written.map_err(|_| TlsError::Closed)
    }

    /// Returns the bytes that the peer is to get now.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}

fn config_for(accepted: &Accepted, own: &ServerOwn) -> Result<ServerConfig, TlsError> {
    let wants_raw = is_raw(accepted.client_hello().server_cert_types());
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsError::Handshake)?
        .with_no_client_auth()
        .with_cert_resolver(shown_by(own, wants_raw)?);
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

fn write_out(connection: &mut Connection, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    while connection.wants_write() && connection.write_tls(out).is_ok_and(|count| count > 0) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Identity;

    fn pair(server: &Identity, expected: &Identity) -> [Secured; 2] {
        let own = ServerOwn {
            key: Some(server.clone()),
            certificate: None,
        };
        let client = Secured::client(&Expected::Key(expected.fingerprint())).unwrap();
        [client, Secured::server(Arc::new(own))]
    }

    /// Moves bytes both ways, a few at a time, until there are none.
    fn pump([client, server]: &mut [Secured; 2]) -> Result<[Vec<u8>; 2], TlsError> {
        let mut data = [Vec::new(), Vec::new()];
        loop {
            let (up, down) = (client.take_output(), server.take_output());
            if up.is_empty() && down.is_empty() {
                return Ok(data);
            }
            for piece in up.chunks(100) {
                server.receive(piece, &mut data[0])?;
            }
            for piece in down.chunks(100) {
                client.receive(piece, &mut data[1])?;
            }
        }
    }

    #[test]
    fn data_goes_both_ways_after_the_handshake() {
        let key = Identity::random().unwrap();
        let mut ends = pair(&key, &key);
        let request = vec![7; 300_000];
        ends[0].send(&request).unwrap();
        assert!(ends[1].send(b"too early").is_err());
        let [came, _] = pump(&mut ends).unwrap();
        assert!(came == request && !ends[0].is_handshaking() && !ends[1].is_handshaking());
        ends[1].send(b"answer").unwrap();
        assert_eq!(pump(&mut ends).unwrap()[1], b"answer");
        ends[1].send(b"answer").unwrap();
        let mut changed = ends[1].take_output();
        changed[7] ^= 1;
        assert!(ends[0].receive(&changed, &mut Vec::new()).is_err());
        assert!(ends[0].receive(b"more", &mut Vec::new()).is_err());
    }

    #[test]
    fn another_key_gets_nothing() {
        let (key, other) = (Identity::random().unwrap(), Identity::random().unwrap());
        let mut ends = pair(&key, &other);
        ends[0].send(b"secret").unwrap();
        assert!(matches!(pump(&mut ends), Err(TlsError::OtherKey)));
        let (alert, mut came) = (ends[0].take_output(), Vec::new());
        assert!(ends[1].receive(&alert, &mut came).is_err());
        assert!(came.is_empty());
    }

    #[test]
    fn noise_is_an_error() {
        let key = Identity::random().unwrap();
        for noise in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[22, 3, 1, 255, 255, 1],
            &[0; 64],
        ] {
            let [_, mut server] = pair(&key, &key);
            let mut data = Vec::new();
            assert!(server.receive(noise, &mut data).is_err(), "{noise:?}");
            assert!(data.is_empty() && !server.is_handshaking());
        }
    }
}

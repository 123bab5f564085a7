//! TLS: the certificate that clients are shown, and their handshakes.
//!
//! [`Tls::load`] reads certificate and key, and [`Tls::keep_fresh`] reads them again whenever the files
//! change. A connection keeps what it began with.
//!
//! # Bounds
//! A handshake has the time of `tls.handshake-timeout`. It runs in the task of its own connection, which
//! counts as any other: slow ones take places among the connections, and nobody waits for them.
//!
//! # Invariants
//! Held by `tests/tests/tls.rs`.
//! 1. New connections get the newest certificate that can be used
//!    (`certificates_are_replaced_while_the_server_serves`).
//! 2. Files that cannot be used change nothing, and the log says why, once for each state of theirs
//!    (there too, and `tests::files_are_tried_once_and_when_they_stay_as_they_are`).
//! 3. A handshake that does not end takes nobody's time and ends its connection
//!    (`handshakes_that_never_end_are_in_nobodys_way`).

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::task;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;

use super::socket::{Socket, Watch};

/// The files of a certificate, and the terms of handshakes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// The file with the certificate and those between it and the root, in PEM.
    pub certificate: PathBuf,
    /// The file with the certificate's key, in PEM, without a passphrase.
    pub key: PathBuf,
    /// The longest time that a handshake may take.
    pub handshake_timeout: Duration,
    /// The time between two looks at the files.
    pub poll: Duration,
}

/// A certificate in force, with its files.
pub struct Tls {
    // Immutable.
    settings: TlsSettings,
    /// The files as they were when they were loaded.
    loaded: Mark,
    // Owned.
    in_force: watch::Sender<Arc<ServerConfig>>,
}

/// A certificate and a key that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file that is not there or cannot be read.
    #[error("{} cannot be read: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// A file without a certificate, or with a broken one.
    #[error("{} has no certificate in PEM", .0.display())]
    NoCertificate(PathBuf),
    /// A file without a key, or with a broken or encrypted one.
    #[error("{} has no private key in PEM without a passphrase", .0.display())]
    NoKey(PathBuf),
    /// A certificate that the key does not belong to, or of an unknown kind.
    #[error("{} and {} cannot be used together: {error}", certificate.display(), key.display())]
    Unusable {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The reason.
        error: rustls::Error,
    },
}

/// The way in which a listener's connections are secured.
#[derive(Clone, Debug)]
pub enum Transport {
    /// They are not.
    Plain,
    /// By TLS.
    Tls(Arc<Tls>),
}

/// A client's socket after its first bytes.
pub(super) enum Opened {
    /// The client has shaken hands, and speaks HTTP/1.1.
    Http1(Box<TlsStream<Socket>>),
    /// The client has shaken hands, and speaks HTTP/2.
    Http2(Box<TlsStream<Socket>>),
    /// The client does not speak TLS.
    Plain(Socket),
}

/// The texts of both files.
struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// The mark of a state of the files: a hash of their texts, or the reason why they cannot be read.
type Mark = Result<[u8; 32], String>;

/// Tells when files that changed are to be tried: once for each state, and not while they are being
/// written.
#[derive(Debug)]
struct Changes {
    tried: Mark,
    /// The state at the last look.
    seen: Mark,
}

/// The most bytes of a file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The names of what is spoken over TLS, the preferred one first.
const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";
/// The first byte of a handshake.
const HANDSHAKE: u8 = 22;

// === impl Tls ===

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// If they cannot be used.
    pub fn load(settings: TlsSettings) -> Result<Self, TlsError> {
        let files = Files::read(&settings);
        let loaded = Files::mark(&files);
        let config = files?.config(&settings)?;
        let (in_force, _) = watch::channel(Arc::new(config));
        Ok(Self {
            settings,
            loaded,
            in_force,
        })
    }

    /// Puts the certificate in force that the files have, whenever they change. Never ends.
    ///
    /// # Cancellation
    /// The certificate in force stays.
    pub async fn keep_fresh(&self) {
        let mut changes = Changes::new(self.loaded.clone());
        loop {
            sleep(self.settings.poll).await;
            let files = self.read().await;
            if !changes.settled(Files::mark(&files)) {
                continue;
            }
            let certificate = self.settings.certificate.display();
            match files.and_then(|files| files.config(&self.settings)) {
                Ok(config) => {
                    self.in_force.send_replace(Arc::new(config));
                    tracing::info!(%certificate, "certificate read again");
                }
                Err(error) => {
                    tracing::warn!(%error, "certificate not replaced, the one before stays");
                }
            }
        }
    }

    /// Reads the files where that may take its time.
    async fn read(&self) -> Result<Files, TlsError> {
        let settings = self.settings.clone();
        let read = task::spawn_blocking(move || Files::read(&settings)).await;
        read.unwrap_or_else(|error| {
            Err(TlsError::Unreadable {
                path: self.settings.certificate.clone(),
                error: error.into(),
            })
        })
    }

    /// Shakes hands with a client.
    ///
    /// # Errors
    /// If the client does not do so in time.
    ///
    /// # Cancellation
    /// The connection closes.
    pub(super) async fn open(&self, socket: Socket, watch: &Watch) -> io::Result<Opened> {
        let opened = async {
            if !watch.begins_with(HANDSHAKE).await? {
                return Ok(Opened::Plain(socket));
            }
            let config = Arc::clone(&self.in_force.borrow());
            let stream = TlsAcceptor::from(config).accept(socket).await?;
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
            let stream = Box::new(stream);
            Ok(if is_http2 {
                Opened::Http2(stream)
            } else {
                Opened::Http1(stream)
            })
        };
        let opened = timeout(self.settings.handshake_timeout, opened).await;
        opened.unwrap_or_else(|elapsed| Err(io::Error::new(ErrorKind::TimedOut, elapsed)))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

// === impl Files ===

impl Files {
    fn read(settings: &TlsSettings) -> Result<Self, TlsError> {
        let read = |path: &Path| {
            pointsman_files::read(path, FILE_BYTES_MAX).map_err(|error| TlsError::Unreadable {
                path: path.to_owned(),
                error,
            })
        };
        Ok(Self {
            certificate: read(&settings.certificate)?,
            key: read(&settings.key)?,
        })
    }

    fn mark(read: &Result<Self, TlsError>) -> Mark {
        let files = read.as_ref().map_err(ToString::to_string)?;
        let mut hash = Sha256::new();
        for file in [&files.certificate, &files.key] {
            hash.update(Sha256::digest(file));
        }
        Ok(hash.finalize().into())
    }

    /// The configuration that shows this certificate.
    fn config(&self, settings: &TlsSettings) -> Result<ServerConfig, TlsError> {
        // The reasons would quote from the files.
        let none = |_| TlsError::NoCertificate(settings.certificate.clone());
        let chain = CertificateDer::pem_slice_iter(&self.certificate);
        let chain = chain.collect::<Result<Vec<_>, _>>().map_err(none)?;
        if chain.is_empty() {
            return Err(TlsError::NoCertificate(settings.certificate.clone()));
        }
        let key = PrivateKeyDer::from_pem_slice(&self.key);
        let key = key.map_err(|_quotes| TlsError::NoKey(settings.key.clone()))?;
        let unusable = |error| TlsError::Unusable {
            certificate: settings.certificate.clone(),
            key: settings.key.clone(),
            error,
        };
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.map_err(unusable)?.with_no_client_auth();
        let mut config = builder.with_single_cert(chain, key).map_err(unusable)?;
        config.alpn_protocols = [HTTP2, HTTP1].map(<[u8]>::to_vec).to_vec();
        Ok(config)
    }
}

// === impl Changes ===

impl Changes {
    fn new(tried: Mark) -> Self {
        let seen = tried.clone();
        Self { tried, seen }
    }

    /// Takes note of a look. True if the files are to be tried: they are not as they were then, and
    /// have not changed since the look before.
    fn settled(&mut self, now: Mark) -> bool {
        let is_settled = now == self.seen && now != self.tried;
        if is_settled {
            self.tried = now.clone();
        }
        self.seen = now;
        is_settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_tried_once_and_when_they_stay_as_they_are() {
        let state = |n: u8| Ok([n; 32]);
        let gone = || Err("gone".to_owned());
        let mut changes = Changes::new(state(0));
        for (now, is_tried) in [
            (state(0), false),
            // Still being written.
            (state(1), false),
            (state(2), false),
            (state(2), true),
            // Whether or not it could be used.
            (state(2), false),
            (gone(), false),
            (gone(), true),
            (gone(), false),
            // There again, as they were.
            (state(2), false),
            (state(2), true),
            // There and back between two looks.
            (state(3), false),
            (state(2), false),
            (state(2), false),
        ] {
            assert_eq!(changes.settled(now.clone()), is_tried, "{now:?}");
        }
    }
}

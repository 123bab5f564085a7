//! Certificates for servers on this machine, those that show them, and clients that check them.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use pointsman_http::test_util::pem;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use tokio_rustls::{TlsAcceptor, TlsConnector, server};

/// A certificate for `localhost` that nobody else has signed, with its key.
#[derive(Clone, Debug)]
pub struct Certificate {
    der: CertificateDer<'static>,
    /// The certificate in PEM.
    pub pem: String,
    /// The key in PEM.
    pub key_pem: String,
}

// === impl Certificate ===

impl Certificate {
    /// Makes a certificate.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new() -> Result<Self> {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()])?;
        Ok(Self {
            pem: pem("CERTIFICATE", cert.der()),
            key_pem: pem("PRIVATE KEY", &signing_key.serialize_der()),
            der: cert.der().clone(),
        })
    }

    /// Writes both files into a folder: `certificate.pem` and `key.pem`.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        fs::write(folder.join("certificate.pem"), &self.pem)?;
        fs::write(folder.join("key.pem"), &self.key_pem)?;
        Ok(())
    }

    /// Connects to a server that shows this certificate.
    ///
    /// # Errors
    /// If it shows another one, or does not speak that version of TLS.
    pub async fn connect(
        &self,
        addr: SocketAddr,
        version: &'static SupportedProtocolVersion,
    ) -> Result<TlsStream<TcpStream>> {
        self.connect_to_speak(addr, version, &[]).await
    }

    /// Connects to a server that shows this certificate and speaks HTTP/2.
    ///
    /// # Errors
    /// If it shows another one, or does not speak HTTP/2.
    pub async fn connect_http2(&self, addr: SocketAddr) -> Result<TlsStream<TcpStream>> {
        let protocols = [b"h2".to_vec(), b"http/1.1".to_vec()];
        let stream = self.connect_to_speak(addr, &TLS13, &protocols).await?;
        let chosen = stream.get_ref().1.alpn_protocol();
        ensure!(chosen == Some(b"h2"), "{chosen:?} is spoken");
        Ok(stream)
    }

    /// Shows a client this certificate, and speaks HTTP/2 with it.
    ///
    /// # Errors
    /// If the client does not want to.
    pub async fn accept_http2(&self, stream: TcpStream) -> Result<server::TlsStream<TcpStream>> {
        let key = PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes())?;
        let provider = Arc::new(ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_single_cert(vec![self.der.clone()], key)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        let accepting = TlsAcceptor::from(Arc::new(config)).accept(stream);
        accepting.await.context("no handshake")
    }

    async fn connect_to_speak(
        &self,
        addr: SocketAddr,
        version: &'static SupportedProtocolVersion,
        protocols: &[Vec<u8>],
    ) -> Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone())?;
        let provider = Arc::new(ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.to_vec();
        let name = ServerName::try_from("localhost")?;
        let stream = TcpStream::connect(addr).await?;
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        connecting.await.context("no handshake")
    }
}

//! The sockets for clients and operators, and whether TLS secures them.
//!
//! A certificate secures the clients' address, and the operators' own unless only this machine can
//! connect there: nobody else hears what goes over loopback, and no certificate names it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use pointsman_http::{Audience, Endpoint, Front, Tls, Transport};
use tokio::net::TcpListener;

use pointsman_config::Config;

/// The sockets for clients and operators.
pub(crate) struct Listeners {
    clients: TcpListener,
    /// Absent: where clients do.
    operators: Option<TcpListener>,
    /// The certificate; absent: connections are not secured.
    tls: Option<Arc<Tls>>,
}

/// The URL of the clients' address.
pub(crate) fn url(config: &Config, addr: SocketAddr) -> String {
    url_of(config.tls.as_ref(), addr)
}

/// The URL of an address that is the operators' own.
pub(crate) fn operators_url(config: &Config, addr: SocketAddr) -> String {
    url_of(of_operators(config.tls.as_ref(), addr), addr)
}

// === impl Listeners ===

impl Listeners {
    /// Listens where `config` says, and reads the certificate.
    pub(crate) async fn bind(config: &Config) -> Result<Self> {
        let tls = config.tls.clone().map(Tls::load).transpose();
        let tls = tls.context("tls")?.map(Arc::new);
        let clients = listen(config.listen).await?;
        let operators = match config.admin.listen {
            Some(addr) => Some(listen(addr).await.context("admin.listen")?),
            None => None,
        };
        Ok(Self {
            clients,
            operators,
            tls,
        })
    }

    /// The addresses of clients and of operators, if the latter have one of their own.
    pub(crate) fn addresses(&self) -> io::Result<(SocketAddr, Option<SocketAddr>)> {
        let operators = self.operators.as_ref().map(TcpListener::local_addr);
        Ok((self.clients.local_addr()?, operators.transpose()?))
    }

    /// Serves until both have ended, and reads the certificate again meanwhile.
    pub(crate) async fn serve(self, front: Arc<Front>) -> io::Result<()> {
        let Some(tls) = self.tls.clone() else {
            return self.answer(front).await;
        };
        tokio::select! {
            biased;
            served = self.answer(front) => served,
            // Never.
            () = tls.keep_fresh() => Ok(()),
        }
    }

    async fn answer(self, front: Arc<Front>) -> io::Result<()> {
        let tls = self.tls.as_ref();
        let clients = transport(tls);
        let endpoint = |audience| Endpoint {
            sockets: self.clients,
            audience,
            transport: clients,
        };
        let Some(operators) = self.operators else {
            return pointsman_http::serve(endpoint(Audience::Everybody), front).await;
        };
        let operators = Endpoint {
            transport: transport(of_operators(tls, operators.local_addr()?)),
            sockets: operators,
            audience: Audience::Operators,
        };
        let clients = pointsman_http::serve(endpoint(Audience::Clients), Arc::clone(&front));
        tokio::try_join!(clients, pointsman_http::serve(operators, front)).map(|((), ())| ())
    }
}

async fn listen(addr: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(addr).await;
    listener.with_context(|| format!("cannot listen on {addr}"))
}

/// The part of `tls`, all or nothing, that is for an address of the operators' own.
fn of_operators<T>(tls: Option<&T>, addr: SocketAddr) -> Option<&T> {
    tls.filter(|_| !addr.ip().is_loopback())
}

fn transport(tls: Option<&Arc<Tls>>) -> Transport {
    match tls {
        Some(tls) => Transport::Tls(Arc::clone(tls)),
        None => Transport::Plain,
    }
}

fn url_of<T>(tls: Option<&T>, addr: SocketAddr) -> String {
    let scheme = if tls.is_some() { "https" } else { "http" };
    format!("{scheme}://{addr}")
}

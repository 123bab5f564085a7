//! The sockets for clients and operators, and whether TLS secures them.
//!
//! A certificate secures the clients' address, and the operators' own unless only this machine can
//! connect there: nobody else hears what goes over loopback, and no certificate names it.
//!
//! All addresses of IPv6 are those of IPv4 too, whatever the system has them be, and those of IPv4 alone where it has
//! no IPv6.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result};
use pointsman_http::{Audience, Endpoint, Front, Tls, Transport};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket};
use tracing::info;

use pointsman_config::Config;

/// Connections that wait to be accepted, as far as the system has room for so many.
const WAITING_MAX: u32 = 1024;

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

/// The URL by which a client on this machine reaches the clients' address.
pub(crate) fn url_here(config: &Config, addr: SocketAddr) -> String {
    let ip = match addr.ip() {
        ip if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        ip => ip,
    };
    url(config, SocketAddr::new(ip, addr.port()))
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
    let listener = if addr.is_ipv6() && addr.ip().is_unspecified() {
        everywhere(addr).await
    } else {
        TcpListener::bind(addr).await
    };
    listener.with_context(|| format!("cannot listen on {addr}"))
}

/// Listens at `addr`, which stands for all addresses of this machine.
async fn everywhere(addr: SocketAddr) -> io::Result<TcpListener> {
    match of_both_families(addr) {
        Err(error) if may_lack_ipv6(error.kind()) => {
            info!(%error, "no IPv6 here: listening at the addresses of IPv4");
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, addr.port())).await
        }
        listener => listener,
    }
}

fn of_both_families(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    SockRef::from(&socket).set_only_v6(false)?;
    // As for any other address.
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(WAITING_MAX)
}

/// False if IPv4 would fare no better, or would hide that the port is taken.
fn may_lack_ipv6(kind: ErrorKind) -> bool {
    !matches!(kind, ErrorKind::AddrInUse | ErrorKind::PermissionDenied)
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

#[cfg(test)]
mod tests {
    use std::net::{self, IpAddr, Ipv6Addr, TcpStream};

    use super::*;

    #[tokio::test]
    async fn all_addresses_are_those_of_ipv4_and_of_ipv6() {
        let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let listener = listen(everywhere).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let own: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        for ip in own {
            if net::TcpListener::bind((ip, 0)).is_ok() {
                TcpStream::connect((ip, port)).unwrap();
            } else {
                println!("this machine has no {ip}");
            }
        }
    }

    #[test]
    fn a_client_on_this_machine_is_told_an_address_that_every_shell_takes() {
        let config = Config::of_text("").unwrap();
        let here = |addr: &str| url_here(&config, addr.parse().unwrap());
        assert_eq!(here("[::]:80"), "http://127.0.0.1:80");
        assert_eq!(here("10.0.0.1:80"), "http://10.0.0.1:80");
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_not_had_by_half() {
        let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let listener = listen(everywhere).await.unwrap();
        let taken = listener.local_addr().unwrap();
        let error = listen(taken).await.unwrap_err();
        let expected = format!("cannot listen on {taken}");
        assert_eq!(error.to_string(), expected);
    }
}

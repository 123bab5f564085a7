//! The lookup of hosts' names.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use tokio::net::lookup_host;

/// The way in which the names of backends that are looked up become addresses. By default the system is asked; a
/// test may have names whose addresses change.
#[derive(Clone)]
pub struct Lookup(Arc<LookUp>);

type LookUp = dyn Fn(String) -> Found + Send + Sync;

type Found = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

impl Lookup {
    /// A lookup by `look_up`, given a name and a port, as in `host:80`, each time.
    pub fn new<F>(look_up: impl Fn(String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    {
        Self(Arc::new(move |host| Box::pin(look_up(host))))
    }

    /// The addresses of a name.
    pub(crate) async fn addresses(&self, host: &str) -> io::Result<Vec<SocketAddr>> {
        let Self(look_up) = self;
        look_up(host.to_owned()).await
    }
}

impl Default for Lookup {
    fn default() -> Self {
        Self::new(|host| async move { Ok(lookup_host(host).await?.collect()) })
    }
}

impl fmt::Debug for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookup").finish_non_exhaustive()
    }
}

//! A way to say that there is something to look at, without saying what.

use std::fmt;
use std::sync::Arc;

/// Rings for whoever listens. Cheap to clone; ringing never waits.
#[derive(Clone)]
pub struct Bell(Arc<dyn Fn() + Send + Sync>);

impl Bell {
    /// Ringing it calls `ring`, which must not wait.
    pub fn new(ring: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(ring))
    }

    /// Rings.
    pub fn ring(&self) {
        (self.0)();
    }
}

impl Default for Bell {
    /// Nobody listens.
    fn default() -> Self {
        Self::new(|| ())
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bell")
    }
}
